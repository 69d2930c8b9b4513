package power

import (
	"context"
	"errors"
	"math"
	"time"

	"girassol.dev/siteagent/nvml"
)

// GPUs asks NVIDIA's management library; an *nvml.Client does.
type GPUs interface {
	Sample(ctx context.Context) ([]nvml.GPUSample, error)
}

// nvmlPatience is how long a look waits for NVML. Waking GPUs takes longer: the
// answer then comes with a later look.
const nvmlPatience = 2 * time.Second

// NVML reads NVIDIA's boards: the energy counter where there is one, else the power
// sensor, else the power limit times the utilisation. All figures are the board's,
// whatever part of it this machine or a MIG instance has. That the library cannot
// be read at all is for the client to tell.
func NVML(ctx context.Context, gpus GPUs) ([]Reading, []Fault) {
	if gpus == nil {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, nvmlPatience)
	defer cancel()
	samples, err := gpus.Sample(ctx)
	if err != nil {
		var whole *nvml.Error
		if errors.As(err, &whole) {
			return nil, nil
		}
		return nil, []Fault{{Device: "NVML", Problem: err.Error(), WayOut: "a driver that is being loaded answers by itself, else see dmesg | grep -e NVRM -e Xid"}}
	}
	var readings []Reading
	var faults []Fault
	for _, s := range samples {
		device := s.Address
		if device == "" {
			device = s.UUID
		}
		r, ok := nvmlBoard(s)
		r.Device = device
		switch {
		case ok:
			readings = append(readings, r)
		case s.Problem != nil:
			faults = append(faults, Fault{Device: device, Problem: s.Problem.Error(), WayOut: s.Problem.WayOut()})
		default:
			faults = append(faults, Fault{Device: device, Problem: "the GPU tells neither energy nor power",
				WayOut: "virtual GPUs and many consumer cards do not; the site's stated power model stands in (spec.power)"})
		}
	}
	return readings, faults
}

func nvmlBoard(s nvml.GPUSample) (Reading, bool) {
	r := Reading{Part: Accelerator, MaxWatts: maxBoardWatts, Accuracy: boardAccuracy}
	switch {
	case s.EnergyMillijoules != nil && *s.EnergyMillijoules <= math.MaxUint64/1000:
		r.Source, r.Cumulative, r.Microjoules = SourceNVML, true, *s.EnergyMillijoules*1000
	case s.PowerWatts != nil && *s.PowerWatts >= 0 && *s.PowerWatts <= maxBoardWatts:
		r.Source, r.Watts, r.Accuracy = SourceNVMLPower, *s.PowerWatts, boardPowerAccuracy
	case s.UtilisationPercent != nil && s.PowerLimitWatts != nil:
		m := limitModel(Accelerator, *s.PowerLimitWatts)
		if m.Validate() != nil {
			return r, false
		}
		r = m.reading(*s.UtilisationPercent / 100)
	default:
		return r, false
	}
	return r, true
}

// limitModel is the model of a device by its power limit. Idle it draws a seventh
// of that, or anything from nothing to twice as much.
func limitModel(part Part, limit float64) Model {
	return Model{Part: part, Watts: limit, IdleWatts: limit / 7, IdleError: limit / 7}
}

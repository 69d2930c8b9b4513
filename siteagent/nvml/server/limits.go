package server

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"

	"girassol.dev/siteagent/nvml"
)

// setLimit sets a GPU's power limit and returns the one before.
func (s *Server) setLimit(uuid string, watts float64) (*float64, error) {
	d, err := s.lib.DeviceByUUID(uuid)
	if err != nil {
		return nil, fmt.Errorf("GPU %s: %w", uuid, err)
	}
	before, err := d.LimitMilliwatts()
	if err != nil {
		return nil, err
	}
	least, most, err := d.LimitRangeMilliwatts()
	if err != nil {
		return nil, err
	}
	milliwatts := math.Round(watts * 1000)
	if !(milliwatts >= float64(least) && milliwatts <= float64(most)) {
		return nil, &nvml.Error{Code: nvml.OutOfRange, Detail: fmt.Sprintf("GPU %s takes limits of %g to %g W, not %g W", uuid, watt(least), watt(most), watts)}
	}
	if err := d.SetLimitMilliwatts(uint32(milliwatts)); err != nil {
		return nil, err
	}
	w := watt(before)
	if _, known := s.originals[uuid]; !known {
		s.originals[uuid] = w
	}
	return &w, nil
}

// restore the limit of one GPU, or all of them, as they were before the first was
// set. What fails stays to be put back.
func (s *Server) restore(uuid string) error {
	var all error
	for _, id := range slices.Sorted(maps.Keys(s.originals)) {
		if uuid != "" && id != uuid {
			continue
		}
		d, err := s.lib.DeviceByUUID(id)
		if err == nil {
			err = d.SetLimitMilliwatts(uint32(math.Round(s.originals[id] * 1000)))
		}
		if err != nil {
			all = errors.Join(all, asError(fmt.Sprintf("putting the limit of GPU %s back to %g W", id, s.originals[id]), err))
			continue
		}
		delete(s.originals, id)
	}
	return all
}

func watt(milliwatts uint32) float64 { return float64(milliwatts) / 1000 }

package power

import (
	"fmt"
	"time"
)

// The sources of energy figures, as update headers and metrics name them.
const (
	// SourceRAPL: counters of processor packages and their memory.
	SourceRAPL = "rapl"
	// SourceRAPLPlatform: the platform counter psys, used without any package's.
	SourceRAPLPlatform = "rapl-psys"
	// SourceAMDGPU: the energy counter of an AMD board.
	SourceAMDGPU = "amdgpu"
	// SourceAMDGPUPower: the power sensor of an AMD board, integrated.
	SourceAMDGPUPower = "amdgpu-power"
	// SourceNVML: the energy counter of an NVIDIA board.
	SourceNVML = "nvml"
	// SourceNVMLPower: the power sensor of an NVIDIA board, integrated.
	SourceNVMLPower = "nvml-power"
	// SourceModel: watts of a device's limit or stated ones, times utilisation.
	SourceModel = "model"
)

// The limits of what devices can draw, in watts, generous: more is no reading.
// They tell wraps from resets and bound what nobody saw.
const (
	maxZoneWatts  = 1500
	maxBoardWatts = 2500
)

// The calibration that is allowed for, as a share of the reading.
const (
	raplAccuracy       = 0.05
	boardAccuracy      = 0.05
	boardPowerAccuracy = 0.10
	modelAccuracy      = 0.30
)

// Part of a machine.
type Part string

// The parts that meters and models stand for.
const (
	Processor   Part = "processor"
	Accelerator Part = "accelerator"
)

// Reading is one look at a device.
type Reading struct {
	// Device is stable over driver reloads: "package-0", "0000:03:00.0".
	Device string
	Source string
	Part   Part
	// Cumulative readings are Microjoules since some start, others Watts.
	Cumulative  bool
	Microjoules uint64
	// Range is the value at which Microjoules begins at 0 again; 0: never.
	Range uint64
	Watts float64
	// Mean says that Watts is the mean since the reading before, within WattsError;
	// otherwise it is of this moment.
	Mean       bool
	WattsError float64
	// MaxWatts is more than the device draws; above 0.
	MaxWatts float64
	// Accuracy of the instrument as a share of its reading.
	Accuracy float64
}

// Fault is something that should have given a reading, and the way out.
type Fault struct{ Device, Problem, WayOut string }

func (f Fault) String() string {
	if f.WayOut == "" {
		return fmt.Sprintf("%s: %s", f.Device, f.Problem)
	}
	return fmt.Sprintf("%s: %s; %s", f.Device, f.Problem, f.WayOut)
}

// Sample is one look at the machine.
type Sample struct {
	At       time.Time
	Readings []Reading
	Faults   []Fault
}

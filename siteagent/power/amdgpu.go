package power

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
)

const hwmon = "sys/class/hwmon"

// AMDGPU reads the boards that the amdgpu driver shows below hwmon: the energy
// counter where there is one, else the power sensor. Of a board with two dies the
// driver may show the board's power at the first alone; the other is no fault.
func AMDGPU(root fs.FS) ([]Reading, []Fault) {
	entries, err := fs.ReadDir(root, hwmon)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil, nil
		}
		return nil, []Fault{{Device: "hwmon", Problem: err.Error()}}
	}
	var readings []Reading
	var faults []Fault
	for _, e := range entries {
		dir := path.Join(hwmon, e.Name())
		if name, err := readText(root, path.Join(dir, "name")); err != nil || name != "amdgpu" {
			continue // somebody else's sensor
		}
		device := e.Name() // its number may change with a driver reload, its slot does not
		if b, err := readFile(root, path.Join(dir, "device/uevent")); err == nil {
			if slot := parseSlot(b); slot != "" {
				device = slot
			}
		}
		r, err := board(root, dir)
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			f := Fault{Device: device, Problem: err.Error()}
			if errors.Is(err, fs.ErrPermission) {
				f.WayOut = "give the agent read access to /" + dir
			}
			faults = append(faults, f)
		default:
			r.Device = device
			readings = append(readings, r)
		}
	}
	return readings, faults
}

// board reads one hwmon folder; fs.ErrNotExist if it has neither energy nor power.
func board(root fs.FS, dir string) (Reading, error) {
	r := Reading{Part: Accelerator, MaxWatts: maxBoardWatts}
	uj, err := readNumber(root, path.Join(dir, "energy1_input"))
	if !errors.Is(err, fs.ErrNotExist) {
		r.Source, r.Cumulative, r.Microjoules, r.Accuracy = SourceAMDGPU, true, uj, boardAccuracy
		return r, err
	}
	uw, err := readNumber(root, path.Join(dir, "power1_average"))
	if errors.Is(err, fs.ErrNotExist) {
		uw, err = readNumber(root, path.Join(dir, "power1_input"))
	}
	if err != nil {
		return r, err
	}
	r.Source, r.Watts, r.Accuracy = SourceAMDGPUPower, float64(uw)/1e6, boardPowerAccuracy
	if r.Watts > r.MaxWatts {
		return r, fmt.Errorf("%.0f W is no power of a board", r.Watts)
	}
	return r, nil
}

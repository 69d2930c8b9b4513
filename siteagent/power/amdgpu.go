package power

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
)

const hwmon = "sys/class/hwmon"

// AMDGPU reads the boards that the amdgpu driver shows below hwmon: the energy
// counter where there is one, else the power sensor, else the power limit times the
// utilisation. Of a board with two dies the
// driver may show the board's power at the first alone; the other is no fault.
func AMDGPU(root fs.FS) ([]Reading, []Fault) {
	dirs, err := boardDirs(root)
	if err != nil {
		return nil, []Fault{{Device: "hwmon", Problem: err.Error()}}
	}
	var readings []Reading
	var faults []Fault
	for _, d := range dirs {
		r, err := board(root, d.dir)
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			f := Fault{Device: d.device, Problem: err.Error()}
			if errors.Is(err, fs.ErrPermission) {
				f.WayOut = "give the agent read access to /" + d.dir
			}
			faults = append(faults, f)
		default:
			r.Device = d.device
			readings = append(readings, r)
		}
	}
	return readings, faults
}

// boardDir is a board's folder in hwmon. Its device is the slot, which stays over a
// driver reload, when hwmon's number may change.
type boardDir struct{ dir, device string }

// boardDirs are amdgpu's; none without hwmon.
func boardDirs(root fs.FS) ([]boardDir, error) {
	entries, err := fs.ReadDir(root, hwmon)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil, nil
		}
		return nil, err
	}
	var out []boardDir
	for _, e := range entries {
		d := boardDir{dir: path.Join(hwmon, e.Name()), device: e.Name()}
		if name, err := readText(root, path.Join(d.dir, "name")); err != nil || name != "amdgpu" {
			continue // somebody else's sensor
		}
		if b, err := readFile(root, path.Join(d.dir, "device/uevent")); err == nil {
			if slot := parseSlot(b); slot != "" {
				d.device = slot
			}
		}
		out = append(out, d)
	}
	return out, nil
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
	if errors.Is(err, fs.ErrNotExist) {
		return limited(root, dir)
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

// limited models a board by its limit; fs.ErrNotExist without one. The second die
// of a board has the limit 0: the first stands for both.
func limited(root fs.FS, dir string) (Reading, error) {
	limit, err := readNumber(root, path.Join(dir, "power1_cap"))
	if err != nil {
		return Reading{}, err
	}
	busy, err := readNumber(root, path.Join(dir, "device/gpu_busy_percent"))
	if err != nil {
		return Reading{}, err
	}
	m := limitModel(Accelerator, float64(limit)/1e6)
	if limit == 0 || m.Watts > maxBoardWatts {
		return Reading{}, fs.ErrNotExist
	}
	return m.reading(min(float64(busy), 100) / 100), nil
}

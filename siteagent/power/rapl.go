package power

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"
)

const powercap = "sys/class/powercap"

const raplPermission = "the kernel lets only root read it: run `chmod a+r /sys/class/powercap/intel-rapl:*/energy_uj /sys/class/powercap/intel-rapl:*/*/energy_uj` as root at each boot, or give the agent CAP_DAC_READ_SEARCH"

const raplMasked = "container runtimes hide powercap: mount the host's /sys/class/powercap and /sys/devices/virtual/powercap below /host and say --powercap-root /host (on Kubernetes spec.agent.measureProcessors does it)"

// RAPL reads the counters of processor packages and of their memory, which AMD's
// and Intel's processors both show below intel-rapl. Cores and graphics are within
// their package, and the platform (psys) holds all packages, so none of them is
// added to a package; psys counts only where there is no package at all. The
// second interface to the same counters, intel-rapl-mmio, is passed over.
func RAPL(root fs.FS) ([]Reading, []Fault) {
	entries, err := fs.ReadDir(root, powercap)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil, nil // no powercap is normal
		}
		return nil, []Fault{raplFault("powercap", err)}
	}
	var packages, platform []zone
	var faults []Fault
	for _, e := range entries {
		number, ok := strings.CutPrefix(e.Name(), "intel-rapl:")
		if !ok {
			continue
		}
		z := zone{dir: path.Join(powercap, e.Name())}
		if z.name, err = readText(root, path.Join(z.dir, "name")); err != nil {
			faults = append(faults, raplFault(e.Name(), err))
			continue
		}
		parent, _, sub := strings.Cut(number, ":")
		switch {
		case z.name == "psys":
			platform = append(platform, z)
		case !sub && strings.HasPrefix(z.name, "package-"):
			packages = append(packages, z)
		case sub && z.name == "dram":
			z.name = "dram of zone " + parent
			packages = append(packages, z)
		}
	}
	source, zones := SourceRAPL, packages
	if len(zones) == 0 {
		source, zones = SourceRAPLPlatform, platform
	}
	var readings []Reading
	seen := map[string]bool{}
	for _, z := range zones {
		if seen[z.name] {
			continue // the same counter by two ways
		}
		seen[z.name] = true
		r, err := z.read(root)
		if err != nil {
			faults = append(faults, raplFault(z.name, err))
			continue
		}
		r.Source = source
		readings = append(readings, r)
	}
	return readings, faults
}

// zone of powercap.
type zone struct{ dir, name string }

func (z zone) read(root fs.FS) (Reading, error) {
	value, err := readNumber(root, path.Join(z.dir, "energy_uj"))
	if err != nil {
		return Reading{}, err
	}
	// Without the range a wrap would look like a reset, and its energy be a guess.
	most, err := readNumber(root, path.Join(z.dir, "max_energy_range_uj"))
	if err != nil {
		return Reading{}, err
	}
	if most == 0 || value > most {
		return Reading{}, fmt.Errorf("energy_uj is %d, beyond max_energy_range_uj, %d", value, most)
	}
	return Reading{
		Device: z.name, Part: Processor, Cumulative: true, Microjoules: value, Range: most,
		MaxWatts: maxZoneWatts, Accuracy: raplAccuracy,
	}, nil
}

func raplFault(device string, err error) Fault {
	f := Fault{Device: device, Problem: err.Error()}
	switch {
	case errors.Is(err, fs.ErrPermission):
		f.WayOut = raplPermission
	case errors.Is(err, fs.ErrNotExist):
		f.WayOut = raplMasked
	}
	return f
}

// processorLimit is the sum of the packages' power limits in watts, which everybody
// may read; 0 when unknown.
func processorLimit(root fs.FS) (watts float64) {
	entries, err := fs.ReadDir(root, powercap)
	if err != nil {
		return 0
	}
	seen := map[string]bool{}
	for _, e := range entries {
		dir := path.Join(powercap, e.Name())
		name, err := readText(root, path.Join(dir, "name"))
		if err != nil || !strings.HasPrefix(name, "package-") || !strings.HasPrefix(e.Name(), "intel-rapl:") || seen[name] {
			continue
		}
		seen[name] = true
		// The most that the long-term limit may be is what the maker says; where it
		// is not told the limit itself is near it.
		uw, err := readNumber(root, path.Join(dir, "constraint_0_max_power_uw"))
		if err != nil || uw == 0 {
			uw, err = readNumber(root, path.Join(dir, "constraint_0_power_limit_uw"))
		}
		if err != nil || uw == 0 || uw > maxZoneWatts*1e6 {
			return 0
		}
		watts += float64(uw) / 1e6
	}
	return watts
}

package power

import (
	"bytes"
	"fmt"
	"io/fs"
	"math"
	"strconv"
)

// Model stands in for a part of the machine, or for one device of it, of which no
// meter was ever read: it draws IdleWatts and, in proportion to its utilisation, up
// to Watts. Where the utilisation is not known the middle is taken, and the error
// spans both ends.
type Model struct {
	Part             Part
	Watts, IdleWatts float64
	// IdleError is how far off IdleWatts may be, either way.
	IdleError float64
}

// Validate refuses a model without meaning.
func (m Model) Validate() error {
	if m.Part != Processor && m.Part != Accelerator {
		return fmt.Errorf("power: a model of %q, want %s or %s", m.Part, Processor, Accelerator)
	}
	if !(m.IdleError >= 0) || m.IdleError > m.Watts {
		return fmt.Errorf("power: the idle power of the %s is off by %v W; say 0 to its watts", m.Part, m.IdleError)
	}
	if !(m.Watts > 0) || math.IsInf(m.Watts, 0) || !(m.IdleWatts >= 0) || m.IdleWatts > m.Watts {
		return fmt.Errorf("power: the model of the %s draws %v W idle and %v W at work; say 0 <= idle <= watts, watts above 0", m.Part, m.IdleWatts, m.Watts)
	}
	return nil
}

// reading at a utilisation of 0 to 1, NaN when unknown.
func (m Model) reading(utilisation float64) Reading {
	r := Reading{
		Device: "model of " + string(m.Part), Source: SourceModel, Part: m.Part,
		Mean: true, MaxWatts: m.Watts, Accuracy: modelAccuracy,
	}
	if math.IsNaN(utilisation) {
		r.Watts, r.WattsError = (m.Watts+m.IdleWatts)/2, (m.Watts-m.IdleWatts)/2+m.IdleError/2
	} else {
		utilisation = min(max(utilisation, 0), 1)
		r.Watts = m.IdleWatts + (m.Watts-m.IdleWatts)*utilisation
		r.WattsError = m.IdleError * (1 - utilisation)
	}
	return r
}

// cpuTimes are the processors' ticks since boot.
type cpuTimes struct{ busy, total uint64 }

func readCPUTimes(root fs.FS) (cpuTimes, error) {
	b, err := readFile(root, "proc/stat")
	if err != nil {
		return cpuTimes{}, err
	}
	return parseCPUTimes(b)
}

// parseCPUTimes reads the first line of /proc/stat: user nice system idle iowait
// irq softirq steal; what follows is already within user and nice.
func parseCPUTimes(b []byte) (cpuTimes, error) {
	line, _, _ := bytes.Cut(b, []byte("\n"))
	fields := bytes.Fields(line)
	if len(fields) < 5 || string(fields[0]) != "cpu" {
		return cpuTimes{}, fmt.Errorf("proc/stat begins with %.40q", line)
	}
	var t cpuTimes
	for i, f := range fields[1:min(len(fields), 9)] {
		v, err := strconv.ParseUint(string(f), 10, 48)
		if err != nil {
			return cpuTimes{}, fmt.Errorf("proc/stat: %.40q is no number of ticks", f)
		}
		t.total += v
		if i != 3 && i != 4 { // idle, iowait
			t.busy += v
		}
	}
	return t, nil
}

// since is the utilisation between two looks, 0 to 1; NaN when it cannot be told.
func (t cpuTimes) since(old cpuTimes) float64 {
	// iowait may fall, so busy may seem to grow by more than the total.
	if old.total == 0 || t.total <= old.total || t.busy < old.busy {
		return math.NaN()
	}
	return min(float64(t.busy-old.busy)/float64(t.total-old.total), 1)
}

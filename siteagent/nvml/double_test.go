package nvml

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// The test's own binary plays agent-nvml when it is started with a library, whose
// path is "<behaviour>:<folder>". In the folder it notes what it does.
func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == "--library" {
		behaviour, dir, _ := strings.Cut(os.Args[2], ":")
		(&double{behaviour, dir}).play()
		return
	}
	if len(os.Args) == 3 && os.Args[1] == "--agent" {
		playAgent(os.Args[2])
		return
	}
	goleak.VerifyTestMain(m)
}

type double struct{ behaviour, dir string }

// note a line in a file that a test reads.
func (d *double) note(line string) {
	f, err := os.OpenFile(d.dir+"/notes", os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		panic(err)
	}
	defer f.Close()
	fmt.Fprintln(f, line)
}

func notes(t *testing.T, dir string) []string {
	t.Helper()
	b, err := os.ReadFile(dir + "/notes")
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return strings.Fields(string(b))
}

func (d *double) play() {
	d.note("start=" + strconv.Itoa(os.Getpid()))
	limits := map[string]float64{}
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		var r Request
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			panic(err)
		}
		for uuid, limit := range r.Originals {
			limits[uuid] = limit.Before
		}
		d.note(string(r.Op))
		d.behave(r, limits)
	}
	for uuid, watts := range limits {
		d.note(fmt.Sprintf("restored:%s=%g", uuid, watts))
	}
	d.note("end")
}

func (d *double) behave(r Request, limits map[string]float64) {
	answer := Answer{ID: r.ID}
	switch d.behaviour {
	case "hang":
		for {
			time.Sleep(time.Hour)
		}
	case "slow": // until the test says so
		for {
			if _, err := os.Stat(d.dir + "/go"); err == nil {
				break
			}
			time.Sleep(time.Millisecond)
		}
	case "crash":
		fmt.Fprintln(os.Stderr, "symbol lookup error: nvmlWhatever")
		os.Exit(127)
	case "crash once":
		if f, err := os.OpenFile(d.dir+"/crashed", os.O_CREATE|os.O_EXCL, 0o600); err == nil {
			f.Close()
			os.Exit(1)
		}
	case "garbage":
		fmt.Println("Segmentation fault")
	case "flood":
		for {
			if _, err := os.Stdout.Write(make([]byte, 1<<16)); err != nil {
				return
			}
		}
	case "another's answer":
		answer.ID += 5
	case "empty":
	case "no library":
		answer.Unavailable, answer.Error = true, &Error{NoLibrary, "libnvidia-ml.so.1 is not there"}
	case "refusing":
		answer.Error = &Error{NoPermission, "setPowerLimit: Insufficient Permissions"}
	}
	if d.behaviour != "empty" && answer.Error == nil {
		switch r.Op {
		case OpInventory:
			answer.Inventory = &Inventory{DriverVersion: "550.90.07", GPUs: []GPU{{GPUSample: GPUSample{UUID: "GPU-1"}}}}
		case OpSample:
			answer.Samples = []GPUSample{{UUID: "GPU-1", EnergyMillijoules: new(uint64(42))}}
		case OpSetPowerLimit:
			before := 700.0
			answer.BeforeWatts = &before
			if limits[r.UUID] = before; r.Keep {
				delete(limits, r.UUID)
			}
		case OpRestorePowerLimits:
			delete(limits, r.UUID)
			if r.UUID == "" {
				clear(limits)
			}
		}
	}
	line, err := json.Marshal(answer)
	if err != nil {
		panic(err)
	}
	fmt.Println(string(line))
}

// playAgent is an agent that sets a limit and then works for ever.
func playAgent(dir string) {
	c := New(Options{Path: os.Args[0], Library: "good:" + dir})
	if _, err := c.SetPowerLimit(context.Background(), "GPU-1", 400); err != nil {
		panic(err)
	}
	fmt.Println("set")
	for {
		time.Sleep(time.Hour)
	}
}

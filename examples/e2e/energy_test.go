package e2e

import (
	"bytes"
	"encoding/csv"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
)

// machine is a tree of files that an agent takes for its machine's: processors with
// a counter that goes on, and a GPU whose power can be capped.
type machine struct {
	t    *testing.T
	root string

	mu    sync.Mutex
	drawn float64 // joules
}

const wattsBefore = "560000000"

func newMachine(t *testing.T, c *cluster) *machine {
	m := &machine{t: t, root: filepath.Join(c.dir, "machine")}
	for name, text := range map[string]string{
		"sys/class/powercap/intel-rapl:0/name":                "package-0",
		"sys/class/powercap/intel-rapl:0/max_energy_range_uj": "262143328850",
		"sys/class/powercap/intel-rapl:0/energy_uj":           "0",
		"sys/class/hwmon/hwmon3/name":                         "amdgpu",
		"sys/class/hwmon/hwmon3/device/uevent":                "PCI_SLOT_NAME=0000:03:00.0",
		"sys/class/hwmon/hwmon3/power1_cap":                   wattsBefore,
	} {
		c.write(filepath.Join("machine", name), text+"\n")
	}
	stop := make(chan struct{})
	var group sync.WaitGroup
	group.Go(func() {
		tick := time.NewTicker(50 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-stop:
				return
			case <-tick.C:
				m.draw(10)
			}
		}
	})
	t.Cleanup(func() { close(stop); group.Wait() })
	return m
}

// draw lets the counter show more; in one piece, as the kernel's does.
func (m *machine) draw(joules float64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.drawn += joules
	file := filepath.Join(m.root, "sys/class/powercap/intel-rapl:0/energy_uj")
	next := filepath.Join(m.root, "next")
	if err := os.WriteFile(next, fmt.Appendf(nil, "%d\n", uint64(m.drawn*1e6)), 0o644); err != nil {
		m.t.Error(err)
	}
	if err := os.Rename(next, file); err != nil {
		m.t.Error(err)
	}
}

func (m *machine) total() float64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.drawn
}

func (m *machine) limit() string {
	b, err := os.ReadFile(filepath.Join(m.root, "sys/class/hwmon/hwmon3/power1_cap"))
	if err != nil {
		m.t.Error(err)
	}
	return strings.TrimSpace(string(b))
}

func (m *machine) untilLimit(want string) {
	m.t.Helper()
	for deadline := time.Now().Add(patience); m.limit() != want; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			m.t.Fatalf("the GPU's limit is %s µW, want %s", m.limit(), want)
		}
	}
}

// startMeasured starts the agent of the first site on the machine.
func (c *cluster) startMeasured(m *machine, flags ...string) *process {
	c.t.Helper()
	args := append([]string{"agent", "--coordinator", c.addr, "--federation", "e2e", "--site", "a", "--node", "n1", "--data", filepath.Join(c.dir, "agent-a"),
		"--retry-max", "500ms", "--nvml", "off", "--machine-root", m.root}, flags...)
	args = append(args, "--", binary, "trainer", "--data", filepath.Join(c.dir, "text", "a"), "--held-out", filepath.Join(c.dir, "held-out"),
		"--seed", "1", "--dim", "16", "--layers", "1", "--heads", "2", "--context", "32", "--batch", "2", "--evaluate-tokens", "256")
	p := c.run("agent-a", args...)
	c.agents["a"] = p
	return p
}

// measured are the joules of the machine, without the PUE, that the report says are
// measured, and its whole energy.
func (c *cluster) measured() (measured, all float64) {
	c.t.Helper()
	cmd := exec.Command(cli, "report", "--address", c.addr)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		c.t.Fatalf("girassol report: %v: %s", err, stderr.String())
	}
	rows, err := csv.NewReader(bytes.NewReader(out)).ReadAll()
	if err != nil {
		c.t.Fatal(err)
	}
	column := map[string]int{}
	for i, name := range rows[0] {
		column[name] = i
	}
	for _, row := range rows[1:] {
		if row[column["scope"]] != "site" {
			continue
		}
		figure := func(name string) float64 {
			v, err := strconv.ParseFloat(row[column[name]], 64)
			if err != nil {
				c.t.Fatalf("%s of %v: %v", name, row, err)
			}
			return v
		}
		all = figure("kwh") * 3.6e6 / energyPUE
		if figure("uncertainty_kwh") <= 0 {
			c.t.Errorf("no uncertainty in %v", row)
		}
		return figure("measured_share") * all, all
	}
	c.t.Fatalf("no site in %s", out)
	return 0, 0
}

const energyPUE = 1.5

func TestTheReportBooksWhatTheMachinesCounterMeasured(t *testing.T) {
	c := newCluster(t, spec{algorithm: "DiLoCo", sites: 1, rounds: quickRounds})
	c.edit("federation.yaml", "idleWatts: 10", "idleWatts: 10, pue: 1500m")
	m := newMachine(t, c)
	c.startCoordinator()
	agent := c.startMeasured(m, "--power-cap-watts", "200")
	booked := func(atLeast float64) {
		t.Helper()
		c.until(fmt.Sprintf("booked %g measured joules", atLeast), func(s *coordinatorv1.FederationStatus) bool {
			l := site(s, "a").GetLedger()
			return l.GetMetered()*l.GetEnergyKwh()*3.6e6/energyPUE > atLeast && strings.Contains(l.GetEnergySource(), "rapl")
		})
	}
	check := func() {
		t.Helper()
		measured, all := c.measured()
		if drawn := m.total(); measured > drawn || all < measured {
			t.Errorf("%.0f J are measured of %.0f J; the machine drew %.0f J", measured, all, drawn)
		}
	}
	booked(500)
	check()
	m.untilLimit("200000000")
	// What is drawn while the coordinator is away is told when it is back, once.
	before, _ := c.measured()
	c.coord.kill()
	m.draw(2000)
	c.startCoordinator()
	booked(before + 2000)
	check()
	m.untilLimit("200000000")
	agent.kill()
	if m.limit() != "200000000" {
		t.Fatalf("killed in mid-round, the GPU's limit is %s µW", m.limit())
	}
	c.startMeasured(m)
	m.untilLimit(wattsBefore)
	// A new process' counter begins anew and is no reason to book anything twice.
	before, _ = c.measured()
	booked(before + 200)
	check()
	st := c.untilVersion(2)
	if e := site(st, "a").GetMembers()[0].GetEnergy(); e.GetSource() != "rapl" || e.GetBoot() == 0 || e.GetMeteredJoules() != e.GetJoules() {
		t.Errorf("the member tells %v", e)
	}
	c.stop()
}

func TestACapIsPutBackWhenTheAgentEndsInOrder(t *testing.T) {
	c := newCluster(t, spec{algorithm: "DiLoCo", sites: 1, rounds: quickRounds})
	m := newMachine(t, c)
	c.startCoordinator()
	agent := c.startMeasured(m, "--power-cap-watts", "250", "--measure-energy=false")
	m.untilLimit("250000000")
	agent.signal(syscall.SIGTERM)
	if code := agent.wait(); code != 0 {
		t.Errorf("the agent ended with code %d", code)
	}
	if m.limit() != wattsBefore {
		t.Errorf("the GPU's limit is %s µW after the agent's end", m.limit())
	}
	c.coord.signal(syscall.SIGTERM)
	c.coord.wait()
}

package agent

import (
	"maps"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	"girassol.dev/internal/algorithm"
	"girassol.dev/siteagent/power"
)

// meter gives the same figure for every span and counts those that are open.
type meter struct {
	result power.Result

	mu           sync.Mutex
	begun, ended int
}

func (m *meter) Start() func() power.Result {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.begun++
	return func() power.Result {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.ended++
		return m.result
	}
}

func (m *meter) Counter() (power.Counter, bool) {
	return power.Counter{Energy: power.Energy{Joules: 1234, Uncertainty: 5}, Metered: 1200, Source: "model+rapl"}, m.result.Source != ""
}

func (m *meter) Figures() power.Figures {
	return power.Figures{
		Totals: map[string]power.Energy{power.SourceRAPL: {Joules: 1234, Uncertainty: 5}},
		Watts:  map[string]float64{power.SourceRAPL: 99}, Events: map[power.Event]int64{power.Wrapped: 3},
	}
}

// lid counts who holds the cap.
type lid struct {
	mu         sync.Mutex
	held, most int
}

func (l *lid) Hold() func() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.held++
	l.most = max(l.most, l.held)
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.held--
	}
}

func (l *lid) InForce() float64 { return 250 }

func TestHeartbeatsTellTheCounterAndItsBoot(t *testing.T) {
	m := &meter{result: power.Result{Source: "rapl"}}
	c := newCoordinator(t, algorithm.DecoupledMomentum, small)
	r := launch(t, c, "", nil, func(cfg *Config) { cfg.Energy = m })
	beat := func() *coordinatorv1.Energy {
		var e *coordinatorv1.Energy
		c.waitBeat("a heartbeat with energy", func(h *coordinatorv1.Heartbeat) bool {
			e = h.GetEnergy()
			return e != nil
		})
		return e
	}
	first := beat()
	if first.GetJoules() != 1234 || first.GetMeteredJoules() != 1200 || first.GetUncertaintyJoules() != 5 || first.GetSource() != "model+rapl" || first.GetBoot() == 0 {
		t.Errorf("%v", first)
	}
	r.stop()
	if a, b := newBoot(), newBoot(); a == b {
		t.Errorf("two processes have the boot %d", a)
	}
	silent := &Agent{cfg: Config{Energy: &meter{}}}
	if e := silent.energy(); e != nil {
		t.Errorf("what is not the machine's is told as such: %v", e)
	}
}

func TestPowerIsCappedWhileARoundIsAtWork(t *testing.T) {
	for _, fail := range []string{"", "out of memory"} {
		l := &lid{}
		c := newCoordinator(t, algorithm.DecoupledMomentum, small)
		r := launch(t, c, "", &person{t: t, fail: fail}, func(cfg *Config) { cfg.PowerCap = l })
		c.waitReady(0)
		c.tell(c.grant(1, 2, long))
		c.waitBeat("done with round 1", func(h *coordinatorv1.Heartbeat) bool {
			return h.GetState() == coordinatorv1.MemberState_MEMBER_STATE_READY && h.GetRound() == 1
		})
		r.stop()
		if l.most != 1 || l.held != 0 {
			t.Errorf("%q: held %d times at once, %d left", fail, l.most, l.held)
		}
	}
}

func TestUpdateTellsTheEnergyOfItsRound(t *testing.T) {
	for _, c := range []struct {
		name   string
		result power.Result
		joules float64
		source string
	}{
		{"measured", power.Result{Energy: power.Energy{Joules: 42, Uncertainty: 2}, Source: "rapl", Coverage: 1}, 42, "rapl"},
		{"no meter", power.Result{}, 0, ""},
		{"a meter that saw nothing of the round", power.Result{Energy: power.Energy{Joules: 42, Uncertainty: 900}, Source: "rapl"}, 0, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := &meter{result: c.result}
			co := newCoordinator(t, algorithm.DecoupledMomentum, small)
			r := launch(t, co, "", &person{t: t}, func(cfg *Config) { cfg.Energy = m })
			co.waitReady(0)
			co.tell(co.grant(1, 2, long))
			if h := co.waitPushes(1)[0].header; h.GetEnergyJoules() != c.joules || h.GetEnergySource() != c.source {
				t.Errorf("header tells %g J by %q", h.GetEnergyJoules(), h.GetEnergySource())
			}
			r.stop()
			if m.begun != 1 || m.ended != 1 {
				t.Errorf("%d spans begun, %d ended", m.begun, m.ended)
			}
		})
	}
}

func TestSpanOfAFailedRoundIsClosed(t *testing.T) {
	m := &meter{}
	c := newCoordinator(t, algorithm.DecoupledMomentum, small)
	r := launch(t, c, "", &person{t: t, fail: "out of memory"}, func(cfg *Config) { cfg.Energy = m })
	c.waitReady(0)
	c.tell(c.grant(1, 2, long))
	c.waitBeat("done with round 1", func(h *coordinatorv1.Heartbeat) bool {
		return h.GetState() == coordinatorv1.MemberState_MEMBER_STATE_READY && h.GetRound() == 1
	})
	r.stop()
	if m.begun != 1 || m.ended != 1 {
		t.Errorf("%d spans begun, %d ended", m.begun, m.ended)
	}
}

func TestEnergyMetricsNameTheirSource(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(newEnergyCollector(&meter{}, &lid{}, "lm", "porto"))
	families, err := reg.Gather()
	must(t, err)
	got := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			name := f.GetName()
			for _, l := range m.GetLabel() {
				if l.GetName() == "source" || l.GetName() == "event" {
					name += " " + l.GetValue()
				}
			}
			got[name] = m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
	want := map[string]float64{
		"girassol_agent_energy_joules_total rapl": 1234, "girassol_agent_energy_uncertainty_joules_total rapl": 5,
		"girassol_agent_power_watts rapl": 99, "girassol_agent_power_cap_watts": 250,
		"girassol_agent_energy_events_total the counter wrapped": 3,
	}
	if !maps.Equal(got, want) {
		t.Errorf("%v", got)
	}
}

func TestEnergyOfAnUpdateOutlivesTheAgent(t *testing.T) {
	m := &meter{result: power.Result{Energy: power.Energy{Joules: 42}, Source: "rapl", Coverage: 1}}
	c := newCoordinator(t, algorithm.DecoupledMomentum, small)
	c.pushDown = true
	r := launch(t, c, "", &person{t: t}, func(cfg *Config) { cfg.Energy = m })
	c.waitReady(0)
	c.tell(c.grant(7, 2, long))
	c.waitBeat("uploading", func(h *coordinatorv1.Heartbeat) bool {
		return h.GetState() == coordinatorv1.MemberState_MEMBER_STATE_UPLOADING
	})
	r.stop()
	launch(t, c, r.dir, nil)
	c.do(func() { c.pushDown = false })
	if h := c.waitPushes(1)[0].header; h.GetEnergyJoules() != 42 || h.GetEnergySource() != "rapl" {
		t.Errorf("header tells %g J by %q", h.GetEnergyJoules(), h.GetEnergySource())
	}
}

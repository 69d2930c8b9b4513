package app

import (
	"log/slog"
	"math"
	"testing"
	"time"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	"girassol.dev/coordinator/engine"
	"girassol.dev/signals/ledger"
	"pgregory.net/rapid"
)

// meteringRig is an accountant of two sites whose clock a test moves. Training takes
// 100 W and waiting 10 W by the stated model; the PUE of porto is 1.5.
type meteringRig struct {
	t     testing.TB
	dir   string
	clock *hands
	a     *accountant
}

func newMeteringRig(t testing.TB) *meteringRig {
	r := &meteringRig{t: t, dir: t.(interface{ TempDir() string }).TempDir(), clock: &hands{now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}}
	r.open()
	return r
}

// open starts an accountant from the books, as after a kill.
func (r *meteringRig) open() {
	r.t.Helper()
	old, err := readBooks(r.dir)
	if err != nil {
		r.t.Fatal(err)
	}
	power := map[string]ledger.Power{
		"porto": {TrainingWatts: 100, IdleWatts: 10, PUE: 1.5}, "faro": {TrainingWatts: 100, IdleWatts: 10, PUE: 1},
	}
	r.a, err = newAccountant(r.dir, r.clock, 1, map[string]ledger.Grid{"porto": {Marginal: flat(360)}}, power, old, slog.New(slog.DiscardHandler))
	if err != nil {
		r.t.Fatal(err)
	}
	r.a.virtual = false
	r.a.meters = &metering{}
	r.a.meters.restore(old.Counters, power, r.a.last)
}

// told is what a member tells: joules, all metered, by a boot; away has no session.
type tells struct {
	site     string
	boot     uint64
	joules   float64
	metered  float64 // of the joules; below 0: all
	training bool
	idle     bool // the site is not admitted
	away     bool
	none     bool // a session without a counter
	silent   bool // a session whose first heartbeat has not come
}

// pass lets seconds go by, at whose end the members tell this.
func (r *meteringRig) pass(seconds float64, members ...tells) {
	r.clock.now = r.clock.now.Add(time.Duration(seconds * 1e9))
	acts := map[string]*engine.Activity{"porto": {Site: "porto", Admitted: true}, "faro": {Site: "faro", Admitted: true}}
	for _, m := range members {
		if m.site == "" {
			m.site = "porto"
		}
		act := acts[m.site]
		act.Admitted = act.Admitted && !m.idle
		if m.away {
			continue
		}
		act.Members++
		if m.training {
			act.Training++
		}
		if m.none || m.silent {
			act.Energies = append(act.Energies, engine.MemberEnergy{Member: m.site + "/n1", Training: m.training, Silent: m.silent})
			continue
		}
		e := &coordinatorv1.Energy{Joules: m.joules, MeteredJoules: m.joules, UncertaintyJoules: m.joules / 20, Source: "rapl", Boot: m.boot}
		if m.metered != 0 {
			e.MeteredJoules = max(m.metered, 0)
		}
		act.Energies = append(act.Energies, engine.MemberEnergy{Member: m.site + "/n1", Training: m.training, Counter: e})
	}
	r.a.add(engine.Activities{Round: 7, Sites: []engine.Activity{*acts["porto"], *acts["faro"]}})
}

func TestMeasuredEnergyIsBookedOnceAndTheModelFillsTheGaps(t *testing.T) {
	type step struct {
		seconds float64
		tells   tells
		restart bool // before it, from the books as last kept
		keep    bool // after it
	}
	for _, c := range []struct {
		name               string
		steps              []step
		measured, modelled float64 // joules of porto's machine, without PUE
	}{
		{
			name: "no counter: the model", modelled: 2000,
			steps: []step{{10, tells{none: true, training: true}, false, false}, {10, tells{none: true, training: true}, false, false}},
		},
		{
			name: "an agent's own model is no counter", modelled: 2000,
			steps: []step{{10, tells{boot: 1, joules: 50, metered: -1, training: true}, false, false}, {10, tells{boot: 1, joules: 9000, metered: -1, training: true}, false, false}},
		},
		{
			name: "the model until the counter is known, its differences from then", measured: 3000, modelled: 1000,
			steps: []step{{10, tells{boot: 1, joules: 500, training: true}, false, false}, {10, tells{boot: 1, joules: 2500, training: true}, false, false}, {10, tells{boot: 1, joules: 3500}, false, false}},
		},
		{
			name: "parts that the agent models are no measure", measured: 1500, modelled: 1000 + 500,
			steps: []step{{10, tells{boot: 1, joules: 500, training: true}, false, false}, {10, tells{boot: 1, joules: 2500, metered: 2000, training: true}, false, false}},
		},
		{
			name: "nothing told yet is nothing booked yet", measured: 2000, modelled: 1000,
			steps: []step{{10, tells{boot: 1, joules: 500, training: true}, false, false}, {30, tells{boot: 1, joules: 500, training: true}, false, false}, {1, tells{boot: 1, joules: 2500}, false, false}},
		},
		{
			name: "a new boot begins anew, and the model fills what the old one did not tell", measured: 1000 + 700, modelled: 1000 + 500 + 100,
			steps: []step{
				{10, tells{boot: 1, joules: 500, training: true}, false, false}, {10, tells{boot: 1, joules: 1500, training: true}, false, false},
				{5, tells{boot: 1, joules: 1500, training: true}, false, false},
				{1, tells{boot: 2, joules: 90000, training: true}, false, false}, {10, tells{boot: 2, joules: 90700, training: true}, false, false},
			},
		},
		{
			name: "an older heartbeat takes nothing back and adds nothing", measured: 3000, modelled: 1000,
			steps: []step{
				{10, tells{boot: 1, joules: 500, training: true}, false, false}, {10, tells{boot: 1, joules: 2500, training: true}, false, false},
				{1, tells{boot: 1, joules: 1500, training: true}, false, false}, {9, tells{boot: 1, joules: 3500, training: true}, false, false},
			},
		},
		{
			name: "a counter that fell without a new boot: the model until it is beyond what was told", measured: 300, modelled: 1000 + 13000 + 100 + 100,
			steps: []step{
				{10, tells{boot: 1, joules: 5000, training: true}, false, false}, {130, tells{boot: 1, joules: 40, training: true}, false, false},
				{10, tells{boot: 1, joules: 4900}, false, false}, {10, tells{boot: 1, joules: 5100}, false, false}, {10, tells{boot: 1, joules: 5400}, false, false},
			},
		},
		{
			name: "a counter that stands still for too long, and goes on", measured: 70, modelled: 1000 + 13000 + 1000,
			steps: []step{
				{10, tells{boot: 1, joules: 500, training: true}, false, false}, {130, tells{boot: 1, joules: 500, training: true}, false, false},
				{10, tells{boot: 1, joules: 9500, training: true}, false, false}, {10, tells{boot: 1, joules: 9570, training: true}, false, false},
			},
		},
		{
			name: "a session that was away for a moment", measured: 4000, modelled: 1000,
			steps: []step{
				{10, tells{boot: 1, joules: 500, training: true}, false, false}, {30, tells{away: true}, false, false}, {10, tells{boot: 1, joules: 4500, training: true}, false, false},
			},
		},
		{
			name: "a counter that is gone for a while: the model", measured: 2000 + 10, modelled: 1000 + 2000,
			steps: []step{
				{10, tells{boot: 1, joules: 500, training: true}, false, false}, {10, tells{boot: 1, joules: 2500, training: true}, false, false},
				{10, tells{none: true, training: true}, false, false}, {10, tells{boot: 1, joules: 9000, training: true}, false, false}, {10, tells{boot: 1, joules: 9010}, false, false},
			},
		},
		{
			name: "a member that stays away: the model as long as it had a session", measured: 0, modelled: 1000 + 1000,
			steps: []step{
				{10, tells{boot: 1, joules: 500, training: true}, false, false}, {10, tells{boot: 1, joules: 500, training: true}, false, false},
				{150, tells{away: true}, false, false}, {0.001, tells{boot: 1, joules: 99999}, false, false},
			},
		},
		{
			name: "not admitted and not training: not the federation's", measured: 1000, modelled: 0,
			steps: []step{
				{10, tells{boot: 1, joules: 500, idle: true}, false, false}, {100, tells{boot: 1, joules: 90500, idle: true}, false, false},
				{10, tells{boot: 1, joules: 91500}, false, false},
			},
		},
		{
			name: "of a difference only the time that counts", measured: 1000, modelled: 0,
			steps: []step{
				{10, tells{boot: 1, joules: 500, idle: true}, false, false}, {10, tells{boot: 1, joules: 500, idle: true}, false, false},
				{10, tells{boot: 1, joules: 2500}, false, false},
			},
		},
		{
			name: "a restart of the coordinator: the counter has told what was drawn meanwhile", measured: 2000 + 3000, modelled: 1000,
			steps: []step{
				{10, tells{boot: 1, joules: 500, training: true}, false, false}, {10, tells{boot: 1, joules: 2500, training: true}, false, true},
				{20, tells{boot: 1, joules: 4500, training: true}, true, false}, {10, tells{boot: 1, joules: 5500, training: true}, false, false},
			},
		},
		{
			name: "killed before the books were kept: told again, counted once", measured: 5000, modelled: 1000,
			steps: []step{
				{10, tells{boot: 1, joules: 500, training: true}, false, true}, {10, tells{boot: 1, joules: 2500, training: true}, false, false},
				{10, tells{boot: 1, joules: 5500, training: true}, true, false},
			},
		},
		{
			name: "a session that has not told anything yet has not lost its counter", measured: 2000 + 3000, modelled: 1000,
			steps: []step{
				{10, tells{boot: 1, joules: 500, training: true}, false, false}, {10, tells{boot: 1, joules: 2500, training: true}, false, true},
				{20, tells{silent: true}, true, false}, {10, tells{boot: 1, joules: 5500, training: true}, false, false},
			},
		},
		{
			name: "a session that never tells anything: the model", modelled: 1000 + 1000 + 1300,
			steps: []step{
				{10, tells{boot: 1, joules: 500, training: true}, false, false}, {10, tells{silent: true, training: true}, false, false},
				{130, tells{silent: true}, false, false},
			},
		},
		{
			name: "what is metered may be told after what is modelled", measured: 1900, modelled: 1000 + 150,
			steps: []step{
				{10, tells{boot: 1, joules: 500, training: true}, false, false}, {1, tells{boot: 1, joules: 550, metered: 500, training: true}, false, false},
				{10, tells{boot: 1, joules: 2550, metered: 2400, training: true}, false, false},
			},
		},
		{
			name: "the agent restarts while the coordinator is away", measured: 2000 + 100, modelled: 1000 + 500,
			steps: []step{
				{10, tells{boot: 1, joules: 500, training: true}, false, false}, {10, tells{boot: 1, joules: 2500, training: true}, false, true},
				{10, tells{boot: 2, joules: 40, training: true}, true, false}, {10, tells{boot: 2, joules: 140, training: true}, false, false},
			},
		},
		{
			name: "more than a machine draws", modelled: 1000 + 1000 + 1000,
			steps: []step{
				{10, tells{boot: 1, joules: 500, training: true}, false, false}, {10, tells{boot: 1, joules: 1e300, training: true}, false, false},
				{10, tells{boot: 1, joules: 1e300, training: true}, false, false}, {0.001, tells{boot: 1, joules: 1e300, away: true}, false, false},
				{130, tells{away: true}, false, false},
			},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newMeteringRig(t)
			last := 0.0
			for i, s := range c.steps {
				if s.restart {
					// The rest of the span went by while nobody was there.
					r.clock.now = r.clock.now.Add(time.Duration(s.seconds / 2 * 1e9))
					r.open()
					s.seconds /= 2
					last = 0 // what was not kept is told again
				}
				r.pass(s.seconds, s.tells)
				if now := r.a.ledger.Account("porto").Joules; now < last {
					t.Errorf("step %d: %g J after %g J", i, now, last)
				} else {
					last = now
				}
				if s.keep {
					r.a.unsaved = true
					r.a.keep()
				}
			}
			a := r.a.ledger.Account("porto")
			if measured, modelled := a.MeasuredJoules/1.5, (a.Joules-a.MeasuredJoules)/1.5; math.Abs(measured-c.measured) > 0.2 || math.Abs(modelled-c.modelled) > 0.2 {
				t.Errorf("%g J measured, %g J modelled; want %g and %g", measured, modelled, c.measured, c.modelled)
			}
		})
	}
}

func TestANodeThatMovesToAnotherSiteTakesNothingAlong(t *testing.T) {
	r := newMeteringRig(t)
	r.pass(10, tells{boot: 1, joules: 100, training: true})
	r.pass(10, tells{boot: 1, joules: 1100, training: true})
	r.pass(10, tells{away: true}, tells{site: "faro", boot: 2, joules: 5000, training: true})
	r.pass(130, tells{away: true}, tells{site: "faro", boot: 2, joules: 6000, training: true})
	if a := r.a.ledger.Account("porto"); a.MeasuredJoules != 1500 || math.Abs(a.Joules-1500-1500) > 1e-6 {
		t.Errorf("porto: %+v", a)
	}
	if a := r.a.ledger.Account("faro"); a.MeasuredJoules != 1000 || a.Joules != 2000 {
		t.Errorf("faro: %+v", a)
	}
	if len(r.a.meters.counters) != 1 {
		t.Errorf("%d counters are remembered", len(r.a.meters.counters))
	}
}

func TestLedgersTellSourcesSharesRoundsAndUncertainty(t *testing.T) {
	r := newMeteringRig(t)
	r.pass(10, tells{boot: 1, joules: 100, training: true}) // 1000 J by the model
	r.pass(10, tells{boot: 1, joules: 3100, training: true})
	r.a.keep()
	r.open()
	e := r.a.entries()["porto"]
	if e.Source != "model+rapl" || e.EnergyJoules != 6000 || e.MeteredJoules != 4500 || !nearly(e.UncertaintyJoules, 1.5*(300+150)) {
		t.Errorf("%+v", e)
	}
	// 6000 J at 360 g/kWh.
	if e.MarginalGrams == nil || !nearly(*e.MarginalGrams, 0.6) {
		t.Errorf("%+v", e)
	}
	rounds := r.a.ledger.Rounds()
	if len(rounds) != 1 || rounds[0].Round != 7 || rounds[0].Account.MeasuredJoules != 4500 {
		t.Errorf("%+v", rounds)
	}
}

// A member's figures must not make the books unreadable.
func TestAnUncertaintyBeyondAllMeasureIsBounded(t *testing.T) {
	r := newMeteringRig(t)
	tell := func(joules, uncertainty float64) {
		r.clock.now = r.clock.now.Add(time.Second)
		e := &coordinatorv1.Energy{Joules: joules, MeteredJoules: joules, UncertaintyJoules: uncertainty, Source: "rapl", Boot: 1}
		r.a.add(engine.Activities{Sites: []engine.Activity{{Site: "porto", Admitted: true, Members: 1, Energies: []engine.MemberEnergy{{Member: "porto/n1", Counter: e}}}}})
	}
	for i := range 6 {
		tell(float64(100*(i+1)), float64(i%2)*math.MaxFloat64)
	}
	r.a.keep()
	r.open()
	if a := r.a.ledger.Account("porto"); !nearly(a.MeasuredJoules, 1.5*500) || !(a.UncertaintyJoules < 1e7) {
		t.Errorf("%+v", a)
	}
}

func nearly(a, b float64) bool { return math.Abs(a-b) < 1e-6 }

// Whatever agents tell: no energy is taken back, and none is booked twice, over
// kills of the coordinator and of the agent.
func TestMeasuredEnergyIsNeverMoreThanWasDrawn(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		r := newMeteringRig(t)
		r.dir = t.TempDir()
		r.open()
		var drawn, counter, kept float64
		boot, there := uint64(1), false
		for range rapid.IntRange(1, 60).Draw(rt, "steps") {
			seconds := rapid.SampledFrom([]float64{0.1, 1, 5, 30, 125}).Draw(rt, "seconds")
			joules := rapid.Float64Range(0, 500).Draw(rt, "watts") * seconds
			drawn, counter = drawn+joules, counter+joules
			m := tells{boot: boot, joules: counter, training: rapid.Bool().Draw(rt, "training")}
			switch rapid.IntRange(0, 8).Draw(rt, "what") {
			case 0:
				boot, counter = boot+1, rapid.Float64Range(0, 10).Draw(rt, "new counter")
				m.boot, m.joules = boot, counter
			case 1:
				m.away = true
			case 2:
				if there { // an older heartbeat; none is a session's first
					m.joules /= 2
				}
			case 3:
				r.a.keep()
				kept = r.a.ledger.Account("porto").Joules
			case 4:
				r.open()
				if got := r.a.ledger.Account("porto").Joules; got < kept {
					rt.Fatalf("%g J after a restart, %g J were kept", got, kept)
				}
			}
			there = !m.away
			before := r.a.ledger.Account("porto").Joules
			r.pass(seconds, m)
			a := r.a.ledger.Account("porto")
			if a.Joules < before || a.MeasuredJoules/1.5 > drawn+1e-6 || !(a.UncertaintyJoules >= 0) {
				rt.Fatalf("%+v after %g J; %g J were drawn", a, before, drawn)
			}
		}
	})
}

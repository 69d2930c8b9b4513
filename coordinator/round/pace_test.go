package round

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
)

// A modelled fleet: each machine's steps take its own time with noise, and each
// round something beside them.
type machineModel struct {
	name     string
	step     time.Duration
	overhead time.Duration
	// loads is what it takes in addition until the first step of its process, which
	// begins with round loadsIn.
	loads   time.Duration
	loadsIn uint64
	// slows from this round on by this factor, in the middle of it.
	slowsIn uint64
	factor  float64

	budget, steps uint64
	granted       time.Time
	finish        bool
	next          time.Time // its next event
	measured      time.Duration
	stepped       time.Duration
}

// fleet drives a machine by the events of its models.
type fleet struct {
	m       *Machine
	now     time.Time
	rng     *rand.Rand
	noise   float64
	models  []*machineModel
	beat    time.Duration
	reports map[uint64]map[string]time.Duration // finish times since the round's start
	planned map[uint64]time.Duration
	weights map[uint64]map[string]uint64
	stops   map[uint64][]string
	started map[uint64]time.Time
}

func newFleet(seed uint64, noise float64, models ...*machineModel) *fleet {
	f := &fleet{
		now: time.Unix(1_700_000_000, 0), rng: rand.New(rand.NewPCG(seed, 1)), noise: noise, models: models, beat: time.Second,
		reports: map[uint64]map[string]time.Duration{}, weights: map[uint64]map[string]uint64{},
		stops: map[uint64][]string{}, started: map[uint64]time.Time{}, planned: map[uint64]time.Duration{},
	}
	var sites []string
	for _, d := range models {
		sites = append(sites, siteOf(d.name))
	}
	f.m = New(Config{Sites: sites, LocalSteps: 100, Train: 10 * time.Minute, Collect: time.Minute, Join: time.Minute, Settle: 5 * time.Second}, 0, 0, 0, f.now)
	f.m.Hold()
	f.m.SetModel(f.now)
	for _, d := range models {
		if _, _, err := f.m.SetMembership(f.now, siteOf(d.name), Admit, time.Time{}, v1alpha1.ReasonRequested, ""); err != nil {
			panic(err)
		}
		if _, err := f.m.Join(f.now, d.name, siteOf(d.name), 1); err != nil {
			panic(err)
		}
		f.m.Heard(f.now, d.name, 1, Report{State: MemberReady})
	}
	f.act(f.m.Release(f.now))
	return f
}

func (f *fleet) model(name string) *machineModel {
	i := slices.IndexFunc(f.models, func(d *machineModel) bool { return d.name == name })
	return f.models[i]
}

// takes is how long something takes this time.
func (f *fleet) takes(d time.Duration) time.Duration {
	return time.Duration(float64(d) * math.Exp(f.noise*f.rng.NormFloat64()))
}

func (f *fleet) act(actions []Action) {
	for _, a := range actions {
		switch a := a.(type) {
		case Grant:
			d := f.model(a.Member)
			d.budget, d.steps, d.finish, d.granted, d.stepped = a.MaxSteps, 0, false, f.now, 0
			d.next = f.now.Add(f.takes(d.overhead / 2))
			if a.Round == d.loadsIn {
				d.next = d.next.Add(d.loads)
			}
			if f.started[a.Round].IsZero() {
				f.started[a.Round], f.planned[a.Round] = f.now, f.m.span
				f.reports[a.Round], f.weights[a.Round] = map[string]time.Duration{}, map[string]uint64{}
			}
		case Stop:
			f.model(a.Member).finish = true
			f.stops[a.Round] = append(f.stops[a.Round], a.Member)
		case Commit:
			f.act(f.m.Committed(f.now))
			for _, d := range f.models {
				f.act(f.m.Heard(f.now, d.name, 1, Report{State: MemberReady, Round: a.Round, Step: d.measured}))
			}
		}
	}
}

// run lets rounds pass.
func (f *fleet) run(rounds uint64) {
	beat := f.now.Add(f.beat)
	for f.m.committed < rounds {
		next := earlier(beat, f.m.Next())
		for _, d := range f.models {
			next = earlier(next, d.next)
		}
		f.now = next
		if f.now.Equal(beat) {
			beat = beat.Add(f.beat)
			for _, d := range f.models {
				f.heard(d)
			}
		}
		for _, d := range f.models {
			if d.next.Equal(f.now) {
				f.advance(d)
			}
		}
		f.act(f.m.Tick(f.now))
	}
}

func (f *fleet) heard(d *machineModel) {
	if f.m.Working(d.name) {
		f.act(f.m.Heard(f.now, d.name, 1, Report{State: MemberWorking, Round: f.m.round, Steps: d.steps, Step: d.measured}))
	}
}

// advance ends what the machine was at and begins the next.
func (f *fleet) advance(d *machineModel) {
	round := f.m.round
	if d.stepped > 0 {
		d.steps++
		d.measured = d.stepped / time.Duration(d.steps)
	}
	switch {
	case d.next.IsZero():
	case d.steps > 0 && (d.steps >= d.budget || d.finish) && d.budget > 0: // saved and sent next
		f.heard(d) // it says that it uploads
		d.budget = 0
		d.next = f.now.Add(f.takes(d.overhead / 2))
		d.stepped = 0
	case d.budget == 0:
		d.next = time.Time{}
		f.reports[round][d.name] = f.now.Sub(f.started[round])
		f.weights[round][d.name] = d.steps
		if _, ok := f.m.Expecting(f.now, d.name, round); !ok {
			panic(fmt.Sprintf("round %d: the update of %s is not expected", round, d.name))
		}
		f.act(f.m.Accepted(f.now, d.name, d.steps))
	default:
		step := d.step
		if d.slowsIn > 0 && (round > d.slowsIn || round == d.slowsIn && d.steps >= d.budget/2) {
			step = time.Duration(float64(step) * d.factor)
		}
		took := f.takes(step)
		d.stepped += took
		d.next = f.now.Add(took)
	}
}

// spread of a round's finish times as a part of its length.
func (f *fleet) spread(round uint64) float64 {
	var first, last time.Duration
	for _, at := range f.reports[round] {
		if first == 0 || at < first {
			first = at
		}
		last = max(last, at)
	}
	return float64(last-first) / float64(last)
}

func fourTimesApart() []*machineModel {
	return []*machineModel{
		{name: "a/n", step: 100 * time.Millisecond, overhead: 300 * time.Millisecond},
		{name: "b/n", step: 200 * time.Millisecond, overhead: time.Second},
		{name: "c/n", step: 400 * time.Millisecond, overhead: 500 * time.Millisecond},
		{name: "d/n", step: 400 * time.Millisecond, overhead: 2 * time.Second},
	}
}

func TestSitesFourTimesApartFinishWithinATenthOfTheRound(t *testing.T) {
	worst := 0.0
	var all []float64
	for seed := range uint64(40) {
		f := newFleet(seed, 0.1, fourTimesApart()...)
		const warmUp, rounds = 2, 12
		f.run(rounds)
		for round := uint64(warmUp + 1); round <= rounds; round++ {
			got := f.spread(round)
			all = append(all, got)
			if worst = max(worst, got); got >= 0.1 {
				t.Errorf("seed %d, round %d: finish times %v spread over %.1f %% of the round", seed, round, f.reports[round], 100*got)
			}
			if n := len(f.weights[round]); n != 4 {
				t.Errorf("seed %d, round %d: %d updates", seed, round, n)
			}
		}
		// The first round knows no speeds: nobody waits for the slowest's last step.
		if last := slices.Max(slices.Collect(maps.Values(f.reports[1]))); last > 100*200*time.Millisecond*14/10 {
			t.Errorf("seed %d: the first round lasted %s", seed, last)
		}
	}
	slices.SortFunc(all, cmp.Compare)
	t.Logf("spread: median %.1f %%, worst %.1f %%", 100*all[len(all)/2], 100*worst)
}

func TestSiteThatSlowsDownInMidRoundDoesNotHoldUpTheOthers(t *testing.T) {
	for seed := range uint64(40) {
		models := fourTimesApart()
		models[1].slowsIn, models[1].factor = 5, 4
		f := newFleet(seed, 0.1, models...)
		f.run(10)
		planned := f.planned[5]
		last := slices.Max(slices.Collect(maps.Values(f.reports[5])))
		// Its own step and what comes after it, and the noise of the others.
		if most := planned*115/100 + 2*time.Second; last > most {
			t.Errorf("seed %d: the round lasted %s, planned were %s: %v", seed, last, planned, f.reports[5])
		}
		if !slices.Contains(f.stops[5], "b/n") { // others may be by the noise
			t.Errorf("seed %d: %v were called back, b/n was not", seed, f.stops[5])
		}
		if steps := f.weights[5]["b/n"]; steps == 0 || len(f.weights[5]) != 4 {
			t.Errorf("seed %d: updates of steps %v, partial work must count", seed, f.weights[5])
		}
		for round := uint64(8); round <= 10; round++ {
			if got := f.spread(round); got >= 0.1 {
				t.Errorf("seed %d, round %d: the spread is %.1f %% with the new speed known", seed, round, 100*got)
			}
		}
	}
}

func TestWhatATrainerTakesOnceToLoadDoesNotStarveItAfterwards(t *testing.T) {
	for _, tc := range []struct {
		name    string
		in      uint64 // it loads in this round,
		settled uint64 // and from this one on everybody has the usual share
	}{{"its first round", 1, 3}, {"started again in round 5", 5, 7}} {
		for seed := range uint64(40) {
			models := fourTimesApart()
			models[0].loads, models[0].loadsIn = time.Minute, tc.in
			f := newFleet(seed, 0.1, models...)
			f.run(tc.settled + 3)
			for round := tc.settled; round <= tc.settled+3; round++ {
				// 400 steps in all, the fastest of speeds 10, 5, 2.5 and 2.5 does half.
				if got := f.weights[round]["a/n"]; got < 150 || got > 260 {
					t.Errorf("%s, seed %d: round %d gave it %d steps: %v", tc.name, seed, round, got, f.weights[round])
				}
			}
		}
	}
}

func TestAStepTimeThatCannotBeEndsNobodysRoundAtOnce(t *testing.T) {
	f := newFleet(1, 0, fourTimesApart()...)
	for _, d := range f.models {
		d.measured = time.Second
	}
	f.models[0].measured = 1
	f.m.Pause(f.now)
	for _, d := range f.models {
		f.m.Refused(f.now, d.name, 1)
		f.m.Heard(f.now, d.name, 1, Report{State: MemberReady, Round: 1, Step: d.measured})
	}
	f.m.Resume(f.now)
	f.m.Tick(f.now.Add(f.m.cfg.Settle))
	if f.m.round != 2 || f.m.span < 300*time.Millisecond {
		t.Errorf("round %d lasts %s", f.m.round, f.m.span)
	}
}

func TestOverheadIsAMovingMeanOfWhatSaysSomething(t *testing.T) {
	start := time.Unix(0, 0)
	mb := &member{step: 100 * time.Millisecond}
	took := func(took time.Duration) *share { return &share{since: start, steps: 10, stepsAt: start.Add(took)} }
	mb.measure(took(3*time.Second), time.Minute)
	mb.measure(took(2*time.Second), time.Minute)
	if mb.aside() != 1500*time.Millisecond {
		t.Errorf("overhead is %s after 2s and 1s", mb.aside())
	}
	for name, change := range map[string]func(*share){
		"evaluated too": func(sh *share) { sh.evaluates = true },
		"reconnected":   func(sh *share) { sh.disturbed = true }, "no steps": func(sh *share) { sh.steps = 0 },
	} {
		sh := took(9 * time.Second)
		change(sh)
		mb.measure(sh, time.Minute)
		if mb.aside() != 1500*time.Millisecond {
			t.Errorf("%s: overhead is %s", name, mb.aside())
		}
	}
	for range 20 {
		mb.measure(took(time.Hour), time.Minute)
	}
	if mb.aside() > 30*time.Second {
		t.Errorf("overhead is %s of a minute to train", mb.aside())
	}
	for range 20 {
		mb.measure(took(0), time.Minute)
	}
	if mb.aside() != 0 {
		t.Errorf("overhead is %s where steps were faster than said", mb.aside())
	}
}

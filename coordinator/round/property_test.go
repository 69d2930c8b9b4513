package round

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
)

// TestAnyOrderOfInputs feeds random inputs in random order, under a clock that
// stops at Next or jumps past it, and checks what must hold whatever happens.
func TestAnyOrderOfInputs(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t)
		t.Repeat(map[string]func(*rapid.T){
			"": w.check,
			"advance": func(t *rapid.T) {
				to := w.now.Add(time.Duration(rapid.IntRange(0, 20_000).Draw(t, "ms")) * time.Millisecond)
				w.advance(t, to)
			},
			"advance to Next": func(t *rapid.T) {
				if next := w.m.Next(); !next.IsZero() {
					w.advance(t, next)
				}
			},
			// The caller is late: an input comes after Next without a Tick.
			"clock jumps": func(t *rapid.T) {
				w.now = w.now.Add(time.Duration(rapid.IntRange(0, 20_000).Draw(t, "ms")) * time.Millisecond)
				w.join(t)
			},
			"model":  func(t *rapid.T) { w.do(t, func(m *Machine) []Action { return m.SetModel(w.now) }) },
			"pause":  func(t *rapid.T) { w.do(t, func(m *Machine) []Action { return m.Pause(w.now) }) },
			"resume": func(t *rapid.T) { w.do(t, func(m *Machine) []Action { return m.Resume(w.now) }) },
			"admit":  func(t *rapid.T) { w.membership(t, Admit) },
			"membership": func(t *rapid.T) {
				w.membership(t, rapid.SampledFrom([]Membership{Admit, Drain, Exclude}).Draw(t, "want"))
			},
			"join": w.join,
			"lose": func(t *rapid.T) {
				name, epoch := w.session(t)
				w.do(t, func(m *Machine) []Action { return m.Lose(w.now, name, epoch, v1alpha1.ReasonConnectionLost) })
			},
			"leave": func(t *rapid.T) {
				name, epoch := w.session(t)
				by := w.now.Add(time.Duration(rapid.IntRange(-1, 8).Draw(t, "s")) * time.Second)
				w.do(t, func(m *Machine) []Action { return m.Leave(w.now, name, epoch, by, "bye") })
			},
			// Everybody that has no work is ready: without this, few rounds begin.
			"all ready": func(t *rapid.T) {
				for _, name := range w.members {
					if !w.m.Working(name) {
						r := Report{State: MemberReady, Round: w.m.round}
						w.do(t, func(m *Machine) []Action { return m.Heard(w.now, name, w.epochs[name], r) })
					}
				}
			},
			"heard": func(t *rapid.T) {
				name, epoch := w.session(t)
				r := Report{
					State: rapid.SampledFrom([]MemberState{MemberBusy, MemberReady, MemberWorking}).Draw(t, "state"),
					Round: w.recentRound(t),
					Steps: rapid.Uint64Range(0, 30).Draw(t, "steps"),
					Step:  rapid.SampledFrom([]time.Duration{0, -1, 1, 100 * time.Millisecond, time.Second, time.Hour}).Draw(t, "step"),
				}
				w.do(t, func(m *Machine) []Action { return m.Heard(w.now, name, epoch, r) })
			},
			"update":  w.update,
			"another": w.update,
			// The caller is late: an update comes after Next without a Tick.
			"late update": func(t *rapid.T) {
				w.now = w.now.Add(time.Duration(rapid.IntRange(0, 20_000).Draw(t, "ms")) * time.Millisecond)
				w.update(t)
				w.do(t, func(m *Machine) []Action { return m.Tick(w.now) })
			},
			"withhold": w.withhold,
			"complete": func(t *rapid.T) {
				if rapid.IntRange(0, 9).Draw(t, "complete") == 0 {
					w.do(t, func(m *Machine) []Action { return m.Complete(w.now, "all data is used") })
				}
			},
			"committed":     func(t *rapid.T) { w.do(t, func(m *Machine) []Action { return m.Committed(w.now) }) },
			"commit failed": w.commitFailed,
			"roll back": func(t *rapid.T) {
				if rapid.IntRange(0, 3).Draw(t, "rolls back") == 0 {
					w.do(t, func(m *Machine) []Action { return m.RollBack(w.now, v1alpha1.ReasonEvaluationWorse, "goes back") })
				}
			},
			"rolled back": func(t *rapid.T) { w.do(t, func(m *Machine) []Action { return m.RolledBack(w.now) }) },
		})
	})
}

// world is a pair of machines that get the same inputs, and what is known of
// them from outside.
type world struct {
	cfg     Config
	m, twin *Machine
	now     time.Time
	members []string
	epochs  map[string]uint64

	round    uint64          // of the newest grant
	deadline time.Time       // of that round
	granted  map[string]bool // "member epoch" in that round
	accepted map[string]bool // in that round; false if its site was excluded afterwards
	withheld map[string]bool // in that round
	drainBy  map[string]time.Time
	shown    map[string]SiteChanged
	startBy  time.Time // when a start that is possible must have happened
	ended    bool
}

func newWorld(t *rapid.T) *world {
	w := &world{
		cfg: Config{
			Sites:              []string{"a", "b", "c"},
			Total:              rapid.SampledFrom([]uint64{0, 3}).Draw(t, "total"),
			MinSites:           rapid.IntRange(0, 3).Draw(t, "min sites"),
			LocalSteps:         rapid.SampledFrom([]uint64{0, 20, 1 << 62}).Draw(t, "local steps"),
			Train:              10 * time.Second,
			Collect:            rapid.SampledFrom([]time.Duration{0, 5 * time.Second}).Draw(t, "collect"),
			Join:               rapid.SampledFrom([]time.Duration{0, 30 * time.Second}).Draw(t, "join"),
			Settle:             rapid.SampledFrom([]time.Duration{0, time.Second, 20 * time.Second}).Draw(t, "settle"),
			Grace:              5 * time.Second,
			MaxConsecutiveVoid: rapid.SampledFrom([]uint64{0, 0, 3}).Draw(t, "max void"),
		},
		now:     time.Unix(1_700_000_000, 0),
		members: []string{"a/n1", "a/n2", "b/n1", "c/n1"},
		epochs:  map[string]uint64{}, granted: map[string]bool{}, accepted: map[string]bool{},
		drainBy: map[string]time.Time{}, shown: map[string]SiteChanged{}, withheld: map[string]bool{},
	}
	last := rapid.Uint64Range(0, 9).Draw(t, "last round")
	w.round = last
	w.m, w.twin = New(w.cfg, last, 0, 0, w.now), New(w.cfg, last, 0, 0, w.now)
	w.do(t, func(m *Machine) []Action { return m.Tick(w.now) })
	return w
}

// do gives both machines an input and looks at what they ask for.
func (w *world) do(t *rapid.T, input func(*Machine) []Action) {
	out, twin := input(w.m), input(w.twin)
	if !reflect.DeepEqual(out, twin) {
		t.Fatalf("the same inputs lead to other actions:\n%v\n%v", out, twin)
	}
	if a, b := w.m.Status(), w.twin.Status(); !reflect.DeepEqual(a, b) {
		t.Fatalf("the same inputs lead to another status:\n%v\n%v", a, b)
	}
	for _, a := range out {
		w.took(t, a)
	}
}

func (w *world) took(t *rapid.T, a Action) {
	if _, isSite := a.(SiteChanged); w.ended && !isSite {
		if _, isDrain := a.(DrainMember); !isDrain {
			t.Fatalf("%#v after the end", a)
		}
	}
	switch a := a.(type) {
	case Grant:
		site := siteOf(a.Member)
		mb := w.m.members[a.Member]
		switch {
		case a.Round < w.round, a.Round > w.round+1:
			t.Fatalf("round %d is granted after round %d", a.Round, w.round)
		case a.Round > w.round:
			w.round, w.deadline = a.Round, a.Deadline
			clear(w.withheld)
			clear(w.granted)
			clear(w.accepted)
		}
		key := fmt.Sprint(a.Member, " ", w.epochs[a.Member])
		switch {
		case w.granted[key]:
			t.Fatalf("session %s is granted round %d twice", key, a.Round)
		case w.withheld[a.Member]:
			t.Fatalf("%s has no data in round %d and is granted it again", a.Member, a.Round)
		case w.reported(a.Member):
			t.Fatalf("%s has reported and is asked again for round %d", a.Member, a.Round)
		case w.m.paused || w.m.goingBack != "" || !w.m.hasModel || w.m.sites[site].membership != Admit || !mb.connected:
			t.Fatalf("%s gets a grant that it must not have", a.Member)
		case !a.StopAt.After(w.now) || a.Deadline.Before(a.StopAt) || !a.Deadline.Equal(w.deadline):
			t.Fatalf("grant at %s with stop %s and deadline %s, the round's is %s", w.now, a.StopAt, a.Deadline, w.deadline)
		case (a.MaxSteps == 0) != (w.cfg.LocalSteps == 0):
			t.Fatalf("grant of %d steps with LocalSteps %d", a.MaxSteps, w.cfg.LocalSteps)
		}
		w.granted[key] = true
	case Commit:
		if a.Round != w.round || !slices.IsSorted(a.Members) {
			t.Fatalf("%#v in round %d", a, w.round)
		}
		want := slices.DeleteFunc(slices.Sorted(maps.Keys(w.accepted)), func(name string) bool { return !w.accepted[name] })
		if !slices.Equal(a.Members, want) {
			t.Fatalf("commit of %v, accepted were %v", a.Members, want)
		}
		sites := map[string]bool{}
		for _, name := range a.Members {
			sites[siteOf(name)] = true
		}
		if len(sites) == 0 {
			t.Fatalf("commit of nothing in round %d", a.Round)
		}
		for name := range w.withheld {
			sites[siteOf(name)] = true
		}
		if len(sites) < max(1, w.cfg.MinSites) {
			t.Fatalf("commit of %v with MinSites %d", a.Members, w.cfg.MinSites)
		}
	case Void:
		if a.Round != w.round || a.Reason == "" || a.Message == "" {
			t.Fatalf("%#v in round %d", a, w.round)
		}
	case SiteChanged:
		w.shown[a.Site] = a
	case Ended:
		w.ended = true
	}
}

// check is what holds after every input.
func (w *world) check(t *rapid.T) {
	m := w.m
	next := m.Next()
	if !next.IsZero() && !next.After(w.now) {
		t.Fatalf("Next is %s, now is %s", next, w.now)
	}
	st := m.Status()
	if st.Message == "" || st.Reason == "" || st.Phase == "" {
		t.Fatalf("a silent status: %+v", st)
	}
	switch m.state {
	case Collecting:
		if next.IsZero() || next.After(m.deadline) || len(st.WaitingFor) == 0 {
			t.Fatalf("round %d waits for %v; Next is %s, the deadline %s", m.round, st.WaitingFor, next, m.deadline)
		}
	case Waiting:
		// A start that is possible happens within Join or Settle, however inputs come.
		if !m.canStart() {
			w.startBy = time.Time{}
			break
		}
		if w.startBy.IsZero() {
			w.startBy = w.now.Add(max(w.cfg.Join, w.cfg.Settle))
		}
		if next.IsZero() || next.After(w.startBy) {
			t.Fatalf("a round can start; Next is %s, it must have started by %s", next, w.startBy)
		}
	}
	if m.state != Waiting {
		w.startBy = time.Time{}
	}
	for _, s := range m.Sites() {
		if s.Phase == "" || s.Reason == "" {
			t.Fatalf("a silent site: %+v", s)
		}
		if shown := w.shown[s.Name]; shown.Phase != s.Phase || shown.Reason != s.Reason {
			t.Fatalf("site %s is %s %s, last reported was %s %s", s.Name, s.Phase, s.Reason, shown.Phase, shown.Reason)
		}
	}
	for _, name := range w.members {
		by, drains := w.drainBy[siteOf(name)]
		if drains && !w.now.Before(by) && m.Working(name) {
			t.Fatalf("%s works on past its drain's deadline", name)
		}
		if mb := m.members[name]; mb != nil && mb.connected && !mb.leaving.IsZero() && !w.now.Before(mb.leaving) {
			t.Fatalf("%s is still there past the time by which it leaves", name)
		}
	}
}

func (w *world) reported(member string) bool {
	_, ok := w.accepted[member]
	return ok
}

func siteOf(member string) string { return strings.SplitN(member, "/", 2)[0] }

package round

import (
	"time"

	"pgregory.net/rapid"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
)

// advance lets time pass as a caller does: it ticks at every Next.
func (w *world) advance(t *rapid.T, to time.Time) {
	for range 1000 {
		next := w.m.Next()
		if next.IsZero() || next.After(to) {
			next = to
		}
		w.now = next
		before := w.m.state
		round := w.m.round
		w.do(t, func(m *Machine) []Action { return m.Tick(w.now) })
		if before == Collecting && round == w.m.round && w.m.state == Collecting && !w.now.Before(w.deadline) {
			t.Fatalf("round %d goes on at its deadline", round)
		}
		if w.now.Equal(to) {
			return
		}
	}
	t.Fatal("Next never ends")
}

func (w *world) join(t *rapid.T) {
	name := rapid.SampledFrom(w.members).Draw(t, "member")
	w.epochs[name]++
	w.do(t, func(m *Machine) []Action {
		out, err := m.Join(w.now, name, siteOf(name), w.epochs[name])
		if err != nil {
			t.Fatal(err)
		}
		return out
	})
}

// session is mostly a member's newest, sometimes a fenced one.
func (w *world) session(t *rapid.T) (string, uint64) {
	name := rapid.SampledFrom(w.members).Draw(t, "member")
	epoch := w.epochs[name]
	if epoch > 0 && rapid.IntRange(0, 9).Draw(t, "fenced") == 0 {
		epoch--
	}
	return name, epoch
}

func (w *world) recentRound(t *rapid.T) uint64 {
	n := w.m.round + 1
	return n - min(n, rapid.SampledFrom([]uint64{1, 1, 1, 1, 2, 0, n}).Draw(t, "round back"))
}

func (w *world) membership(t *rapid.T, want Membership) {
	site := rapid.SampledFrom(w.cfg.Sites).Draw(t, "site")
	var deadline time.Time
	if rapid.Bool().Draw(t, "with deadline") {
		deadline = w.now.Add(time.Duration(rapid.IntRange(-2, 20).Draw(t, "s")) * time.Second)
	}
	if w.m.sites[site].membership != want {
		delete(w.drainBy, site)
		switch want {
		case Drain:
			w.drainBy[site] = deadline
			if deadline.IsZero() {
				w.drainBy[site] = w.now.Add(w.cfg.Grace)
			}
		case Exclude:
			for name := range w.accepted {
				if w.m.state == Collecting && siteOf(name) == site {
					w.accepted[name] = false
				}
			}
		}
	}
	w.do(t, func(m *Machine) []Action {
		_, out, err := m.SetMembership(w.now, site, want, deadline, v1alpha1.ReasonRequested, "as drawn")
		if err != nil {
			t.Fatal(err)
		}
		return out
	})
}

func (w *world) update(t *rapid.T) {
	name := rapid.SampledFrom(w.members).Draw(t, "member")
	round := w.recentRound(t)
	reason, ok := w.m.Expecting(w.now, name, round)
	if !ok {
		if reason == "" {
			t.Fatalf("%s: an update of round %d is not expected, without a reason", name, round)
		}
		return
	}
	switch {
	case round != w.round || w.m.state != Collecting || !w.now.Before(w.deadline):
		t.Fatalf("%s: an update of round %d is expected in round %d, %s", name, round, w.round, w.m.state)
	case w.reported(name):
		t.Fatalf("%s: a second update of round %d is expected", name, round)
	case !w.m.Working(name):
		t.Fatalf("%s: an update is expected of a member that does not work", name)
	}
	if by, drains := w.drainBy[siteOf(name)]; drains && !w.now.Before(by) {
		t.Fatalf("%s: an update is expected past its drain's deadline", name)
	}
	if rapid.IntRange(0, 3).Draw(t, "bad") == 0 {
		w.do(t, func(m *Machine) []Action { return m.Refused(w.now, name, round) })
		return
	}
	w.accepted[name] = true
	steps := rapid.Uint64Range(1, 30).Draw(t, "steps")
	w.do(t, func(m *Machine) []Action { return m.Accepted(w.now, name, steps) })
}

func (w *world) withhold(t *rapid.T) {
	var names []string
	for _, name := range w.members {
		if rapid.IntRange(0, 3).Draw(t, "no data for "+name) == 0 {
			names = append(names, name)
			if w.m.state == Collecting && w.m.Working(name) {
				w.withheld[name] = true
			}
		}
	}
	w.do(t, func(m *Machine) []Action { return m.Withhold(w.now, names) })
}

func (w *world) commitFailed(t *rapid.T) {
	if rapid.IntRange(0, 3).Draw(t, "fails") == 0 {
		w.do(t, func(m *Machine) []Action {
			return m.CommitFailed(w.now, v1alpha1.ReasonNothingToMerge, "all weights are zero")
		})
	}
}

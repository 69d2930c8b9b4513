package round

import (
	"fmt"
	"strings"
	"testing"
	"time"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
)

func TestInputsThatNameTheImpossibleAreErrorsWithoutEffect(t *testing.T) {
	now := time.Unix(0, 0)
	m := New(Config{Sites: []string{"a", "b"}, Train: time.Second}, 0, 0, 0, now)
	if _, err := m.Join(now, "a/n1", "a", 1); err != nil {
		t.Fatal(err)
	}
	_, _, unknown := m.SetMembership(now, "a", "Retire", time.Time{}, v1alpha1.ReasonRequested, "")
	_, moved := m.Join(now, "a/n1", "b", 2)
	for name, tc := range map[string]struct {
		err  error
		want string
	}{
		"membership": {unknown, `"Retire" is none of Admit, Drain, Exclude`},
		"site":       {moved, `belongs to site "a", not "b"`},
	} {
		if tc.err == nil || !strings.Contains(tc.err.Error(), tc.want) {
			t.Errorf("%s: error is %v, want one that says %s", name, tc.err, tc.want)
		}
	}
	if got := m.Sites()[0].Membership; got != Drain {
		t.Errorf("membership is %s after a refused wish", got)
	}
	if m.members["a/n1"].epoch != 1 {
		t.Error("a refused session took over")
	}
}

func TestStepBudgetIsKnownWhileTheRoundIsAtWork(t *testing.T) {
	now := time.Unix(0, 0)
	m := New(Config{Sites: []string{"a"}, LocalSteps: 7, Train: time.Second}, 0, 0, 0, now)
	m.SetModel(now)
	if _, _, err := m.SetMembership(now, "a", Admit, time.Time{}, v1alpha1.ReasonRequested, ""); err != nil {
		t.Fatal(err)
	}
	if _, err := m.Join(now, "a/n1", "a", 1); err != nil {
		t.Fatal(err)
	}
	if got := m.MaxSteps("a/n1"); got != 0 {
		t.Errorf("%d steps before the grant", got)
	}
	m.Heard(now, "a/n1", 1, Report{State: MemberReady})
	if got := m.MaxSteps("a/n1"); got != 7 {
		t.Errorf("%d steps in the round, want 7", got)
	}
}

// A caller that is late with its Tick still takes nothing past a deadline.
func TestNoUpdateIsExpectedPastADeadlineEvenBeforeTheTick(t *testing.T) {
	start := time.Unix(0, 0)
	m := New(Config{Sites: []string{"a", "b"}, Train: 10 * time.Second, Collect: 5 * time.Second}, 0, 0, 0, start)
	m.SetModel(start)
	for _, site := range []string{"a", "b"} {
		if _, _, err := m.SetMembership(start, site, Admit, time.Time{}, v1alpha1.ReasonRequested, ""); err != nil {
			t.Fatal(err)
		}
		if _, err := m.Join(start, site+"/n1", site, 1); err != nil {
			t.Fatal(err)
		}
		m.Heard(start, site+"/n1", 1, Report{State: MemberReady})
	}
	if _, _, err := m.SetMembership(start, "a", Drain, start.Add(3*time.Second), v1alpha1.ReasonRequested, ""); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		member string
		after  time.Duration
		want   bool
	}{
		{"a/n1", 3*time.Second - 1, true},
		{"a/n1", 3 * time.Second, false}, // its drain is over
		{"b/n1", 15*time.Second - 1, true},
		{"b/n1", 15 * time.Second, false}, // the round is over
	} {
		reason, ok := m.Expecting(start.Add(tc.after), tc.member, 1)
		if ok != tc.want || !ok && reason != v1alpha1.ReasonStaleRound {
			t.Errorf("%s after %s: expected %v %q, want %v", tc.member, tc.after, ok, reason, tc.want)
		}
	}
}

// Nodes that come and go under ever new names must not fill the memory.
func TestLongGoneMembersAreForgottenButNotThoseOfTheRound(t *testing.T) {
	now := time.Unix(0, 0)
	m := New(Config{Sites: []string{"a"}, Train: time.Second}, 0, 0, 0, now)
	m.SetModel(now)
	if _, _, err := m.SetMembership(now, "a", Admit, time.Time{}, v1alpha1.ReasonRequested, ""); err != nil {
		t.Fatal(err)
	}
	come := func(name string, epoch uint64) {
		t.Helper()
		if _, err := m.Join(now, name, "a", epoch); err != nil {
			t.Fatal(err)
		}
		m.Heard(now, name, epoch, Report{State: MemberReady})
		m.Lose(now, name, epoch, v1alpha1.ReasonConnectionLost)
	}
	come("a/worker", 1)
	if !m.Working("a/worker") {
		t.Fatal("no grant")
	}
	for i := range uint64(5 * maxGone) {
		name := fmt.Sprintf("a/n%04d", i)
		if _, err := m.Join(now, name, "a", i+2); err != nil {
			t.Fatal(err)
		}
		m.Lose(now, name, i+2, v1alpha1.ReasonConnectionLost)
	}
	if n := len(m.members); n > maxGone+2 {
		t.Errorf("%d members are remembered", n)
	}
	if !m.Working("a/worker") || m.members["a/worker"] == nil {
		t.Error("a member with a grant was forgotten")
	}
	if newest := fmt.Sprintf("a/n%04d", 5*maxGone-1); m.members[newest] == nil {
		t.Error("the newest was forgotten")
	}
}

func TestInputsOfOneInstantTakenTogetherLeadToTheSame(t *testing.T) {
	run := func(together bool) []string {
		now := time.Unix(0, 0)
		m := New(Config{Sites: []string{"a", "b", "c"}, Train: time.Minute, Collect: time.Minute, Join: time.Minute, Settle: time.Second}, 0, 0, 0, now)
		var said []string
		note := func(actions []Action) {
			for _, a := range actions {
				if _, phase := a.(SiteChanged); !phase { // told once instead of step by step
					said = append(said, fmt.Sprintf("%T%+v", a, a))
				}
			}
		}
		instant := func(inputs func()) {
			if together {
				m.Hold()
			}
			inputs()
			if together {
				note(m.Release(now))
			}
		}
		names := []string{"a", "b", "c"}
		instant(func() {
			note(m.SetModel(now))
			for _, site := range names {
				_, actions, err := m.SetMembership(now, site, Admit, time.Time{}, v1alpha1.ReasonRequested, "")
				if err != nil {
					t.Fatal(err)
				}
				note(actions)
			}
		})
		instant(func() {
			for _, site := range names {
				actions, err := m.Join(now, site+"/n", site, 1)
				if err != nil {
					t.Fatal(err)
				}
				note(actions)
				note(m.Heard(now, site+"/n", 1, Report{State: MemberReady, Step: time.Second}))
			}
		})
		now = now.Add(time.Minute)
		instant(func() {
			for _, site := range names {
				if _, ok := m.Expecting(now, site+"/n", 1); !ok {
					t.Fatalf("no update of %s is expected", site)
				}
				note(m.Accepted(now, site+"/n", 1))
			}
		})
		return said
	}
	one, all := run(false), run(true)
	if strings.Join(one, "\n") != strings.Join(all, "\n") {
		t.Errorf("one by one:\n%s\ntogether:\n%s", strings.Join(one, "\n"), strings.Join(all, "\n"))
	}
	if len(all) != 4 { // three grants and a commit
		t.Errorf("%d actions: %v", len(all), all)
	}
}

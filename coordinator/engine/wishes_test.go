package engine

import (
	"io/fs"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/coordinator/round"
	"girassol.dev/internal/algorithm"
)

// files are what a folder holds and when it was written.
func files(t *testing.T, dir string) map[string]time.Time {
	t.Helper()
	out := map[string]time.Time{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		out[path] = info.ModTime()
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestUnchangedWorldMakesNoWriteAndNoEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := defaults(t, algorithm.DiLoCo)
		cfg := testConfig(t.TempDir(), p, "a", "b")
		cfg.LossAfter, cfg.Round.MinSites = 4*time.Second, 2
		r, a := seeded(t, cfg)
		wishes := []Wish{
			{Site: "a", Membership: round.Admit, Energy: true, Reason: v1alpha1.ReasonEnergyFavourable},
			{Site: "b", Membership: round.Drain, Reason: v1alpha1.ReasonRequested, Message: "maintenance"},
			{Site: "a", Membership: round.Admit, Reason: v1alpha1.ReasonRequested}, // no hold to end
		}
		repeat := func() {
			t.Helper()
			for _, w := range wishes {
				if _, err := r.engine.SetMembership(r.ctx(), w); err != nil {
					t.Fatal(err)
				}
			}
			if err := r.engine.Pause(r.ctx()); err != nil {
				t.Fatal(err)
			}
			a.heartbeat(coordinatorv1.MemberState_MEMBER_STATE_READY, 0)
			for len(a.s.Outbox()) > 0 {
				<-a.s.Outbox()
			}
		}
		repeat()
		was, announced := files(t, cfg.DataDir), len(r.events.types())
		for range 1000 {
			time.Sleep(time.Second) // a tick
			repeat()
		}
		for path, at := range files(t, cfg.DataDir) {
			if !at.Equal(was[path]) {
				t.Errorf("%s was written", path)
			}
		}
		if types := r.events.types(); len(types) != announced {
			t.Errorf("announced %v", types[announced:])
		}
		if st := r.status(); len(st.GetSites()[0].GetMembers()) != 1 {
			t.Errorf("the session is gone: %v", st)
		}
	})
}

func TestRepeatedEnergyWishDoesNotMoveADrainsDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := defaults(t, algorithm.DiLoCo)
		cfg := testConfig(t.TempDir(), p, "a", "b")
		cfg.Round.Grace = 60 * time.Second
		r, a := seeded(t, cfg)
		b := r.join("b")
		for _, x := range []*agent{a, b} {
			x.heartbeat(coordinatorv1.MemberState_MEMBER_STATE_READY, 0)
		}
		ga := a.grant()
		payload := ones(t, smallModel(t), p, 0.5)
		b.mustAccept(b.header(b.grant(), "u", payload), payload)
		begun := time.Now()
		drain := Wish{Site: "a", Membership: round.Drain, Energy: true, Reason: v1alpha1.ReasonWaitingForEnergy}
		for range 5 {
			if _, err := r.engine.SetMembership(r.ctx(), drain); err != nil {
				t.Fatal(err)
			}
			time.Sleep(10 * time.Second)
		}
		if d := a.next(func(m *coordinatorv1.SessionResponse) bool { return m.GetDrain() != nil }).GetDrain(); d.GetDeadlineInMs() != 60_000 {
			t.Fatalf("drain of %d ms", d.GetDeadlineInMs())
		}
		// b's work waits for a until the drain is over, and no longer.
		if c := b.committed(); c.GetVersion() != 1 {
			t.Fatal(c)
		}
		if took := time.Since(begun); took != 60*time.Second {
			t.Errorf("the round waited %s for a drain of 60 s", took)
		}
		if res := a.push(a.header(ga, "late", payload), payload); res.GetStatus() != coordinatorv1.PushResult_STATUS_STALE {
			t.Errorf("an update after the drain: %v", res)
		}
	})
}

func TestHoldPauseAndEnergyDecisionOverAKill(t *testing.T) {
	cfg := testConfig(t.TempDir(), defaults(t, algorithm.DiLoCo), "a", "b")
	r := newRig(t, cfg)
	set := func(r *rig, w Wish) InForce {
		t.Helper()
		in, err := r.engine.SetMembership(r.ctx(), w)
		if err != nil {
			t.Fatal(err)
		}
		return in
	}
	hold := Wish{Site: "a", Membership: round.Exclude, Reason: v1alpha1.ReasonRequested, Message: "fire drill"}
	if in := set(r, hold); !in.Changed || in.Membership != round.Exclude {
		t.Fatal(in)
	}
	if err := r.engine.Pause(r.ctx()); err != nil {
		t.Fatal(err)
	}
	cfg.DataDir = r.killed()
	r = newRig(t, cfg)
	admit := Wish{Site: "a", Membership: round.Admit, Energy: true, Reason: v1alpha1.ReasonEnergyFavourable}
	if in := set(r, admit); in.Changed || in.Membership != round.Exclude || in.Message != "fire drill" {
		t.Fatalf("the energy decision against a hold after a kill: %v", in)
	}
	if st := r.status(); st.GetPhase() != string(v1alpha1.FederationPaused) {
		t.Fatalf("not paused after a kill: %v", st)
	}
	if in := set(r, Wish{Site: "a", Membership: round.Admit, Reason: v1alpha1.ReasonRequested}); !in.Changed || in.Reason != v1alpha1.ReasonEnergyFavourable {
		t.Fatalf("the hold is over: %v", in)
	}
	if _, err := r.engine.SetMembership(r.ctx(), Wish{Site: "a", Membership: "Retire"}); err == nil {
		t.Fatal("an unknown membership was taken")
	}
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	newRig(t, cfg) // and would fail this start
}

func TestSuspendedFederationSaysWhatEndsItsPause(t *testing.T) {
	cfg := testConfig(t.TempDir(), defaults(t, algorithm.DiLoCo), "a")
	cfg.Suspended = true
	r := newRig(t, cfg)
	if st := r.status(); st.GetPhase() != string(v1alpha1.FederationPaused) || !strings.Contains(st.GetMessage(), "spec.state") {
		t.Fatalf("status %v", st)
	}
	if err := r.engine.Resume(r.ctx()); err == nil || !strings.Contains(err.Error(), "spec.state") {
		t.Fatalf("resume of a suspended federation: %v", err)
	}
}

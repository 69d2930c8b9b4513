package engine

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/coordinator/round"
	"girassol.dev/internal/algorithm"
)

func TestWhatATrainerSaysOfItselfIsBounded(t *testing.T) {
	in := map[string]string{"": "nameless", strings.Repeat("k", 65): "long name", "a": strings.Repeat("é", 40)}
	for i := range 30 {
		in[fmt.Sprintf("m%02d", i)] = "v"
	}
	out := trainerFacts(in)
	if len(out) != 16 || out["m14"] != "v" || out["m15"] != "" || out[""] != "" {
		t.Errorf("kept %v", out)
	}
	if v := out["a"]; len(v) > 64+len("...") || !strings.HasPrefix(v, "éé") || strings.ContainsRune(v, '\uFFFD') {
		t.Errorf("a long value became %q", v)
	}
	if trainerFacts(nil) != nil {
		t.Error("nothing became something")
	}
}

func TestStartThatCannotBeMeasuredIsLeftOut(t *testing.T) {
	good := &coordinatorv1.WarmStart{ProcessSeconds: 1, FirstStepSeconds: 3}
	if measuredStart(good) != good || measuredStart(nil) != nil {
		t.Error("a good start is gone")
	}
	for _, w := range []*coordinatorv1.WarmStart{
		{ProcessSeconds: math.NaN()}, {PullSeconds: -1}, {LoadSeconds: math.Inf(1)}, {FirstStepSeconds: math.Inf(-1)},
	} {
		if measuredStart(w) != nil {
			t.Errorf("kept %v", w)
		}
	}
}

func TestStatusTellsTheTimeFromAdmissionToTheFirstStep(t *testing.T) {
	p := defaults(t, algorithm.DiLoCo)
	r := newRig(t, testConfig(t.TempDir(), p, "a"))
	model := smallModel(t)
	a := r.join("a")
	a.seed(model)
	a = r.join("a")
	tell := func(h *coordinatorv1.Heartbeat) *coordinatorv1.SiteStatus {
		t.Helper()
		if err := r.engine.Heartbeat(t.Context(), a.s, h); err != nil {
			t.Fatal(err)
		}
		return r.status().GetSites()[0]
	}
	tell(&coordinatorv1.Heartbeat{State: coordinatorv1.MemberState_MEMBER_STATE_READY})
	g := a.grant()
	before := tell(&coordinatorv1.Heartbeat{State: coordinatorv1.MemberState_MEMBER_STATE_TRAINING, Round: g.GetRound()})
	if before.FirstStepSeconds != nil {
		t.Fatalf("a first step after %v s, before it was done", before.GetFirstStepSeconds())
	}
	facts := map[string]string{"precision": "bf16", "batchSize": "32"}
	warm := &coordinatorv1.WarmStart{ProcessSeconds: 0.5, FromDisk: true, PulledBytes: 7}
	first := tell(&coordinatorv1.Heartbeat{
		State: coordinatorv1.MemberState_MEMBER_STATE_TRAINING, Round: g.GetRound(), Steps: 1, Trainer: facts, WarmStart: warm,
	})
	if first.FirstStepSeconds == nil || !(first.GetFirstStepSeconds() > 0) {
		t.Errorf("no time to the first step: %v", first)
	}
	m := first.GetMembers()[0]
	if m.GetTrainer()["precision"] != "bf16" || m.GetTrainer()["batchSize"] != "32" || !m.GetWarmStart().GetFromDisk() || m.GetWarmStart().GetPulledBytes() != 7 {
		t.Errorf("member is %v", m)
	}
	later := tell(&coordinatorv1.Heartbeat{State: coordinatorv1.MemberState_MEMBER_STATE_TRAINING, Round: g.GetRound(), Steps: 2})
	if later.GetFirstStepSeconds() != first.GetFirstStepSeconds() {
		t.Error("a later step changed the time to the first")
	}
	// Another admission is another start.
	for _, want := range []round.Membership{round.Exclude, round.Admit} {
		if _, err := r.engine.SetMembership(t.Context(), Wish{Site: "a", Membership: want, Deadline: time.Second, Reason: v1alpha1.ReasonRequested}); err != nil {
			t.Fatal(err)
		}
	}
	if s := r.status().GetSites()[0]; s.FirstStepSeconds != nil {
		t.Errorf("after another admission: %v", s.GetFirstStepSeconds())
	}
}

package engine

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/internal/algorithm"
)

// tally is what an Observer heard.
type tally struct {
	mu      sync.Mutex
	updates []string
	rounds  []RoundTimes

	rollbacks []v1alpha1.Reason
}

func (o *tally) UpdateAnswered(site string, outcome UpdateOutcome, reason v1alpha1.Reason) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.updates = append(o.updates, fmt.Sprint(site, " ", outcome, " ", reason))
}

func (o *tally) RolledBack(reason v1alpha1.Reason) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.rollbacks = append(o.rollbacks, reason)
}

func (o *tally) RoundCommitted(t RoundTimes) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.rounds = append(o.rounds, t)
}

func TestEveryAnswerIsCountedOnceAndRoundTimesAddUp(t *testing.T) {
	t.Parallel()
	p := defaults(t, algorithm.DiLoCo)
	seen := &tally{}
	r := newRig(t, testConfig(t.TempDir(), p, "a", "b"), func(e *Engine) { e.hooks.Observe = seen })
	agents := r.joinAll("a", "b")
	model := smallModel(t)
	if res := agents[0].seed(model); res.GetStatus() != coordinatorv1.PushResult_STATUS_ACCEPTED {
		t.Fatal(res)
	}
	began := time.Now()
	for _, a := range agents {
		a.heartbeat(coordinatorv1.MemberState_MEMBER_STATE_READY, 0)
	}
	do := work(t, model, p)
	for i, a := range agents {
		g := a.grant()
		payload, _ := do(a, g)
		h := a.header(g, "u", payload)
		h.TrainingSeconds, h.Samples, h.Loss = 1e6, uint64(i+1), new(float64(3*i+3)) // a clock that is wrong
		if i == 0 {
			old := a.header(g, "old", payload)
			old.Round = 77
			a.push(old, payload)
			unknown := a.header(g, "u", payload)
			unknown.SessionToken = "nobody"
			a.push(unknown, payload)
			a.mustAccept(h, payload)
			a.mustAccept(h, payload) // again: the same answer, not counted twice
			continue
		}
		bad := a.header(g, "bad", payload)
		bad.BaseVersion = 99
		a.push(bad, payload)
		a.mustAccept(h, payload)
	}
	agents[0].committed()
	elapsed := time.Since(began)

	seen.mu.Lock()
	defer seen.mu.Unlock()
	want := []string{"a refused NotGranted", " refused FencedEpoch", "a accepted Ready", "b stale StaleRound", "b accepted Ready"}
	if !slices.Equal(seen.updates, want) {
		t.Errorf("counted %q, want %q", seen.updates, want)
	}
	if len(seen.rounds) != 1 {
		t.Fatalf("rounds %v", seen.rounds)
	}
	got := seen.rounds[0]
	if sum := got.Training + got.Waiting + got.Merging; sum > elapsed || got.Training < 0 || got.Merging <= 0 {
		t.Errorf("%+v adds up to %s of %s", got, sum, elapsed)
	}
	if got.Participants != 2 || got.Loss == nil || *got.Loss != (3*1+6*2)/3. {
		t.Errorf("%+v: want 2 participants and the loss weighted by samples, 5", got)
	}
}

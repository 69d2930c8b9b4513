package agent

import (
	"bytes"
	"math"
	"testing"
	"time"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	trainerv1 "girassol.dev/api/trainer/v1"
	"girassol.dev/internal/algorithm"
	"girassol.dev/internal/codec"
	"girassol.dev/internal/kernel"
	"girassol.dev/internal/replica"
)

// long is a span that no test waits for.
const long = 5 * time.Minute

func TestARoundGoesFromGrantToTheNextVersion(t *testing.T) {
	c := newCoordinator(t, algorithm.DecoupledMomentum, small)
	p := &person{t: t}
	r := launch(t, c, "", p)
	c.waitReady(0)
	g := c.grant(1, 3, long)
	g.Evaluate, g.Alone, g.Config = true, true, map[string]string{"lr": "0.1"}
	c.tell(g)
	u := c.waitPushes(1)[0]
	h := u.header
	if h.GetRound() != 1 || h.GetBaseVersion() != 0 || h.GetSteps() != 3 || h.GetSamples() != 12 || h.GetWeight() != 12 || h.GetAgreement() != 0 || h.Agreement != nil {
		t.Fatalf("header %v", h)
	}
	if e := h.GetEvaluation(); e.GetVersion() != 0 || e.GetSamples() != 11 || e.GetLoss() != 1.5 {
		t.Fatalf("evaluation %v", h.GetEvaluation())
	}
	if _, err := codec.Parse(c.domain, c.params.Uplink, bytes.NewReader(u.payload), int64(len(u.payload)), nil); err != nil {
		t.Fatal(err)
	}
	if tasks := p.taken(); len(tasks) != 2 || tasks[0].Kind != trainerv1.Evaluate || tasks[1].Config["lr"] != "0.1" || tasks[1].MaxSteps != 3 {
		t.Fatalf("tasks %+v", tasks)
	}
	c.commit(h.GetUpdateId())
	c.tell(c.committed(1))
	c.waitReady(1)
	c.tell(c.grant(2, 2, long))
	second := c.waitPushes(2)[1].header
	if second.Agreement == nil || math.Abs(second.GetAgreement()) > 1 {
		t.Fatalf("agreement %v of the commit before", second.Agreement)
	}
	if second.GetUpdateId() == h.GetUpdateId() || second.GetBaseVersion() != 1 {
		t.Fatalf("second header %v", second)
	}
	r.stop()
	if left := workLeft(t, r); len(left) != 0 {
		t.Fatalf("left in the work folder: %v", left)
	}
}

// TestWorkOfALateUpdateStaysInTheResidualBitForBit also covers refusals: both
// change nothing.
func TestWorkOfALateUpdateStaysInTheResidualBitForBit(t *testing.T) {
	for _, answer := range []coordinatorv1.PushResult_Status{coordinatorv1.PushResult_STATUS_STALE, coordinatorv1.PushResult_STATUS_REFUSED} {
		t.Run(answer.String(), func(t *testing.T) {
			c := newCoordinator(t, algorithm.DecoupledMomentum, small)
			c.answer = func(*coordinatorv1.PushHeader) *coordinatorv1.PushResult {
				return &coordinatorv1.PushResult{Status: answer, Reason: "StaleRound"}
			}
			p := &person{t: t}
			r := launch(t, c, "", p)
			c.waitReady(0)
			c.tell(c.grant(1, 2, long))
			c.waitBeat("done with round 1", func(h *coordinatorv1.Heartbeat) bool {
				return h.GetState() == coordinatorv1.MemberState_MEMBER_STATE_READY && h.GetRound() == 1
			})
			r.stop()
			want := replica.NewResidual(c.domain)
			defer want.Close()
			_, err := want.Absorb(p.start, p.end)
			must(t, err)
			got := residual(t, r.dir, c.domain.Len())
			for i, v := range want.Vector() {
				if math.Float32bits(v) != math.Float32bits(got[i]) {
					t.Fatalf("residual[%d] is %g, want %g", i, got[i], v)
				}
			}
		})
	}
}

func TestAnUpdateOnDiskIsPushedAfterARestartUnderTheSameID(t *testing.T) {
	c := newCoordinator(t, algorithm.DecoupledMomentum, small)
	c.pushDown = true
	p := &person{t: t}
	r := launch(t, c, "", p)
	c.waitReady(0)
	c.tell(c.grant(7, 2, long))
	c.waitBeat("uploading", func(h *coordinatorv1.Heartbeat) bool {
		return h.GetState() == coordinatorv1.MemberState_MEMBER_STATE_UPLOADING
	})
	r.stop()
	id := r.agent.cfg.Replica.Pending().UpdateID
	successor := launch(t, c, r.dir, p)
	c.wait("the successor's first heartbeat", func() bool { return len(c.members) == 2 && len(c.members[1].beats) > 0 })
	c.mu.Lock()
	first := c.members[1].beats[0]
	c.mu.Unlock()
	if first.GetState() != coordinatorv1.MemberState_MEMBER_STATE_UPLOADING || first.GetRound() != 7 {
		t.Fatalf("first heartbeat %v does not say what is to come", first)
	}
	c.do(func() { c.pushDown = false })
	u := c.waitPushes(1)[0].header
	if u.GetUpdateId() != id || u.GetRound() != 7 || u.GetEpoch() != 2 {
		t.Fatalf("pushed %v, want update %s in epoch 2", u, id)
	}
	// A grant for the same round asks for the same update again, and it counts
	// once.
	c.tell(c.grant(7, 2, long))
	c.waitBeat("done", func(h *coordinatorv1.Heartbeat) bool {
		return h.GetState() == coordinatorv1.MemberState_MEMBER_STATE_READY && h.GetRound() == 7
	})
	c.commit(id)
	c.tell(c.committed(7))
	c.waitReady(1)
	successor.stop()
	if n := len(c.pushes); n != 1 {
		t.Fatalf("%d uploads", n)
	}
	if n := len(p.taken()); n != 1 {
		t.Fatalf("%d tasks", n)
	}
}

func TestABrokenUploadResumesAtItsOffset(t *testing.T) {
	c := newCoordinator(t, algorithm.DiLoCo, large)
	c.breakPush = 1
	launch(t, c, "", &person{t: t})
	c.waitReady(0)
	c.tell(c.grant(1, 1, long))
	u := c.waitPushes(1)[0]
	if u.from == 0 || u.from >= uint64(len(u.payload)) {
		t.Fatalf("resumed at %d of %d", u.from, len(u.payload))
	}
	if _, err := codec.Parse(c.domain, c.params.Uplink, bytes.NewReader(u.payload), int64(len(u.payload)), nil); err != nil {
		t.Fatal(err)
	}
}

func TestADuplicateGrantIsOneRound(t *testing.T) {
	c := newCoordinator(t, algorithm.DecoupledMomentum, small)
	p := &person{t: t}
	launch(t, c, "", p)
	c.waitReady(0)
	g := c.grant(5, 2, long)
	older := c.grant(4, 2, long)
	foreign := c.grant(6, 2, long)
	foreign.Epoch--
	for _, g := range []*coordinatorv1.Grant{g, g, older, foreign} {
		c.tell(g)
	}
	c.waitBeat("done with round 5", func(h *coordinatorv1.Heartbeat) bool {
		return h.GetState() == coordinatorv1.MemberState_MEMBER_STATE_READY && h.GetRound() == 5
	})
	c.tell(g)
	c.tell(c.grant(8, 1, long))
	if pushes := c.waitPushes(2); pushes[0].header.GetRound() != 5 || pushes[1].header.GetRound() != 8 {
		t.Fatalf("rounds %d and %d", pushes[0].header.GetRound(), pushes[1].header.GetRound())
	}
	if n := len(p.taken()); n != 2 {
		t.Fatalf("%d tasks", n)
	}
}

func TestANewerGrantEndsTheRoundAtWork(t *testing.T) {
	c := newCoordinator(t, algorithm.DecoupledMomentum, small)
	launch(t, c, "", &person{t: t})
	c.waitReady(0)
	c.tell(c.grant(1, 0, long))
	c.waitBeat("at work", func(h *coordinatorv1.Heartbeat) bool { return h.GetRound() == 1 && h.GetSteps() > 0 })
	c.tell(c.grant(2, 1, long))
	if u := c.waitPushes(1)[0].header; u.GetRound() != 2 {
		t.Fatalf("update of round %d", u.GetRound())
	}
}

func TestNoStepRunsAfterTheStopTimeWithoutAnyMessage(t *testing.T) {
	c := newCoordinator(t, algorithm.DecoupledMomentum, small)
	p := &person{t: t}
	launch(t, c, "", p)
	c.waitReady(0)
	c.tell(c.grant(1, 0, 3*time.Second)) // enough for a first step on a slow machine
	c.waitBeat("at work", func(h *coordinatorv1.Heartbeat) bool { return h.GetSteps() > 0 })
	// The coordinator is gone: the session breaks and no new one comes up.
	c.do(func() { c.refuse = errDown })
	c.newest().end <- errDown
	for len(p.finished()) == 0 { // the trainer is told by the agent alone
		select {
		case <-t.Context().Done():
			t.Fatal(t.Context().Err())
		case <-time.After(time.Millisecond):
		}
	}
	if d := p.finished()[0]; d.Action != trainerv1.Finish {
		t.Fatalf("the trainer was told %+v", d)
	}
	// Back again, the partial work counts.
	c.do(func() { c.refuse = nil })
	u := c.waitPushes(1)[0].header
	if u.GetRound() != 1 || u.GetSteps() == 0 || u.GetWeight() != float64(4*u.GetSteps()) || u.GetEpoch() != 2 {
		t.Fatalf("header %v", u)
	}
}

func TestStopUploadsWhatThereIs(t *testing.T) {
	c := newCoordinator(t, algorithm.DecoupledMomentum, small)
	launch(t, c, "", &person{t: t})
	c.waitReady(0)
	c.tell(c.grant(1, 0, long))
	c.waitBeat("at work", func(h *coordinatorv1.Heartbeat) bool { return h.GetSteps() > 1 })
	c.tell(&coordinatorv1.Stop{Round: 9, Reason: "RoundDeadline"}) // another round's
	c.tell(&coordinatorv1.Stop{Round: 1, Reason: "RoundDeadline"})
	if u := c.waitPushes(1)[0].header; u.GetSteps() < 2 || u.GetSamples() != 4*u.GetSteps() {
		t.Fatalf("header %v", u)
	}
}

func TestATrainersFaultIsToldAndTheNextRoundRuns(t *testing.T) {
	nan := float32(math.NaN())
	for name, spoil := range map[string]func(*person){
		"failure":  func(p *person) { p.fail = "out of memory" },
		"NaN":      func(p *person) { p.mutate = func(theta []float32) { theta[3] = nan } },
		"infinity": func(p *person) { p.mutate = func(theta []float32) { theta[3] = float32(math.Inf(1)) } },
	} {
		t.Run(name, func(t *testing.T) {
			c := newCoordinator(t, algorithm.DecoupledMomentum, small)
			p := &person{t: t}
			spoil(p)
			r := launch(t, c, "", p)
			c.waitReady(0)
			c.tell(c.grant(1, 2, long))
			h := c.waitBeat("nothing to report of round 1", func(h *coordinatorv1.Heartbeat) bool {
				return h.GetState() == coordinatorv1.MemberState_MEMBER_STATE_READY && h.GetRound() == 1
			})
			if h.GetDetail() == "" {
				t.Fatal("the heartbeat does not say why")
			}
			p.mu.Lock()
			p.fail, p.mutate = "", nil
			p.mu.Unlock()
			c.tell(c.grant(2, 2, long))
			if u := c.waitPushes(1)[0].header; u.GetRound() != 2 {
				t.Fatalf("update of round %d", u.GetRound())
			}
			r.stop()
		})
	}
}

func TestAVoidRoundsUpdateGoesBackIntoTheResidual(t *testing.T) {
	c := newCoordinator(t, algorithm.DiLoCo, small)
	r := launch(t, c, "", &person{t: t})
	c.waitReady(0)
	c.tell(c.grant(1, 2, long))
	c.waitPushes(1)
	c.tell(&coordinatorv1.Committed{Round: 1, Version: 0, Void: true, Reason: "TooFewUpdates"})
	c.tell(c.grant(2, 2, long))
	second := c.waitPushes(2)[1]
	// Lossless: what is sent is all of u, and so holds the work of both rounds.
	sent, err := codec.Parse(c.domain, c.params.Uplink, bytes.NewReader(second.payload), int64(len(second.payload)), nil)
	must(t, err)
	got := make([]float32, c.domain.Len())
	must(t, sent.Decode(got))
	r.stop()
	want := replica.NewResidual(c.domain)
	defer want.Close()
	for range 2 { // both rounds started from theta and did the same
		_, err := want.Absorb(r.person.start, r.person.end)
		must(t, err)
	}
	for i, v := range want.Vector() {
		if got[i] != v {
			t.Fatalf("sent[%d] is %g, want %g", i, got[i], v)
		}
	}
}

func TestAnExcludedMembersWorkIsDropped(t *testing.T) {
	c := newCoordinator(t, algorithm.DecoupledMomentum, small)
	p := &person{t: t}
	r := launch(t, c, "", p)
	c.waitReady(0)
	c.tell(c.grant(1, 0, long))
	c.waitBeat("at work", func(h *coordinatorv1.Heartbeat) bool { return h.GetSteps() > 0 })
	c.tell(&coordinatorv1.Stop{Round: 1, Reason: "Excluded"})
	c.waitBeat("done with round 1", func(h *coordinatorv1.Heartbeat) bool {
		return h.GetState() == coordinatorv1.MemberState_MEMBER_STATE_READY && h.GetRound() == 1
	})
	r.stop()
	if len(c.pushes) != 0 {
		t.Fatalf("pushed %v", c.pushes[0].header)
	}
}

func TestStepTimeIsToldWithinBounds(t *testing.T) {
	for _, c := range []struct {
		seconds float64
		steps   uint64
		want    float64
	}{{3, 2, 1.5}, {0, 1, leastStepSeconds}, {1, math.MaxUint64, leastStepSeconds}, {-1, 1, leastStepSeconds}, {1e9, 1, mostStepSeconds}} {
		if got := *stepSeconds(c.seconds, c.steps); got != c.want {
			t.Errorf("%d steps in %v s: %v s a step, want %v", c.steps, c.seconds, got, c.want)
		}
	}
}

// An update that was accepted and then lost with its round must not be taken for
// merged because the whole state was pulled past it.
func TestAnAcceptedUpdateIsAskedAboutBeforeAFullPullPassesItOver(t *testing.T) {
	c := newCoordinator(t, algorithm.DiLoCo, small)
	r := launch(t, c, "", &person{t: t})
	c.waitReady(0)
	c.tell(c.grant(1, 2, long))
	first := c.waitPushes(1)[0]
	c.waitBeat("done", func(h *coordinatorv1.Heartbeat) bool {
		return h.GetState() == coordinatorv1.MemberState_MEMBER_STATE_READY && h.GetRound() == 1
	})
	// The round goes by without it, and nobody says so.
	c.commit("of others")
	c.commit("of others, again")
	asked := 0
	c.do(func() {
		delete(c.deltas, 1)
		delete(c.accepted, first.header.GetUpdateId())
		c.answer = func(h *coordinatorv1.PushHeader) *coordinatorv1.PushResult {
			if h.GetUpdateId() != first.header.GetUpdateId() {
				return &coordinatorv1.PushResult{Status: coordinatorv1.PushResult_STATUS_ACCEPTED}
			}
			asked++
			return &coordinatorv1.PushResult{Status: coordinatorv1.PushResult_STATUS_STALE, Reason: "StaleRound"}
		}
	})
	c.tell(c.grant(3, 2, long))
	c.wait("the next round's update", func() bool {
		return len(c.pushes) > 0 && c.pushes[len(c.pushes)-1].header.GetRound() == 3
	})
	c.mu.Lock()
	second := c.pushes[len(c.pushes)-1]
	if asked != 1 {
		t.Errorf("it was asked about %d times", asked)
	}
	c.mu.Unlock()
	sent, err := codec.Parse(c.domain, c.params.Uplink, bytes.NewReader(second.payload), int64(len(second.payload)), nil)
	must(t, err)
	got := make([]float32, c.domain.Len())
	must(t, sent.Decode(got))
	r.stop()
	alone := replica.NewResidual(c.domain)
	defer alone.Close()
	_, err = alone.Absorb(r.person.start, r.person.end)
	must(t, err)
	// Both rounds did about the same.
	if both, one := math.Sqrt(kernel.SumSquares(got)), alone.Norm(); both < 1.5*one {
		t.Fatalf("sent is %g, the second round's work alone %g: the first round's is lost", both, one)
	}
}

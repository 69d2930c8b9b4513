package engine

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/internal/algorithm"
	"girassol.dev/internal/tensor"
)

// offer uploads weights without finishing.
func (a *agent) offer(model *tensor.State) *Upload {
	a.r.t.Helper()
	var b bytes.Buffer
	if err := tensor.SaveState(&b, model, false); err != nil {
		a.r.t.Fatal(err)
	}
	u, res, err := a.r.engine.BeginPush(a.r.ctx(), &coordinatorv1.PushHeader{SessionToken: a.s.Token, Epoch: a.s.Epoch,
		Kind: coordinatorv1.PushHeader_KIND_SEED, UpdateId: "s", PayloadBytes: uint64(b.Len())})
	if err != nil || res != nil {
		a.r.t.Fatal(res, err)
	}
	if _, err := u.Write(b.Bytes()); err != nil {
		a.r.t.Fatal(err)
	}
	return u
}

func TestFirstOfSeveralOfferedWeightsIsTakenAndAnnouncedOnce(t *testing.T) {
	cfg := testConfig(t.TempDir(), defaults(t, algorithm.DiLoCo), "a", "b", "c")
	r := newRig(t, cfg)
	agents := r.joinAll("a", "b", "c")
	var offers []*Upload
	for i, a := range agents {
		m := smallModel(t)
		m.Theta[0] = float32(100 + i)
		offers = append(offers, a.offer(m))
	}
	results := make(chan *coordinatorv1.PushResult, len(offers))
	for _, u := range offers {
		go func() {
			res, err := r.engine.FinishPush(r.ctx(), u)
			if err != nil {
				t.Error(err)
			}
			results <- res
		}()
	}
	accepted := 0
	for range offers {
		switch res := <-results; {
		case res.GetStatus() == coordinatorv1.PushResult_STATUS_ACCEPTED:
			accepted++
		case res.GetReason() != string(v1alpha1.ReasonAlreadySeeded):
			t.Errorf("answered %v", res)
		}
	}
	if accepted != 1 || !slices.Equal(r.events.types(), []string{"RoundCommitted v0"}) {
		t.Fatalf("%d accepted, announced %v", accepted, r.events.types())
	}
	want := r.status()
	cfg.DataDir = r.killed()
	if got := newRig(t, cfg).status(); got.Version == nil || !bytes.Equal(got.GetDigest(), want.GetDigest()) {
		t.Fatalf("after a kill: %v", got)
	}
	if err := r.engine.do(r.ctx(), func() {
		if n := len(r.engine.uploads); n != 0 {
			t.Errorf("%d offers are still kept", n)
		}
	}); err != nil {
		t.Fatal(err)
	}
}

// Reading a big model takes long: meanwhile sessions live and are fenced.
func TestEngineServesWhileOfferedWeightsAreRead(t *testing.T) {
	r := newRig(t, testConfig(t.TempDir(), defaults(t, algorithm.DiLoCo), "a", "b"))
	a := r.join("a")
	u := a.offer(smallModel(t))
	r.engine.seeding <- struct{}{} // another offer is being read
	ctx, cancel := context.WithCancel(r.ctx())
	given := make(chan error, 1)
	go func() {
		_, err := r.engine.FinishPush(ctx, u)
		given <- err
	}()
	a.heartbeat(coordinatorv1.MemberState_MEMBER_STATE_IDLE, 0)
	cancel()
	if err := <-given; !errors.Is(err, context.Canceled) {
		t.Fatalf("a sender that left: %v", err)
	}
	r.join("a") // fences
	<-r.engine.seeding
	res, err := r.engine.FinishPush(r.ctx(), u)
	if err != nil || res.GetReason() != string(v1alpha1.ReasonFencedEpoch) {
		t.Fatalf("weights of a fenced session: %v, %v", res, err)
	}
	if st := r.status(); st.Version != nil {
		t.Fatal("they were taken")
	}
}

func TestWeightsThatCannotBeKeptAreRefusedAndOthersTakenLater(t *testing.T) {
	cfg := testConfig(t.TempDir(), defaults(t, algorithm.DiLoCo), "a")
	r := newRig(t, cfg)
	a := r.join("a")
	replaceByFile(t, r, "staging")
	if res := a.seed(smallModel(t)); res.GetReason() != string(v1alpha1.ReasonCommitLogFailed) {
		t.Fatalf("answered %v", res)
	}
	replaceByDir(t, r, "staging")
	if res := a.seed(smallModel(t)); res.GetStatus() != coordinatorv1.PushResult_STATUS_ACCEPTED {
		t.Fatalf("answered %v", res)
	}
	if _, err := os.Stat(filepath.Join(cfg.DataDir, "snapshots", "000000000000")); err != nil {
		t.Fatal(err)
	}
}

// An upload that could not be stored leaves nothing of the one before it, whose
// spool is closed: the same one again begins anew.
func TestUploadAfterOneThatCouldNotBeStoredBeginsAnew(t *testing.T) {
	cfg := testConfig(t.TempDir(), defaults(t, algorithm.DiLoCo), "a")
	r := newRig(t, cfg)
	a := r.join("a")
	begin := func(id string, size uint64) (*Upload, *coordinatorv1.PushResult) {
		t.Helper()
		u, res, err := r.engine.BeginPush(r.ctx(), &coordinatorv1.PushHeader{SessionToken: a.s.Token, Epoch: a.s.Epoch,
			Kind: coordinatorv1.PushHeader_KIND_SEED, UpdateId: id, PayloadBytes: size})
		if err != nil {
			t.Fatal(err)
		}
		return u, res
	}
	u, _ := begin("small", 100)
	if _, err := u.Write(make([]byte, 40)); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(r.engine.spoolDir()); err != nil {
		t.Fatal(err)
	}
	big, _ := begin("big", smallUploads+1)
	_, err := big.Write(make([]byte, smallUploads+1))
	if res := r.engine.StorageFailed(big, err); err == nil || res.GetReason() != string(v1alpha1.ReasonCommitLogFailed) {
		t.Fatalf("an upload without a folder to go to: %v, %v", err, res)
	}
	u, res := begin("small", 100)
	if res != nil || u.Offset() != 0 {
		t.Fatalf("the small one again: %v, offset %d", res, u.Offset())
	}
	if _, err := u.Write(make([]byte, 100)); err != nil {
		t.Fatal(err)
	}
}

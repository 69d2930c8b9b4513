package engine

import (
	"bytes"
	"errors"
	"math"
	"os"
	"testing"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/coordinator/spool"
	"girassol.dev/internal/algorithm"
	"girassol.dev/internal/codec"
	"girassol.dev/internal/tensor"
)

// denseDomain has n MiB of values.
func denseDomain(t *testing.T, mib int64) (*codec.Domain, algorithm.Encoding) {
	t.Helper()
	l, err := tensor.NewLayout([]tensor.Spec{{Name: "w", DType: tensor.F32, Shape: []int64{mib, 1 << 18}, Role: tensor.Parameter}})
	if err != nil {
		t.Fatal(err)
	}
	p := defaults(t, algorithm.DiLoCo)
	return codec.NewDomain(l, p.Uplink.Transform), p.Uplink
}

// A value that is not finite ends the upload where it is, not at the end of what may
// be gigabytes; the other site's round goes on.
func TestASpoiledUpdateIsRefusedAtItsFirstBadValue(t *testing.T) {
	p := defaults(t, algorithm.DiLoCo)
	r := newRig(t, testConfig(t.TempDir(), p, "a", "b"))
	agents := r.joinAll("a", "b")
	d, _ := denseDomain(t, 8)
	model := tensor.NewState(d.Layout())
	defer model.Close()
	if res := agents[0].seed(model); res.GetStatus() != coordinatorv1.PushResult_STATUS_ACCEPTED {
		t.Fatal(res)
	}
	for _, a := range agents {
		a.heartbeat(coordinatorv1.MemberState_MEMBER_STATE_READY, 0)
	}
	payload := encode(t, d, p.Uplink, make([]float32, d.Len()), codec.Aux{})
	spoiled := bytes.Clone(payload)
	const bad = 3<<20 + 20 // in the fourth MiB
	copy(spoiled[bad:], []byte{0, 0, 0xc0, 0x7f})
	a := agents[0]
	h := a.header(a.grant(), "u", spoiled)
	u, _, err := r.engine.BeginPush(r.ctx(), h)
	if err != nil {
		t.Fatal(err)
	}
	for at := 0; err == nil; at += 1 << 20 {
		if _, err = u.Write(spoiled[at:min(at+1<<20, len(spoiled))]); err != nil && at > 4<<20 {
			t.Errorf("found at byte %d, the bad value is at %d", at, bad)
		}
	}
	var fault *codec.Error
	if !errors.As(err, &fault) || fault.Reason != v1alpha1.ReasonNotFinite || fault.Tensor != "w" {
		t.Fatalf("ended with %v", err)
	}
	res, err := r.engine.RefusePush(r.ctx(), u, fault)
	if err != nil || res.GetStatus() != coordinatorv1.PushResult_STATUS_REFUSED || res.GetReason() != string(v1alpha1.ReasonNotFinite) {
		t.Fatal(res, err)
	}
	b := agents[1]
	b.mustAccept(b.header(b.grant(), "u", payload), payload)
	if c := b.committed(); c.GetVersion() != 1 {
		t.Fatal(c)
	}
}

// Attempts that overlap, in pieces of any size: what is parsed is what was kept.
func TestTheCheckFollowsWhateverTheAttemptsDo(t *testing.T) {
	d, e := denseDomain(t, 6)
	x := make([]float32, d.Len())
	for i := range x {
		x[i] = float32(i % 1009)
	}
	payload := encode(t, d, e, x, codec.Aux{})
	for _, piece := range []int{7 << 10, 256 << 10, 1 << 20, 5 << 20} {
		memory := spool.NewMemory(3 << 20) // and the rest in a file
		defer memory.Close()
		s := spool.New(t.TempDir(), int64(len(payload)), memory)
		c := newCheck(s, d, e)
		// An older attempt is overtaken between its bytes and their check.
		old := &Upload{spool: s}
		old.writer, _ = s.Attempt()
		if _, err := old.Write(payload[:piece]); err != nil {
			t.Fatal(err)
		}
		u := &Upload{spool: s, check: c}
		u.writer, u.offset = s.Attempt()
		for lo := int(u.offset); lo < len(payload); lo += piece {
			if _, err := u.Write(payload[lo:min(lo+piece, len(payload))]); err != nil {
				t.Fatal(err)
			}
			if lo == int(u.offset) {
				if err := c.take([][]byte{payload[:piece/2], payload[piece/2 : piece]}, 0); err != nil {
					t.Fatal(err)
				}
			}
		}
		<-c.done
		if c.err != nil {
			t.Fatal(c.err)
		}
		got := make([]float32, d.Len())
		if err := c.payload.Decode(got); err != nil {
			t.Fatal(err)
		}
		for i := range x {
			if math.Float32bits(got[i]) != math.Float32bits(x[i]) {
				t.Fatalf("pieces of %d: value %d is %g", piece, i, got[i])
			}
		}
		u.close()
	}
}

// An upload that is given up leaves nothing waiting, whether it had begun or not.
func TestACheckEndsWithItsUpload(t *testing.T) {
	d, e := denseDomain(t, 1)
	for _, begun := range []bool{false, true} {
		s := spool.New(t.TempDir(), 20+4<<18, nil)
		c := newCheck(s, d, e)
		payload := encode(t, d, e, make([]float32, d.Len()), codec.Aux{})
		if begun {
			if err := c.take([][]byte{payload[:1000]}, 0); err != nil {
				t.Fatal(err)
			}
		}
		c.close()
		c.close()
		if <-c.done; !errors.Is(c.err, os.ErrClosed) || !errors.Is(c.take([][]byte{payload}, 0), os.ErrClosed) {
			t.Errorf("ended with %v", c.err)
		}
		s.Close()
	}
}

// The older of two attempts that overlap must not be told that its update came too
// late: it is about to count, and its sender would send the work again.
func TestAnAttemptThatWasOvertakenIsNotStale(t *testing.T) {
	p := defaults(t, algorithm.DiLoCo)
	r, a := seeded(t, testConfig(t.TempDir(), p, "a"))
	a.heartbeat(coordinatorv1.MemberState_MEMBER_STATE_READY, 0)
	payload := ones(t, smallModel(t), p, 0.5)
	h := a.header(a.grant(), "u", payload)
	older, _, err := r.engine.BeginPush(r.ctx(), h)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := older.Write(payload); err != nil {
		t.Fatal(err)
	}
	newer, _, err := r.engine.BeginPush(r.ctx(), h)
	if err != nil || newer.Offset() != int64(len(payload)) {
		t.Fatal(newer, err)
	}
	if res, err := r.engine.FinishPush(r.ctx(), older); err != nil || res.GetReason() != string(v1alpha1.ReasonSuperseded) {
		t.Errorf("the older attempt was answered with %v (%v)", res, err)
	}
	if res, err := r.engine.FinishPush(r.ctx(), newer); err != nil || res.GetStatus() != coordinatorv1.PushResult_STATUS_ACCEPTED {
		t.Errorf("the newer attempt was answered with %v (%v)", res, err)
	}
}

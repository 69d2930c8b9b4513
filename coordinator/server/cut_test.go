package server_test

import (
	"bytes"
	"errors"
	"io"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	"girassol.dev/coordinator/engine"
	"girassol.dev/internal/algorithm"
	"girassol.dev/internal/codec"
	"girassol.dev/internal/tensor"
	"girassol.dev/internal/wire"
	"girassol.dev/internal/wire/wiretest"
)

// tryPull downloads from an offset and returns the header and what arrived.
func (m *member) tryPull(req *coordinatorv1.PullRequest, w io.Writer) (*coordinatorv1.PullHeader, int64, error) {
	m.t.Helper()
	req.SessionToken = m.welcome.GetSessionToken()
	s, err := m.fleet.Pull(m.c.ctx(), req)
	if err != nil {
		return nil, 0, err
	}
	first, err := s.Recv()
	if err != nil {
		return nil, 0, err
	}
	h := first.GetHeader()
	rx := wire.NewReceiver(w, int64(h.GetPayloadBytes()), int64(req.GetOffset()))
	for {
		c, err := s.Recv()
		if errors.Is(err, io.EOF) {
			return h, rx.Offset(), rx.Finish()
		}
		if err == nil {
			err = rx.Take(c)
		}
		if err != nil {
			return h, rx.Offset(), err
		}
	}
}

// encoded is a dense update of a state's parameters.
func encoded(t *testing.T, st *tensor.State) []byte {
	t.Helper()
	var b bytes.Buffer
	d := codec.NewDomain(st.Layout, algorithm.Identity)
	if _, err := codec.Encode(&b, d, params(t, algorithm.DiLoCo).Uplink, st.Theta, codec.Aux{}); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// The cut takes the session with it. In the next one upload and download go on where
// they stopped, and little more than their size crosses the line.
func TestACutConnectionResumesInANewSession(t *testing.T) {
	c := start(t, t.TempDir(), func(cfg *engine.Config) { cfg.MaxModelBytes = 64 << 20 })
	c.admit("a")
	l, err := tensor.NewLayout([]tensor.Spec{{Name: "w", DType: tensor.F32, Shape: []int64{2048, 2048}, Role: tensor.Parameter}})
	if err != nil {
		t.Fatal(err)
	}
	big := tensor.NewState(l)
	defer big.Close()
	c.join("a").seedWith(big)

	direct := c.addr
	line := wiretest.New(t, direct)
	c.addr = line.Addr()
	a := c.join("a").ready()
	g := a.grant()
	payload := encoded(t, big)
	size := int64(len(payload))
	before, _, _ := line.Passed()
	line.CutUp(size / 2)
	digest := l.Digest()
	header := func() *coordinatorv1.PushHeader {
		h := a.header(g, "u", payload)
		h.LayoutDigest = digest[:]
		return h
	}
	if _, err := a.push(header(), payload, nil); status.Code(err) != codes.Unavailable {
		t.Fatalf("over a cut line: %v", err)
	}
	a = c.join("a")
	var from uint64
	r, err := a.push(header(), payload, func(q *coordinatorv1.PushRequest) bool {
		if from == 0 {
			from = q.GetOffset()
		}
		return true
	})
	if err != nil || r.GetStatus() != coordinatorv1.PushResult_STATUS_ACCEPTED {
		t.Fatal(r, err)
	}
	after, _, cuts := line.Passed()
	if from == 0 || cuts != 1 || after-before > size+4*wire.ChunkSize {
		t.Fatalf("an update of %d bytes resumed at %d, %d passed, %d cuts", size, from, after-before, cuts)
	}
	a.committed()

	_, begun, _ := line.Passed()
	var got bytes.Buffer
	line.CutDown(size / 2)
	req := &coordinatorv1.PullRequest{Kind: coordinatorv1.PullRequest_KIND_DELTA, Version: 1}
	_, at, err := a.tryPull(req, &got)
	if status.Code(err) != codes.Unavailable || at == 0 {
		t.Fatalf("over a cut line: %d bytes, %v", at, err)
	}
	a = c.join("a")
	req.Offset = uint64(at)
	h, end, err := a.tryPull(req, &got)
	_, down, cuts := line.Passed()
	if err != nil || end != int64(h.GetPayloadBytes()) || int64(got.Len()) != end || cuts != 2 || down-begun > end+4*wire.ChunkSize {
		t.Fatalf("a delta of %d bytes resumed at %d: %d passed, %d cuts, %v", h.GetPayloadBytes(), at, down-begun, cuts, err)
	}
}

// Who missed so much that the state is shorter gets it, who missed less the deltas.
func TestCatchingUpTakesTheShorterWay(t *testing.T) {
	c := start(t, t.TempDir(), func(cfg *engine.Config) { cfg.ArchiveUpdates = true }) // with a snapshot at version 3
	c.admit("a")
	l, err := tensor.NewLayout([]tensor.Spec{{Name: "w", DType: tensor.F32, Shape: []int64{64, 64}, Role: tensor.Parameter}})
	if err != nil {
		t.Fatal(err)
	}
	st := tensor.NewState(l)
	defer st.Close()
	a := c.join("a")
	a.seedWith(st)
	p, digest := encoded(t, st), l.Digest()
	for v := uint64(1); v <= 3; v++ {
		a.ready()
		h := a.header(a.grant(), string(rune('a'+v)), p)
		h.LayoutDigest = digest[:]
		a.mustPush(h, p)
		a.committed()
	}
	for deadline := time.Now().Add(testWait); ; {
		h, _, err := a.tryPull(&coordinatorv1.PullRequest{Kind: coordinatorv1.PullRequest_KIND_SNAPSHOT}, io.Discard)
		if err == nil && h.GetSnapshot() && h.GetVersion() == 3 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("no snapshot of version 3: %v, %v", h, err)
		}
	}
	for _, tc := range []struct {
		first, to uint64
		snapshot  bool
	}{{1, 3, true}, {2, 3, false}, {3, 3, false}, {1, 2, false}, {1, 0, false}} {
		req := &coordinatorv1.PullRequest{Kind: coordinatorv1.PullRequest_KIND_DELTA, Version: tc.first, CatchUpTo: tc.to}
		h, _, err := a.tryPull(req, io.Discard)
		want := tc.first
		if tc.snapshot {
			want = 3
		}
		if err != nil || h.GetSnapshot() != tc.snapshot || h.GetVersion() != want {
			t.Errorf("%+v: %v, %v", tc, h, err)
		}
	}
}

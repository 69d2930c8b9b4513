package server_test

import (
	"context"
	"encoding/binary"
	"io"
	"math"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/internal/codec"
)

// training starts a federation with members of a and b in round 1; a's grant is
// returned. b keeps the round open.
func training(t *testing.T, opts ...option) (c *coordinator, a, b *member, g *coordinatorv1.Grant) {
	t.Helper()
	c = start(t, t.TempDir(), opts...)
	c.admit("a", "b")
	a = c.join("a")
	a.seed()
	b = c.join("b")
	a.ready()
	b.ready()
	return c, a, b, a.grant()
}

func TestRefusesBadUpdatesWithAReasonAndWithoutEffect(t *testing.T) {
	good := update(t, 0.5)
	at := func(off int, v float32) []byte {
		p := append([]byte(nil), good...)
		binary.LittleEndian.PutUint32(p[codec.HeaderSize+off:], math.Float32bits(v))
		return p
	}
	cases := map[string]struct {
		payload []byte
		change  func(*coordinatorv1.PushHeader)
		chunk   func(*coordinatorv1.PushRequest) bool
		want    v1alpha1.Reason
		status  coordinatorv1.PushResult_Status
	}{
		"NaN value":         {payload: at(8, float32(math.NaN())), want: v1alpha1.ReasonNotFinite},
		"infinite value":    {payload: at(4, float32(math.Inf(-1))), want: v1alpha1.ReasonNotFinite},
		"weight zero":       {change: func(h *coordinatorv1.PushHeader) { h.Weight = 0 }, want: v1alpha1.ReasonInvalidWeight},
		"weight negative":   {change: func(h *coordinatorv1.PushHeader) { h.Weight = -3 }, want: v1alpha1.ReasonInvalidWeight},
		"weight NaN":        {change: func(h *coordinatorv1.PushHeader) { h.Weight = math.NaN() }, want: v1alpha1.ReasonInvalidWeight},
		"weight infinite":   {change: func(h *coordinatorv1.PushHeader) { h.Weight = math.Inf(1) }, want: v1alpha1.ReasonInvalidWeight},
		"other layout":      {change: func(h *coordinatorv1.PushHeader) { h.LayoutDigest = make([]byte, 32) }, want: v1alpha1.ReasonShapeMismatch},
		"ten gigabytes":     {change: func(h *coordinatorv1.PushHeader) { h.PayloadBytes = 10 << 30 }, want: v1alpha1.ReasonTooLarge},
		"nothing":           {change: func(h *coordinatorv1.PushHeader) { h.PayloadBytes = 0 }, want: v1alpha1.ReasonTooLarge},
		"no update id":      {change: func(h *coordinatorv1.PushHeader) { h.UpdateId = "" }, want: v1alpha1.ReasonMalformed},
		"infinite metric":   {change: func(h *coordinatorv1.PushHeader) { h.Metrics = map[string]float64{"x": math.Inf(1)} }, want: v1alpha1.ReasonNotFinite},
		"garbage":           {payload: []byte("this is not an update, whatever its length says about itself"), want: v1alpha1.ReasonMalformed},
		"truncated body":    {payload: good[:len(good)-9], want: v1alpha1.ReasonTruncated},
		"trailing bytes":    {payload: append(append([]byte(nil), good...), 1, 2, 3), want: v1alpha1.ReasonTooLarge},
		"old round":         {change: func(h *coordinatorv1.PushHeader) { h.Round = 0 }, want: v1alpha1.ReasonStaleRound, status: coordinatorv1.PushResult_STATUS_STALE},
		"future round":      {change: func(h *coordinatorv1.PushHeader) { h.Round = 99 }, want: v1alpha1.ReasonNotGranted},
		"other version":     {change: func(h *coordinatorv1.PushHeader) { h.BaseVersion = 7 }, want: v1alpha1.ReasonStaleRound, status: coordinatorv1.PushResult_STATUS_STALE},
		"fenced epoch":      {change: func(h *coordinatorv1.PushHeader) { h.Epoch-- }, want: v1alpha1.ReasonFencedEpoch},
		"stranger's token":  {change: func(h *coordinatorv1.PushHeader) { h.SessionToken = "guess" }, want: v1alpha1.ReasonFencedEpoch},
		"flipped bit":       {chunk: func(r *coordinatorv1.PushRequest) bool { r.Crc32C ^= 1; return true }, want: v1alpha1.ReasonChecksumMismatch},
		"wrong offset":      {chunk: func(r *coordinatorv1.PushRequest) bool { r.Offset += 5; return true }, want: v1alpha1.ReasonUnexpectedOffset},
		"stream ends early": {chunk: func(*coordinatorv1.PushRequest) bool { return false }, want: v1alpha1.ReasonTruncated},
		"unknown tensor":    {change: func(h *coordinatorv1.PushHeader) { table(h, "w9", "F32", 4, 8) }, want: v1alpha1.ReasonUnknownTensor},
		"wrong shape":       {change: func(h *coordinatorv1.PushHeader) { table(h, "w1", "F32", 8, 4) }, want: v1alpha1.ReasonShapeMismatch},
		"wrong dtype":       {change: func(h *coordinatorv1.PushHeader) { table(h, "w1", "I64", 4, 8) }, want: v1alpha1.ReasonDTypeMismatch},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			c, a, b, g := training(t)
			before := c.status()
			payload := tc.payload
			if payload == nil {
				payload = good
			}
			h := a.header(g, "bad", payload)
			if tc.change != nil {
				tc.change(h)
			}
			r, err := a.push(h, payload, tc.chunk)
			if err != nil {
				t.Fatal(err)
			}
			want := tc.status
			if want == 0 {
				want = coordinatorv1.PushResult_STATUS_REFUSED
			}
			if r.GetStatus() != want || r.GetReason() != string(tc.want) || r.GetMessage() == "" {
				t.Fatalf("answer %v, want %v %s with a message", r, want, tc.want)
			}
			// The other site's update is all that counts.
			gb := b.grant()
			if r := b.mustPush(b.header(gb, "good", good), good); r.GetStatus() != coordinatorv1.PushResult_STATUS_ACCEPTED {
				t.Fatal(r)
			}
			if after := c.status(); after.GetRoundsCommitted() == before.GetRoundsCommitted() {
				// a may still correct itself: let its share end.
				a.heartbeat(coordinatorv1.MemberState_MEMBER_STATE_READY, g.GetRound())
			}
			got := c.until("committed b's update alone", func(s *coordinatorv1.FederationStatus) bool { return s.GetVersion() == 1 })
			if got.GetCommittedSamples() != 10 {
				t.Fatalf("%d samples committed, want b's 10", got.GetCommittedSamples())
			}
			if d := reference(t, 0.5); digest(got) != d {
				t.Fatalf("digest %s, want that of b's update alone %s", digest(got), d)
			}
		})
	}
}

// table describes w1 wrongly and the other tensors rightly.
func table(h *coordinatorv1.PushHeader, name, dtype string, shape ...int64) {
	h.LayoutDigest = nil
	off := uint64(codec.HeaderSize)
	add := func(n, d string, length uint64, s ...int64) {
		h.Tensors = append(h.Tensors, &coordinatorv1.TensorSection{Name: n, Dtype: d, Shape: s, Offset: off, Length: length})
		off += length
	}
	add(name, dtype, 128, shape...)
	add("w2", "F32", 128, 8, 4)
	add("bn.running_var", "F32", 16, 4)
	add("bn.num_batches_tracked", "I64", 8)
}

// reference is the digest after one update whose values are all v, made by a
// coordinator that saw nothing else.
func reference(t *testing.T, v float32) string {
	t.Helper()
	c := start(t, t.TempDir())
	c.admit("a")
	a := c.join("a")
	a.seed()
	a.ready()
	p := update(t, v)
	a.mustPush(a.header(a.grant(), "only", p), p)
	return digest(c.until("committed", func(s *coordinatorv1.FederationStatus) bool { return s.GetVersion() == 1 }))
}

func TestDuplicateUpdateGivesTheSameAnswerAndCountsOnce(t *testing.T) {
	c, a, b, g := training(t)
	p := update(t, 0.5)
	for range 3 {
		if r := a.mustPush(a.header(g, "u1", p), p); r.GetStatus() != coordinatorv1.PushResult_STATUS_ACCEPTED {
			t.Fatal(r)
		}
	}
	if r := a.mustPush(a.header(g, "u2", p), p); r.GetReason() != string(v1alpha1.ReasonConflictingUpdate) {
		t.Fatalf("a second update of the same round: %v", r)
	}
	b.mustPush(b.header(b.grant(), "v1", p), p)
	st := c.until("committed", func(s *coordinatorv1.FederationStatus) bool { return s.GetVersion() == 1 })
	if st.GetCommittedSamples() != 20 {
		t.Fatalf("%d samples, want 20", st.GetCommittedSamples())
	}
	// After the commit, too.
	if r := a.mustPush(a.header(g, "u1", p), p); r.GetStatus() != coordinatorv1.PushResult_STATUS_ACCEPTED {
		t.Fatalf("repeated after the commit: %v", r)
	}
	if r := a.mustPush(a.header(g, "u3", p), p); r.GetStatus() != coordinatorv1.PushResult_STATUS_STALE {
		t.Fatalf("another update for the committed round: %v", r)
	}
}

func TestAllWeightsZeroVoidsTheRoundAndTheNextOneStarts(t *testing.T) {
	c, a, b, g := training(t)
	before := digest(c.status())
	p := update(t, 0.5)
	ha, hb := a.header(g, "u", p), b.header(b.grant(), "u", p)
	ha.Weight, hb.Weight = 0, 0
	a.mustPush(ha, p)
	b.mustPush(hb, p)
	if done := a.committed(); !done.GetVoid() || done.GetReason() != string(v1alpha1.ReasonTooFewUpdates) {
		t.Fatalf("round ended with %v, want void", done)
	}
	if after := digest(c.status()); after != before {
		t.Fatal("the model changed")
	}
	a.ready()
	b.ready()
	if next := a.grant(); next.GetRound() != 2 {
		t.Fatalf("next round is %d", next.GetRound())
	}
}

func TestUploadResumesWhereItStopped(t *testing.T) {
	c, a, b, g := training(t)
	p := update(t, 0.5)
	h := a.header(g, "u", p)
	// A first attempt delivers a part and breaks off.
	ctx, cancel := context.WithCancel(context.Background())
	s, err := a.fleet.Push(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Send(&coordinatorv1.PushRequest{Header: h}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Recv(); err != nil {
		t.Fatal(err)
	}
	if err := s.Send(&coordinatorv1.PushRequest{Crc32C: crc(p[:100]), Payload: p[:100]}); err != nil {
		t.Fatal(err)
	}
	if err := s.CloseSend(); err != nil {
		t.Fatal(err)
	}
	if r, err := s.Recv(); err != nil || r.GetResult().GetReason() != string(v1alpha1.ReasonTruncated) {
		t.Fatal(r, err)
	}
	cancel()
	var resumed uint64
	r, err := a.push(h, p, func(q *coordinatorv1.PushRequest) bool {
		if resumed == 0 {
			resumed = q.GetOffset()
		}
		return true
	})
	if err != nil || r.GetStatus() != coordinatorv1.PushResult_STATUS_ACCEPTED || resumed != 100 {
		t.Fatalf("resumed at %d with %v, %v", resumed, r, err)
	}
	b.mustPush(b.header(b.grant(), "u", p), p)
	c.until("committed", func(s *coordinatorv1.FederationStatus) bool { return s.GetVersion() == 1 })
}

func TestNewerSessionOfAMemberFencesTheOlder(t *testing.T) {
	_, a, _, g := training(t)
	again := a.c.join("a")
	if again.welcome.GetEpoch() <= a.welcome.GetEpoch() {
		t.Fatalf("epoch %d after %d", again.welcome.GetEpoch(), a.welcome.GetEpoch())
	}
	for {
		if _, err := a.stream.Recv(); err != nil {
			if status.Code(err) != codes.Aborted {
				t.Fatalf("the old session ended with %v", err)
			}
			break
		}
	}
	p := update(t, 0.5)
	if r := a.mustPush(a.header(g, "u", p), p); r.GetReason() != string(v1alpha1.ReasonFencedEpoch) {
		t.Fatalf("an update through the fenced session: %v", r)
	}
}

func TestRefusesSessionsOfStrangers(t *testing.T) {
	c := start(t, t.TempDir())
	a := c.join("a")
	for name, tc := range map[string]struct {
		hello *coordinatorv1.Hello
		want  codes.Code
	}{
		"wrong federation": {&coordinatorv1.Hello{Federation: "other", Site: "a", Node: "n"}, codes.FailedPrecondition},
		"undeclared site":  {&coordinatorv1.Hello{Federation: "fed", Site: "z", Node: "n"}, codes.NotFound},
		"bad node name":    {&coordinatorv1.Hello{Federation: "fed", Site: "a", Node: "../n"}, codes.InvalidArgument},
	} {
		s, err := a.fleet.Session(c.ctx())
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Send(&coordinatorv1.SessionRequest{Message: &coordinatorv1.SessionRequest_Hello{Hello: tc.hello}}); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Recv(); status.Code(err) != tc.want {
			t.Errorf("%s: %v, want %v", name, err, tc.want)
		}
	}
	if _, err := a.fleet.Pull(c.ctx(), &coordinatorv1.PullRequest{}); err != nil {
		t.Fatal(err)
	}
	pull, _ := a.fleet.Pull(c.ctx(), &coordinatorv1.PullRequest{SessionToken: "guess", Kind: coordinatorv1.PullRequest_KIND_SNAPSHOT})
	if _, err := pull.Recv(); status.Code(err) != codes.Unauthenticated {
		t.Errorf("pull with a guessed token: %v", err)
	}
}

func TestGarbageOnThePortHarmsNobody(t *testing.T) {
	c, a, b, g := training(t)
	for _, junk := range []string{"GET / HTTP/1.1\r\n\r\n", "\x00\x01\x02\x03garbage", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\xff\xff\xff\xff\xff\xff\xff\xff\xff"} {
		conn := rawDial(t, c.addr)
		if _, err := conn.Write([]byte(junk)); err != nil {
			t.Fatal(err)
		}
		_ = conn.SetReadDeadline(time.Now().Add(testWait))
		if err := conn.(interface{ CloseWrite() error }).CloseWrite(); err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, conn) // the server hangs up
	}
	p := update(t, 0.5)
	a.mustPush(a.header(g, "u", p), p)
	b.mustPush(b.header(b.grant(), "u", p), p)
	c.until("committed in spite of the garbage", func(s *coordinatorv1.FederationStatus) bool { return s.GetVersion() == 1 })
}

package server_test

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/status"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/coordinator/engine"
	"girassol.dev/internal/wire"
)

// What a header claims costs nothing before it is refused, in the reason's words.
func TestClaimsAreRefusedBeforeAnythingIsAllocatedForThem(t *testing.T) {
	long := strings.Repeat("x", 1<<20)
	names := map[string]float64{}
	for i := range 65 {
		names[fmt.Sprint(i)] = 1
	}
	for name, c := range map[string]struct {
		change func(*coordinatorv1.PushHeader)
		want   string
	}{
		"ten terabytes":           {func(h *coordinatorv1.PushHeader) { h.PayloadBytes = 10 << 40 }, "TooLarge"},
		"more than there are":     {func(h *coordinatorv1.PushHeader) { h.PayloadBytes = 1<<64 - 1 }, "TooLarge"},
		"a seed of ten terabytes": {func(h *coordinatorv1.PushHeader) { h.Kind, h.PayloadBytes = coordinatorv1.PushHeader_KIND_SEED, 10<<40 }, "AlreadySeeded"},
		"a long update id":        {func(h *coordinatorv1.PushHeader) { h.UpdateId = long }, "Malformed"},
		"a long energy source":    {func(h *coordinatorv1.PushHeader) { h.EnergySource = long }, "TooLarge"},
		"many metrics":            {func(h *coordinatorv1.PushHeader) { h.Metrics = names }, "TooLarge"},
		"a long metric's name":    {func(h *coordinatorv1.PushHeader) { h.Metrics = map[string]float64{long: 1} }, "TooLarge"},
		"a long token":            {func(h *coordinatorv1.PushHeader) { h.SessionToken = long }, "FencedEpoch"},
		"data without a ledger": {func(h *coordinatorv1.PushHeader) {
			h.Consumed = make([]*coordinatorv1.DataRange, 1)
			h.Consumed[0] = &coordinatorv1.DataRange{}
		}, "DataNotLeased"},
		"a tensor without a model": {func(h *coordinatorv1.PushHeader) { table(h, "w1", "F32", 1<<40, 1<<40) }, "ShapeMismatch"},
	} {
		t.Run(name, func(t *testing.T) {
			_, a, _, g := training(t)
			p := update(t, 0.5)
			h := a.header(g, "u", p)
			c.change(h)
			// The header is the test's own; what is measured is what it makes of it.
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			res, err := a.push(h, p, nil)
			runtime.ReadMemStats(&after)
			if err != nil {
				t.Fatal(err)
			}
			if res.GetStatus() == coordinatorv1.PushResult_STATUS_ACCEPTED || res.GetReason() != c.want || len(res.GetMessage()) > 2000 {
				t.Errorf("answered %.300v, want %s", res, c.want)
			}
			// Both ends are in this process: buffers of the connection, the header's copies.
			if used := after.TotalAlloc - before.TotalAlloc; used > 32<<20 {
				t.Errorf("%d bytes allocated", used)
			}
		})
	}
}

func TestListsOfAHeaderAreBounded(t *testing.T) {
	_, a, _, g := training(t)
	p := update(t, 0.5)
	h := a.header(g, "u", p)
	for range wire.MaxSections + 1 {
		h.Tensors = append(h.Tensors, &coordinatorv1.TensorSection{})
	}
	if _, err := a.push(h, p, nil); status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), string(v1alpha1.ReasonTooLarge)) {
		t.Errorf("ended with %v", err)
	}
}

// A site that calls without end waits, and is told how long; the others do not.
func TestCallsBeyondTheQuotaAreToldWhenToComeAgain(t *testing.T) {
	c := start(t, t.TempDir(), func(cfg *engine.Config) { cfg.Admission.Quotas.CallsPerMinute = 12 })
	c.admit("a", "b")
	a := c.join("a")
	a.seed()
	b := c.join("b")
	refused := 0
	for range 30 {
		s, err := a.fleet.Pull(c.ctx(), &coordinatorv1.PullRequest{SessionToken: a.welcome.GetSessionToken(), Kind: coordinatorv1.PullRequest_KIND_SNAPSHOT})
		for err == nil {
			_, err = s.Recv()
		}
		st := status.Convert(err)
		if st.Code() != codes.ResourceExhausted {
			continue
		}
		refused++
		var advice *errdetails.RetryInfo
		for _, d := range st.Details() {
			advice, _ = d.(*errdetails.RetryInfo)
		}
		if wait := advice.GetRetryDelay().AsDuration(); wait <= 0 || wait > 5*time.Second || !strings.Contains(st.Message(), string(v1alpha1.ReasonCallsQuota)) {
			t.Fatalf("%v, retry in %s", st, wait)
		}
	}
	if refused < 15 {
		t.Errorf("%d of 30 calls refused", refused)
	}
	// Neither its own session nor another site's notices.
	a.heartbeat(coordinatorv1.MemberState_MEMBER_STATE_READY, 0)
	a.recv(func(r *coordinatorv1.SessionResponse) bool { return r.GetHeartbeatReply() != nil })
	s, err := b.fleet.Pull(c.ctx(), &coordinatorv1.PullRequest{SessionToken: b.welcome.GetSessionToken(), Kind: coordinatorv1.PullRequest_KIND_SNAPSHOT})
	if err == nil {
		_, err = s.Recv()
	}
	if err != nil {
		t.Errorf("another site: %v", err)
	}
}

// With certificates the quota is the certificate's, also for calls that fail.
func TestCallsAreCountedByTheCertificate(t *testing.T) {
	authority := newAuthority(t)
	c := startLinked(t, t.TempDir(), authority.link("coordinator", ""), func(cfg *engine.Config) { cfg.Admission.Quotas.CallsPerMinute = 5 })
	call := func(site string) error {
		conn, err := wire.Dial(c.addr, authority.link(site, "spiffe://fed/site/"+site))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		var last error
		for range 10 {
			ctx, cancel := context.WithTimeout(t.Context(), testWait)
			s, err := coordinatorv1.NewFleetClient(conn).Pull(ctx, &coordinatorv1.PullRequest{SessionToken: "a guess"})
			if err == nil {
				_, err = s.Recv()
			}
			cancel()
			last = err
		}
		return last
	}
	for _, site := range []string{"a", "b"} {
		if err := call(site); status.Code(err) != codes.ResourceExhausted {
			t.Errorf("site %s after 10 guesses of a token: %v", site, err)
		}
	}
}

func TestMembersBeyondTheQuotaAreToldWhenToComeAgain(t *testing.T) {
	c := start(t, t.TempDir(), func(cfg *engine.Config) { cfg.Admission.Quotas.Members = 1 })
	a := c.join("a")
	s, err := a.fleet.Session(c.ctx())
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Send(&coordinatorv1.SessionRequest{Message: &coordinatorv1.SessionRequest_Hello{Hello: &coordinatorv1.Hello{Federation: "fed", Site: "a", Node: "n2"}}}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Recv(); status.Code(err) != codes.ResourceExhausted || !strings.Contains(err.Error(), string(v1alpha1.ReasonMembersQuota)) {
		t.Errorf("a second member: %v", err)
	}
	c.join("a") // the same member again
}

// A compressed message can be a thousandfold of itself; nothing here unpacks one.
func TestNoCompressionIsRegistered(t *testing.T) {
	for _, name := range []string{"gzip", "snappy", "zstd", "deflate"} {
		if encoding.GetCompressor(name) != nil {
			t.Errorf("%s is registered", name)
		}
	}
}

package server_test

import (
	"errors"
	"io"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	"girassol.dev/internal/wire"
)

// asked waits for the coordinator's request.
func (m *member) asked() *coordinatorv1.LinkTest {
	m.t.Helper()
	return m.recv(func(r *coordinatorv1.SessionResponse) bool { return r.GetLinkTest() != nil }).GetLinkTest()
}

// measure sends requests and says how that ends.
func (m *member) measure(requests ...*coordinatorv1.MeasureRequest) (answers int, err error) {
	m.t.Helper()
	s, err := m.fleet.Measure(m.c.ctx())
	if err != nil {
		return 0, err
	}
	for _, r := range requests {
		if err := s.Send(r); err != nil && !errors.Is(err, io.EOF) {
			return answers, err
		}
		a, err := s.Recv()
		if err != nil {
			return answers, err
		}
		if len(a.GetPayload()) != int(r.GetWant()) {
			m.t.Errorf("%d bytes, want %d", len(a.GetPayload()), r.GetWant())
		}
		answers++
	}
	if err := s.CloseSend(); err != nil {
		return answers, err
	}
	if _, err = s.Recv(); errors.Is(err, io.EOF) {
		err = nil
	}
	return answers, err
}

func (c *coordinator) linkTest(t *testing.T, site string, bytes uint64) <-chan *coordinatorv1.LinkTestResponse {
	t.Helper()
	conn, err := wire.Dial(c.addr, wire.Options{})
	if err != nil {
		t.Fatal(err)
	}
	out := make(chan *coordinatorv1.LinkTestResponse, 1)
	ctx := c.ctx()
	go func() {
		defer conn.Close()
		r, err := coordinatorv1.NewAdminClient(conn).LinkTest(ctx, &coordinatorv1.LinkTestRequest{Site: site, Bytes: bytes})
		if err != nil {
			t.Error(err)
		}
		out <- r
	}()
	return out
}

func TestALinkTestCarriesWhatItAskedForAndTellsARoundsCost(t *testing.T) {
	c := start(t, t.TempDir())
	c.admit("a")
	m := c.join("a")
	m.seed()
	m.ready()
	answer := c.linkTest(t, "a", 1<<20)
	ask := m.asked()
	if ask.GetBytes() != 1<<20 || ask.GetLimitMs() <= 0 || ask.GetId() == "" {
		t.Fatalf("asked for %v", ask)
	}
	half := make([]byte, 1<<19)
	for name, tc := range map[string]struct {
		requests []*coordinatorv1.MeasureRequest
		answers  int
		code     codes.Code
	}{
		"as asked":      {[]*coordinatorv1.MeasureRequest{{Id: ask.GetId()}, {Id: ask.GetId(), Payload: half}, {Id: ask.GetId(), Want: 1 << 20}}, 3, codes.OK},
		"another id":    {[]*coordinatorv1.MeasureRequest{{Id: "guess", Want: 1}}, 0, codes.NotFound},
		"too much up":   {[]*coordinatorv1.MeasureRequest{{Id: ask.GetId(), Payload: half}, {Payload: half}, {Payload: half}}, 2, codes.InvalidArgument},
		"too much down": {[]*coordinatorv1.MeasureRequest{{Id: ask.GetId(), Want: 1 << 20}, {Want: 1}}, 1, codes.InvalidArgument},
		"a big answer":  {[]*coordinatorv1.MeasureRequest{{Id: ask.GetId(), Want: 2 << 20}}, 0, codes.InvalidArgument},
	} {
		if n, err := m.measure(tc.requests...); n != tc.answers || status.Code(err) != tc.code {
			t.Errorf("%s: %d answers, then %v; want %d and %s", name, n, err, tc.answers, tc.code)
		}
	}
	m.send(&coordinatorv1.SessionRequest{Message: &coordinatorv1.SessionRequest_LinkTestResult{LinkTestResult: &coordinatorv1.LinkTestResult{
		Id: ask.GetId(), RttSeconds: 0.035, UpBytesPerSecond: 1e6, DownBytesPerSecond: 2e6}}})
	r := <-answer
	if len(r.GetMembers()) != 1 || r.GetRoundSeconds() != 20 {
		t.Fatalf("answer %v", r)
	}
	l := r.GetMembers()[0]
	if l.GetNode() != "n1" || l.GetResult().GetUpBytesPerSecond() != 1e6 || l.GetLink().GetMode() != wire.Plaintext {
		t.Errorf("member %v", l)
	}
	// Three round trips, and the payloads of a model of 64 parameters.
	if s := l.GetRoundTransferSeconds(); s < 0.105 || s > 0.107 {
		t.Errorf("a round's transfers take %v s", s)
	}
	// The test is over: its id is worth nothing.
	if _, err := m.measure(&coordinatorv1.MeasureRequest{Id: ask.GetId()}); status.Code(err) != codes.NotFound {
		t.Errorf("bytes after the test: %v", err)
	}
}

func TestALinkTestWithoutAMemberOrWithMadeUpFiguresIsToldSo(t *testing.T) {
	c := start(t, t.TempDir())
	if _, err := c.engine.LinkTest(c.ctx(), "a", 0); err == nil || !strings.Contains(err.Error(), "NotConnected") {
		t.Errorf("a site without members: %v", err)
	}
	if _, err := c.engine.LinkTest(c.ctx(), "nowhere", 0); err == nil || !strings.Contains(err.Error(), "UnknownSite") {
		t.Errorf("an undeclared site: %v", err)
	}
	m := c.join("a")
	if _, err := c.engine.LinkTest(c.ctx(), "a", 5); err == nil || !strings.Contains(err.Error(), "5 bytes") {
		t.Errorf("a test of 5 bytes: %v", err)
	}
	answer := c.linkTest(t, "a", 0)
	ask := m.asked()
	m.send(&coordinatorv1.SessionRequest{Message: &coordinatorv1.SessionRequest_LinkTestResult{LinkTestResult: &coordinatorv1.LinkTestResult{
		Id: ask.GetId(), RttSeconds: -1, UpBytesPerSecond: -5}}})
	if r := (<-answer).GetMembers()[0]; r.GetResult().GetRttSeconds() != 0 || r.GetResult().GetUpBytesPerSecond() != 0 || r.RoundTransferSeconds != nil {
		t.Errorf("figures that cannot be: %v", r)
	}
	// A member that goes ends its test.
	answer = c.linkTest(t, "a", 0)
	m.asked()
	m.end()
	if r := (<-answer).GetMembers()[0]; r.GetResult().GetError() == "" {
		t.Errorf("a member that has gone: %v", r)
	}
}

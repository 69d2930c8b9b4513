package agent

import (
	"errors"
	"io"
	"math"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	"girassol.dev/internal/algorithm"
)

// measured is what the fake coordinator has seen of link tests.
type measured struct {
	id       string
	up, down uint64
	refuse   error
	short    bool
}

// Measure implements the Fleet service.
func (c *coordinator) Measure(stream grpc.BidiStreamingServer[coordinatorv1.MeasureRequest, coordinatorv1.MeasureResponse]) error {
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		var refuse error
		n := m.GetWant()
		c.do(func() {
			c.tests.id = m.GetId()
			c.tests.up += uint64(len(m.GetPayload()))
			c.tests.down += uint64(m.GetWant())
			refuse = c.tests.refuse
			if c.tests.short && n > 0 {
				n--
			}
		})
		if refuse != nil {
			return refuse
		}
		if err := stream.Send(&coordinatorv1.MeasureResponse{Payload: make([]byte, n)}); err != nil {
			return err
		}
	}
}

// test asks the agent for one and waits for the result.
func (c *coordinator) test(t *coordinatorv1.LinkTest) *coordinatorv1.LinkTestResult {
	c.t.Helper()
	c.newest().out <- &coordinatorv1.SessionResponse{Message: &coordinatorv1.SessionResponse_LinkTest{LinkTest: t}}
	var r *coordinatorv1.LinkTestResult
	c.wait("a link test's result", func() bool {
		for _, got := range c.members[len(c.members)-1].tests {
			if got.GetId() == t.GetId() {
				r = got
			}
		}
		return r != nil
	})
	return r
}

func TestALinkTestMeasuresEachWayWithinItsBytesAndRoundsGoOn(t *testing.T) {
	c := newCoordinator(t, algorithm.DecoupledMomentum, small)
	launch(t, c, "", &person{t: t})
	c.waitReady(0)
	r := c.test(&coordinatorv1.LinkTest{Id: "t1", Bytes: 3 << 20, LimitMs: 30_000})
	if r.GetError() != "" || r.GetRttSeconds() <= 0 || r.GetUpBytesPerSecond() <= 0 || r.GetDownBytesPerSecond() <= 0 {
		t.Errorf("result %v", r)
	}
	c.do(func() {
		if c.tests.id != "t1" || c.tests.up != 3<<20 || c.tests.down != 3<<20 {
			t.Errorf("measured with %+v, want 3 MiB each way", c.tests)
		}
		c.tests = measured{refuse: status.Error(codes.NotFound, "no such test")}
	})
	if r := c.test(&coordinatorv1.LinkTest{Id: "t2", Bytes: 1 << 20}); r.GetError() == "" {
		t.Errorf("a refused test has the result %v", r)
	}
	c.do(func() { c.tests = measured{short: true} })
	if r := c.test(&coordinatorv1.LinkTest{Id: "t3", Bytes: 1 << 20}); r.GetError() == "" {
		t.Errorf("a coordinator that answers with too little is measured: %v", r)
	}
	if n := len(c.members); n != 1 {
		t.Errorf("%d sessions: a link test has broken one", n)
	}
}

func TestHeartbeatsTellTheLink(t *testing.T) {
	c := newCoordinator(t, algorithm.DecoupledMomentum, small)
	age := 7.0
	launch(t, c, "", &person{t: t}, func(cfg *Config) {
		cfg.Link = func() *coordinatorv1.Link {
			return &coordinatorv1.Link{Mode: "WireGuard", HandshakeAgeSeconds: &age, TunnelBytesSent: 5}
		}
	})
	b := c.waitBeat("with a round trip", func(h *coordinatorv1.Heartbeat) bool { return h.GetLink().GetRttSeconds() > 0 })
	if l := b.GetLink(); l.GetMode() != "WireGuard" || l.GetHandshakeAgeSeconds() != 7 || l.GetTunnelBytesSent() != 5 {
		t.Errorf("link %v", l)
	}
}

func TestARoundTripIsTheLeastOfTheLastMinute(t *testing.T) {
	var r roundTrips
	at := time.Unix(1000, 0)
	if r.least(at) != nil {
		t.Error("a round trip before the first")
	}
	for i, ms := range []int{40, 35, 90, 50} {
		r.observe(at.Add(time.Duration(i)*20*time.Second), time.Duration(ms)*time.Millisecond)
	}
	for after, want := range map[time.Duration]float64{60 * time.Second: 0.035, 81 * time.Second: 0.05, 119 * time.Second: 0.05} {
		// In order of time: what is too old is forgotten.
		got := (&roundTrips{seen: append([]roundTrip(nil), r.seen...)}).least(at.Add(after))
		if got == nil || math.Abs(*got-want) > 1e-9 {
			t.Errorf("after %s: %v, want %v", after, got, want)
		}
	}
	if r.least(at.Add(10*time.Minute)) != nil {
		t.Error("a round trip of ten minutes ago")
	}
}

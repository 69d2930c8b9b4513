package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"google.golang.org/grpc"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
)

// rttWindow is how long a heartbeat's round trip counts.
const rttWindow = time.Minute

// roundTrips are those of the heartbeats of the last minute. The least of them is
// the link's; the others have waited for something.
type roundTrips struct {
	mu   sync.Mutex
	seen []roundTrip
}

type roundTrip struct {
	at  time.Time
	rtt time.Duration
}

func (r *roundTrips) observe(at time.Time, rtt time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.trim(at)
	// What is older and not less will never be the least again.
	for len(r.seen) > 0 && r.seen[len(r.seen)-1].rtt >= rtt {
		r.seen = r.seen[:len(r.seen)-1]
	}
	r.seen = append(r.seen, roundTrip{at, rtt})
}

func (r *roundTrips) trim(now time.Time) {
	for len(r.seen) > 0 && now.Sub(r.seen[0].at) > rttWindow {
		r.seen = r.seen[1:]
	}
}

// least is unset without a heartbeat in the last minute.
func (r *roundTrips) least(now time.Time) *float64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.trim(now)
	if len(r.seen) == 0 {
		return nil
	}
	s := r.seen[0].rtt.Seconds()
	return &s
}

// link is what heartbeats say of the link; nil when nothing is known.
func (a *Agent) link(now time.Time) *coordinatorv1.Link {
	l := &coordinatorv1.Link{}
	if a.cfg.Link != nil {
		l = a.cfg.Link()
	}
	l.RttSeconds = a.trips.least(now)
	if l.RttSeconds != nil {
		a.metrics.linkRTT.Set(*l.RttSeconds)
	}
	a.metrics.handshakeAge.Set(-1)
	if l.HandshakeAgeSeconds != nil {
		a.metrics.handshakeAge.Set(l.GetHandshakeAgeSeconds())
	}
	a.metrics.tunnelBytes.WithLabelValues("sent").Set(float64(l.GetTunnelBytesSent()))
	a.metrics.tunnelBytes.WithLabelValues("received").Set(float64(l.GetTunnelBytesReceived()))
	return l
}

// Limits of a link test, whatever the coordinator asks for.
const (
	maxTestBytes = 1 << 30
	maxTestTime  = 2 * time.Minute
	testMessage  = 256 << 10
	// testAhead is how many messages may be on their way without an answer: 4 MiB
	// fill 100 MB/s over 40 ms, and are through a link of 1 Mbit/s in half a minute.
	testAhead = 16
	testPings = 5
)

// testLink measures beside all other work and hands the result to the session.
func (a *Agent) testLink(ctx context.Context, group *sync.WaitGroup, s *session, t *coordinatorv1.LinkTest) {
	group.Go(func() {
		r := &coordinatorv1.LinkTestResult{Error: "another link test is at work"}
		if s.testing.TryLock() {
			r = measureLink(ctx, s.client, t)
			s.testing.Unlock() // before the answer, after which the next may be asked for
		}
		r.Id = t.GetId()
		select {
		case s.results <- r:
		case <-ctx.Done():
		}
	})
}

// measureLink measures the round trip and the throughput each way, at most so many
// bytes each and so long in all.
func measureLink(ctx context.Context, client coordinatorv1.FleetClient, t *coordinatorv1.LinkTest) *coordinatorv1.LinkTestResult {
	limit := min(time.Duration(t.GetLimitMs())*time.Millisecond, maxTestTime)
	if limit <= 0 {
		limit = maxTestTime
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	out := &coordinatorv1.LinkTestResult{}
	if err := measureInto(ctx, out, client, t, limit); err != nil {
		out.Error = err.Error()
	}
	return out
}

func measureInto(ctx context.Context, out *coordinatorv1.LinkTestResult, client coordinatorv1.FleetClient, t *coordinatorv1.LinkTest, limit time.Duration) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := client.Measure(ctx)
	if err != nil {
		return err
	}
	m := measurement{stream: stream, cancel: cancel, id: t.GetId()}
	rtt := time.Duration(0)
	for range testPings {
		took, _, err := m.exchange(ctx, 1, 0, 0)
		if err != nil {
			return fmt.Errorf("round trip: %w", err)
		}
		if rtt == 0 || took < rtt {
			rtt = took
		}
	}
	out.RttSeconds = rtt.Seconds()
	messages := int(max(1, min(t.GetBytes(), maxTestBytes)/testMessage))
	// A third of the time each way, so that a slow link has figures, too.
	for _, way := range []struct {
		name     string
		up, down int
		to       *float64
	}{
		{"up", testMessage, 0, &out.UpBytesPerSecond},
		{"down", 0, testMessage, &out.DownBytesPerSecond},
	} {
		part, cancel := context.WithTimeout(ctx, limit/3)
		took, done, err := m.exchange(part, messages, way.up, way.down)
		cancel()
		if err != nil {
			return fmt.Errorf("%s: %w", way.name, err)
		}
		// The last answer has waited for half a round trip on its way here, the first
		// request as long on its way there.
		if took -= rtt; took > 0 {
			*way.to = float64(done) * testMessage / took.Seconds()
		}
	}
	_ = stream.CloseSend()
	if _, err := stream.Recv(); !errors.Is(err, io.EOF) {
		return err
	}
	return nil
}

type measurement struct {
	stream grpc.BidiStreamingClient[coordinatorv1.MeasureRequest, coordinatorv1.MeasureResponse]
	cancel context.CancelFunc
	id     string
}

// exchange sends requests with a payload of so many bytes, each of which is answered
// with so many. When ctx ends, it sends no more and waits for the answers.
func (m *measurement) exchange(ctx context.Context, count, up, down int) (took time.Duration, done int, err error) {
	began := time.Now()
	under := make(chan struct{}, testAhead) // requests under way
	failed := make(chan error, 1)
	go func() {
		defer close(under)
		payload := make([]byte, up)
		for range count {
			if ctx.Err() != nil {
				return
			}
			if err := m.stream.Send(&coordinatorv1.MeasureRequest{Id: m.id, Payload: payload, Want: uint32(down)}); err != nil {
				failed <- err // io.EOF; the reason is with the answers
				return
			}
			select {
			case under <- struct{}{}:
			case <-m.stream.Context().Done():
				return
			}
		}
	}()
	defer func() {
		for range under { // the sender ends with the stream
		}
	}()
	for range under {
		answer, err := m.stream.Recv()
		if err != nil {
			m.cancel()
			return 0, 0, err
		}
		if len(answer.GetPayload()) != down {
			m.cancel()
			return 0, 0, fmt.Errorf("an answer of %d bytes, want %d", len(answer.GetPayload()), down)
		}
		done++
		took = time.Since(began)
	}
	select {
	case err := <-failed:
		if _, rerr := m.stream.Recv(); rerr != nil {
			err = rerr
		}
		return 0, 0, err
	default:
	}
	if done == 0 {
		return 0, 0, errors.New("no answer in time")
	}
	return took, done, nil
}

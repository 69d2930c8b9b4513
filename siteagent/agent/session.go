package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v4"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"girassol.dev/api/federation/v1alpha1"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
)

// ErrFenced says that a newer session of the same member has taken over: two
// agents run under one name, and this one gives way.
var ErrFenced = errors.New("a newer session of the same member has taken over")

// errSilent ends a session whose coordinator has not answered heartbeats.
var errSilent = errors.New("no heartbeat reply within the loss time")

// session is one established session. It is immutable; its connection ends with
// it, so that a black-holed one is never used again.
type session struct {
	client   coordinatorv1.FleetClient
	token    string
	epoch    uint64
	done     <-chan struct{}
	interval time.Duration
	loss     time.Duration
	// A link test at a time, and its result for the coordinator.
	testing sync.Mutex
	results chan *coordinatorv1.LinkTestResult
}

// newBackOff is for one loop only: it is not safe for concurrent use. It never
// gives up by itself.
func (c *Config) newBackOff() *backoff.ExponentialBackOff {
	return backoff.NewExponentialBackOff(
		backoff.WithInitialInterval(c.RetryInitial),
		backoff.WithMaxInterval(c.RetryMax),
		backoff.WithRandomizationFactor(0.5),
		backoff.WithMaxElapsedTime(0),
	)
}

// pause waits for d and says whether the context still lives.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

// sessions keeps one session after the other until the context ends or a newer
// session of the same member fences it.
func (a *Agent) sessions(ctx context.Context) error {
	b := a.cfg.newBackOff()
	last := ""
	for {
		up, err := a.oneSession(ctx)
		if ctx.Err() != nil {
			return nil //nolint:nilerr // ended by its owner, not by the link
		}
		if status.Code(err) == codes.Aborted {
			return fmt.Errorf("agent: member %s of federation %s: %w (%s); is another agent running under this name?",
				a.member(), a.cfg.Federation, ErrFenced, status.Convert(err).Message())
		}
		// A dial that succeeds and breaks at once is no success.
		if up > a.cfg.StableAfter {
			b.Reset()
			last = ""
		}
		wait := b.NextBackOff()
		switch status.Code(err) {
		case codes.NotFound, codes.FailedPrecondition, codes.PermissionDenied, codes.Unauthenticated, codes.Unimplemented:
			// Nothing changes by itself here: a person has to declare the site,
			// fix the name or the certificate.
			wait = max(wait, a.cfg.RetryMax/2)
		}
		text := err.Error()
		if text != last {
			a.log.Warn("session ended, trying again", "reason", lostReason(text), "error", err, "wait", wait)
			last = text
		} else {
			a.log.Debug("session ended again, trying again", "error", err, "wait", wait)
		}
		a.setSessionError(text)
		if !pause(ctx, wait) {
			return nil
		}
	}
}

// lostReason is the reason that a coordinator or its link names in what it says; the
// connection is lost otherwise.
func lostReason(text string) v1alpha1.Reason {
	for _, r := range []v1alpha1.Reason{v1alpha1.ReasonCertificateRevoked, v1alpha1.ReasonIdentityRevoked, v1alpha1.ReasonCertificateExpired,
		v1alpha1.ReasonIdentityMismatch, v1alpha1.ReasonUnknownSite, v1alpha1.ReasonHeartbeatMissed} {
		if strings.Contains(text, string(r)+": ") {
			return r
		}
	}
	return v1alpha1.ReasonConnectionLost
}

// oneSession runs from dial to break and says how long it was established.
func (a *Agent) oneSession(ctx context.Context) (up time.Duration, err error) {
	conn, err := a.cfg.Dial()
	if err != nil {
		return 0, fmt.Errorf("agent: coordinator: %w", err)
	}
	defer conn.Close()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	silence := time.AfterFunc(a.cfg.WelcomeTimeout, func() { cancel(errSilent) })
	defer silence.Stop()

	client := coordinatorv1.NewFleetClient(conn)
	stream, err := client.Session(ctx)
	if err != nil {
		return 0, cause(ctx, err)
	}
	hello := a.hello()
	sent := time.Now()
	hello.SentUnixMs = sent.UnixMilli()
	if err := stream.Send(&coordinatorv1.SessionRequest{Message: &coordinatorv1.SessionRequest_Hello{Hello: hello}}); err != nil {
		return 0, cause(ctx, streamError(stream, err))
	}
	first, err := stream.Recv()
	received := time.Now()
	if err != nil {
		return 0, cause(ctx, err)
	}
	w := first.GetWelcome()
	if w == nil {
		return 0, fmt.Errorf("agent: coordinator began with %T, want a Welcome", first.GetMessage())
	}
	a.clock.observe(sent, received, w.GetServerUnixMs())
	a.reportSkew()

	s := &session{
		client: client, token: w.GetSessionToken(), epoch: w.GetEpoch(), done: ctx.Done(),
		results:  make(chan *coordinatorv1.LinkTestResult, 1),
		interval: orDefault(w.GetHeartbeatIntervalMs(), 5*time.Second),
		loss:     orDefault(w.GetLossAfterMs(), 30*time.Second),
	}
	silence.Reset(s.loss)
	a.established(s, w)
	defer a.lost(s)

	var pending beats
	var group sync.WaitGroup
	group.Go(func() {
		if err := a.heartbeats(ctx, s, stream, &pending); err != nil {
			cancel(err)
		}
	})
	defer group.Wait()
	defer cancel(nil)
	for {
		m, err := stream.Recv()
		if err != nil {
			if errors.Is(err, io.EOF) {
				err = errors.New("coordinator closed the session")
			}
			return time.Since(received), cause(ctx, err)
		}
		if r := m.GetHeartbeatReply(); r != nil {
			silence.Reset(s.loss)
			if sent, ok := pending.take(r.GetSequence()); ok {
				now := time.Now()
				a.clock.observe(sent, now, r.GetServerUnixMs())
				a.trips.observe(now, now.Sub(sent))
				a.observeOffset()
			}
			continue
		}
		if t := m.GetLinkTest(); t != nil {
			a.testLink(ctx, &group, s, t)
			continue
		}
		a.receive(s, m)
	}
}

// heartbeats sends one at each interval and at each change of state, and the
// request to leave when there is one.
func (a *Agent) heartbeats(ctx context.Context, s *session, stream grpc.BidiStreamingClient[coordinatorv1.SessionRequest, coordinatorv1.SessionResponse], pending *beats) error {
	tick := time.NewTicker(s.interval)
	defer tick.Stop()
	leaveSent := false
	for seq := uint64(1); ; seq++ {
		if l := a.leaveMessage(); l != nil && !leaveSent {
			leaveSent = true
			if err := stream.Send(&coordinatorv1.SessionRequest{Message: &coordinatorv1.SessionRequest_Leave{Leave: l}}); err != nil {
				return streamError(nil, err)
			}
		}
		h := a.heartbeat(seq)
		pending.add(seq, time.Now())
		if err := stream.Send(&coordinatorv1.SessionRequest{Message: &coordinatorv1.SessionRequest_Heartbeat{Heartbeat: h}}); err != nil {
			return streamError(nil, err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		case <-a.nudge:
		case r := <-s.results:
			if err := stream.Send(&coordinatorv1.SessionRequest{Message: &coordinatorv1.SessionRequest_LinkTestResult{LinkTestResult: r}}); err != nil {
				return streamError(nil, err)
			}
		}
	}
}

// streamError exchanges the io.EOF of a failed Send for the stream's status;
// with a nil stream the receiving side reports it.
func streamError(stream grpc.BidiStreamingClient[coordinatorv1.SessionRequest, coordinatorv1.SessionResponse], err error) error {
	if !errors.Is(err, io.EOF) {
		return err
	}
	if stream == nil {
		return nil
	}
	if _, rerr := stream.Recv(); rerr != nil {
		return rerr
	}
	return err
}

// cause prefers why we gave a session up over the "canceled" that follows.
func cause(ctx context.Context, err error) error {
	if c := context.Cause(ctx); c != nil && !errors.Is(c, context.Canceled) {
		return c
	}
	return err
}

func orDefault(ms int64, d time.Duration) time.Duration {
	if ms <= 0 {
		return d
	}
	return time.Duration(ms) * time.Millisecond
}

// beats remembers when heartbeats were sent, for the clock offset.
type beats struct {
	mu   sync.Mutex
	sent map[uint64]time.Time
}

func (b *beats) add(seq uint64, t time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.sent == nil {
		b.sent = map[uint64]time.Time{}
	}
	b.sent[seq] = t
}

// take finds the heartbeat and forgets it and all before it.
func (b *beats) take(seq uint64) (time.Time, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	t, ok := b.sent[seq]
	for s := range b.sent {
		if s <= seq {
			delete(b.sent, s)
		}
	}
	return t, ok
}

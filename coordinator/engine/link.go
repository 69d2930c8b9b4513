package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"google.golang.org/protobuf/proto"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/coordinator/session"
	"girassol.dev/internal/codec"
)

// SetLink tells what the coordinator sees of a session's connection: its mode, and
// what its tunnel has measured. seen is called for each status and must not block.
func (e *Engine) SetLink(ctx context.Context, s *session.Session, seen func() *coordinatorv1.Link) error {
	return e.do(ctx, func() { s.Link = seen })
}

// linkStatus is a member's link as its agent says, but where this end has seen
// better: mode, handshake and bytes are then this end's.
func linkStatus(s *session.Session) *coordinatorv1.Link {
	l := &coordinatorv1.Link{}
	if told := s.Last.GetLink(); told != nil {
		l = proto.CloneOf(told)
	}
	l.Mode, l.RttSeconds, l.HandshakeAgeSeconds = "", positive(l.RttSeconds), positive(l.HandshakeAgeSeconds)
	if s.Link == nil {
		return l
	}
	seen := s.Link()
	l.Mode = seen.GetMode()
	if seen.HandshakeAgeSeconds != nil {
		l.HandshakeAgeSeconds = seen.HandshakeAgeSeconds
		l.TunnelBytesSent, l.TunnelBytesReceived = seen.GetTunnelBytesSent(), seen.GetTunnelBytesReceived()
	}
	if seen.GetCertificateNotAfterUnixMs() != 0 {
		l.CertificateNotAfterUnixMs = seen.GetCertificateNotAfterUnixMs()
	}
	return l
}

// positive keeps a figure of a member that can be one.
func positive(v *float64) *float64 {
	if v == nil || math.IsNaN(*v) || math.IsInf(*v, 0) || *v < 0 {
		return nil
	}
	return v
}

// Limits of a link test.
const (
	defaultTestBytes = 16 << 20
	leastTestBytes   = 256 << 10
	mostTestBytes    = 1 << 30
	testLimit        = time.Minute
	// testGrace is what a result may take after that.
	testGrace = 15 * time.Second
)

// linkTests are run one at a time, so that they do not measure each other.
type linkTests struct {
	turn   chan struct{}
	active *Measurement
}

// Measurement is a member's test at work.
type Measurement struct {
	ID, Site string
	// Bytes that may go each way.
	Bytes uint64
	// Done is closed when the test is over.
	Done   <-chan struct{}
	member string
	result chan *coordinatorv1.LinkTestResult
}

// LinkTest has the members of a site measure their links, one after the other.
func (e *Engine) LinkTest(ctx context.Context, site string, bytes uint64) (*coordinatorv1.LinkTestResponse, error) {
	if !e.declared(site) {
		return nil, &RefusedError{v1alpha1.ReasonUnknownSite, fmt.Sprintf("site %.80q is not declared in federation %s; declared are %v", site, e.cfg.Federation, e.cfg.Round.Sites)}
	}
	bytes = cmp.Or(bytes, defaultTestBytes)
	if bytes < leastTestBytes || bytes > mostTestBytes {
		return nil, &RefusedError{v1alpha1.ReasonMalformed, fmt.Sprintf("a link test of %d bytes: want %d to %d", bytes, leastTestBytes, mostTestBytes)}
	}
	select {
	case e.links.turn <- struct{}{}:
		defer func() { <-e.links.turn }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	var sessions []*session.Session
	if err := e.do(ctx, func() { sessions = e.sessions.BySite()[site] }); err != nil {
		return nil, err
	}
	if len(sessions) == 0 {
		return nil, &RefusedError{v1alpha1.ReasonNotConnected, fmt.Sprintf("no agent of site %s is connected", site)}
	}
	out := &coordinatorv1.LinkTestResponse{}
	for _, s := range sessions {
		result, err := e.testMember(ctx, s, bytes)
		if err != nil {
			return nil, err
		}
		m := &coordinatorv1.MemberLink{Node: s.Node, Result: result}
		err = e.do(ctx, func() {
			m.Link = linkStatus(s)
			m.RoundTransferSeconds = e.transferTime(result)
			out.RoundSeconds = e.roundTime(s, out.RoundSeconds)
		})
		if err != nil {
			return nil, err
		}
		out.Members = append(out.Members, m)
	}
	return out, nil
}

func (e *Engine) testMember(ctx context.Context, s *session.Session, bytes uint64) (*coordinatorv1.LinkTestResult, error) {
	done := make(chan struct{})
	defer close(done)
	m := &Measurement{ID: newToken(), Site: s.Site, Bytes: bytes, Done: done, member: s.Member, result: make(chan *coordinatorv1.LinkTestResult, 1)}
	ask := &coordinatorv1.LinkTest{Id: m.ID, Bytes: bytes, LimitMs: testLimit.Milliseconds()}
	err := e.do(ctx, func() {
		e.links.active = m
		s.Send(&coordinatorv1.SessionResponse{Message: &coordinatorv1.SessionResponse_LinkTest{LinkTest: ask}})
	})
	if err != nil {
		return nil, err
	}
	defer func() { _ = e.do(context.WithoutCancel(ctx), func() { e.links.active = nil }) }()
	timer := time.NewTimer(testLimit + testGrace)
	defer timer.Stop()
	failed := func(why string) (*coordinatorv1.LinkTestResult, error) {
		return &coordinatorv1.LinkTestResult{Id: m.ID, Error: why}, nil
	}
	select {
	case r := <-m.result:
		return r, nil
	case <-s.Done():
		return failed("the session ended meanwhile")
	case <-timer.C:
		return failed("the agent has not answered in time; one of an older version measures nothing")
	case <-e.stopped:
		return nil, ErrStopped
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// ErrNoTest refuses bytes of a link test that nobody has asked for.
var ErrNoTest = errors.New("no link test with this id is at work")

// Measurement finds the test at work.
func (e *Engine) Measurement(ctx context.Context, id string) (*Measurement, error) {
	var m *Measurement
	if err := e.do(ctx, func() { m = e.links.active }); err != nil {
		return nil, err
	}
	if m == nil || m.ID != id {
		return nil, ErrNoTest
	}
	return m, nil
}

// LinkTestResult takes what a member has measured.
func (e *Engine) LinkTestResult(ctx context.Context, s *session.Session, r *coordinatorv1.LinkTestResult) error {
	return e.do(ctx, func() {
		m := e.links.active
		if m == nil || m.ID != r.GetId() || m.member != s.Member {
			return
		}
		r.Error = cut(r.GetError())
		for _, v := range []*float64{&r.RttSeconds, &r.UpBytesPerSecond, &r.DownBytesPerSecond} {
			if positive(v) == nil {
				*v = 0
			}
		}
		select {
		case m.result <- r:
		default: // the first counts
		}
	})
}

// transferTime is what a round's update and commit take over a link of this
// measure, at most; nil without a model or a measure.
func (e *Engine) transferTime(r *coordinatorv1.LinkTestResult) *float64 {
	if e.model == nil || r.GetError() != "" || r.GetUpBytesPerSecond() == 0 || r.GetDownBytesPerSecond() == 0 {
		return nil
	}
	p := e.params()
	up := float64(codec.MaxSize(e.model.domain, p.Uplink)) / r.GetUpBytesPerSecond()
	down := float64(codec.MaxSize(e.model.domain, p.Downlink)) / r.GetDownBytesPerSecond()
	// Header and answer of an upload, request and header of a download.
	t := up + down + 3*r.GetRttSeconds()
	return &t
}

// roundTime is how long a round trains: its budget in time, or less if its steps
// take less; the longest of the members'.
func (e *Engine) roundTime(s *session.Session, longest *float64) *float64 {
	t := e.cfg.Round.Train.Seconds()
	var step *float64
	if s.Last != nil {
		step = positive(s.Last.StepSeconds)
	}
	if step != nil && e.cfg.Round.LocalSteps > 0 {
		if all := *step * float64(e.cfg.Round.LocalSteps); t == 0 || all < t {
			t = all
		}
	}
	if t <= 0 || longest != nil && *longest > t {
		return longest
	}
	return &t
}

package engine

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/coordinator/checkpoint"
	"girassol.dev/coordinator/round"
	"girassol.dev/coordinator/session"
)

// RefusedError says why a session or call is not served.
type RefusedError struct {
	Reason  v1alpha1.Reason
	Message string
}

func (e *RefusedError) Error() string { return string(e.Reason) + ": " + e.Message }

// nodeName bounds what a node may call itself: it becomes part of file and
// metric names.
var nodeName = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$`)

// OpenSession starts a session for a member; the caller has checked that the
// connection may speak for the site.
func (e *Engine) OpenSession(ctx context.Context, hello *coordinatorv1.Hello) (*session.Session, error) {
	if hello.GetFederation() != e.cfg.Federation {
		return nil, &RefusedError{v1alpha1.ReasonWrongFederation,
			fmt.Sprintf("this coordinator runs federation %q, the agent wants %q", e.cfg.Federation, hello.GetFederation())}
	}
	if !nodeName.MatchString(hello.GetNode()) {
		return nil, &RefusedError{v1alpha1.ReasonMalformed,
			fmt.Sprintf("node name %.80q must be 1 to 63 letters, digits, '.', '_' or '-'", hello.GetNode())}
	}
	if err := e.speaks(hello); err != nil {
		return nil, err
	}
	var s *session.Session
	var refused error
	err := e.do(ctx, func() { s, refused = e.openSession(time.Now(), hello) })
	return s, errors.Join(err, refused)
}

func (e *Engine) openSession(now time.Time, hello *coordinatorv1.Hello) (*session.Session, error) {
	if !e.declared(hello.GetSite()) {
		return nil, &RefusedError{v1alpha1.ReasonUnknownSite,
			fmt.Sprintf("site %.80q is not declared in federation %s; declared are %v", hello.GetSite(), e.cfg.Federation, e.cfg.Round.Sites)}
	}
	if e.sessions.Member(hello.GetSite()+"/"+hello.GetNode()) == nil {
		if err := e.membersQuota(hello.GetSite()); err != nil {
			return nil, err
		}
	}
	// What a fenced coordinator says of an update may be wrong: its successor may
	// have merged it.
	if err := e.store.Owned(); errors.Is(err, checkpoint.ErrFenced) {
		e.fail(v1alpha1.ReasonFenced, err)
		return nil, ErrStopped
	}
	trimHello(hello)
	s, older := e.sessions.Open(now, hello)
	if older != nil {
		e.log.Warn("session fenced by a newer one of the same member", "member", s.Member, "epoch", older.Epoch, "newer", s.Epoch, "reason", v1alpha1.ReasonSuperseded)
	}
	actions, err := e.machine.Join(now, s.Member, s.Site, s.Epoch)
	if err != nil {
		e.sessions.Remove(s)
		return nil, &RefusedError{v1alpha1.ReasonUnknownSite, err.Error()}
	}
	e.countMembers(s.Site)
	e.log.Info("session opened", "member", s.Member, "epoch", s.Epoch, "agent", hello.GetAgentVersion())
	welcome := &coordinatorv1.Welcome{
		Epoch: s.Epoch, SessionToken: s.Token,
		HeartbeatIntervalMs: e.cfg.Heartbeat.Milliseconds(), LossAfterMs: e.cfg.LossAfter.Milliseconds(),
		ServerUnixMs: now.UnixMilli(), Algorithm: e.params().ToProto(), EventsPublicKey: e.hooks.EventsKey,
	}
	if m := e.model; m != nil {
		welcome.ModelVersion, welcome.ModelDigest = new(m.version), m.digestCopy()
		if hello.ModelVersion != nil && hello.GetModelVersion() == m.version && string(hello.GetModelDigest()) != string(m.digest[:]) {
			e.log.Error("replica differs from the committed model; the member must pull the full state", "member", s.Member,
				"version", m.version, "digest", hex.EncodeToString(hello.GetModelDigest()), "reason", v1alpha1.ReasonReplicaDiverged)
		}
	}
	s.Send(&coordinatorv1.SessionResponse{Message: &coordinatorv1.SessionResponse_Welcome{Welcome: welcome}})
	e.act(now, actions)
	e.askForSeed(s)
	return s, nil
}

// Limits of what a member says of itself: status carries it for all members.
const (
	maxText    = 512 // bytes
	maxDevices = 64
	// maxProblems of a machine, and maxEncodings that an agent writes.
	maxProblems, maxEncodings = 16, 64
)

func trimHello(h *coordinatorv1.Hello) {
	h.AgentVersion = cut(h.GetAgentVersion())
	if hw := h.GetHardware(); hw != nil {
		hw.Vendor, hw.Driver, hw.Runtime = cut(hw.GetVendor()), cut(hw.GetDriver()), cut(hw.GetRuntime())
		hw.Devices, hw.Problems = trimList(hw.GetDevices(), maxDevices), trimList(hw.GetProblems(), maxProblems)
		hw.ProtoReflect().SetUnknown(nil)
	}
	h.Encodings = trimList(h.GetEncodings(), maxEncodings)
	h.ModelDigest = h.ModelDigest[:min(len(h.ModelDigest), 32)]
	h.ProtoReflect().SetUnknown(nil)
}

// trimHeartbeat does the same for what status carries of a heartbeat.
func trimHeartbeat(hb *coordinatorv1.Heartbeat) {
	hb.Detail, hb.Loss, hb.Energy = cut(hb.GetDetail()), finite(hb.Loss), counted(hb.Energy)
	hb.Trainer, hb.WarmStart = trainerFacts(hb.GetTrainer()), measuredStart(hb.GetWarmStart())
	if l := hb.GetLink(); l != nil {
		l.Mode = cut(l.GetMode())
		l.RttSeconds, l.HandshakeAgeSeconds = finite(l.RttSeconds), finite(l.HandshakeAgeSeconds)
		l.ProtoReflect().SetUnknown(nil)
	}
	for _, m := range []proto.Message{hb, hb.Energy, hb.WarmStart} {
		if r := m.ProtoReflect(); r.IsValid() {
			r.SetUnknown(nil)
		}
	}
}

func trimList(in []string, most int) []string {
	in = in[:min(len(in), most)]
	for i, s := range in {
		in[i] = cut(s)
	}
	return in
}

// cut bounds a text for people.
func cut(s string) string { return cutTo(s, maxText) }

func cutTo(s string, most int) string {
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "..."
}

func (e *Engine) declared(site string) bool {
	for _, s := range e.cfg.Round.Sites {
		if s == site {
			return true
		}
	}
	return false
}

// askForSeed asks an admitted member for the first weights.
func (e *Engine) askForSeed(s *session.Session) {
	if e.model == nil && e.wishes.effective(s.Site).Membership == round.Admit {
		s.Send(&coordinatorv1.SessionResponse{Message: &coordinatorv1.SessionResponse_SeedRequest{SeedRequest: &coordinatorv1.SeedRequest{}}})
	}
}

// Heartbeat takes a member's sign of life and answers it.
func (e *Engine) Heartbeat(ctx context.Context, s *session.Session, hb *coordinatorv1.Heartbeat) error {
	return e.do(ctx, func() {
		now := time.Now()
		if e.sessions.Member(s.Member) != s {
			return
		}
		trimHeartbeat(hb)
		s.Seen, s.Last = now, hb
		s.Send(&coordinatorv1.SessionResponse{Message: &coordinatorv1.SessionResponse_HeartbeatReply{
			HeartbeatReply: &coordinatorv1.HeartbeatReply{Sequence: hb.GetSequence(), ServerUnixMs: now.UnixMilli()},
		}})
		e.noteFirstStep(now, s, hb)
		e.act(now, e.machine.Heard(now, s.Member, s.Epoch, report(hb)))
	})
}

func report(hb *coordinatorv1.Heartbeat) round.Report {
	r := round.Report{Detail: hb.GetDetail(), Round: hb.GetRound(), Steps: hb.GetSteps()}
	if step := hb.GetStepSeconds(); step > 0 && step < 1e6 {
		r.Step = time.Duration(step * float64(time.Second))
	}
	switch hb.GetState() {
	case coordinatorv1.MemberState_MEMBER_STATE_READY:
		r.State = round.MemberReady
	case coordinatorv1.MemberState_MEMBER_STATE_TRAINING, coordinatorv1.MemberState_MEMBER_STATE_UPLOADING:
		r.State = round.MemberWorking
	case coordinatorv1.MemberState_MEMBER_STATE_WAITING_FOR_TRAINER:
		r.State, r.Waits = round.MemberBusy, v1alpha1.ReasonWaitingForTrainer
	default:
		r.State = round.MemberBusy
	}
	return r
}

// Leave takes a member's wish to go.
func (e *Engine) Leave(ctx context.Context, s *session.Session, l *coordinatorv1.Leave) error {
	return e.do(ctx, func() {
		now := time.Now()
		grace := time.Duration(l.GetGraceMs()) * time.Millisecond
		if grace <= 0 || grace > e.cfg.Round.Grace {
			grace = e.cfg.Round.Grace
		}
		e.log.Info("member leaves", "member", s.Member, "reason", cut(l.GetReason()), "grace", grace)
		e.act(now, e.machine.Leave(now, s.Member, s.Epoch, now.Add(grace), cut(l.GetReason())))
	})
}

// CloseSession says that the connection of a session is gone.
func (e *Engine) CloseSession(s *session.Session, reason v1alpha1.Reason) {
	_ = e.do(context.Background(), func() {
		if e.sessions.Member(s.Member) == s {
			e.log.Info("session closed", "member", s.Member, "epoch", s.Epoch, "reason", reason)
		}
		e.endSession(time.Now(), s, reason)
	})
}

func (e *Engine) endSession(now time.Time, s *session.Session, reason v1alpha1.Reason) {
	s.Close(reason)
	if e.sessions.Remove(s) {
		e.countMembers(s.Site)
		e.act(now, e.machine.Lose(now, s.Member, s.Epoch, reason))
	}
}

// SessionByToken finds the live session that a Pull or Push belongs to.
func (e *Engine) SessionByToken(ctx context.Context, token string) (*session.Session, error) {
	var s *session.Session
	if err := e.do(ctx, func() { s = e.sessions.Token(token) }); err != nil {
		return nil, err
	}
	if s == nil {
		return nil, &RefusedError{v1alpha1.ReasonFencedEpoch, "no live session has this token; open a session first"}
	}
	return s, nil
}

// Federation is whose rounds the engine runs.
func (e *Engine) Federation() string { return e.cfg.Federation }

// Declared says whether a site is one of the federation's.
func (e *Engine) Declared(site string) bool { return e.declared(site) }

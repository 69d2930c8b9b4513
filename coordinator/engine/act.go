package engine

import (
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	"girassol.dev/api/events"
	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/coordinator/checkpoint"
	"girassol.dev/coordinator/round"
	"girassol.dev/internal/tensor"
)

// act carries out what the round machine asks for. Every input ends here, so
// this is also where watchers learn of a change.
func (e *Engine) act(now time.Time, actions []round.Action) {
	defer e.changed.notify()
	granted := len(actions) == 0 || e.noteRound(now)
	if e.fatal != nil {
		return // a grant of a number that is not kept could be given twice
	}
	var withoutData []string
	granting := false
	for i, a := range actions {
		if _, grant := a.(round.Grant); grant && !granted {
			continue // the round was taken back
		} else if grant && !granting {
			e.lease(now, actions[i:])
			granting = true
		}
		switch a := a.(type) {
		case round.Grant:
			data := e.leased(a.Member)
			if e.data != nil && len(data) == 0 {
				withoutData = append(withoutData, a.Member)
				continue
			}
			e.grant(now, a, data)
		case round.Stop:
			e.stop(a)
		case round.DrainMember:
			e.send(a.Member, &coordinatorv1.SessionResponse{Message: &coordinatorv1.SessionResponse_Drain{Drain: &coordinatorv1.Drain{
				DeadlineInMs: max(0, a.Deadline.Sub(now).Milliseconds()), Reason: string(a.Reason), Message: a.Message,
			}}})
		case round.Commit:
			if !e.judge(now) {
				e.commit(a)
			}
		case round.Void:
			e.voided(a)
			e.judge(now)
		case round.SiteChanged:
			e.log.Info("site", "site", a.Site, "phase", a.Phase, "reason", a.Reason, "message", a.Message)
		case round.Ended:
			e.log.Info("run ended", "state", a.State, "reason", a.Reason, "message", a.Message)
		}
	}
	e.withhold(now, withoutData)
}

func (e *Engine) send(member string, m *coordinatorv1.SessionResponse) {
	if s := e.sessions.Member(member); s != nil {
		s.Send(m)
	}
}

func (e *Engine) grant(now time.Time, g round.Grant, data []*coordinatorv1.DataRange) {
	m := e.model
	e.log.Info("grant", "member", g.Member, "round", g.Round, "maxSteps", g.MaxSteps, "stopIn", g.StopAt.Sub(now).Round(time.Millisecond), "baseVersion", m.version)
	e.send(g.Member, &coordinatorv1.SessionResponse{Message: &coordinatorv1.SessionResponse_Grant{Grant: &coordinatorv1.Grant{
		Round: g.Round, Epoch: e.epoch(g.Member), BaseVersion: m.version, BaseDigest: m.digestCopy(),
		MaxSteps: g.MaxSteps, StopAtUnixMs: g.StopAt.UnixMilli(), StopInMs: g.StopAt.Sub(now).Milliseconds(),
		CollectInMs: g.Deadline.Sub(now).Milliseconds(), Algorithm: e.params().ToProto(),
		Agreement: e.agreement, Alone: g.Alone, CommittedSamples: e.samples, Evaluate: g.Evaluate, Config: e.cfg.TrainerConfig, Data: data,
	}}})
}

func (e *Engine) epoch(member string) uint64 {
	if s := e.sessions.Member(member); s != nil {
		return s.Epoch
	}
	return 0
}

func (e *Engine) stop(a round.Stop) {
	if u := e.uploads[a.Member]; u != nil && a.Reason == v1alpha1.ReasonExcluded {
		delete(e.uploads, a.Member)
		u.close()
	}
	e.send(a.Member, &coordinatorv1.SessionResponse{Message: &coordinatorv1.SessionResponse_Stop{
		Stop: &coordinatorv1.Stop{Round: a.Round, Reason: string(a.Reason)},
	}})
	if a.Reason != v1alpha1.ReasonExcluded {
		return // the event would stop the whole site
	}
	e.announce(events.Event{Type: events.RoundStopped, Round: a.Round, Site: strings.SplitN(a.Member, "/", 2)[0], Reason: string(a.Reason)})
}

func (e *Engine) voided(a round.Void) {
	e.log.Warn("round void", "round", a.Round, "reason", a.Reason, "message", a.Message)
	e.lastVoid = &coordinatorv1.VoidRound{Number: a.Round, Reason: string(a.Reason), Message: a.Message}
	senders := e.senders()
	e.dropUploads()
	if e.data != nil {
		e.data.Void()
	}
	var version uint64
	var digest [32]byte
	if e.model != nil {
		version, digest = e.model.version, e.model.digest
	}
	e.tellCommitted(&coordinatorv1.Committed{Round: a.Round, Version: version, Digest: digest[:], Void: true, Reason: string(a.Reason), Message: a.Message}, senders)
	e.announce(events.Event{Type: events.RoundVoid, Round: a.Round, Reason: string(a.Reason), Message: a.Message, Digest: hex.EncodeToString(digest[:])})
}

// senders are the members that sent an update of the round at work.
func (e *Engine) senders() map[string]bool {
	out := map[string]bool{}
	for name := range e.uploads {
		out[name] = true
	}
	for name := range e.admitting.leftOut {
		out[name] = true
	}
	return out
}

// tellCommitted tells of a round's end the members that need it: those of admitted
// sites and those that sent an update; idle sites catch up when they are granted
// again.
func (e *Engine) tellCommitted(c *coordinatorv1.Committed, senders map[string]bool) {
	for _, s := range e.sessions.All() {
		if senders[s.Member] || e.wishes.effective(s.Site).Membership == round.Admit {
			told := c
			if why := e.admitting.leftOut[s.Member]; why != "" {
				told = proto.CloneOf(c)
				told.Message = strings.TrimPrefix(c.GetMessage()+"; "+why, "; ")
			}
			s.Send(&coordinatorv1.SessionResponse{Message: &coordinatorv1.SessionResponse_Committed{Committed: told}})
		}
	}
	e.admitting.leftOut = nil
}

func (e *Engine) dropUploads() {
	for _, u := range e.uploads {
		u.close()
	}
	clear(e.uploads)
}

// noteRound keeps the highest round number on disk, so that no number is given
// twice, also after a crash: an update of an unfinished round can never be
// taken for one of a later round.
//
// With no room for it a round that has just started is taken back; false says so.
func (e *Engine) noteRound(now time.Time) bool {
	n := e.machine.Status().Round
	if n <= e.noted {
		return true
	}
	err := e.keepRound(n)
	switch {
	case err == nil:
		e.noted = n
		e.endQuarantines(n)
		return true
	case checkpoint.Full(err):
		e.machine.Hold() // what comes of both is settled together
		e.diskFull(now, err, 0, nil)
		e.machine.Unstart(now)
		e.act(now, e.machine.Release(now))
		return false
	case errors.Is(err, checkpoint.ErrFenced):
		e.fail(v1alpha1.ReasonFenced, err)
		return false
	}
	e.fail(v1alpha1.ReasonCommitLogFailed, fmt.Errorf("the round number cannot be kept: %w", err))
	return false
}

func (e *Engine) writeRound(n uint64) error {
	// The number of a coordinator that is fenced must not take the place of a later one.
	if err := e.store.Owned(); err != nil {
		return err
	}
	return tensor.WriteFileAtomic(e.roundFile(), func(w io.Writer) error {
		_, err := fmt.Fprintln(w, n)
		return err
	})
}

func (e *Engine) roundFile() string { return filepath.Join(e.cfg.DataDir, "ROUND") }

func (e *Engine) readRound() (uint64, error) {
	b, err := os.ReadFile(e.roundFile())
	if os.IsNotExist(err) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseUint(strings.TrimSpace(string(b)), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%s: %w; write the number of the last round into it", e.roundFile(), err)
	}
	return n, nil
}

// fail stops the engine: without a durable log it must not go on.
func (e *Engine) fail(reason v1alpha1.Reason, err error) {
	if e.fatal != nil {
		return
	}
	e.log.Error("coordinator cannot go on", "reason", reason, "error", err)
	e.machine.Fail(time.Now(), reason, err.Error())
	e.fatal = fmt.Errorf("%s: %w", reason, err)
}

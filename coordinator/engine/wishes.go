package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	"girassol.dev/api/events"
	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/coordinator/round"
	"girassol.dev/internal/tensor"
)

// wish is what somebody wants of a site, and why.
type wish struct {
	Membership round.Membership `json:"membership"`
	Reason     v1alpha1.Reason  `json:"reason"`
	Message    string           `json:"message,omitempty"`
}

// wishes keeps the two voices on a site apart: a person's hold, which survives
// restarts, and the energy decision, which is repeated at each new reading. The
// hold wins.
type wishes struct {
	path    string
	Holds   map[string]wish `json:"holds"`
	Paused  bool            `json:"paused"`
	energy  map[string]wish
	signals map[string]*coordinatorv1.Signal
}

func loadWishes(dir string) (*wishes, error) {
	w := &wishes{path: filepath.Join(dir, "wishes.json"), energy: map[string]wish{}, signals: map[string]*coordinatorv1.Signal{}}
	b, err := os.ReadFile(w.path)
	if err == nil {
		err = json.Unmarshal(b, w)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s: %w; remove the file to forget holds and the pause", w.path, err)
	}
	if w.Holds == nil {
		w.Holds = map[string]wish{}
	}
	return w, nil
}

func (w *wishes) save() error {
	return tensor.WriteFileAtomic(w.path, func(out io.Writer) error {
		return json.NewEncoder(out).Encode(w)
	})
}

// effective is what is in force for a site.
func (w *wishes) effective(site string) wish {
	if h, ok := w.Holds[site]; ok {
		return h
	}
	if d, ok := w.energy[site]; ok {
		return d
	}
	return wish{Membership: round.Drain, Reason: v1alpha1.ReasonSignalMissing, Message: "no energy decision yet"}
}

// Wish is a request about a site's membership.
type Wish struct {
	Site       string
	Membership round.Membership
	Deadline   time.Duration // of a drain; 0 means the federation's grace
	Reason     v1alpha1.Reason
	Message    string
	// Energy says that this is the energy decision; Signal is the reading behind it.
	Energy bool
	Signal *coordinatorv1.Signal
}

// InForce is the answer to a Wish.
type InForce struct {
	Changed    bool
	Membership round.Membership
	Reason     v1alpha1.Reason
	Message    string
}

// SetMembership takes an energy decision or a person's wish.
func (e *Engine) SetMembership(ctx context.Context, w Wish) (InForce, error) {
	var out InForce
	var failed error
	err := e.do(ctx, func() { out, failed = e.setMembership(time.Now(), w) })
	return out, errors.Join(err, failed)
}

// SetDefault is what the energy side says of a site without a signal. It must
// be called before Run.
func (e *Engine) SetDefault(site string, w Wish) {
	e.wishes.energy[site] = wish{w.Membership, w.Reason, w.Message}
	in := e.wishes.effective(site)
	// The site is declared and nothing runs yet, so neither error nor action can come.
	if in.Membership == round.Admit {
		e.admitted(time.Now(), site)
	}
	_, _, _ = e.machine.SetMembership(time.Now(), site, in.Membership, time.Time{}, in.Reason, in.Message)
}

func (e *Engine) setMembership(now time.Time, w Wish) (InForce, error) {
	if !e.declared(w.Site) {
		return InForce{}, &RefusedError{v1alpha1.ReasonUnknownSite, fmt.Sprintf("site %q is not declared; declared are %v", w.Site, e.cfg.Round.Sites)}
	}
	switch w.Membership {
	case round.Admit, round.Drain, round.Exclude:
	default: // or it would be kept, and fail the next start
		return InForce{}, &RefusedError{v1alpha1.ReasonMalformed, fmt.Sprintf("site %s: membership %q is none of %s, %s, %s", w.Site, w.Membership, round.Admit, round.Drain, round.Exclude)}
	}
	if w.Energy {
		e.wishes.energy[w.Site] = wish{w.Membership, w.Reason, w.Message}
		if w.Signal != nil {
			e.wishes.signals[w.Site] = w.Signal
		}
	} else if err := e.hold(w); err != nil {
		return InForce{}, err
	} else if w.Membership == round.Admit {
		e.release(w.Site)
	}
	in := e.wishes.effective(w.Site)
	deadline := time.Time{}
	if w.Deadline > 0 {
		deadline = now.Add(w.Deadline)
	}
	changed, actions, err := e.machine.SetMembership(now, w.Site, in.Membership, deadline, in.Reason, in.Message)
	if err != nil {
		return InForce{}, err
	}
	if changed && in.Membership == round.Admit {
		e.admitted(now, w.Site)
	}
	if changed {
		e.log.Info("membership changed", "site", w.Site, "membership", in.Membership, "reason", in.Reason, "message", in.Message)
		e.announce(events.Event{Type: events.MembershipChanged, Site: w.Site, Reason: string(in.Reason), Message: in.Message})
	}
	e.act(now, actions)
	if changed && in.Membership == round.Admit && e.model == nil {
		for _, s := range e.sessions.All() {
			if s.Site == w.Site {
				e.askForSeed(s)
			}
		}
	}
	return InForce{changed, in.Membership, in.Reason, in.Message}, nil
}

// hold keeps a person's wish; Admit ends it.
func (e *Engine) hold(w Wish) error {
	old, had := e.wishes.Holds[w.Site]
	wanted := wish{w.Membership, w.Reason, w.Message}
	switch {
	case had && old == wanted, !had && w.Membership == round.Admit:
		return nil // as it is; a repeated wish makes no write
	case w.Membership == round.Admit:
		delete(e.wishes.Holds, w.Site)
	default:
		e.wishes.Holds[w.Site] = wanted
	}
	if err := e.wishes.save(); err != nil {
		if had {
			e.wishes.Holds[w.Site] = old
		} else {
			delete(e.wishes.Holds, w.Site)
		}
		return fmt.Errorf("the wish for site %s cannot be kept: %w", w.Site, err)
	}
	return nil
}

// suspended is what keeps rounds from being granted, whatever people say.
const suspended = "spec.state of the federation is Suspended; set it to Running and start the coordinator again"

// Pause lets the round in flight end and grants no other.
func (e *Engine) Pause(ctx context.Context) error { return e.setPaused(ctx, true) }

// Resume ends a pause. It is refused while the federation is suspended by its
// spec, which it cannot change.
func (e *Engine) Resume(ctx context.Context) error { return e.setPaused(ctx, false) }

func (e *Engine) setPaused(ctx context.Context, paused bool) error {
	var failed error
	err := e.do(ctx, func() {
		if e.wishes.Paused != paused {
			e.wishes.Paused = paused
			if err := e.wishes.save(); err != nil {
				e.wishes.Paused = !paused
				failed = fmt.Errorf("the pause cannot be kept: %w", err)
				return
			}
			e.log.Info("pause set", "paused", paused)
		}
		now := time.Now()
		switch {
		case paused:
			e.act(now, e.machine.Pause(now))
		case e.cfg.Suspended:
			failed = &RefusedError{v1alpha1.ReasonPaused, suspended}
		default:
			e.act(now, e.machine.Resume(now))
		}
	})
	return errors.Join(err, failed)
}

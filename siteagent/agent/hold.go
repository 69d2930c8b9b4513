package agent

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"girassol.dev/api/federation/v1alpha1"
	"girassol.dev/internal/tensor"
	"girassol.dev/siteagent/trainer"
)

// mismatchHold is how long a trainer whose model is another one gets no work,
// unless it offers the right one before.
const mismatchHold = time.Minute

// checkOffer compares first weights that nobody needs any more with the
// federation's model, so that a trainer of another model is known before it has
// trained a round in vain. It may be called from any goroutine.
func (a *Agent) checkOffer(path string) error {
	a.mu.Lock()
	layout := a.layout
	a.mu.Unlock()
	if layout == nil {
		return nil
	}
	offered, ok := offeredLayout(path, layout)
	if !ok {
		return nil // what cannot be read says nothing of the model
	}
	diff := layout.Diff(offered)
	if len(diff) == 0 {
		a.letGo()
		return nil
	}
	err := &tensor.MismatchError{Reason: v1alpha1.ReasonShapeMismatch, Differences: diff}
	a.noteMismatch(err)
	return err
}

// offeredLayout is the layout of a file, with what may differ taken from want: a
// result's floats may be of another width, and buffers need not be named.
func offeredLayout(path string, want *tensor.Layout) (*tensor.Layout, bool) {
	f, err := tensor.OpenFile(path)
	if err != nil {
		return nil, false
	}
	specs := tensor.RolesFor(f.Specs(), f.Metadata())
	_ = f.Close()
	for i, s := range specs {
		if at, ok := want.Lookup(s.Name); ok {
			if w := want.Tensors()[at]; w.DType.Float() == s.DType.Float() {
				specs[i].DType, specs[i].Role = w.DType, w.Role
			}
		}
	}
	l, err := tensor.NewLayout(specs)
	return l, err == nil
}

// noteMismatch holds work back if err says that the trainer's model is another one.
func (a *Agent) noteMismatch(err error) {
	var m *tensor.MismatchError
	if !errors.As(err, &m) {
		return
	}
	a.holdBack(m.Reason, wayOut(m), mismatchHold)
}

// wayOut says what is wrong with a trainer's tensors, and what to do.
func wayOut(m *tensor.MismatchError) string {
	if m.Reason == v1alpha1.ReasonNotFinite {
		return fmt.Sprintf("the trainer's weights cannot be used: %v; lower its learning rate, clip its gradients, and hand in no weights after a loss that is not finite", m)
	}
	return fmt.Sprintf("the trainer's model is not the federation's: %v; make the script build the same model as the first site's, or give it a federation of its own", m)
}

// A trainer that fails as many rounds in a row gets none for a while, which doubles
// with each more: everybody else's rounds wait for it in vain.
const (
	failuresInARow  = 3
	leastHold       = 10 * time.Second
	mostHold        = 10 * time.Minute
	longestDoubling = 6
)

// judgeTrainer takes a round's end, after which so many steps count or are kept. That
// no trainer came is no failure of one.
func (a *Agent) judgeTrainer(steps uint64, err error) {
	var f *trainer.FailureError
	if !errors.As(err, &f) || f.Reason == v1alpha1.ReasonWaitingForTrainer {
		if (err == nil || steps > 0) && a.failures > 0 {
			a.failures = 0
			a.letGo()
		}
		return
	}
	if a.failures++; a.failures >= failuresInARow {
		hold := min(leastHold<<min(a.failures-failuresInARow, longestDoubling), mostHold)
		a.holdBack(f.Reason, fmt.Sprintf("the trainer failed %d rounds in a row and is tried again in %s; the last: %s", a.failures, hold, brief(f.Message)), hold)
	}
}

// forgive forgets failures on a state that the federation has given up: it may be
// what the trainer failed on.
func (a *Agent) forgive() {
	a.failures = 0
	a.letGo()
}

// holdBack keeps work from the trainer for a while.
func (a *Agent) holdBack(reason v1alpha1.Reason, why string, span time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.held != why {
		a.log.Error("trainer gets no work", "reason", reason, "cause", why, "for", span)
	}
	a.held, a.heldUntil = why, time.Now().Add(span)
	poke(a.nudge)
}

// letGo ends a hold: the trainer is another one, or is right.
func (a *Agent) letGo() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.held = ""
}

// brief keeps the begin and, more of it, the end of a long text, where a traceback
// has its error.
func brief(text string) string {
	const most, head = 480, 120
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:head], "") + " ... " + strings.ToValidUTF8(text[len(text)-(most-head-5):], "")
}

// trainerTroubleLocked is why the trainer cannot take work, "" if it can. Agent.mu
// is held.
func (a *Agent) trainerTroubleLocked() string {
	if a.held != "" && time.Now().Before(a.heldUntil) {
		return a.held
	}
	if why := a.cfg.Trainer.Fault(); why != "" {
		return why
	}
	if a.cfg.Trainer.Attached() {
		return ""
	}
	if a.cfg.TrainerFault != nil {
		if fault := a.cfg.TrainerFault(); fault != "" {
			return "the trainer does not stay up: " + fault
		}
	}
	return "no trainer on " + a.cfg.Trainer.SocketPath()
}

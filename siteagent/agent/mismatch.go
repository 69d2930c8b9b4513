package agent

import (
	"errors"
	"fmt"
	"time"

	"girassol.dev/api/federation/v1alpha1"
	"girassol.dev/internal/tensor"
)

// mismatchHold is how long a trainer whose model is another one gets no work,
// unless it comes anew or offers the right one before.
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
	f, err := tensor.OpenFile(path)
	if err != nil {
		return nil // what cannot be read says nothing of the model
	}
	specs := tensor.RolesFor(f.Specs(), f.Metadata())
	_ = f.Close()
	for i, s := range specs {
		// A result's floats may be of another width, and buffers need not be named.
		if at, ok := layout.Lookup(s.Name); ok {
			if want := layout.Tensors()[at]; want.DType.Float() == s.DType.Float() {
				specs[i].DType, specs[i].Role = want.DType, want.Role
			}
		}
	}
	offered, err := tensor.NewLayout(specs)
	if err != nil {
		return nil
	}
	diff := layout.Diff(offered)
	if len(diff) == 0 {
		a.clearMismatch()
		return nil
	}
	err = &tensor.MismatchError{Reason: v1alpha1.ReasonShapeMismatch, Differences: diff}
	a.noteMismatch(err)
	return err
}

// noteMismatch holds work back if err says that the trainer's model is another one.
func (a *Agent) noteMismatch(err error) {
	var m *tensor.MismatchError
	if !errors.As(err, &m) {
		return
	}
	text := fmt.Sprintf("the trainer's model is not the federation's: %v; make the script build the same model as the first site's, or give it a federation of its own", m)
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.mismatch != text {
		a.log.Error("trainer gets no work", "reason", m.Reason, "cause", text, "for", mismatchHold)
	}
	a.mismatch, a.mismatchUntil = text, time.Now().Add(mismatchHold)
	poke(a.nudge)
}

func (a *Agent) clearMismatch() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.mismatch = ""
}

// trainerTroubleLocked is why the trainer cannot take work, "" if it can. Agent.mu
// is held.
func (a *Agent) trainerTroubleLocked() string {
	if a.mismatch != "" && time.Now().Before(a.mismatchUntil) {
		return a.mismatch
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

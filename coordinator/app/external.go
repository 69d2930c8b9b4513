package app

import (
	"errors"
	"fmt"
	"sync"
	"time"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/coordinator/engine"
	"girassol.dev/coordinator/round"
	"girassol.dev/signals"
	"girassol.dev/signals/assemble"
	"girassol.dev/signals/ledger"
)

// awaitOperator lets every site wait until the operator has spoken. Nothing of
// what it said before is kept: it says it again, as soon as it sees that the
// coordinator does not know.
func (d *declaration) awaitOperator(e *engine.Engine) {
	for _, s := range d.sites {
		e.SetDefault(s.Name, engine.Wish{Site: s.Name, Membership: round.Drain, Energy: true, Reason: v1alpha1.ReasonSignalMissing,
			Message: "the operator decides by energy and has not said anything yet"})
	}
}

// told makes sites whose intensities come with the operator's decisions.
func (d *declaration) told() (map[string]*assemble.Site, error) {
	out := map[string]*assemble.Site{}
	for _, s := range d.sites {
		power, err := ledger.PowerFromSpec(s.Spec.Power)
		if err != nil {
			return nil, fmt.Errorf("site %s: %w", s.Name, err)
		}
		out[s.Name] = &assemble.Site{Power: power, Grid: ledger.Grid{Marginal: &told{}, Average: &told{}}}
	}
	return out, nil
}

// hear gives the intensities of a decision to the site's grid.
func hear(sites map[string]*assemble.Site) func(string, *coordinatorv1.Signal) {
	return func(site string, s *coordinatorv1.Signal) {
		of := sites[site]
		if of == nil {
			return
		}
		of.Grid.Marginal.(*told).keep(s.GetMarginal())
		of.Grid.Average.(*told).keep(s.GetAverage())
	}
}

// toldSteps is how many intensities a site's books can look back on.
const toldSteps = 16

// told is an intensity as it was told, each value for its own span.
type told struct {
	mu    sync.Mutex
	steps []signals.Step // by time, without overlaps
}

func (t *told) keep(i *coordinatorv1.Intensity) {
	if i == nil {
		return
	}
	v := i.GetGramsPerKwh()
	step := signals.Step{From: time.UnixMilli(i.GetFromUnixMs()), Until: time.UnixMilli(i.GetUntilUnixMs()), Value: &v}
	t.mu.Lock()
	defer t.mu.Unlock()
	for len(t.steps) > 0 {
		last := &t.steps[len(t.steps)-1]
		if last.From.Before(step.From) {
			if step.From.Before(last.Until) {
				last.Until = step.From
			}
			break
		}
		if step.From.Before(last.From) && !step.Until.After(last.From) {
			return // of before what is known
		}
		t.steps = t.steps[:len(t.steps)-1] // revised
	}
	t.steps = append(t.steps, step)
	if len(t.steps) > toldSteps {
		t.steps = t.steps[1:]
	}
}

// At implements ledger.Intensity.
func (t *told) At(at time.Time) signals.Step {
	t.mu.Lock()
	defer t.mu.Unlock()
	next := at.Add(time.Second) // more may be told by then
	for i := len(t.steps) - 1; i >= 0; i-- {
		s := t.steps[i]
		switch {
		case at.Before(s.From):
			next = s.From
			continue
		case at.Before(s.Until):
			return s
		}
		break
	}
	return signals.Step{From: at, Until: next}
}

// externalDesk says whom to ask.
type externalDesk struct{ reporter }

var errAskOperator = errors.New("the operator decides by energy: `kubectl describe site` shows why, GET /v1/explain/NAMESPACE/FEDERATION/SITE of the operator all of it, and spec.override of the Site overrides")

// Explain implements server.Energy.
func (externalDesk) Explain(string) (*coordinatorv1.ExplainResponse, error) {
	return nil, errAskOperator
}

// Override implements server.Energy.
func (externalDesk) Override(string, bool, time.Duration, string) (time.Time, error) {
	return time.Time{}, errAskOperator
}

// ClearOverride implements server.Energy.
func (externalDesk) ClearOverride(string) error { return errAskOperator }

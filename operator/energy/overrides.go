package energy

import (
	"errors"
	"fmt"
	"time"

	"girassol.dev/signals/ledger"
	"girassol.dev/signals/window"
)

// bySpec is who overrides by a Site's spec.override, which wins over overrides
// that are pushed.
const bySpec = "spec.override"

// eachOverride gives the sites whose override is not what their spec says; o nil
// means that there is to be none.
func (f *federation) eachOverride(in *inputs, do func(site string, o *window.Override) error) error {
	have, err := f.state.LoadOverrides()
	errs := []error{err}
	for _, s := range in.directed {
		want, wanted := in.overrides[s.Name]
		old, is := have[s.Name]
		switch {
		case wanted && (!is || !same(old, want)):
			errs = append(errs, do(s.Name, &want))
		case !wanted && is && old.By == bySpec:
			errs = append(errs, do(s.Name, nil))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("energy: federation %s: overrides: %w", f.key, err)
	}
	return nil
}

// keepOverrides brings what a director will read in line with the specs.
func (f *federation) keepOverrides(in *inputs) error { return f.eachOverride(in, f.state.SaveOverride) }

// override brings the director's overrides in line with the specs; changing is
// held.
func (f *federation) override(in *inputs) error {
	f.mu.Lock()
	r := f.run
	f.mu.Unlock()
	if r == nil {
		return nil
	}
	return f.eachOverride(in, func(site string, o *window.Override) error {
		if r.power[site] == (ledger.Power{}) {
			return nil // it is not directed, for a fault
		}
		if o == nil {
			return r.director.ClearOverride(site)
		}
		return r.director.SetOverride(site, *o)
	})
}

func same(a, b window.Override) bool {
	return a.Admit == b.Admit && a.Until.Equal(b.Until) && a.By == b.By && a.Why == b.Why
}

// showPolicies decides the sites without a signal; changing is held. Their
// overrides end in no director, so it is noted when the first one does.
func (f *federation) showPolicies(in *inputs) {
	now := f.engine.clock.Now()
	f.ends = time.Time{}
	for _, s := range in.policies {
		o, overridden := in.overrides[s.Name]
		if !overridden {
			f.tell(s.Name, byPolicy(nil))
			continue
		}
		f.tell(s.Name, byPolicy(&o))
		if now.Before(o.Until) && (f.ends.IsZero() || o.Until.Before(f.ends)) {
			f.ends = o.Until
		}
	}
}

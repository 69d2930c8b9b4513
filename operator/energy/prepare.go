package energy

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/operator/membership"
	"girassol.dev/signals/assemble"
	"girassol.dev/signals/webhook"
	"girassol.dev/signals/window"
)

// inputs are a federation's specs, checked, with what their Secrets hold.
type inputs struct {
	// fingerprint changes when the director must be another one.
	fingerprint string
	spec        v1alpha1.FederationSpec // with its defaults
	sites       map[string]bool
	// directed have a signal, policies none and need none; faulty ones are in
	// neither.
	directed, policies []v1alpha1.Site
	senders            []webhook.Sender
	overrides          map[string]window.Override
	budgeted           bool

	fault  *membership.Fault
	faults map[string]*membership.Fault
}

// prepare checks the specs and reads their Secrets. An error says that they could
// not be read.
func (f *federation) prepare(ctx context.Context, maxAge time.Duration) (*inputs, error) {
	in := &inputs{spec: *f.object.Spec.DeepCopy(), sites: map[string]bool{}, faults: map[string]*membership.Fault{}, overrides: map[string]window.Override{}}
	assemble.Defaults(&in.spec)
	in.budgeted = in.spec.Energy.Budget != nil
	if err := f.secrets.ensure(ctx, secretNames(in.spec, f.siteSpecs), maxAge); err != nil {
		return nil, err
	}
	var faults []error
	senderFaults := map[string]*Fault{}
	if errs := assemble.ValidateWebhook(in.spec, assemble.Kubernetes); len(errs) > 0 {
		faults = append(faults, invalid(errors.Join(errs...)))
	} else {
		for name, err := range f.readSenders(in) {
			senderFaults[name] = err
			faults = append(faults, err)
		}
	}
	if b := in.spec.Energy.Budget; b != nil && (b.Tokens == nil) != (b.Deadline == nil) {
		faults = append(faults, faultf(v1alpha1.ReasonInvalidSpec, "spec.energy.budget: tokens and deadline belong together: so much work until then"))
	}
	if len(faults) > 0 {
		worst := faultOf(slices.MinFunc(faults, func(a, b error) int { return cmp.Compare(a.Error(), b.Error()) }))
		in.fault = &worst
	}
	for _, s := range f.siteSpecs {
		in.sites[s.Name] = true
		if fault := f.checkSite(in, s, senderFaults); fault != nil {
			in.faults[s.Name] = fault
			continue
		}
		if s.Spec.Grid.Provider == "" {
			in.policies = append(in.policies, s)
		} else {
			in.directed = append(in.directed, s)
		}
	}
	return in, f.identify(in)
}

// readSenders fills in the webhook's senders and gives the faults of others.
func (f *federation) readSenders(in *inputs) map[string]*Fault {
	out := map[string]*Fault{}
	if in.spec.Energy.Webhook == nil {
		return out
	}
	for _, s := range in.spec.Energy.Webhook.Sources {
		sender := assemble.Sender(s)
		err := f.secrets.keys(s, &sender)
		if err == nil {
			// Two with one key: nobody could tell who speaks.
			_, err = webhook.New(context.Background(), webhook.Config{Senders: append(slices.Clone(in.senders), sender)})
		}
		if err != nil {
			fault := faultOf(err)
			if fault.Reason == v1alpha1.ReasonInvalidSpec {
				fault.Reason = v1alpha1.ReasonSecretInvalid
			}
			out[s.Name] = &Fault{fault}
			continue
		}
		in.senders = append(in.senders, sender)
	}
	return out
}

// checkSite is what keeps a site from being decided; nil if nothing does.
func (f *federation) checkSite(in *inputs, s v1alpha1.Site, senders map[string]*Fault) *membership.Fault {
	err := assemble.ValidateSite(in.spec, s, assemble.Kubernetes)
	if err != nil {
		fault := faultOf(err)
		return &fault
	}
	for _, g := range []*v1alpha1.GridSource{&s.Spec.Grid.GridSource, s.Spec.Grid.Check} {
		if g == nil {
			continue
		}
		if no := senders[g.Source]; g.Provider == v1alpha1.GridWebhook && no != nil {
			return &no.Fault
		}
		if err := f.secrets.check(*g); err != nil {
			fault := faultOf(err)
			return &fault
		}
	}
	if o := s.Spec.Override; o != nil {
		v := window.Override{Admit: o.Action == v1alpha1.OverrideAdmit, Until: o.Until.Time, By: bySpec, Why: o.Reason}
		now := f.engine.clock.Now()
		if err := v.Validate(now); err != nil {
			fault := membership.Fault{Reason: v1alpha1.ReasonInvalidSpec, Message: fmt.Sprintf("spec.override.until: %s is more than %s away; give a nearer time, an override is no policy",
				o.Until.UTC().Format(time.RFC3339), window.MaxOverride)}
			return &fault
		}
		if v.Until.After(now) {
			in.overrides[s.Name] = v
		}
	}
	return nil
}

// check says whether a source's Secret is there and has what its provider needs.
func (s *secrets) check(g v1alpha1.GridSource) error {
	var needed []assemble.Credential
	switch g.Provider {
	case v1alpha1.GridWattTime:
		needed = []assemble.Credential{assemble.User, assemble.Password}
	case v1alpha1.GridElectricityMaps:
		needed = []assemble.Credential{assemble.Token}
	case v1alpha1.GridPrometheus:
		if g.Credentials != nil {
			needed = []assemble.Credential{assemble.Token}
		}
	}
	for _, which := range needed {
		if _, err := s.Find(*g.Credentials, which); err != nil {
			return err
		}
	}
	return nil
}

// identify makes the fingerprint: of what directors are made from, not of what
// other packages act on.
func (f *federation) identify(in *inputs) error {
	type site struct {
		Name   string
		Grid   v1alpha1.GridSpec
		Energy *v1alpha1.EnergySpec
		Power  v1alpha1.PowerSpec
	}
	all := struct {
		UID     string
		Energy  v1alpha1.EnergySpec
		Train   [3]int32
		Sites   []site
		Senders []string
		Secrets string
	}{UID: string(f.object.UID), Energy: in.spec.Energy, Secrets: f.secrets.identity(),
		Train: [3]int32{in.spec.Rounds.TrainSeconds, in.spec.Rounds.CollectSeconds, in.spec.Drain.GraceSeconds}}
	for _, s := range in.directed {
		all.Sites = append(all.Sites, site{s.Name, s.Spec.Grid, s.Spec.Energy, s.Spec.Power})
	}
	slices.SortFunc(all.Sites, func(a, b site) int { return cmp.Compare(a.Name, b.Name) })
	for _, s := range in.senders {
		all.Senders = append(all.Senders, s.Name)
	}
	b, err := json.Marshal(all)
	if err != nil {
		return fmt.Errorf("energy: federation %s: %w", f.key, err)
	}
	sum := sha256.Sum256(b)
	in.fingerprint = hex.EncodeToString(sum[:])
	return nil
}

// named are the sites of spec.sites, of which the federation may not have all now.
func (in *inputs) named() map[string]bool {
	out := map[string]bool{}
	for _, s := range in.spec.Sites {
		out[s.Name] = true
	}
	return out
}

// senderNames are those of the spec, of which some may have a fault now.
func (in *inputs) senderNames() map[string]bool {
	out := map[string]bool{}
	if w := in.spec.Energy.Webhook; w != nil {
		for _, s := range w.Sources {
			out[s.Name] = true
		}
	}
	return out
}

func invalid(err error) *Fault {
	return faultf(v1alpha1.ReasonInvalidSpec, "%s", strings.ReplaceAll(err.Error(), "\n", "; "))
}

// faultOf finds the fault in an error; without one the spec is invalid.
func faultOf(err error) membership.Fault {
	var f *Fault
	if errors.As(err, &f) {
		return f.Fault
	}
	return invalid(err).Fault
}

package app

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/coordinator/round"
	"girassol.dev/internal/algorithm"
	"girassol.dev/signals/window"
)

// Limits of a configuration, against hostile or mistaken files.
const (
	maxConfigBytes = 4 << 20
	maxSites       = 256
)

// declaration is one federation with the sites it names.
type declaration struct {
	federation v1alpha1.Federation
	sites      []v1alpha1.Site // in the federation's order
}

// dnsLabel is what Kubernetes takes as an object name of one label.
var dnsLabel = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)

// readFiles reads YAML files with one Federation and its Sites.
func readFiles(paths []string) (*declaration, error) {
	var docs []byte
	for _, p := range paths {
		b, err := os.ReadFile(p)
		if err != nil {
			return nil, fmt.Errorf("configuration: %w", err)
		}
		docs = append(docs, b...)
		docs = append(docs, "\n---\n"...)
	}
	d, err := parse(docs)
	if err != nil {
		return nil, fmt.Errorf("configuration %v: %w", paths, err)
	}
	return d, nil
}

// parse reads YAML documents, refuses what it does not know and fills defaults.
func parse(docs []byte) (*declaration, error) {
	if len(docs) > maxConfigBytes {
		return nil, fmt.Errorf("%d bytes, at most %d", len(docs), maxConfigBytes)
	}
	var federations []v1alpha1.Federation
	sites := map[string]v1alpha1.Site{}
	for i, doc := range splitDocuments(docs) {
		if err := parseDocument(doc, &federations, sites); err != nil {
			return nil, fmt.Errorf("document %d: %w", i+1, err)
		}
	}
	if len(federations) != 1 {
		return nil, fmt.Errorf("%d documents of kind Federation, want exactly 1", len(federations))
	}
	d := &declaration{federation: federations[0]}
	for i, ref := range d.federation.Spec.Sites {
		s, ok := sites[ref.Name]
		if !ok {
			return nil, fmt.Errorf("spec.sites[%d].name: there is no document of kind Site named %q", i, ref.Name)
		}
		if slices.ContainsFunc(d.sites, func(o v1alpha1.Site) bool { return o.Name == s.Name }) {
			return nil, fmt.Errorf("spec.sites[%d].name: %q stands there twice", i, ref.Name)
		}
		d.sites = append(d.sites, s)
	}
	setDefaults(&d.federation.Spec)
	return d, validate(d)
}

var separator = regexp.MustCompile(`(?m)^---[ \t]*(#.*)?\r?$`)

// splitDocuments cuts at lines of "---" and leaves out documents without content.
func splitDocuments(b []byte) [][]byte {
	var out [][]byte
	for _, part := range separator.Split(string(b), -1) {
		doc := []byte(part)
		if j, err := yaml.YAMLToJSON(doc); err == nil && bytes.Equal(bytes.TrimSpace(j), []byte("null")) {
			continue
		}
		out = append(out, doc)
	}
	return out
}

func parseDocument(doc []byte, federations *[]v1alpha1.Federation, sites map[string]v1alpha1.Site) error {
	var meta metav1.TypeMeta
	if err := yaml.Unmarshal(doc, &meta); err != nil {
		return err
	}
	if meta.APIVersion != v1alpha1.APIVersion {
		return fmt.Errorf("apiVersion: is %q, want %q", meta.APIVersion, v1alpha1.APIVersion)
	}
	switch meta.Kind {
	case v1alpha1.KindFederation:
		var f v1alpha1.Federation
		if err := yaml.UnmarshalStrict(doc, &f); err != nil {
			return err
		}
		*federations = append(*federations, f)
	case v1alpha1.KindSite:
		var s v1alpha1.Site
		if err := yaml.UnmarshalStrict(doc, &s); err != nil {
			return err
		}
		if !dnsLabel.MatchString(s.Name) {
			return fmt.Errorf("metadata.name: %q must be 1 to 63 lower-case letters, digits or '-'", s.Name)
		}
		if _, dup := sites[s.Name]; dup {
			return fmt.Errorf("metadata.name: Site %q is declared twice", s.Name)
		}
		sites[s.Name] = s
	default:
		return fmt.Errorf("kind: is %q, want %s or %s", meta.Kind, v1alpha1.KindFederation, v1alpha1.KindSite)
	}
	return nil
}

func setDefaults(s *v1alpha1.FederationSpec) {
	def := func(v *int32, d int32) {
		if *v == 0 {
			*v = d
		}
	}
	if s.Model.Source == "" {
		s.Model.Source = v1alpha1.ModelFromSite
	}
	if s.State == "" {
		s.State = v1alpha1.StateRunning
	}
	if s.Energy.Policy == "" {
		s.Energy.Policy = v1alpha1.EnergyRequired
	}
	def(&s.Rounds.MinSites, 1)
	def(&s.Rounds.TrainSeconds, 600)
	def(&s.Rounds.CollectSeconds, 120)
	def(&s.Rounds.JoinSeconds, 300)
	def(&s.Drain.GraceSeconds, 60)
}

// validate checks what no single field can say, with the path of the field.
func validate(d *declaration) error {
	s := d.federation.Spec
	var errs []error
	bad := func(path, format string, args ...any) {
		errs = append(errs, fmt.Errorf("%s: %s", path, fmt.Sprintf(format, args...)))
	}
	if !dnsLabel.MatchString(d.federation.Name) || len(d.federation.Name) > 40 {
		bad("metadata.name", "%q must be 1 to 40 lower-case letters, digits or '-'", d.federation.Name)
	}
	if len(d.sites) == 0 || len(d.sites) > maxSites {
		bad("spec.sites", "%d sites, want 1 to %d", len(d.sites), maxSites)
	}
	switch s.Model.Source {
	case v1alpha1.ModelFromSite:
		if s.Model.Path != "" {
			bad("spec.model.path", "is for source File; the source is %s", s.Model.Source)
		}
	case v1alpha1.ModelFromFile:
		if s.Model.Path == "" {
			bad("spec.model.path", "source File needs the path of a safetensors file")
		}
	default:
		bad("spec.model.source", "is %q, want %s or %s", s.Model.Source, v1alpha1.ModelFromSite, v1alpha1.ModelFromFile)
	}
	if s.State != v1alpha1.StateRunning && s.State != v1alpha1.StateSuspended {
		bad("spec.state", "is %q, want %s or %s", s.State, v1alpha1.StateRunning, v1alpha1.StateSuspended)
	}
	r := s.Rounds
	for path, v := range map[string]int64{
		"total": r.Total, "localSteps": r.LocalSteps, "evaluateEvery": r.EvaluateEvery, "maxConsecutiveVoid": r.MaxConsecutiveVoid,
		"minSites": int64(r.MinSites), "trainSeconds": int64(r.TrainSeconds), "collectSeconds": int64(r.CollectSeconds), "joinSeconds": int64(r.JoinSeconds),
	} {
		if v < 0 {
			bad("spec.rounds."+path, "%d must not be negative", v)
		}
	}
	if int(r.MinSites) > len(d.sites) {
		bad("spec.rounds.minSites", "%d is more than the %d sites of spec.sites: no round could ever commit", r.MinSites, len(d.sites))
	}
	if s.Drain.GraceSeconds < 0 {
		bad("spec.drain.graceSeconds", "%d must not be negative", s.Drain.GraceSeconds)
	}
	if _, err := algorithm.FromSpec(s.Algorithm); err != nil {
		errs = append(errs, err)
	}
	validateWebhook(d, bad)
	if b := s.Energy.Budget; b != nil {
		for _, v := range []*int64{b.CarbonGrams, b.EnergyKWh, b.Tokens} {
			if v != nil && *v <= 0 {
				bad("spec.energy.budget", "%d: what is given must be above 0", *v)
			}
		}
		if (b.Tokens == nil) != (b.Deadline == nil) {
			bad("spec.energy.budget", "tokens and deadline belong together: so much work until then")
		}
	}
	if n := s.Energy.TargetSites; n < 0 || int(n) > len(d.sites) {
		bad("spec.energy.targetSites", "%d is not between 0 and the %d sites of spec.sites", n, len(d.sites))
	}
	for _, site := range d.sites {
		if err := validateSite(s, site); err != nil {
			errs = append(errs, fmt.Errorf("site %s: %w", site.Name, err))
		}
	}
	slices.SortFunc(errs, func(a, b error) int { return bytes.Compare([]byte(a.Error()), []byte(b.Error())) })
	return errors.Join(errs...)
}

func validateWebhook(d *declaration, bad func(path, format string, args ...any)) {
	if d.federation.Spec.Energy.Webhook == nil {
		return
	}
	seen := map[string]bool{}
	for i, src := range d.federation.Spec.Energy.Webhook.Sources {
		path := fmt.Sprintf("spec.energy.webhook.sources[%d]", i)
		if !dnsLabel.MatchString(src.Name) || seen[src.Name] {
			bad(path+".name", "%q must be 1 to 63 lower-case letters, digits or '-', and stand there once", src.Name)
		}
		seen[src.Name] = true
		if len(src.SecretFiles)+len(src.BearerFiles) == 0 {
			bad(path+".secretFiles", "a sender needs a secret, or a token in bearerFiles if it cannot sign")
		}
		switch src.Format {
		case "", v1alpha1.WebhookGirassol, v1alpha1.WebhookOpenADR3:
		default:
			bad(path+".format", "is %q, want %s or %s", src.Format, v1alpha1.WebhookGirassol, v1alpha1.WebhookOpenADR3)
		}
		if len(src.Sites) == 0 && len(src.Regions) == 0 {
			bad(path, "name the sites or regions that it may speak for")
		}
		for _, site := range src.Sites {
			if !slices.ContainsFunc(d.sites, func(s v1alpha1.Site) bool { return s.Name == site }) {
				bad(path+".sites", "%q is not among spec.sites", site)
			}
		}
	}
}

func validateSite(f v1alpha1.FederationSpec, s v1alpha1.Site) error {
	var errs []error
	g := s.Spec.Grid
	if policy(f, s) == v1alpha1.EnergyRequired {
		if _, err := window.FromSpec(f.Energy, s.Spec.Energy); err != nil {
			errs = append(errs, err)
		}
		if g.Provider == "" {
			errs = append(errs, fmt.Errorf("spec.grid.provider: energy policy %s needs a signal; name one or set spec.energy.policy to %s", v1alpha1.EnergyRequired, v1alpha1.EnergyIgnore))
		}
	}
	if g.Provider != "" {
		var sources []v1alpha1.WebhookSource
		if f.Energy.Webhook != nil {
			sources = f.Energy.Webhook.Sources
		}
		if err := validateGrid("spec.grid", g, sources); err != nil {
			errs = append(errs, err)
		}
		errs = append(errs, meaningful(f, s))
	}
	if e := s.Spec.Energy; e != nil && (e.TargetSites != 0 || e.Budget != nil || e.Webhook != nil) {
		errs = append(errs, errors.New("spec.energy: targetSites, budget and webhook belong to the Federation"))
	}
	p := s.Spec.Power
	if p.TrainingWatts < 0 || p.IdleWatts < 0 {
		errs = append(errs, fmt.Errorf("spec.power: %d and %d watts must not be negative", p.TrainingWatts, p.IdleWatts))
	}
	if p.PUE != nil && p.PUE.AsApproximateFloat64() < 1 {
		errs = append(errs, fmt.Errorf("spec.power.pue: %s is below 1: a facility cannot take less than its machines", p.PUE))
	}
	return errors.Join(errs...)
}

// meaningful refuses thresholds that mean nothing for the kind of signal.
func meaningful(f v1alpha1.FederationSpec, s v1alpha1.Site) error {
	if policy(f, s) != v1alpha1.EnergyRequired {
		return nil
	}
	kind := kindOf(s.Spec.Grid.GridSource)
	grams := f.Energy.EnterBelowGrams != nil
	if e := s.Spec.Energy; e != nil && (e.EnterBelowGrams != nil || e.EnterBelowPercentile != nil) {
		grams = e.EnterBelowGrams != nil
	}
	switch {
	case kind == v1alpha1.KindRenewableShare:
		return fmt.Errorf("spec.grid.kind: a %s rises with clean power, thresholds mean that less is cleaner; take another signal to decide by", kind)
	case grams && kind != v1alpha1.KindMarginal && kind != v1alpha1.KindAverage:
		return fmt.Errorf("spec.grid.kind: a %s cannot be compared with enterBelowGrams; give enterBelowPercentile and leaveAbovePercentile", kind)
	}
	return nil
}

// policy is the site's energy policy, or else the federation's.
func policy(f v1alpha1.FederationSpec, s v1alpha1.Site) v1alpha1.EnergyPolicy {
	if s.Spec.Energy != nil && s.Spec.Energy.Policy != "" {
		return s.Spec.Energy.Policy
	}
	return f.Energy.Policy
}

// roundConfig turns the spec into the round machine's.
func (d *declaration) roundConfig() round.Config {
	s := d.federation.Spec
	c := round.Config{
		Total: uint64(s.Rounds.Total), MinSites: int(s.Rounds.MinSites), LocalSteps: uint64(s.Rounds.LocalSteps),
		Train: seconds(s.Rounds.TrainSeconds), Collect: seconds(s.Rounds.CollectSeconds), Join: seconds(s.Rounds.JoinSeconds),
		Grace: seconds(s.Drain.GraceSeconds), MaxConsecutiveVoid: uint64(s.Rounds.MaxConsecutiveVoid), EvaluateEvery: uint64(s.Rounds.EvaluateEvery),
	}
	// Members of the last round get a tenth of a round to be ready for the next.
	c.Settle = min(max(c.Train/10, 500*time.Millisecond), 5*time.Second)
	for _, site := range d.sites {
		c.Sites = append(c.Sites, site.Name)
	}
	return c
}

func seconds(v int32) time.Duration { return time.Duration(v) * time.Second }

package app

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"reflect"
	"regexp"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/coordinator/round"
	"girassol.dev/internal/algorithm"
	"girassol.dev/signals/assemble"
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
	// external: someone else decides by energy; what is said of it here counts for
	// nothing.
	external bool
}

// dnsLabel is what Kubernetes takes as an object name of one label.
var dnsLabel = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)

// readFiles reads YAML files with one Federation and its Sites.
func readFiles(paths []string, external bool) (*declaration, error) {
	var docs []byte
	for _, p := range paths {
		b, err := os.ReadFile(p)
		if err != nil {
			return nil, fmt.Errorf("configuration: %w", err)
		}
		docs = append(docs, b...)
		docs = append(docs, "\n---\n"...)
	}
	d, err := parse(docs, external)
	if err != nil {
		return nil, fmt.Errorf("configuration %v: %w", paths, err)
	}
	return d, nil
}

// parse reads YAML documents, refuses what it does not know and fills defaults.
func parse(docs []byte, external bool) (*declaration, error) {
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
	d := &declaration{federation: federations[0], external: external}
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
	assemble.Defaults(&d.federation.Spec)
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
		"total": r.Total, "localSteps": r.LocalSteps, "maxConsecutiveVoid": r.MaxConsecutiveVoid,
		"minSites": int64(r.MinSites), "trainSeconds": int64(r.TrainSeconds), "collectSeconds": int64(r.CollectSeconds), "joinSeconds": int64(r.JoinSeconds),
	} {
		if v < 0 {
			bad("spec.rounds."+path, "%d must not be negative", v)
		}
	}
	if int(r.MinSites) > len(d.sites) {
		bad("spec.rounds.minSites", "%d is more than the %d sites of spec.sites: no round could ever commit", r.MinSites, len(d.sites))
	}
	errs = append(errs, validateEvaluation(d)...)
	if s.Drain.GraceSeconds < 0 {
		bad("spec.drain.graceSeconds", "%d must not be negative", s.Drain.GraceSeconds)
	}
	if _, err := algorithm.FromSpec(s.Algorithm); err != nil {
		errs = append(errs, err)
	}
	if n := s.MaxSites; n != nil {
		if *n < 0 {
			bad("spec.maxSites", "%d must not be negative", *n)
		}
		if *n > 0 && *n < r.MinSites {
			bad("spec.maxSites", "%d is below rounds.minSites %d: no round could ever commit; raise it, or set it to 0 to let the federation sleep", *n, r.MinSites)
		}
	}
	errs = append(errs, validateData(s.Data)...)
	errs = append(errs, validateAdmission(s.Admission)...)
	if !d.external {
		errs = append(errs, validateEnergy(d)...)
	}
	slices.SortFunc(errs, func(a, b error) int { return bytes.Compare([]byte(a.Error()), []byte(b.Error())) })
	return errors.Join(errs...)
}

// validateEnergy checks what the sites are decided by.
func validateEnergy(d *declaration) []error {
	s := d.federation.Spec
	errs := assemble.ValidateWebhook(s, assemble.Standalone)
	bad := func(path, format string, args ...any) {
		errs = append(errs, fmt.Errorf("%s: %s", path, fmt.Sprintf(format, args...)))
	}
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
		if err := assemble.ValidateSite(s, site, assemble.Standalone); err != nil {
			errs = append(errs, fmt.Errorf("site %s: %w", site.Name, err))
		}
	}
	return errs
}

// elsewhere names the fields that only an operator acts on.
func (d *declaration) elsewhere() []string {
	var out []string
	set := func(name string, value any) {
		if !reflect.ValueOf(value).IsZero() {
			out = append(out, name)
		}
	}
	s := d.federation.Spec
	set("spec.link.caSecret", s.Link.CASecret)
	set("spec.link.address", s.Link.Address)
	set("spec.coordinator", s.Coordinator)
	set("spec.agent", s.Agent)
	for _, site := range d.sites {
		own := "site " + site.Name + ": spec."
		set(own+"nodes", site.Spec.Nodes)
		set(own+"capacity", site.Spec.Capacity)
		set(own+"cluster", site.Spec.Cluster)
		set(own+"override", site.Spec.Override)
		set(own+"power.capWatts (agents: --power-cap-watts)", site.Spec.Power.CapWatts)
		set(own+"releaseTimeoutSeconds", site.Spec.ReleaseTimeoutSeconds)
	}
	return out
}

// roundConfig turns the spec into the round machine's.
func (d *declaration) roundConfig() round.Config {
	s := d.federation.Spec
	c := round.Config{
		Total: uint64(s.Rounds.Total), MinSites: int(s.Rounds.MinSites), LocalSteps: uint64(s.Rounds.LocalSteps),
		Train: seconds(s.Rounds.TrainSeconds), Collect: seconds(s.Rounds.CollectSeconds), Join: seconds(s.Rounds.JoinSeconds),
		Grace: seconds(s.Drain.GraceSeconds), MaxConsecutiveVoid: uint64(s.Rounds.MaxConsecutiveVoid), EvaluateEvery: uint64(s.Evaluation.Every), EvaluateSite: s.Evaluation.Site,
		EvaluateVoid: s.Evaluation.Gate != nil,
	}
	// Members of the last round get a tenth of a round to be ready for the next.
	c.Settle = min(max(c.Train/10, 500*time.Millisecond), 5*time.Second)
	for _, site := range d.sites {
		c.Sites = append(c.Sites, site.Name)
	}
	return c
}

func seconds(v int32) time.Duration { return time.Duration(v) * time.Second }

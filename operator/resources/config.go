package resources

import (
	"cmp"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/internal/algorithm"
	"girassol.dev/signals/ledger"
)

// coordinatorConfig is the coordinator's own YAML: the Federation and its Sites
// as far as they concern rounds. What the operator decides (energy, maxSites,
// state) is not in it, so that changing it restarts nobody, and neither is what
// only Kubernetes knows. A site without an object is a name: nothing admits it.
func coordinatorConfig(f *v1alpha1.Federation, sites []v1alpha1.Site) (string, error) {
	// What the coordinator would refuse must not reach it: it would not start again.
	if _, err := algorithm.FromSpec(f.Spec.Algorithm); err != nil {
		return "", invalid("spec.algorithm", "%v", err)
	}
	if g := f.Spec.Evaluation.Gate; g != nil && g.Margin != nil && g.Margin.Sign() < 0 {
		return "", invalid("spec.evaluation.gate.margin", "%s must not be negative: it is a fraction of the best loss, such as 0.1", g.Margin)
	}
	if err := checkAdmission(f.Spec.Admission); err != nil {
		return "", err
	}
	known := map[string]v1alpha1.Site{}
	for _, s := range sites {
		known[s.Name] = s
	}
	federation := v1alpha1.Federation{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.APIVersion, Kind: v1alpha1.KindFederation},
		ObjectMeta: metav1.ObjectMeta{Name: f.Name},
		Spec: v1alpha1.FederationSpec{
			// By name: the order of the list means nothing, so it restarts nobody.
			Sites:      slices.SortedFunc(slices.Values(f.Spec.Sites), func(a, b v1alpha1.SiteReference) int { return cmp.Compare(a.Name, b.Name) }),
			Model:      f.Spec.Model,
			Algorithm:  f.Spec.Algorithm,
			Rounds:     f.Spec.Rounds,
			Evaluation: f.Spec.Evaluation,
			Data:       f.Spec.Data,
			Admission:  f.Spec.Admission,
			Drain:      f.Spec.Drain,
			Trainer:    f.Spec.Trainer,
		},
	}
	var b strings.Builder
	if err := document(&b, federation); err != nil {
		return "", invalid("spec", "cannot be written as YAML: %v", err)
	}
	for _, ref := range federation.Spec.Sites {
		site := v1alpha1.Site{
			TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.APIVersion, Kind: v1alpha1.KindSite},
			ObjectMeta: metav1.ObjectMeta{Name: ref.Name},
			Spec:       v1alpha1.SiteSpec{Power: power(known[ref.Name])},
		}
		if err := document(&b, site); err != nil {
			return "", invalid("spec.sites", "site %s cannot be written as YAML: %v", ref.Name, err)
		}
	}
	return b.String(), nil
}

// checkAdmission refuses what the coordinator would.
func checkAdmission(a v1alpha1.AdmissionSpec) error {
	if q := a.MaxNormFactor; q != nil && q.AsApproximateFloat64() <= 1 {
		return invalid("spec.admission.maxNormFactor", "%s must be above 1, such as 10; leave it out for no bound", q)
	}
	if q := a.MinCosine; q != nil && (q.AsApproximateFloat64() < -1 || q.AsApproximateFloat64() > 1) {
		return invalid("spec.admission.minCosine", "%s is not between -1 and 1", q)
	}
	if q := a.Quotas.BytesPerRound; q != nil && q.Sign() <= 0 {
		return invalid("spec.admission.quotas.bytesPerRound", "%s must be above 0, such as 2Gi; leave it out for the default", q)
	}
	return nil
}

// power of a site. A model that cannot be is the site's own fault, told where its
// energy is decided; the others train on.
func power(s v1alpha1.Site) v1alpha1.PowerSpec {
	if _, err := ledger.PowerFromSpec(s.Spec.Power); err != nil {
		return v1alpha1.PowerSpec{}
	}
	return s.Spec.Power
}

func document(b *strings.Builder, o any) error {
	y, err := yaml.Marshal(o)
	if err != nil {
		return err
	}
	if b.Len() > 0 {
		b.WriteString("---\n")
	}
	b.Write(y)
	return nil
}

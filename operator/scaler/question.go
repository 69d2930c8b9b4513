package scaler

import (
	"slices"
	"strconv"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/types"

	"girassol.dev/api/externalscaler"
	v1alpha1 "girassol.dev/api/federation/v1alpha1"
)

// Keys of a trigger's metadata that are ours. Others (scalerAddress, enableTLS)
// are KEDA's own and are passed over.
const (
	// KeyFederation is <namespace>/<name>, or a name in the ScaledObject's
	// namespace.
	KeyFederation = "federation"
	// KeySite narrows the question to one site; without it, it is about all.
	KeySite = "site"
	// KeyDemand is sites (default) or rounds.
	KeyDemand = "demand"
	// KeyGate is energy (default) or none.
	KeyGate = "gate"
	// KeyTarget is how much of the metric one replica serves, a positive number;
	// default 1.
	KeyTarget = "target"
)

// Values of KeyDemand and KeyGate.
const (
	// DemandSites counts the sites that have work.
	DemandSites = "sites"
	// DemandRounds counts the rounds still to be committed; 1 for a run without end.
	DemandRounds = "rounds"
	// GateEnergy caps the demand by the sites whose window is not closed.
	GateEnergy = "energy"
	// GateNone leaves energy to others.
	GateNone = "none"
)

// question is a trigger's metadata, read.
type question struct {
	federation   types.NamespacedName
	site         string
	demand, gate string
	target       float64
}

func parse(ref *externalscaler.ScaledObjectRef) (question, error) {
	m := ref.GetScalerMetadata()
	q := question{site: m[KeySite], demand: DemandSites, gate: GateEnergy, target: 1}
	namespace, name, slash := strings.Cut(m[KeyFederation], "/")
	if !slash {
		namespace, name = ref.GetNamespace(), namespace
	}
	if namespace == "" || name == "" || strings.Contains(name, "/") {
		return q, invalid("metadata %s is %q: give <namespace>/<name> of the Federation, or its name alone if it is in the ScaledObject's namespace",
			KeyFederation, m[KeyFederation])
	}
	q.federation = types.NamespacedName{Namespace: namespace, Name: name}
	if err := choose(m, KeyDemand, &q.demand, DemandSites, DemandRounds); err != nil {
		return q, err
	}
	if err := choose(m, KeyGate, &q.gate, GateEnergy, GateNone); err != nil {
		return q, err
	}
	if text, ok := m[KeyTarget]; ok {
		target, err := strconv.ParseFloat(text, 64)
		if err != nil || !(target >= 0.001 && target <= 1e9) {
			return q, invalid("metadata %s is %q: give a number between 0.001 and 1e9, or leave it out for 1", KeyTarget, text)
		}
		q.target = target
	}
	return q, nil
}

// choose takes one of two values, if the key is given.
func choose(m map[string]string, key string, into *string, values ...string) error {
	given, ok := m[key]
	if !ok {
		return nil
	}
	if !slices.Contains(values, given) {
		return invalid("metadata %s is %q: give %s, or leave it out for %s", key, given, strings.Join(values, " or "), values[0])
	}
	*into = given
	return nil
}

// metric is the name without KEDA's prefix; KEDA makes it unique in a
// ScaledObject by itself.
func (q question) metric() string { return "girassol-" + q.demand }

func (q question) spec() *externalscaler.GetMetricSpecResponse {
	return &externalscaler.GetMetricSpecResponse{MetricSpecs: []*externalscaler.MetricSpec{{
		MetricName: q.metric(), TargetSize: max(1, int64(q.target)), TargetSizeFloat: q.target,
	}}}
}

// sites that the question is about.
func (q question) sites(f *v1alpha1.Federation) ([]string, error) {
	names := make([]string, 0, len(f.Spec.Sites))
	for _, s := range f.Spec.Sites {
		names = append(names, s.Name)
	}
	if q.site == "" {
		return names, nil
	}
	if !slices.Contains(names, q.site) {
		return nil, status.Errorf(codes.NotFound, "federation %s has no site %q: name one of %s in metadata %s, or add it to spec.sites",
			q.federation, q.site, strings.Join(names, ", "), KeySite)
	}
	return []string{q.site}, nil
}

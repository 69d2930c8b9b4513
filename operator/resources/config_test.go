package resources

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/yaml"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/internal/algorithm"
)

// Each field of the spec is the coordinator's, or is known not to be: a new one
// that nobody thought of would have no effect on Kubernetes.
func TestEveryFieldOfASpecReachesTheCoordinatorOrIsKnownNotTo(t *testing.T) {
	f := &v1alpha1.Federation{Spec: v1alpha1.FederationSpec{
		Sites: []v1alpha1.SiteReference{{Name: "porto"}}, Model: v1alpha1.ModelSpec{Source: v1alpha1.ModelFromSite},
		Algorithm: v1alpha1.AlgorithmSpec{Strategy: v1alpha1.DiLoCo}, Rounds: v1alpha1.RoundsSpec{Total: 1},
		Evaluation: v1alpha1.EvaluationSpec{Every: 2}, Data: &v1alpha1.DataSpec{Samples: 3}, Admission: v1alpha1.AdmissionSpec{QuarantineRounds: 6}, Drain: v1alpha1.DrainSpec{GraceSeconds: 4},
		Trainer: map[string]string{"lr": "5"},
	}}
	text, err := coordinatorConfig(f, nil)
	if err != nil {
		t.Fatal(err)
	}
	first, _, _ := strings.Cut(text, "\n---")
	var got struct {
		Spec map[string]any `json:"spec"`
	}
	if err := yaml.Unmarshal([]byte(first), &got); err != nil {
		t.Fatal(err)
	}
	operators := []string{"maxSites", "energy", "events", "state", "link", "coordinator", "agent"}
	spec := reflect.TypeFor[v1alpha1.FederationSpec]()
	for i := range spec.NumField() {
		name, _, _ := strings.Cut(spec.Field(i).Tag.Get("json"), ",")
		if _, passed := got.Spec[name]; passed == slices.Contains(operators, name) {
			t.Errorf("spec.%s: passed on %v", name, passed)
		}
	}
}

// A field of the algorithm that got lost on the way would have no effect on
// Kubernetes.
func TestTheWholeAlgorithmReachesTheCoordinator(t *testing.T) {
	q := func(s string) *resource.Quantity { return new(resource.MustParse(s)) }
	encoding := &v1alpha1.EncodingSpec{KeepOneIn: 32, Values: v1alpha1.ValuesEightBit, Transform: v1alpha1.TransformIdentity, GroupSize: 512}
	for name, a := range map[string]v1alpha1.AlgorithmSpec{
		"sparse": {Uplink: encoding, Downlink: encoding, Schedule: []v1alpha1.DensitySpec{{FromVersion: 7, UplinkKeepOneIn: 4, DownlinkKeepOneIn: 2}}},
		"dense":  {Strategy: v1alpha1.DiLoCo, OuterLearningRate: q("0.5"), OuterMomentum: q("0.8"), Robust: &v1alpha1.RobustSpec{TrimFraction: q("0.2"), ClipFactor: q("3")}},
	} {
		text, err := coordinatorConfig(&v1alpha1.Federation{Spec: v1alpha1.FederationSpec{Algorithm: a}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		first, _, _ := strings.Cut(text, "\n---")
		var got v1alpha1.Federation
		if err := yaml.UnmarshalStrict([]byte(first), &got); err != nil {
			t.Fatal(err)
		}
		want, err := algorithm.FromSpec(a)
		if err != nil {
			t.Fatal(err)
		}
		if read, err := algorithm.FromSpec(got.Spec.Algorithm); err != nil || !reflect.DeepEqual(read, want) {
			t.Errorf("%s: %+v (%v), want %+v", name, read, err, want)
		}
	}
}

func TestAnAlgorithmThatTheCoordinatorWouldRefuseIsRefusedHere(t *testing.T) {
	q := func(s string) *resource.Quantity { return new(resource.MustParse(s)) }
	for field, a := range map[string]v1alpha1.AlgorithmSpec{
		"spec.algorithm.robust.trimFraction":     {Strategy: v1alpha1.DiLoCo, Robust: &v1alpha1.RobustSpec{TrimFraction: q("0.5")}},
		"spec.algorithm.robust":                  {Robust: &v1alpha1.RobustSpec{ClipFactor: q("2")}},
		"spec.algorithm.schedule[1].fromVersion": {Schedule: []v1alpha1.DensitySpec{{FromVersion: 2}, {FromVersion: 1}}},
		"spec.algorithm.downlink.groupSize":      {Downlink: &v1alpha1.EncodingSpec{GroupSize: 300}},
	} {
		f := &v1alpha1.Federation{Spec: v1alpha1.FederationSpec{Algorithm: a, Sites: []v1alpha1.SiteReference{{Name: "a"}, {Name: "b"}, {Name: "c"}, {Name: "d"}}}}
		if _, err := coordinatorConfig(f, nil); err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%v does not name %s", err, field)
		}
	}
}

func TestAGateThatTheCoordinatorWouldRefuseIsRefusedHere(t *testing.T) {
	margin := resource.MustParse("-0.1")
	f := &v1alpha1.Federation{Spec: v1alpha1.FederationSpec{Evaluation: v1alpha1.EvaluationSpec{Every: 1, Gate: &v1alpha1.GateSpec{Margin: &margin}}}}
	if _, err := coordinatorConfig(f, nil); err == nil || !strings.Contains(err.Error(), "gate.margin") {
		t.Error(err)
	}
}

func TestAdmissionThatTheCoordinatorWouldRefuseIsRefusedHere(t *testing.T) {
	q := func(s string) *resource.Quantity { return new(resource.MustParse(s)) }
	for field, a := range map[string]v1alpha1.AdmissionSpec{
		"maxNormFactor": {MaxNormFactor: q("1")}, "minCosine": {MinCosine: q("1100m")}, "bytesPerRound": {Quotas: v1alpha1.QuotasSpec{BytesPerRound: q("0")}},
	} {
		f := &v1alpha1.Federation{Spec: v1alpha1.FederationSpec{Admission: a}}
		if _, err := coordinatorConfig(f, nil); err == nil || !strings.Contains(err.Error(), "spec.admission") || !strings.Contains(err.Error(), field) {
			t.Errorf("%s: %v", field, err)
		}
	}
}

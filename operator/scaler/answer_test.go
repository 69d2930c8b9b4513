package scaler

import (
	"context"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"girassol.dev/api/externalscaler"
	v1alpha1 "girassol.dev/api/federation/v1alpha1"
)

const (
	open    = metav1.ConditionTrue
	closed  = metav1.ConditionFalse
	unknown = metav1.ConditionUnknown
)

func wish(w v1alpha1.ProvisioningWish) func(*v1alpha1.Site) {
	return func(s *v1alpha1.Site) { s.Status.Provisioning = &v1alpha1.ProvisioningStatus{Wish: w} }
}

func phase(p v1alpha1.SitePhase) func(*v1alpha1.Site) {
	return func(s *v1alpha1.Site) { s.Status.Phase = p }
}

func TestCarbonCapsTheDemandAndDoesNotMakeIt(t *testing.T) {
	two := func(edit func(*v1alpha1.Federation)) *v1alpha1.Federation {
		return federation(edit, "quebec", "atlanta")
	}
	rounds := func(total, done int64) func(*v1alpha1.Federation) {
		return func(f *v1alpha1.Federation) { f.Spec.Rounds.Total, f.Status.RoundsCommitted = total, done }
	}
	zero := int32(0)
	for name, tc := range map[string]struct {
		federation *v1alpha1.Federation
		sites      []*v1alpha1.Site
		metadata   map[string]string
		want       int64
	}{
		"both windows open":      {two(nil), []*v1alpha1.Site{site("quebec", open), site("atlanta", open)}, nil, 2},
		"one closed":             {two(nil), []*v1alpha1.Site{site("quebec", open), site("atlanta", closed)}, nil, 1},
		"both closed":            {two(nil), []*v1alpha1.Site{site("quebec", closed), site("atlanta", closed)}, nil, 0},
		"both closed, no gate":   {two(nil), []*v1alpha1.Site{site("quebec", closed), site("atlanta", closed)}, map[string]string{KeyGate: GateNone}, 2},
		"one site's open window": {two(nil), []*v1alpha1.Site{site("quebec", open), site("atlanta", closed)}, map[string]string{KeySite: "quebec"}, 1},
		"one site's closed one":  {two(nil), []*v1alpha1.Site{site("quebec", open), site("atlanta", closed)}, map[string]string{KeySite: "atlanta"}, 0},
		"a site that is missing": {two(nil), []*v1alpha1.Site{site("quebec", open)}, nil, 1},
		"only missing sites":     {two(nil), nil, nil, 0},

		"unknown, and it trains":       {two(nil), []*v1alpha1.Site{site("quebec", unknown, phase(v1alpha1.SiteActive)), site("atlanta", closed)}, nil, 1},
		"unknown, and it is wanted":    {two(nil), []*v1alpha1.Site{site("quebec", unknown, wish(v1alpha1.WishProvision)), site("atlanta", closed)}, nil, 1},
		"unknown, and it sleeps":       {two(nil), []*v1alpha1.Site{site("quebec", unknown, wish(v1alpha1.WishRelease), phase(v1alpha1.SiteActive)), site("atlanta", closed)}, nil, 0},
		"unknown, and lost to sight":   {two(nil), []*v1alpha1.Site{site("quebec", unknown, phase(v1alpha1.SiteLost)), site("atlanta", closed)}, nil, 1},
		"never decided":                {two(nil), []*v1alpha1.Site{site("quebec", ""), site("atlanta", "")}, nil, 0},
		"closed outweighs what stands": {two(nil), []*v1alpha1.Site{site("quebec", closed, phase(v1alpha1.SiteActive), wish(v1alpha1.WishProvision))}, nil, 0},
		"energy is ignored": {two(func(f *v1alpha1.Federation) { f.Spec.Energy.Policy = v1alpha1.EnergyIgnore }),
			[]*v1alpha1.Site{site("quebec", closed), site("atlanta", "")}, nil, 2},
		"one site ignores it": {two(nil), []*v1alpha1.Site{site("quebec", closed), site("atlanta", closed, func(s *v1alpha1.Site) {
			s.Spec.Energy = &v1alpha1.EnergySpec{Policy: v1alpha1.EnergyIgnore}
		})}, nil, 1},

		"suspended": {two(func(f *v1alpha1.Federation) { f.Spec.State = v1alpha1.StateSuspended }), []*v1alpha1.Site{site("quebec", open)}, nil, 0},
		"put to sleep by KEDA itself": {two(func(f *v1alpha1.Federation) { f.Spec.MaxSites = &zero }),
			[]*v1alpha1.Site{site("quebec", open), site("atlanta", open)}, nil, 2},
		"completed": {two(func(f *v1alpha1.Federation) {
			rounds(9, 9)(f)
			f.Status.Phase = v1alpha1.FederationCompleted
		}), []*v1alpha1.Site{site("quebec", open)}, nil, 0},
		"completed, and the total is raised": {two(func(f *v1alpha1.Federation) {
			rounds(12, 9)(f)
			f.Status.Phase = v1alpha1.FederationCompleted
		}), []*v1alpha1.Site{site("quebec", open)}, map[string]string{KeyDemand: DemandRounds}, 3},
		"failed":                       {two(func(f *v1alpha1.Federation) { f.Status.Phase = v1alpha1.FederationFailed }), []*v1alpha1.Site{site("quebec", open)}, nil, 0},
		"being deleted":                {two(func(f *v1alpha1.Federation) { f.DeletionTimestamp = &metav1.Time{} }), []*v1alpha1.Site{site("quebec", open)}, nil, 0},
		"a site of another federation": {two(nil), []*v1alpha1.Site{site("quebec", open, func(s *v1alpha1.Site) { s.Status.Federation = "other" })}, nil, 0},
		"a site that goes":             {two(nil), []*v1alpha1.Site{site("quebec", open, func(s *v1alpha1.Site) { s.DeletionTimestamp = &metav1.Time{} })}, nil, 0},

		"rounds left":                 {two(rounds(200, 150)), []*v1alpha1.Site{site("quebec", open)}, map[string]string{KeyDemand: DemandRounds}, 50},
		"rounds of a run without end": {two(rounds(0, 150)), []*v1alpha1.Site{site("quebec", open)}, map[string]string{KeyDemand: DemandRounds}, 1},
		"rounds left, windows closed": {two(rounds(200, 150)), []*v1alpha1.Site{site("quebec", closed)}, map[string]string{KeyDemand: DemandRounds}, 0},
		"more rounds than the total":  {two(rounds(200, 250)), []*v1alpha1.Site{site("quebec", open)}, map[string]string{KeyDemand: DemandRounds}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			w := &world{objects: []client.Object{tc.federation}}
			for _, s := range tc.sites {
				w.objects = append(w.objects, s)
			}
			metadata := map[string]string{KeyFederation: "gpt"}
			for k, v := range tc.metadata {
				metadata[k] = v
			}
			value, active := ask(t, New(w, nil), metadata)
			if value != tc.want || active != (tc.want > 0) {
				t.Errorf("%d and active %v, want %d", value, active, tc.want)
			}
		})
	}
}

// ask in the order in which KEDA does.
func ask(t testing.TB, s *Server, metadata map[string]string) (value int64, active bool) {
	t.Helper()
	ctx, ref := context.Background(), reference(metadata)
	spec, err := s.GetMetricSpec(ctx, ref)
	if err != nil {
		t.Fatal(err)
	}
	metrics, err := s.GetMetrics(ctx, &externalscaler.GetMetricsRequest{ScaledObjectRef: ref, MetricName: spec.MetricSpecs[0].MetricName})
	if err != nil {
		t.Fatal(err)
	}
	m := metrics.MetricValues[0]
	if float64(m.MetricValue) != m.MetricValueFloat {
		t.Fatalf("the whole number is %d, the other %v", m.MetricValue, m.MetricValueFloat)
	}
	is, err := s.IsActive(ctx, ref)
	if err != nil {
		t.Fatal(err)
	}
	return m.MetricValue, is.Result
}

func TestNoAnswerIsNegativeOrAboveTheSites(t *testing.T) {
	statuses := []metav1.ConditionStatus{"", open, closed, unknown}
	rapid.Check(t, func(t *rapid.T) {
		f := federation(nil, "a", "b", "c")
		f.Spec.Rounds.Total = rapid.Int64Range(0, 1e6).Draw(t, "total")
		f.Status.RoundsCommitted = rapid.Int64Range(0, 2e6).Draw(t, "committed")
		f.Status.Phase = rapid.SampledFrom([]v1alpha1.FederationPhase{"", v1alpha1.FederationTraining, v1alpha1.FederationCompleted, v1alpha1.FederationFailed}).Draw(t, "phase")
		var places []place
		confirmed := true
		for _, name := range []string{"a", "b", "c"} {
			s := site(name, rapid.SampledFrom(statuses).Draw(t, "window"))
			s.Status.Phase = rapid.SampledFrom([]v1alpha1.SitePhase{"", v1alpha1.SiteIdle, v1alpha1.SiteActive, v1alpha1.SiteLost}).Draw(t, "site phase")
			places = append(places, placeOf(f, s))
			confirmed = confirmed && !favourable(s)
		}
		for _, demand := range []string{DemandSites, DemandRounds} {
			a := question{demand: demand, gate: GateEnergy}.answer(f, places)
			n := question{demand: demand, gate: GateNone}.answer(f, places)
			switch {
			case a.value() < 0 || n.value() < 0:
				t.Fatalf("negative: %+v %+v", a, n)
			case a.value() > n.value():
				t.Fatalf("energy raises the demand from %d to %d", n.value(), a.value())
			case demand == DemandSites && n.value() > 3:
				t.Fatalf("%d of 3 sites", n.value())
			case confirmed && a.active():
				t.Fatal("active with all windows closed")
			case n.active() && !confirmed && !a.active():
				t.Fatal("energy stops a federation that has a site to run")
			}
		}
	})
}

package energy

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/operator/membership"
)

func eager(s *v1alpha1.FederationSpec) {
	s.Energy.EnterConfirmations, s.Energy.LeaveConfirmations = 1, 1
}

func TestTheOldLeaderWritesNothingWhenItHasFoundTheNewOne(t *testing.T) {
	r := newRig(t)
	r.trace("t.csv", map[string][]float64{"a": {80, 200, 200, 200, 200}, "b": {80, 80, 80, 80, 80}})
	f, sites := r.federation("f", eager, "a")
	g, others := r.federation("g", eager, "b")
	old := r.start(func(o *Options) { o.SaveEvery = time.Hour }) // and so are the pauses long
	old.ensure(f, sites)
	old.ensure(g, others)
	old.until(f, "a", "in", reason(v1alpha1.ReasonEnergyFavourable))
	old.until(g, "b", "in", reason(v1alpha1.ReasonEnergyFavourable))
	next := r.start()
	next.ensure(f, sites)
	next.sees(f, "a")
	r.next() // both decide that the site goes out, the new one has the claim
	if e := next.sees(f, "a"); e.Admit {
		t.Errorf("the new leader decides %+v", e)
	}
	if e, _ := old.until(f, "a", "held", reason(v1alpha1.ReasonSuperseded)); !e.Admit || e.Fresh != membership.No || e.Message == "" {
		t.Errorf("the old leader says %+v", e)
	}
	writes := old.line.writes.Load()
	for range 2 {
		r.next()
		next.sees(f, "a")
		r.kept(f)
		old.ensure(f, sites)
		if e := old.sees(g, "b"); !e.Admit || e.Reason == v1alpha1.ReasonSuperseded {
			t.Errorf("the other federation of the old leader: %+v", e)
		}
	}
	if n := old.line.writes.Load() - writes; n != 0 {
		t.Errorf("the old leader wrote %d times", n)
	}
	if e, _ := old.Wish(key(f), "a"); !e.Admit || e.Reason != v1alpha1.ReasonSuperseded {
		t.Errorf("the old leader says %+v", e)
	}
	if err := errors.Join(old.end(), next.end()); err != nil {
		t.Error(err)
	}
}

// meddle claims a federation's ConfigMaps as a tenant could.
func (r *rig) meddle(f *v1alpha1.Federation) {
	r.t.Helper()
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		for _, m := range r.maps(f) {
			m.Data[keyWriter] = "tenant"
			if err := r.client.Update(r.t.Context(), &m); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		r.t.Fatal(err)
	}
}

// reclaimed waits until a federation's ConfigMaps are the engine's again.
func (l *life) reclaimed(f *v1alpha1.Federation) {
	l.r.t.Helper()
	for deadline := time.Now().Add(wait); ; time.Sleep(5 * time.Millisecond) {
		l.hurry()
		if m := l.r.maps(f); len(m) > 0 && m[0].Data[keyWriter] == l.writer {
			return
		}
		if time.Now().After(deadline) {
			l.r.t.Fatal("the state is never claimed again")
		}
	}
}

func TestATenantWhoEditsTheStateAgainAndAgainHaltsOnlyItsOwn(t *testing.T) {
	r := newRig(t)
	elsewhere := *r
	elsewhere.namespace = r.env.Namespace(t)
	r.trace("t.csv", map[string][]float64{"a": slices.Repeat([]float64{80, 81}, 99), "b": slices.Repeat([]float64{80, 200}, 99)})
	a, sitesOfA := r.federation("f", eager, "a")
	b, sitesOfB := elsewhere.federation("f", func(s *v1alpha1.FederationSpec) {
		eager(s)
		s.Energy.MinimumOnSeconds = 1
	}, "b")
	registry := prometheus.NewPedanticRegistry()
	l := r.start(func(o *Options) { o.Registerer = registry })
	l.ensure(a, sitesOfA)
	l.ensure(b, sitesOfB)
	l.sees(a, "a")
	l.sees(b, "b")
	r.kept(a)
	const times = 5
	for i := range times {
		r.meddle(a)
		r.next()
		if e, _ := l.until(a, "a", "held", reason(v1alpha1.ReasonSuperseded)); !e.Admit {
			t.Errorf("time %d: the tenant's site does not keep its wish: %+v", i, e)
		}
		if e := l.sees(b, "b"); e.Admit != (i%2 == 1) {
			t.Errorf("time %d: the other tenant's site: %+v", i, e)
		}
		elsewhere.kept(b)
		l.reclaimed(a)
	}
	select {
	case err := <-l.done:
		t.Fatalf("the engine ended for all: %v", err)
	default:
	}
	if n := losses(t, registry, a); n != times {
		t.Errorf("%v counted, want %d", n, times)
	}
	if n := losses(t, registry, b); n != 0 {
		t.Errorf("%v counted of the other", n)
	}
	r.next() // and left alone
	if e := l.sees(a, "a"); !e.Admit || e.Reason == v1alpha1.ReasonSuperseded || e.Fresh != membership.Yes {
		t.Errorf("the tenant's site after all: %+v", e)
	}
	r.kept(a)
	if err := l.end(); err != nil {
		t.Error(err)
	}
}

func losses(t *testing.T, g prometheus.Gatherer, f *v1alpha1.Federation) float64 {
	t.Helper()
	families, err := g.Gather()
	if err != nil {
		t.Fatal(err)
	}
	n := 0.0
	for _, family := range families {
		for _, m := range family.GetMetric() {
			for _, label := range m.GetLabel() {
				if family.GetName() == "girassol_operator_signals_superseded_total" && label.GetName() == "namespace" && label.GetValue() == f.Namespace {
					n += m.GetCounter().GetValue()
				}
			}
		}
	}
	return n
}

func TestTheRestOfADeletedStateIsInTheWayOnce(t *testing.T) {
	c := memory(nil)
	const limit = 6 << 10
	s := open(t, c, "one", limit)
	for i := range 3 {
		s.set(kindSanity+"."+string(rune('a'+i)), noise(3900, byte(i)))
	}
	flush(t, s)
	if len(list(t, c)) < 2 {
		t.Fatal("one ConfigMap holds it all")
	}
	for _, m := range list(t, c) {
		if m.Name == "f-signals" {
			if err := c.Delete(t.Context(), &m, client.Preconditions{UID: &m.UID}); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, writer := range []string{"two", "three"} {
		s = open(t, c, writer, limit)
		for i := range 3 {
			s.set(kindSanity+"."+string(rune('a'+i)), noise(3800, byte(i)))
		}
		if err := s.Flush(t.Context()); errors.Is(err, errSuperseded) != (writer == "two") {
			t.Errorf("writer %s: %v", writer, err)
		}
	}
}

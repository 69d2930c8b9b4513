package controller

import (
	"context"
	"errors"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/operator/membership"
)

func TestAThousandReconcilesOfAnUnchangedFederationMakeNoWrite(t *testing.T) {
	b := newBench(t)
	b.cached()
	for _, name := range []string{"lisboa", "porto"} {
		b.site(name)
		b.energy.want(name, openWindow)
	}
	b.coordinator.say(v1alpha1.FederationTraining, 7)
	b.federation("gpt", func(s *v1alpha1.FederationSpec) {
		s.Events.Redis = &v1alpha1.RedisSpec{Mode: v1alpha1.RedisTrial}
	}, "lisboa", "porto", "nowhere")
	b.siteIs("lisboa", "gpt", v1alpha1.SiteActive, v1alpha1.ReasonTraining)
	// The cache follows what the first looks write.
	for last := ""; ; {
		f, _ := b.reconcile("gpt")
		seen := &v1alpha1.Federation{}
		if err := b.r.Client.Get(context.Background(), keyOf(f), seen); err != nil {
			t.Fatal(err)
		}
		if seen.ResourceVersion == f.ResourceVersion && last == f.ResourceVersion {
			break
		}
		last = f.ResourceVersion
	}
	before := b.env.Requests(t)
	for i := range 1000 {
		if i == 500 {
			b.restart() // not even a new operator writes
		}
		b.now = b.now.Add(time.Second) // time passes, but no certificate becomes due
		b.reconcile("gpt")
	}
	if made := b.env.Requests(t).Since(before); made.Writes() != 0 {
		t.Errorf("the API server served %v", made)
	}
}

// A new operator knows neither what the coordinator says nor what energy wants for
// its first seconds.
func TestANewOperatorChangesNothingBeforeItKnows(t *testing.T) {
	for name, reachable := range map[string]membership.Tri{"coordinator that answers": membership.Yes, "coordinator that is gone": membership.No} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			for _, site := range []string{"lisboa", "porto"} {
				b.site(site)
				b.energy.want(site, openWindow)
			}
			b.federation("gpt", func(s *v1alpha1.FederationSpec) { s.MaxSites = new(int32(1)) }, "lisboa", "porto")
			b.siteIs("porto", "gpt", v1alpha1.SiteActive, v1alpha1.ReasonTraining)
			s := &v1alpha1.Site{}
			b.get("porto", s)
			s.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionEnergyFavourable, Status: metav1.ConditionTrue, Reason: "EnergyFavourable", LastTransitionTime: metav1.Now()}}
			if err := b.env.Client.Status().Update(context.Background(), s); err != nil {
				t.Fatal(err)
			}
			b.coordinator.say(v1alpha1.FederationTraining, 7)
			b.coordinator.status.Round.LastVoid = &coordinatorv1.VoidRound{Number: 7, Reason: "TooFewUpdates"}
			b.coordinator.reachable, b.coordinator.why = reachable, "connection refused"
			b.reconcile("gpt")
			before, _ := b.reconcile("gpt")
			said := b.coordinator.status

			b.restart()
			b.coordinator.status, b.coordinator.reachable = nil, membership.Unknown
			b.energy.want("lisboa", membership.Energy{})
			b.energy.want("porto", membership.Energy{})
			now, _ := b.reconcile("gpt")
			if now.ResourceVersion != before.ResourceVersion {
				t.Errorf("the status changed from\n%+v to\n%+v", before.Status, now.Status)
			}
			if _, _, known := b.r.Selection.Of(keyOf(now), "porto"); known {
				t.Error("sites are decided about before the coordinator is heard or given up")
			}
			b.coordinator.status, b.coordinator.reachable = said, reachable
			now, _ = b.reconcile("gpt")
			if now.ResourceVersion != before.ResourceVersion {
				t.Errorf("the status changed from\n%+v to\n%+v", before.Status, now.Status)
			}
			if selected, _, known := b.r.Selection.Of(keyOf(now), "porto"); !known || !selected {
				t.Error("an active site loses its place while energy is not known")
			}
		})
	}
}

// laggingFederations gives a federation as it once was.
type laggingFederations struct {
	client.Client
	old *v1alpha1.Federation
}

func (c *laggingFederations) Get(ctx context.Context, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
	if f, ok := o.(*v1alpha1.Federation); ok && c.old != nil {
		c.old.DeepCopyInto(f)
		return nil
	}
	return c.Client.Get(ctx, key, o, opts...)
}

func TestAStatusThatGoesBackWhileTheCacheShowsOneInBetweenIsWritten(t *testing.T) {
	b := newBench(t)
	cache := &laggingFederations{Client: b.reads}
	b.reads = cache
	b.restart()
	b.site("lisboa")
	b.federation("gpt", nil, "lisboa")
	b.coordinator.say(v1alpha1.FederationTraining, 7)
	answered, _ := b.reconcile("gpt")
	cache.old = answered
	b.coordinator.reachable, b.coordinator.why = membership.No, "connection refused"
	lost, _ := b.reconcile("gpt")
	b.is(lost, v1alpha1.ConditionCoordinatorAvailable, metav1.ConditionFalse, v1alpha1.ReasonCoordinatorUnreachable)
	b.coordinator.reachable = membership.Yes
	again, _ := b.reconcile("gpt")
	b.is(again, v1alpha1.ConditionCoordinatorAvailable, metav1.ConditionTrue, v1alpha1.ReasonCoordinatorAvailable)

	cache.old = lost // it shows the first of the two writes
	b.coordinator.reachable = membership.No
	now, _ := b.reconcile("gpt")
	b.is(now, v1alpha1.ConditionCoordinatorAvailable, metav1.ConditionFalse, v1alpha1.ReasonCoordinatorUnreachable)
}

func TestAnEngineThatCannotBeAskedChangesNothingThatIsShown(t *testing.T) {
	b := newBench(t)
	b.site("lisboa")
	b.energy.want("lisboa", openWindow)
	b.federation("gpt", nil, "lisboa")
	b.siteIs("lisboa", "gpt", v1alpha1.SiteActive, v1alpha1.ReasonTraining)
	b.coordinator.say(v1alpha1.FederationTraining, 7)
	b.reconcile("gpt")
	before, _ := b.reconcile("gpt")
	b.is(before, v1alpha1.ConditionEnergyFavourable, metav1.ConditionTrue, v1alpha1.ReasonEnergyFavourable)
	b.energy.fault = errRefused
	if _, err := b.r.Reconcile(context.Background(), ctrl.Request{NamespacedName: keyOf(before)}); !errors.Is(err, errRefused) {
		t.Errorf("%v, want %v", err, errRefused)
	}
	now := &v1alpha1.Federation{}
	b.get("gpt", now)
	if now.ResourceVersion != before.ResourceVersion {
		t.Errorf("the status changed from\n%+v to\n%+v", before.Status, now.Status)
	}
}

package controller

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/internal/certs"
	"girassol.dev/operator/energy"
	"girassol.dev/operator/membership"
	"girassol.dev/operator/resources"
)

func TestAFederationGetsItsChildrenAndOwnsThem(t *testing.T) {
	b := newBench(t)
	b.site("lisboa")
	b.site("porto")
	f := b.federation("gpt", func(s *v1alpha1.FederationSpec) {
		s.Events.Redis = &v1alpha1.RedisSpec{Mode: v1alpha1.RedisTrial}
	}, "lisboa", "porto")
	got, result := b.reconcile("gpt")
	for name, o := range map[string]client.Object{
		"StatefulSet": &appsv1.StatefulSet{}, "Service": &corev1.Service{}, "ConfigMap": &corev1.ConfigMap{}, "ServiceAccount": &corev1.ServiceAccount{},
		"PodDisruptionBudget": &policyv1.PodDisruptionBudget{}, "NetworkPolicy": &networkingv1.NetworkPolicy{},
	} {
		b.get("gpt-coordinator", o)
		if owner := metav1.GetControllerOf(o); owner == nil || owner.UID != f.UID || owner.Kind != v1alpha1.KindFederation {
			t.Errorf("%s: owner %v", name, owner)
		}
	}
	var redis appsv1.Deployment
	b.get("gpt-redis", &redis)
	for _, name := range []string{"gpt-ca", "gpt-coordinator-tls", "gpt-operator-tls", "gpt-site-lisboa-tls", "gpt-site-porto-tls"} {
		s := b.secret(name)
		if owner := metav1.GetControllerOf(s); owner == nil || owner.UID != f.UID || s.Labels[v1alpha1.LabelFederation] != "gpt" {
			t.Errorf("Secret %s: owner %v, labels %v", name, owner, s.Labels)
		}
	}
	// The claim of the commit log outlives its federation by default.
	var claim corev1.PersistentVolumeClaim
	b.get("gpt-commits", &claim)
	if owner := metav1.GetControllerOf(&claim); owner != nil {
		t.Errorf("the claim of a retained commit log has the owner %v", owner)
	}
	// Who calls the coordinator proves itself, and knows it by its Service.
	authority, err := certs.ParseAuthority(b.secret("gpt-ca").Data["tls.crt"], b.secret("gpt-ca").Data["tls.key"], b.now)
	if err != nil {
		t.Fatal(err)
	}
	for name, id := range map[string]certs.Identity{
		"gpt-coordinator-tls": certs.Coordinator("gpt", resources.CoordinatorHosts(f)...), "gpt-operator-tls": certs.Operator("gpt"),
		"gpt-site-porto-tls": certs.Site("gpt", "porto"),
	} {
		if _, err := authority.Check(resources.Leaf(b.secret(name).Data), id, b.now); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if want := "gpt-coordinator." + b.namespace + ".svc:7465"; b.coordinator.target.Address != want || b.coordinator.target.Certificate == nil || got.Status.Endpoint != want {
		t.Errorf("coordinator at %s, endpoint %s, want %s", b.coordinator.target.Address, got.Status.Endpoint, want)
	}
	if !drains(got) || got.Status.ObservedGeneration != got.Generation || got.Status.Selector == "" {
		t.Errorf("finalizers %v, observed %d of %d, selector %q", got.Finalizers, got.Status.ObservedGeneration, got.Generation, got.Status.Selector)
	}
	b.is(got, v1alpha1.ConditionAccepted, metav1.ConditionTrue, v1alpha1.ReasonAccepted)
	b.is(got, v1alpha1.ConditionCoordinatorAvailable, metav1.ConditionUnknown, v1alpha1.ReasonCoordinatorStarting)
	b.is(got, v1alpha1.ConditionReady, metav1.ConditionUnknown, v1alpha1.ReasonCoordinatorStarting)
	if b.events.count(v1alpha1.ReasonCertificateIssued) != 1 || b.events.count(v1alpha1.ReasonAccepted) != 1 {
		t.Errorf("events %q", b.events.all)
	}
	if result.RequeueAfter <= 0 || result.RequeueAfter > trust {
		t.Errorf("looks again after %s", result.RequeueAfter)
	}

	// What the spec no longer asks for goes.
	b.change("gpt", func(s *v1alpha1.FederationSpec) { s.Events.Redis = nil })
	b.reconcile("gpt")
	if !b.gone("gpt-redis", &appsv1.Deployment{}) || !b.gone("gpt-redis", &corev1.Service{}) {
		t.Error("the trial's Redis stays")
	}
	b.get("gpt-coordinator", &corev1.Service{})
}

func TestAChangedChildIsPutBackAndTheFieldsOfOthersStay(t *testing.T) {
	b := newBench(t)
	b.site("lisboa")
	b.federation("gpt", nil, "lisboa")
	b.reconcile("gpt")
	var s appsv1.StatefulSet
	b.get("gpt-coordinator", &s)
	s.Spec.Template.Spec.Containers[0].Image = "stranger:1"
	s.Annotations = map[string]string{"example.org/mine": "yes"}
	if err := b.env.Client.Update(context.Background(), &s); err != nil {
		t.Fatal(err)
	}
	b.reconcile("gpt")
	b.get("gpt-coordinator", &s)
	if image := s.Spec.Template.Spec.Containers[0].Image; image != "coordinator:1" || s.Annotations["example.org/mine"] != "yes" {
		t.Errorf("image %s, annotations %v", image, s.Annotations)
	}
}

func TestReclaimPolicyDecidesWhetherTheCommitLogHasAnOwner(t *testing.T) {
	b := newBench(t)
	b.site("lisboa")
	f := b.federation("gpt", func(s *v1alpha1.FederationSpec) { s.Coordinator.Storage.ReclaimPolicy = v1alpha1.ReclaimDelete }, "lisboa")
	for _, policy := range []v1alpha1.ReclaimPolicy{v1alpha1.ReclaimDelete, v1alpha1.ReclaimRetain, v1alpha1.ReclaimDelete} {
		b.change("gpt", func(s *v1alpha1.FederationSpec) { s.Coordinator.Storage.ReclaimPolicy = policy })
		b.reconcile("gpt")
		var claim corev1.PersistentVolumeClaim
		b.get("gpt-commits", &claim)
		if owned := metav1.IsControlledBy(&claim, f); owned != (policy == v1alpha1.ReclaimDelete) {
			t.Errorf("%s: owned %v", policy, owned)
		}
	}
}

func TestSpecsThatCannotBeActedOnShowAConditionAndAreNotTriedAgain(t *testing.T) {
	bad := &energy.Fault{Fault: membership.Fault{Reason: v1alpha1.ReasonInvalidSpec, Message: "spec.energy.webhook: secretFiles are for a standalone coordinator: give secret"}}
	b := newBench(t)
	b.site("lisboa")
	b.energy.fault = bad
	b.energy.want("lisboa", openWindow)
	b.federation("gpt", nil, "lisboa")
	f, result := b.reconcile("gpt")
	for _, of := range []string{v1alpha1.ConditionAccepted, v1alpha1.ConditionReady} {
		b.is(f, of, metav1.ConditionFalse, v1alpha1.ReasonInvalidSpec)
	}
	b.is(f, v1alpha1.ConditionStalled, metav1.ConditionTrue, v1alpha1.ReasonInvalidSpec)
	if result.RequeueAfter < trust-time.Minute {
		t.Errorf("tried again after %s", result.RequeueAfter)
	}
	if b.events.count(v1alpha1.ReasonInvalidSpec) != 1 {
		t.Errorf("events %q", b.events.all)
	}
	before := f.ResourceVersion
	for range 20 {
		f, _ = b.reconcile("gpt")
	}
	if f.ResourceVersion != before || b.events.count(v1alpha1.ReasonInvalidSpec) != 1 {
		t.Error("said again and again")
	}
	b.energy.fault = nil
	f, _ = b.reconcile("gpt")
	b.is(f, v1alpha1.ConditionAccepted, metav1.ConditionTrue, v1alpha1.ReasonAccepted)
	b.lacks(f, v1alpha1.ConditionStalled)
}

func TestAMissingSiteHindersNoOther(t *testing.T) {
	b := newBench(t)
	b.site("lisboa")
	b.federation("gpt", nil, "lisboa", "porto")
	b.energy.want("lisboa", openWindow)
	b.coordinator.say(v1alpha1.FederationTraining, 1)
	b.siteIs("lisboa", "gpt", v1alpha1.SiteActive, v1alpha1.ReasonTraining)
	f, _ := b.reconcile("gpt")
	b.is(f, v1alpha1.ConditionAccepted, metav1.ConditionFalse, v1alpha1.ReasonSiteNotFound)
	b.is(f, v1alpha1.ConditionQuorumMet, metav1.ConditionTrue, v1alpha1.ReasonQuorumMet)
	b.lacks(f, v1alpha1.ConditionStalled)
	if selected, _, known := b.r.Selection.Of(keyOf(f), "lisboa"); !selected || !known {
		t.Error("lisboa is not selected")
	}
	if got := siteOf(f, "porto"); got.Phase != v1alpha1.SiteBlocked || got.Reason != v1alpha1.ReasonSiteNotFound {
		t.Errorf("porto is %+v", got)
	}
	b.get("gpt-coordinator", &appsv1.StatefulSet{})
	b.site("porto")
	f, _ = b.reconcile("gpt")
	b.is(f, v1alpha1.ConditionAccepted, metav1.ConditionTrue, v1alpha1.ReasonAccepted)
	if !slices.Equal(b.energy.ensured, []string{"lisboa", "porto"}) {
		t.Errorf("energy decides for %v", b.energy.ensured)
	}
}

func TestASiteServesTheOldestFederationAndIsShownAsInUseByOthers(t *testing.T) {
	b := newBench(t)
	b.site("lisboa")
	b.federation("a", nil, "lisboa")
	b.federation("b", nil, "lisboa")
	f, _ := b.reconcile("b")
	if got := siteOf(f, "lisboa"); got.Reason != v1alpha1.ReasonSiteInUse || len(b.energy.ensured) != 0 {
		t.Errorf("b: lisboa is %+v; energy decides for %v", got, b.energy.ensured)
	}
	f, _ = b.reconcile("a")
	if got := siteOf(f, "lisboa"); got.Phase != v1alpha1.SiteIdle || !slices.Equal(b.energy.ensured, []string{"lisboa"}) {
		t.Errorf("a: lisboa is %+v; energy decides for %v", got, b.energy.ensured)
	}
}

func TestAChildThatAnotherObjectHasIsLeftAlone(t *testing.T) {
	b := newBench(t)
	b.site("lisboa")
	stranger := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "stranger"}}
	b.create(stranger)
	taken := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "gpt-coordinator", OwnerReferences: []metav1.OwnerReference{
		{APIVersion: "v1", Kind: "ConfigMap", Name: "stranger", UID: stranger.UID, Controller: new(true)},
	}}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 1}}}}
	b.create(taken)
	b.federation("gpt", nil, "lisboa")
	f, _ := b.reconcile("gpt")
	b.is(f, v1alpha1.ConditionAccepted, metav1.ConditionFalse, v1alpha1.ReasonInvalidSpec)
	b.is(f, v1alpha1.ConditionStalled, metav1.ConditionTrue, v1alpha1.ReasonInvalidSpec)
	if !strings.Contains(condition(f, v1alpha1.ConditionAccepted).Message, "stranger") {
		t.Error(condition(f, v1alpha1.ConditionAccepted).Message)
	}
}

func TestAChildThatTheAPIServerWillNeverTakeIsSaidAndNotTriedForEver(t *testing.T) {
	b := newBench(t)
	b.site("lisboa")
	b.federation("gpt", nil, "lisboa")
	b.reconcile("gpt")
	b.change("gpt", func(s *v1alpha1.FederationSpec) {
		s.Coordinator.Storage.Size = new(resource.MustParse("1Gi")) // a claim cannot shrink
		s.Coordinator.Image = "registry.example/coordinator:2"
	})
	f, result := b.reconcile("gpt") // the bench fails on an error, which would be tried for ever
	b.is(f, v1alpha1.ConditionAccepted, metav1.ConditionFalse, v1alpha1.ReasonInvalidSpec)
	b.is(f, v1alpha1.ConditionStalled, metav1.ConditionTrue, v1alpha1.ReasonInvalidSpec)
	if !strings.Contains(condition(f, v1alpha1.ConditionAccepted).Message, "gpt-commits") || result.RequeueAfter < time.Minute {
		t.Errorf("%q, again after %s", condition(f, v1alpha1.ConditionAccepted).Message, result.RequeueAfter)
	}
	var set appsv1.StatefulSet
	b.get("gpt-coordinator", &set)
	if got := set.Spec.Template.Spec.Containers[0].Image; got != "registry.example/coordinator:2" {
		t.Errorf("the image is %s: one child that is refused must not hold up the others", got)
	}
	b.change("gpt", func(s *v1alpha1.FederationSpec) { s.Coordinator.Storage.Size = nil })
	f, _ = b.reconcile("gpt")
	b.is(f, v1alpha1.ConditionAccepted, metav1.ConditionTrue, v1alpha1.ReasonAccepted)
}

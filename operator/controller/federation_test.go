package controller

import (
	"context"
	"fmt"
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

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/operator/certs"
	"girassol.dev/operator/coordinators"
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

func TestASuspendedFederationIsPausedOnceAndResumedOnce(t *testing.T) {
	b := newBench(t)
	b.site("lisboa")
	b.energy.want("lisboa", openWindow)
	b.coordinator.say(v1alpha1.FederationTraining, 3)
	b.federation("gpt", nil, "lisboa")
	b.siteIs("lisboa", "gpt", v1alpha1.SiteActive, v1alpha1.ReasonTraining)
	f, _ := b.reconcile("gpt")
	b.is(f, v1alpha1.ConditionSuspended, metav1.ConditionFalse, v1alpha1.ReasonRunning)

	b.change("gpt", func(s *v1alpha1.FederationSpec) { s.State = v1alpha1.StateSuspended })
	b.coordinator.refuse = fmt.Errorf("gone: %w", coordinators.ErrUnreachable)
	f, _ = b.reconcile("gpt")
	b.is(f, v1alpha1.ConditionSuspended, metav1.ConditionUnknown, v1alpha1.ReasonCoordinatorUnreachable)
	b.coordinator.refuse = nil
	for range 3 {
		f, _ = b.reconcile("gpt")
	}
	b.is(f, v1alpha1.ConditionSuspended, metav1.ConditionTrue, v1alpha1.ReasonSuspended)
	b.is(f, v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonSuspended)
	if Rest(f) == nil || f.Status.Phase != v1alpha1.FederationPaused || f.Status.DesiredSites != 0 {
		t.Errorf("rest %v, phase %s, %d sites desired", Rest(f), f.Status.Phase, f.Status.DesiredSites)
	}
	b.restart() // a new operator does not say it again
	b.reconcile("gpt")
	b.change("gpt", func(s *v1alpha1.FederationSpec) { s.State = v1alpha1.StateRunning })
	for range 3 {
		f, _ = b.reconcile("gpt")
	}
	b.is(f, v1alpha1.ConditionSuspended, metav1.ConditionFalse, v1alpha1.ReasonRunning)
	if !slices.Equal(b.coordinator.pauses, []bool{true, false}) {
		t.Errorf("pauses %v", b.coordinator.pauses)
	}
}

func TestScaledToZeroSleepsAndIsReady(t *testing.T) {
	b := newBench(t)
	b.site("lisboa")
	b.energy.want("lisboa", openWindow)
	b.coordinator.say(v1alpha1.FederationWaitingForSites, 3)
	b.federation("gpt", func(s *v1alpha1.FederationSpec) { s.MaxSites = new(int32(0)) }, "lisboa")
	f, _ := b.reconcile("gpt")
	b.is(f, v1alpha1.ConditionSuspended, metav1.ConditionTrue, v1alpha1.ReasonScaledToZero)
	b.is(f, v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonScaledToZero)
	if len(b.coordinator.pauses) != 0 || f.Status.DesiredSites != 0 {
		t.Errorf("pauses %v, %d desired", b.coordinator.pauses, f.Status.DesiredSites)
	}
}

func TestTheSelectionIsTheSameAfterARestart(t *testing.T) {
	b := newBench(t)
	for i, name := range []string{"lisboa", "porto", "braga"} {
		s := b.site(name)
		s.Spec.Priority = int32(i)
		if err := b.env.Client.Update(context.Background(), s); err != nil {
			t.Fatal(err)
		}
		b.energy.want(name, openWindow)
	}
	b.energy.want("braga", closedWindow)
	f := b.federation("gpt", func(s *v1alpha1.FederationSpec) { s.MaxSites = new(int32(1)) }, "lisboa", "porto", "braga")
	for range 2 {
		if _, _, known := b.r.Selection.Of(keyOf(f), "porto"); known {
			t.Error("known before it was looked at")
		}
		b.reconcile("gpt")
		for site, want := range map[string]v1alpha1.Reason{"lisboa": v1alpha1.ReasonHigherPriority, "porto": "", "braga": v1alpha1.ReasonWaitingForEnergy} {
			selected, why, known := b.r.Selection.Of(keyOf(f), site)
			if !known || selected != (want == "") || (why.Reason != want && want != v1alpha1.ReasonWaitingForEnergy) || (!selected && why.Reason == "") {
				t.Errorf("%s: selected %v, why %v, known %v", site, selected, why, known)
			}
		}
		b.restart()
	}
}

func TestASiteThatAPersonHoldsLeavesItsPlaceToTheNext(t *testing.T) {
	b := newBench(t)
	for name, priority := range map[string]int32{"lisboa": 2, "porto": 1} {
		s := b.site(name)
		s.Spec.Priority = priority
		if err := b.env.Client.Update(context.Background(), s); err != nil {
			t.Fatal(err)
		}
		b.energy.want(name, openWindow)
	}
	f := b.federation("gpt", func(s *v1alpha1.FederationSpec) { s.MaxSites = new(int32(1)) }, "lisboa", "porto")
	key := keyOf(f)
	for _, step := range []struct {
		held    bool
		porto   membership.Energy
		want    string
		desired int32
	}{
		{false, openWindow, "lisboa", 1},
		{true, openWindow, "porto", 1},
		{true, closedWindow, "", 0},
		{false, closedWindow, "lisboa", 1},
	} {
		b.coordinator.say(v1alpha1.FederationTraining, 3)
		said := &coordinatorv1.SiteStatus{Name: "lisboa", Membership: coordinatorv1.Membership_MEMBERSHIP_ADMIT, Reason: string(v1alpha1.ReasonTraining)}
		if step.held {
			said.Membership, said.Reason = coordinatorv1.Membership_MEMBERSHIP_DRAIN, string(v1alpha1.ReasonRequested)
		}
		b.coordinator.status.Sites = []*coordinatorv1.SiteStatus{said}
		b.energy.want("porto", step.porto)
		f, _ := b.reconcile("gpt")
		for _, site := range []string{"lisboa", "porto"} {
			if selected, _, _ := b.r.Selection.Of(key, site); selected != (site == step.want) {
				t.Errorf("%+v: %s is selected: %v", step, site, selected)
			}
		}
		if f.Status.DesiredSites != step.desired {
			t.Errorf("%+v: %d desired", step, f.Status.DesiredSites)
		}
	}
}

func TestASiteTakenOutOfTheSpecStaysDeclaredUntilItHasLeft(t *testing.T) {
	b := newBench(t)
	b.site("lisboa")
	b.site("porto")
	b.federation("gpt", nil, "lisboa", "porto")
	b.siteIs("porto", "gpt", v1alpha1.SiteActive, v1alpha1.ReasonTraining)
	b.reconcile("gpt")
	b.change("gpt", func(s *v1alpha1.FederationSpec) { s.Sites = s.Sites[:1] })
	f, _ := b.reconcile("gpt")
	if !b.declares("porto") || siteOf(f, "porto").Phase != v1alpha1.SiteActive {
		t.Error("porto is not declared while it leaves")
	}
	b.secret("gpt-site-porto-tls")
	b.siteIs("porto", "", v1alpha1.SiteIdle, v1alpha1.ReasonNotReferenced)
	f, _ = b.reconcile("gpt")
	if b.declares("porto") || siteOf(f, "porto").Name != "" {
		t.Error("porto is declared after it has left")
	}
	if !b.gone("gpt-site-porto-tls", &corev1.Secret{}) {
		t.Error("its key stays")
	}
}

func (b *bench) declares(site string) bool {
	b.t.Helper()
	var c corev1.ConfigMap
	b.get("gpt-coordinator", &c)
	return strings.Contains(c.Data["federation.yaml"], "name: "+site)
}

func TestAStatusIsWrittenOncePerCommittedRound(t *testing.T) {
	b := newBench(t)
	b.site("lisboa")
	b.energy.want("lisboa", openWindow)
	b.coordinator.say(v1alpha1.FederationTraining, 1)
	b.federation("gpt", nil, "lisboa")
	b.siteIs("lisboa", "gpt", v1alpha1.SiteActive, v1alpha1.ReasonTraining)
	b.reconcile("gpt")
	f, _ := b.reconcile("gpt")
	versions := map[string]bool{}
	for round := uint64(2); round <= 6; round++ {
		b.coordinator.say(v1alpha1.FederationTraining, round) // committed, the next one collects
		b.coordinator.status.Round = &coordinatorv1.RoundStatus{Number: round, State: "Idle"}
		f, _ = b.reconcile("gpt")
		versions[f.ResourceVersion] = true
		b.coordinator.status.Round = &coordinatorv1.RoundStatus{Number: round + 1, State: "Collecting"}
		b.now = b.now.Add(10 * time.Minute)
		f, _ = b.reconcile("gpt")
		versions[f.ResourceVersion] = true
	}
	if len(versions) != 5 || f.Status.RoundsCommitted != 6 || *f.Status.ModelVersion != 6 {
		t.Errorf("%d writes for 5 rounds; %d committed", len(versions), f.Status.RoundsCommitted)
	}
}

func TestCompletionAndFailureAreToldOnceAndOutliveTheCoordinator(t *testing.T) {
	for phase, want := range map[v1alpha1.FederationPhase]v1alpha1.Reason{
		v1alpha1.FederationCompleted: v1alpha1.ReasonCompleted, v1alpha1.FederationFailed: v1alpha1.ReasonCommitLogFailed,
	} {
		t.Run(string(phase), func(t *testing.T) {
			b := newBench(t)
			b.site("lisboa")
			b.federation("gpt", nil, "lisboa")
			b.coordinator.say(v1alpha1.FederationTraining, 9)
			b.reconcile("gpt")
			b.coordinator.say(phase, 10)
			b.coordinator.status.Reason = string(want)
			b.reconcile("gpt")
			b.reconcile("gpt")
			if b.events.count(want) != 1 {
				t.Errorf("events %q", b.events.all)
			}
			b.coordinator.status, b.coordinator.reachable = nil, membership.Unknown
			b.restart()
			f, _ := b.reconcile("gpt")
			if f.Status.Phase != phase || Rest(f) == nil || f.Status.RoundsCommitted != 10 || b.events.count(want) != 1 {
				t.Errorf("phase %s, %d rounds, events %q", f.Status.Phase, f.Status.RoundsCommitted, b.events.all)
			}
		})
	}
}

package controller

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/operator/coordinators"
	"girassol.dev/operator/membership"
)

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

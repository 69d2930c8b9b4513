package controller

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	appsv1ac "k8s.io/client-go/applyconfigurations/apps/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/operator/apply"
	"girassol.dev/operator/resources"
	"girassol.dev/operator/testenv"
)

// laggingClient gives a site as it once was.
type laggingClient struct {
	client.Client
	site *v1alpha1.Site
}

func (c *laggingClient) Get(ctx context.Context, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
	if s, ok := o.(*v1alpha1.Site); ok && c.site != nil {
		c.site.DeepCopyInto(s)
		return nil
	}
	return c.Client.Get(ctx, key, o, opts...)
}

func TestACacheThatLagsStartsNoClockAnew(t *testing.T) {
	g := newRig(t)
	g.scaled("quebec")
	g.boots["quebec"] = false
	g.federation("f", "quebec")
	g.phase("quebec", v1alpha1.SiteIdle)
	lagging := &laggingClient{Client: g.r.Client}
	g.r.Client = lagging
	lagging.site = g.site("quebec")
	g.energy.set("quebec", true)
	g.choose()
	g.must(g.reconcile())
	asked := g.site("quebec").Status.Provisioning
	if asked == nil || asked.Wish != v1alpha1.WishProvision {
		t.Fatalf("%+v", asked)
	}
	g.now = g.now.Add(time.Minute)
	g.must(g.reconcile())
	if again := g.site("quebec").Status.Provisioning; again.Key != asked.Key || !again.Since.Equal(&asked.Since) || !again.Deadline.Equal(asked.Deadline) {
		t.Errorf("the wish was %+v and is %+v", asked, again)
	}
}

func TestANodeIsLabelledAsItWasReadOnly(t *testing.T) {
	g := newRig(t)
	g.labelled("quebec")
	stale := g.node("quebec", 0)
	mine := resources.EnrolledFor(g.namespace, "quebec")
	other := stale.DeepCopy()
	other.Labels[v1alpha1.LabelNodeSite], other.Labels[v1alpha1.LabelAgent] = "a.rival", "nvidia"
	g.must(g.e.Client.Update(t.Context(), other))
	if err := crossed(g.r.label(t.Context(), g.e.Client, stale, "nvidia", mine)); !errors.Is(err, errCrossed) {
		t.Errorf("a node that a rival took is labelled: %v", err)
	}
	g.must(g.e.Client.Delete(t.Context(), other))
	for what, err := range map[string]error{
		"label":   g.r.label(t.Context(), g.e.Client, stale, "nvidia", mine),
		"unlabel": g.r.unlabel(t.Context(), g.e.Client, stale, mine),
	} {
		if !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			t.Errorf("%s a node that is gone: %v", what, err)
		}
	}
	if n := len(g.nodes("quebec")); n != 0 {
		t.Errorf("%d nodes were made", n)
	}
}

func TestACoordinatorIsToldOnlyWhatItDoesNotShow(t *testing.T) {
	g := newRig(t)
	g.labelled("quebec")
	g.node("quebec", 0)
	g.federation("f", "quebec")
	g.energy.set("quebec", true)
	g.until("training", func() bool { return g.site("quebec").Status.Phase == v1alpha1.SiteActive && g.admitted("quebec") })
	g.must(g.reconcile())
	calls := func() int { g.desk.mu.Lock(); defer g.desk.mu.Unlock(); return g.desk.calls }
	before := calls()
	for range 5 {
		g.must(g.reconcile())
	}
	g.restart()
	g.must(g.reconcile())
	if n := calls() - before; n != 0 {
		t.Errorf("told %d times what it shows", n)
	}

	// It comes back without what it was told.
	g.desk.mu.Lock()
	s := g.desk.site("f", "quebec")
	s.Membership, s.Reason, s.Signal = coordinatorv1.Membership_MEMBERSHIP_DRAIN, "SignalMissing", nil
	g.desk.mu.Unlock()
	g.must(g.reconcile())
	if !g.admitted("quebec") {
		t.Error("a coordinator that forgot is not told again")
	}

	// Its status is of before it was told: it is told once.
	g.must(g.reconcile())
	g.desk.mu.Lock()
	g.desk.still = true
	s.Signal = nil
	g.desk.mu.Unlock()
	before = calls()
	g.must(g.reconcile())
	g.desk.mu.Lock()
	s.Signal = nil
	g.desk.mu.Unlock()
	g.must(g.reconcile())
	if n := calls() - before; n != 1 {
		t.Errorf("told %d times before its next status", n)
	}
}

func TestAPersonsHoldIsLeftAlone(t *testing.T) {
	g := newRig(t)
	g.labelled("quebec")
	g.node("quebec", 0)
	g.federation("f", "quebec")
	g.energy.set("quebec", true)
	g.until("training", func() bool { return g.site("quebec").Status.Phase == v1alpha1.SiteActive && g.admitted("quebec") })
	g.desk.mu.Lock()
	s := g.desk.site("f", "quebec")
	s.Membership, s.Reason = coordinatorv1.Membership_MEMBERSHIP_DRAIN, string(v1alpha1.ReasonRequested)
	g.desk.settle("f", s)
	g.desk.mu.Unlock()
	g.phase("quebec", v1alpha1.SiteIdle)
	g.lapse(30*time.Second, time.Second)
	if p := g.site("quebec").Status; p.Phase != v1alpha1.SiteIdle || p.Reason != v1alpha1.ReasonDrainRequested {
		t.Errorf("%s for %s while a person holds the site", p.Phase, p.Reason)
	}
	g.desk.mu.Lock()
	held := s.Membership
	s.Reason = "WaitingForEnergy" // the hold ended; what we said last is in force
	g.desk.mu.Unlock()
	if held != coordinatorv1.Membership_MEMBERSHIP_DRAIN {
		t.Errorf("the hold became %s", held)
	}
	g.phase("quebec", v1alpha1.SiteActive)
}

func TestANewOperatorWaitsForTheFirstDecisionOfTheEngine(t *testing.T) {
	g := newRig(t)
	g.labelled("quebec")
	g.labelled("atlanta")
	g.node("quebec", 0)
	g.node("atlanta", 0)
	f := g.federation("f", "quebec", "atlanta")
	one := int32(1)
	g.edit(f, func() { f.Spec.MaxSites = &one })
	g.energy.set("quebec", true)
	g.phase("quebec", v1alpha1.SiteActive)
	g.restart()
	g.selection = &Selection{} // nothing is known yet
	g.r.Selection = g.selection
	g.energy.silent = true
	before := len(g.journal.all())
	g.must(g.reconcile())
	if n := g.journal.all()[before:]; len(n) != 0 {
		t.Errorf("before the federation was looked at: %q", n)
	}
	g.lapse(time.Minute, 10*time.Second)
	if p := g.site("quebec").Status.Phase; p != v1alpha1.SiteActive {
		t.Errorf("a restart makes the site %s", p)
	}
}

func TestADeviceThatFailsRestartsNoTrainer(t *testing.T) {
	g := newRig(t)
	g.labelled("quebec")
	g.node("quebec", 0)
	g.node("quebec", 1)
	g.federation("f", "quebec")
	gpus := func() int64 {
		ds := &appsv1.DaemonSet{}
		g.must(g.e.Client.Get(t.Context(), types.NamespacedName{Namespace: g.namespace, Name: "f-quebec-nvidia"}, ds))
		q := ds.Spec.Template.Spec.Containers[1].Resources.Limits["nvidia.com/gpu"]
		return q.Value()
	}
	g.energy.set("quebec", true)
	g.phase("quebec", v1alpha1.SiteActive)
	set := func(n int64) {
		node := g.nodes("quebec")[0]
		node.Status.Allocatable[corev1.ResourceName("nvidia.com/gpu")] = *resource.NewQuantity(n, resource.DecimalSI)
		g.must(g.e.Client.Status().Update(t.Context(), &node))
	}
	for _, n := range []int64{7, 0, 8} {
		set(n)
		g.lapse(3*time.Second, time.Second)
		if got := gpus(); got != 8 {
			t.Errorf("with %d devices on a node of a site at work the trainers' pods ask for %d", n, got)
		}
	}
	set(6)
	g.energy.set("quebec", false)
	g.phase("quebec", v1alpha1.SiteIdle)
	g.energy.set("quebec", true)
	g.phase("quebec", v1alpha1.SiteActive)
	if got := gpus(); got != 6 {
		t.Errorf("when it comes again they ask for %d, want 6, the fewest", got)
	}
}

func TestANameThatAnotherSiteHasBlocksTheSite(t *testing.T) {
	g := newRig(t)
	g.labelled("b-c")
	g.labelled("c")
	g.node("b-c", 0)
	g.node("c", 0)
	g.federation("a", "b-c")
	g.federation("a-b", "c")
	g.energy.set("b-c", true)
	g.phase("b-c", v1alpha1.SiteActive)
	g.energy.set("c", true)
	g.phase("c", v1alpha1.SiteBlocked)
	if s := g.site("c"); s.Status.Reason != v1alpha1.ReasonInvalidSpec || !strings.Contains(s.Status.Message, "Site b-c") {
		t.Errorf("%s: %s", s.Status.Reason, s.Status.Message)
	}
	if p := g.site("b-c").Status.Phase; p != v1alpha1.SiteActive {
		t.Errorf("the other is %s", p)
	}
}

// refusing fails to apply DaemonSets, as admission may.
type refusing struct{ SiteApplier }

func (refusing) Apply(context.Context, runtime.ApplyConfiguration) (bool, error) {
	return false, errors.New("admission webhook denied the request")
}

func TestAgentsThatCannotBeWrittenKeepNobodyFromLeaving(t *testing.T) {
	g := newRig(t)
	g.scaled("quebec")
	g.federation("f", "quebec")
	g.energy.set("quebec", true)
	g.phase("quebec", v1alpha1.SiteActive)
	g.r.Applier = refusing{g.r.Applier}
	g.energy.set("quebec", false)
	for range 20 {
		g.turnWorld()
		g.choose()
		_ = g.reconcile() // fails as long as there are nodes to bring agents to
		g.now = g.now.Add(time.Second)
	}
	if s := g.site("quebec"); s.Status.Phase != v1alpha1.SiteIdle || len(g.nodes("quebec")) != 0 {
		t.Errorf("%s: %s; %d nodes", s.Status.Phase, s.Status.Message, len(g.nodes("quebec")))
	}
}

// rejecting does not take DaemonSets of one vendor, as a policy may, nor any of a
// name that another object has.
type rejecting struct {
	SiteApplier
	vendor v1alpha1.Vendor
	err    error
}

func (r *rejecting) Apply(ctx context.Context, desired runtime.ApplyConfiguration) (bool, error) {
	ds, ok := desired.(*appsv1ac.DaemonSetApplyConfiguration)
	if ok && r.err != nil && ds.Labels[v1alpha1.LabelAgent] == resources.VendorLabel(r.vendor) {
		return false, &apply.Error{Operation: "apply", Kind: "DaemonSet", Key: types.NamespacedName{Name: *ds.Name}, Err: r.err}
	}
	return r.SiteApplier.Apply(ctx, desired)
}

func TestAgentsThatTheAPIServerWillNeverTakeAreSaidAndHoldUpNoOthers(t *testing.T) {
	for name, refused := range map[string]error{
		"refused": apierrors.NewInvalid(appsv1.SchemeGroupVersion.WithKind("DaemonSet").GroupKind(), "f-quebec-amd", nil),
		"taken":   &apply.OwnedElsewhereError{Owner: metav1.OwnerReference{Kind: "Site", Name: "stranger"}},
	} {
		t.Run(name, func(t *testing.T) {
			g := newRig(t)
			g.labelled("quebec")
			g.node("quebec", 0)
			g.boot(testenv.AMDNode(g.namespace+"-amd", 8, g.nodeSelector("quebec")))
			g.federation("f", "quebec")
			r := &rejecting{SiteApplier: g.r.Applier, vendor: v1alpha1.VendorAMD, err: refused}
			g.r.Applier = r
			healthy := func() metav1.Condition { return conditionOf(g.site("quebec"), v1alpha1.ConditionNodesHealthy) }
			g.energy.set("quebec", true)
			g.phase("quebec", v1alpha1.SiteActive)
			if c := healthy(); c.Status != metav1.ConditionFalse || c.Reason != string(v1alpha1.ReasonInvalidSpec) || !strings.Contains(c.Message, "f-quebec-amd") {
				t.Errorf("%+v", c)
			}
			g.must(g.e.Client.Get(t.Context(), types.NamespacedName{Namespace: g.namespace, Name: "f-quebec-nvidia"}, &appsv1.DaemonSet{}))
			key := types.NamespacedName{Namespace: g.namespace, Name: "quebec"}
			g.must(g.reconcile())
			written := g.site("quebec").ResourceVersion
			result, err := g.r.Reconcile(t.Context(), ctrl.Request{NamespacedName: key})
			if err != nil || result.RequeueAfter != lastRetry || g.site("quebec").ResourceVersion != written {
				t.Errorf("%v, %+v; want it to be tried again in a minute, and nothing written", err, result)
			}
			if n := g.events.count("quebec", v1alpha1.ReasonInvalidSpec); n != 1 {
				t.Errorf("told %d times", n)
			}
			g.energy.set("quebec", false)
			g.phase("quebec", v1alpha1.SiteIdle)
			r.err = nil
			g.until("taken", func() bool { return healthy().Reason != string(v1alpha1.ReasonInvalidSpec) })
		})
	}
}

func TestASiteWhoseAgentsAreRefusedGivesItsPlaceUpByItsDeadline(t *testing.T) {
	g := newRig(t)
	g.scaled("quebec")
	g.federation("f", "quebec")
	g.r.Applier = &rejecting{SiteApplier: g.r.Applier, vendor: v1alpha1.VendorNVIDIA, err: apierrors.NewInvalid(appsv1.SchemeGroupVersion.WithKind("DaemonSet").GroupKind(), "f-quebec-nvidia", nil)}
	g.energy.set("quebec", true)
	g.desk.deaf = true // no agent, no session
	g.phase("quebec", v1alpha1.SiteJoining)
	g.must(g.reconcile())
	if s := g.site("quebec"); s.Status.Reason != v1alpha1.ReasonInvalidSpec || !strings.Contains(s.Status.Message, "f-quebec-nvidia") {
		t.Errorf("%s: %s", s.Status.Reason, s.Status.Message)
	}
	g.now = g.now.Add(time.Hour)
	g.phase("quebec", v1alpha1.SiteFailed)
	g.until("its machines are given back", func() bool { return len(g.nodes("quebec")) == 0 })
	g.lapse(30*time.Second, time.Second)
	if s := g.site("quebec"); !retryAt(s).After(g.now) || len(g.nodes("quebec")) != 0 {
		t.Errorf("%s: %s, %d machines; want it to be asked later", s.Status.Phase, s.Status.Message, len(g.nodes("quebec")))
	}
}

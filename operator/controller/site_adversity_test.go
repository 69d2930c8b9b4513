package controller

import (
	"context"
	"errors"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/operator/resources"
)

// unreadable is a client for which the objects behind scale targets cannot be
// read, as while a conversion webhook is down.
type unreadable struct {
	client.Client
	broken bool
}

func (c *unreadable) Get(ctx context.Context, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
	if u, ok := o.(*unstructured.Unstructured); ok && c.broken && u.GetKind() == "Deployment" {
		return apierrors.NewInternalError(errors.New("conversion webhook failed"))
	}
	return c.Client.Get(ctx, key, o, opts...)
}

func TestASiteWhoseCapacityCannotBeReadIsDrainedAllTheSame(t *testing.T) {
	g := newRig(t)
	g.scaled("quebec")
	g.federation("f", "quebec")
	c := &unreadable{Client: g.r.Client}
	g.operate(c)
	g.energy.set("quebec", true)
	g.phase("quebec", v1alpha1.SiteActive)
	before := g.site("quebec").Status.DeepCopy()
	c.broken = true
	if err := g.reconcile(); err == nil {
		t.Error("nothing would try again")
	}
	if now := g.site("quebec").Status; now.Phase != v1alpha1.SiteActive || !g.admitted("quebec") || conditionOf(g.site("quebec"), v1alpha1.ConditionCapacityReady).Status != metav1.ConditionTrue {
		t.Errorf("a hiccup changed %+v into %+v", before, now)
	}
	g.energy.set("quebec", false)
	if err := g.reconcile(); err == nil {
		t.Error("nothing would try again")
	}
	if g.admitted("quebec") {
		t.Error("the coordinator was not told to drain the site")
	}
	for range 100 {
		g.turnWorld()
		_ = g.reconcile()
		g.now = g.now.Add(2 * time.Second)
	}
	if s := g.site("quebec"); s.Status.Phase != v1alpha1.SiteDraining || s.Status.Reason != v1alpha1.ReasonReleasing || s.Status.EnrolledNodes != 0 {
		t.Errorf("%s (%s) with %d labels, want only the capacity left to give back", s.Status.Phase, s.Status.Reason, s.Status.EnrolledNodes)
	}
	c.broken = false
	g.phase("quebec", v1alpha1.SiteIdle)
}

func TestASelectorThatEnrollingWouldUnmatchIsRefused(t *testing.T) {
	for name, requirement := range map[string]metav1.LabelSelectorRequirement{
		"without agents":       {Key: v1alpha1.LabelAgent, Operator: metav1.LabelSelectorOpDoesNotExist},
		"other agents":         {Key: v1alpha1.LabelAgent, Operator: metav1.LabelSelectorOpNotIn, Values: []string{"nvidia"}},
		"not enrolled":         {Key: v1alpha1.LabelNodeSite, Operator: metav1.LabelSelectorOpDoesNotExist},
		"enrolled for another": {Key: v1alpha1.LabelNodeSite, Operator: metav1.LabelSelectorOpIn, Values: []string{"a.rival"}},
	} {
		t.Run(name, func(t *testing.T) {
			g := newRig(t)
			g.labelled("quebec", func(s *v1alpha1.Site) {
				s.Spec.Nodes.Selector.MatchExpressions = []metav1.LabelSelectorRequirement{requirement}
			})
			g.node("quebec", 0)
			g.federation("f", "quebec")
			g.energy.set("quebec", true)
			g.phase("quebec", v1alpha1.SiteBlocked)
			if s := g.site("quebec"); s.Status.Reason != v1alpha1.ReasonInvalidSpec {
				t.Errorf("%s: %s", s.Status.Reason, s.Status.Message)
			}
			if n := g.nodes("quebec")[0]; n.Labels[v1alpha1.LabelNodeSite] != "" {
				t.Errorf("labels %v", n.Labels)
			}
		})
	}
}

// laggingNodes is a cache that does not show the labels of nodes yet.
type laggingNodes struct {
	client.Client
	lags bool
}

func (c *laggingNodes) List(ctx context.Context, l client.ObjectList, opts ...client.ListOption) error {
	if err := c.Client.List(ctx, l, opts...); err != nil {
		return err
	}
	if nodes, ok := l.(*corev1.NodeList); ok && c.lags {
		for i := range nodes.Items {
			delete(nodes.Items[i].Labels, v1alpha1.LabelNodeSite)
			delete(nodes.Items[i].Labels, v1alpha1.LabelAgent)
		}
	}
	return nil
}

func TestADeletedSiteLeavesNoLabelThatACacheDidNotShowYet(t *testing.T) {
	g := newRig(t)
	g.labelled("quebec")
	g.node("quebec", 0)
	g.federation("f", "quebec")
	cached := &laggingNodes{Client: g.r.Client}
	g.operate(cached)
	g.r.Reader = cached.Client
	g.energy.set("quebec", true)
	g.phase("quebec", v1alpha1.SiteActive)
	cached.lags = true
	g.must(g.e.Client.Delete(t.Context(), g.site("quebec")))
	g.until("gone", func() bool { return g.gone("quebec") })
	if n := g.nodes("quebec")[0]; n.Labels[v1alpha1.LabelNodeSite] != "" || n.Labels[v1alpha1.LabelAgent] != "" {
		t.Errorf("the site is gone and its node has %v", n.Labels)
	}
}

func TestAScaleTargetThatWasMovedIsNotSwappedForAnother(t *testing.T) {
	g := newRig(t)
	s := g.scaled("quebec")
	try := func(change func()) error {
		g.must(g.e.Client.Get(t.Context(), client.ObjectKeyFromObject(s), s))
		change()
		return g.e.Client.Update(t.Context(), s)
	}
	g.must(try(func() { s.Spec.Capacity.ScaleTargetRef.Name = "elsewhere" })) // nothing was moved yet
	g.must(try(func() { s.Spec.Capacity.ScaleTargetRef.Name = "machines-quebec" }))
	g.federation("f", "quebec")
	g.energy.set("quebec", true)
	g.phase("quebec", v1alpha1.SiteActive)
	for name, change := range map[string]func(){
		"another target": func() { s.Spec.Capacity.ScaleTargetRef.Name = "elsewhere" },
		"another mode": func() {
			s.Spec.Capacity.Mode, s.Spec.Capacity.ScaleTargetRef = v1alpha1.CapacityNodeLabel, nil
		},
		"no capacity": func() { s.Spec.Capacity = v1alpha1.CapacitySpec{} },
	} {
		if err := try(change); !apierrors.IsInvalid(err) {
			t.Errorf("%s: %v; who would scale the machines down?", name, err)
		}
	}
	g.must(try(func() { s.Spec.Capacity.ActiveReplicas = 3 }))
}

// someNamespaces is a cache of one namespace, as of an operator that serves no other.
type someNamespaces struct {
	client.Client
	only string
}

func (c *someNamespaces) List(ctx context.Context, l client.ObjectList, opts ...client.ListOption) error {
	if _, ok := l.(*v1alpha1.SiteList); ok {
		opts = append(opts, client.InNamespace(c.only))
	}
	return c.Client.List(ctx, l, opts...)
}

func TestASiteThatAnotherOperatorServesKeepsItsNodes(t *testing.T) {
	for _, rival := range []string{"rival", "a-rival-with-a-name-that-is-too-long-for-a-label-of-a-node"} {
		g := newRig(t)
		elsewhere := g.e.Namespace(t)
		g.create(&v1alpha1.Site{ObjectMeta: metav1.ObjectMeta{Namespace: elsewhere, Name: rival}})
		g.labelled("quebec")
		n := g.node("quebec", 0)
		theirs := resources.EnrolledFor(elsewhere, rival)
		n.Labels[v1alpha1.LabelAgent], n.Labels[v1alpha1.LabelNodeSite] = "nvidia", theirs
		g.must(g.e.Client.Update(t.Context(), n))
		g.federation("f", "quebec")
		direct := g.r.Client
		g.operate(&someNamespaces{Client: direct, only: g.namespace})
		g.r.Reader = direct
		g.energy.set("quebec", true)
		for range 10 {
			g.must(g.reconcile())
			g.now = g.now.Add(10 * time.Second)
		}
		if has := g.nodes("quebec")[0].Labels[v1alpha1.LabelNodeSite]; has != theirs {
			t.Errorf("the node of %s is enrolled for %q", theirs, has)
		}
		if c := conditionOf(g.site("quebec"), v1alpha1.ConditionNodesHealthy); c.Reason != string(v1alpha1.ReasonNodesOverlap) {
			t.Errorf("%s: %s", c.Reason, c.Message)
		}
	}
}

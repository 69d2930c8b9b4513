package capacity

import (
	"maps"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/operator/testenv"
)

func TestATargetIsMovedUpAndDownThroughItsScale(t *testing.T) {
	for name, target := range map[string]func() *unstructured.Unstructured{
		"deployment":             func() *unstructured.Unstructured { return deployment(0) },
		"machine deployment":     func() *unstructured.Unstructured { return machines(0) },
		"cluster-scoped, static": func() *unstructured.Unstructured { return nodePool("moved", int64(0)) },
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, target())
			r.observe(0, 1)
			if s := r.look(); !s.Managed || !s.Idle || s.Asked || s.Fault != nil {
				t.Fatalf("before any wish: %+v", s)
			}
			if s := r.moved(v1alpha1.WishProvision); !s.Asked || s.Idle || s.Fault != nil || s.Recheck == 0 {
				t.Fatalf("after the move up: %+v", s)
			}
			if n := r.replicas(); n != 2 {
				t.Fatalf("%d replicas, want 2", n)
			}
			if a := r.site.Status.AdoptedReplicas; a == nil || *a != 0 {
				t.Fatalf("adopted %v, want 0", a)
			}
			if s := r.look(); !s.Asked || s.Idle {
				t.Fatalf("while it comes: %+v", s)
			}
			r.observe(2, r.generation())

			if s := r.moved(v1alpha1.WishRelease); !s.Asked || s.Idle {
				t.Fatalf("after the move down: %+v", s)
			}
			if n := r.replicas(); n != 0 {
				t.Fatalf("%d replicas, want 0", n)
			}
			if s := r.look(); !s.Asked || s.Idle || s.Recheck == 0 {
				t.Fatalf("two are still held: %+v", s)
			}
			r.observe(0, r.generation())
			if s := r.look(); !s.Asked || !s.Idle || s.Recheck != 0 {
				t.Fatalf("all given back: %+v", s)
			}
		})
	}
}

func TestAStaleStatusOfTheTargetSettlesNothing(t *testing.T) {
	r := newRig(t, machines(0))
	r.observe(0, 1)
	r.moved(v1alpha1.WishProvision)
	// The wish is withdrawn before the target's controller has seen the first move:
	// its 0 replicas are of before.
	if s := r.moved(v1alpha1.WishRelease); s.Idle {
		t.Fatalf("right after the move: %+v", s)
	}
	if s := r.look(); s.Idle {
		t.Fatalf("idle by a status of generation 1: %+v", s)
	}
	r.observe(0, r.generation())
	if s := r.look(); !s.Idle {
		t.Fatalf("%+v", s)
	}
}

func TestLookTakesAtMostTwoReadsAndAnUnchangedAskNoWrite(t *testing.T) {
	for name, target := range map[string]*unstructured.Unstructured{
		"deployment": deployment(0), "machine deployment": machines(0), "node pool": nodePool("counted", int64(0)),
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, target)
			r.look()
			r.moved(v1alpha1.WishProvision)
			for range 3 {
				r.requests = nil
				r.look()
				if len(r.requests) > 2 || strings.Contains(strings.Join(r.requests, " "), "PUT") {
					t.Fatalf("Look sent %q", r.requests)
				}
				r.requests = nil
				r.ask(true)
				if len(r.requests) > 2 || strings.Contains(strings.Join(r.requests, " "), "PUT") {
					t.Fatalf("Ask sent %q though all is as wished", r.requests)
				}
			}
		})
	}
}

func TestNothingIsMovedBeforeTheAdoptedReplicasAreKept(t *testing.T) {
	r := newRig(t, deployment(1))
	r.wish(v1alpha1.WishProvision, false)
	for range 2 { // a crash in between changes nothing
		s := r.ask(true)
		if s.Asked || s.AdoptedReplicas == nil || *s.AdoptedReplicas != 1 || s.Recheck == 0 {
			t.Fatalf("%+v", s)
		}
		if n := r.replicas(); n != 1 {
			t.Fatalf("moved to %d", n)
		}
	}
	r.site.Status.AdoptedReplicas = pointer(int32(1))
	if s := r.ask(true); !s.Asked || r.replicas() != 2 {
		t.Fatalf("%+v with %d replicas", s, r.replicas())
	}
}

func TestADeletedSitePutsBackWhatItFound(t *testing.T) {
	r := newRig(t, deployment(3))
	r.observe(3, 1)
	r.site.Spec.Capacity.ActiveReplicas, r.site.Spec.Capacity.IdleReplicas = 5, 1
	r.moved(v1alpha1.WishProvision)
	r.moved(v1alpha1.WishRelease)
	if n := r.replicas(); n != 1 {
		t.Fatalf("%d replicas, want 1", n)
	}
	r.site.DeletionTimestamp = pointer(metav1.Now())
	r.observe(1, r.generation())
	if s := r.look(); s.Idle {
		t.Fatalf("idle before it is put back: %+v", s)
	}
	r.ask(false)
	if n := r.replicas(); n != 3 {
		t.Fatalf("%d replicas, want 3", n)
	}
	r.observe(3, r.generation())
	if s := r.look(); !s.Idle || !s.Asked {
		t.Fatalf("%+v", s)
	}
}

func TestADeletedSiteLeavesATargetThatIsNoLongerItsOwn(t *testing.T) {
	r := newRig(t, machines(1))
	r.moved(v1alpha1.WishProvision)
	r.set("kubectl", 4)
	r.site.DeletionTimestamp = pointer(metav1.Now())
	if s := r.ask(false); !s.Idle || r.replicas() != 4 {
		t.Errorf("%+v with %d replicas", s, r.replicas())
	}

	gone := newRig(t, machines(0))
	gone.moved(v1alpha1.WishProvision)
	if err := gone.admin.Delete(t.Context(), gone.target); err != nil {
		t.Fatal(err)
	}
	gone.wish(v1alpha1.WishRelease, false)
	for range 2 { // while the Site stays and when it goes
		s := gone.ask(false)
		gone.faults(s, v1alpha1.ReasonScaleTargetNotFound)
		if !s.Idle || !s.Asked {
			t.Errorf("what is not there holds nothing: %+v", s)
		}
		gone.site.DeletionTimestamp = pointer(metav1.Now())
	}

	never := newRig(t, machines(1))
	never.site.DeletionTimestamp = pointer(metav1.Now())
	never.wish(v1alpha1.WishRelease, false)
	if s := never.ask(false); !s.Idle || never.replicas() != 1 {
		t.Errorf("never moved: %+v with %d replicas", s, never.replicas())
	}
}

func TestSomeoneElsesMoveIsNotFoughtForOneWish(t *testing.T) {
	r := newRig(t, machines(0))
	r.moved(v1alpha1.WishProvision)
	r.wish(v1alpha1.WishProvision, true)
	r.set("argocd-controller", 1)
	s := r.ask(true)
	r.faults(s, v1alpha1.ReasonReplicasChanged, "argocd-controller", "asked for 2", "to 1")
	if s.Asked || r.replicas() != 1 {
		t.Fatalf("%+v with %d replicas", s, r.replicas())
	}
	r.wish(v1alpha1.WishRelease, true)
	r.set("argocd-controller", 6)
	if s := r.ask(false); !s.Idle || s.Fault != nil || r.replicas() != 6 {
		t.Fatalf("what others hold after the release is theirs: %+v with %d replicas", s, r.replicas())
	}
	// The next wish is a new one.
	r.set("argocd-controller", 1)
	if s := r.moved(v1alpha1.WishProvision); !s.Asked || r.replicas() != 2 {
		t.Fatalf("%+v with %d replicas", s, r.replicas())
	}
	// More than wished is left.
	r.set("kubectl", 3)
	if s := r.ask(true); !s.Asked || s.Fault != nil || r.replicas() != 3 {
		t.Fatalf("%+v with %d replicas", s, r.replicas())
	}
	// More active replicas in the spec are our own change.
	r.set(v1alpha1.FieldOwner, 2)
	r.wish(v1alpha1.WishProvision, true)
	r.site.Spec.Capacity.ActiveReplicas = 4
	if s := r.ask(true); !s.Asked || r.replicas() != 4 {
		t.Fatalf("%+v with %d replicas", s, r.replicas())
	}
}

// racer lets another writer in before each write to the scale.
type racer struct {
	client.Client
	before func()
}

func (c racer) SubResource(name string) client.SubResourceClient {
	c.before()
	return c.Client.SubResource(name)
}

func TestAWriteInBetweenIsSeenBeforeTheTargetIsMoved(t *testing.T) {
	r := newRig(t, machines(0))
	r.site.Status.AdoptedReplicas = pointer(int32(0))
	r.wish(v1alpha1.WishProvision, false)
	writes := 0
	c := racer{r.c, func() {
		if writes++; writes == 1 {
			r.set("kubectl", 5)
		}
	}}
	s := r.do(r.keeper.Ask(t.Context(), c, r.site, true))
	if !s.Asked || r.replicas() != 5 || writes != 1 {
		t.Errorf("%+v with %d replicas after %d writes: the 5 of another must not become 2", s, r.replicas(), writes)
	}

	// One who writes without end gives an error, so that the site comes again.
	n := int64(0)
	r.set("kubectl", 0)
	endless := racer{r.c, func() {
		n++
		r.edit("kubectl", func(u *unstructured.Unstructured) { u.SetLabels(map[string]string{"n": strings.Repeat("x", int(n))}) })
	}}
	if _, err := r.keeper.Ask(t.Context(), endless, r.site, true); err == nil || n != races || !strings.Contains(err.Error(), "MachineDeployment quebec-a100") {
		t.Errorf("after %d tries: %v", n, err)
	}
}

func TestATargetThatIsNotOursToMoveIsRefusedByName(t *testing.T) {
	annotated := func(name, value string) func(*rig) {
		return func(r *rig) {
			r.edit("kubectl", func(u *unstructured.Unstructured) {
				a := maps.Clone(u.GetAnnotations())
				if a == nil {
					a = map[string]string{}
				}
				a[name] = value
				u.SetAnnotations(a)
			})
		}
	}
	pausedCluster := func(r *rig) {
		cluster := object("cluster.x-k8s.io/v1beta2", "Cluster", "quebec", nil)
		cluster.SetNamespace(r.site.Namespace)
		cluster.Object["spec"] = map[string]any{"paused": true}
		if err := r.admin.Create(r.Context(), cluster); err != nil {
			r.Fatal(err)
		}
	}
	for name, tc := range map[string]struct {
		target  *unstructured.Unstructured
		prepare func(*rig)
		reason  v1alpha1.Reason
		says    []string
	}{
		"paused":             {machines(0), annotated(annotationPaused, ""), v1alpha1.ReasonCapacityPaused, []string{annotationPaused, "take it off"}},
		"paused deployment":  {deployment(0), annotated(annotationPaused, "true"), v1alpha1.ReasonCapacityPaused, nil},
		"paused cluster":     {machines(0), pausedCluster, v1alpha1.ReasonCapacityPaused, []string{"Cluster quebec", "spec.paused"}},
		"autoscaler minimum": {machines(0), annotated(annotationAutoscaleMin, "0"), v1alpha1.ReasonCapacityOwnedByAutoscaler, []string{annotationAutoscaleMin}},
		"autoscaler maximum": {machines(0), annotated(annotationAutoscaleMax, "9"), v1alpha1.ReasonCapacityOwnedByAutoscaler, []string{annotationAutoscaleMax}},
		"managed by another": {machines(0), annotated(annotationManagedBy, "external"), v1alpha1.ReasonCapacityOwnedByAutoscaler, []string{"external"}},
		"dynamic node pool":  {nodePool("dynamic", nil), func(*rig) {}, v1alpha1.ReasonCapacityOwnedByAutoscaler, []string{"static NodePool"}},
		"no number at all":   {object("example.test/v1", "Pool", "pool", nil), func(*rig) {}, v1alpha1.ReasonScaleFailed, []string{"Pool pool has no number of replicas"}},
		"no such object":     {machines(0), func(r *rig) { r.site.Spec.Capacity.ScaleTargetRef.Name = "other" }, v1alpha1.ReasonScaleTargetNotFound, []string{"MachineDeployment other does not exist"}},
		"no such kind":       {machines(0), func(r *rig) { r.site.Spec.Capacity.ScaleTargetRef.Kind = "Machines" }, v1alpha1.ReasonScaleTargetNotFound, []string{"kind Machines of cluster.x-k8s.io/v1beta2", "CRDs"}},
		"no such version":    {machines(0), func(r *rig) { r.site.Spec.Capacity.ScaleTargetRef.APIVersion = "cluster.x-k8s.io/v9" }, v1alpha1.ReasonScaleTargetNotFound, []string{"v9"}},
		"no such group":      {machines(0), func(r *rig) { r.site.Spec.Capacity.ScaleTargetRef.APIVersion = "example.dev/v1" }, v1alpha1.ReasonScaleTargetNotFound, []string{"example.dev/v1"}},
		"no group at all":    {machines(0), func(r *rig) { r.site.Spec.Capacity.ScaleTargetRef.APIVersion = "a/b/c" }, v1alpha1.ReasonInvalidSpec, []string{"group/version"}},
		"nothing to scale": {object("v1", "ConfigMap", "thing", nil), func(r *rig) {
		}, v1alpha1.ReasonInvalidSpec, []string{"ConfigMap thing has no scale subresource"}},
		"cluster API without scale": {object("cluster.x-k8s.io/v1beta2", "Cluster", "quebec", int64(0)), func(*rig) {}, v1alpha1.ReasonInvalidSpec, []string{"no scale subresource"}},
		"refused by its schema":     {nodePool("small", int64(0)), func(r *rig) { r.site.Spec.Capacity.ActiveReplicas = 51 }, v1alpha1.ReasonScaleFailed, []string{"50"}},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, tc.target)
			tc.prepare(r)
			r.site.Status.AdoptedReplicas = pointer(int32(0))
			r.wish(v1alpha1.WishProvision, false)
			before := r.replicas()
			s := r.ask(true)
			r.faults(s, tc.reason, tc.says...)
			if s.Asked || !s.Managed || s.Recheck == 0 {
				t.Errorf("%+v", s)
			}
			if n := r.replicas(); n != before {
				t.Errorf("moved to %d all the same", n)
			}
		})
	}
}

func TestAPauseOfATargetThatIsAsWishedIsNoFault(t *testing.T) {
	r := newRig(t, machines(2))
	r.edit("kubectl", func(u *unstructured.Unstructured) { u.SetAnnotations(map[string]string{annotationPaused: ""}) })
	r.wish(v1alpha1.WishProvision, false)
	if s := r.ask(true); !s.Asked || s.Fault != nil {
		t.Errorf("%+v", s)
	}
}

func TestMissingRightsAreNamedWithTheWayOut(t *testing.T) {
	r := newRig(t, machines(0))
	e := testenv.Shared(t)
	config := rest.CopyConfig(e.Config)
	config.Impersonate = rest.ImpersonationConfig{UserName: "nobody", Groups: []string{"system:authenticated"}}
	nobody, err := client.New(config, client.Options{Scheme: testenv.Scheme()})
	if err != nil {
		t.Fatal(err)
	}
	r.wish(v1alpha1.WishProvision, false)
	s := r.do(r.keeper.Look(t.Context(), nobody, r.site))
	r.faults(s, v1alpha1.ReasonScaleForbidden, "may not get MachineDeployment quebec-a100", `{group: "cluster.x-k8s.io", resource: machinedeployments}`, "capacity.scaleTargets", "get and update on machinedeployments/scale")
}

func TestATargetInTheManagementClusterNeedsNoOther(t *testing.T) {
	r := newRig(t, machines(0))
	r.site.Spec.Cluster = &v1alpha1.ClusterSpec{}
	if !r.keeper.NeedsCluster(r.site) {
		t.Error("by default the target is where the nodes are")
	}
	r.wish(v1alpha1.WishRelease, true)
	if s := r.do(r.keeper.Look(t.Context(), nil, r.site)); !s.Managed || !s.Asked || s.Idle || s.Fault != nil {
		t.Errorf("while its cluster is gone: %+v", s)
	}
	if s := r.do(r.keeper.Ask(t.Context(), nil, r.site, true)); !s.Managed || s.Idle {
		t.Errorf("while its cluster is gone: %+v", s)
	}
	r.site.Spec.Capacity.ScaleTargetRef.Cluster = v1alpha1.ScaleInManagementCluster
	if r.keeper.NeedsCluster(r.site) {
		t.Error("it needs the operator's own cluster only")
	}
	r.site.Status.AdoptedReplicas = pointer(int32(0))
	r.wish(v1alpha1.WishProvision, false)
	if s := r.do(r.keeper.Ask(t.Context(), nil, r.site, true)); !s.Asked || r.replicas() != 2 {
		t.Errorf("%+v with %d replicas", s, r.replicas())
	}
}

func TestNodesThatStayHaveNothingToAsk(t *testing.T) {
	k := New(Options{})
	for _, mode := range []v1alpha1.CapacityMode{"", v1alpha1.CapacityNone, v1alpha1.CapacityNodeLabel} {
		s := &v1alpha1.Site{Spec: v1alpha1.SiteSpec{Capacity: v1alpha1.CapacitySpec{Mode: mode}}}
		state, err := k.Look(t.Context(), nil, s)
		again, askErr := k.Ask(t.Context(), nil, s, true)
		if err != nil || askErr != nil || state.Managed || !state.Asked || !state.Idle || again != state {
			t.Errorf("%q: %+v %+v %v %v", mode, state, again, err, askErr)
		}
	}
}

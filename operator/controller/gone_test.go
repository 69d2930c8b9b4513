package controller

import (
	"context"
	"testing"

	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
)

// stale is a cache that has a Site or a Federation as it once was.
type stale struct {
	client.Client
	object client.Object
}

func (c *stale) Get(ctx context.Context, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
	switch was := c.object.(type) {
	case *v1alpha1.Site:
		if o, ok := o.(*v1alpha1.Site); ok {
			was.DeepCopyInto(o)
			return nil
		}
	case *v1alpha1.Federation:
		if o, ok := o.(*v1alpha1.Federation); ok {
			was.DeepCopyInto(o)
			return nil
		}
	}
	return c.Client.Get(ctx, key, o, opts...)
}

func (c *stale) List(ctx context.Context, l client.ObjectList, opts ...client.ListOption) error {
	if err := c.Client.List(ctx, l, opts...); err != nil {
		return err
	}
	if f, ok := c.object.(*v1alpha1.Federation); ok {
		if l, ok := l.(*v1alpha1.FederationList); ok {
			l.Items = []v1alpha1.Federation{*f}
		}
	}
	return nil
}

// away takes an object away whatever holds it and, anew, makes another of its name.
func away(t *testing.T, c client.Client, o client.Object, anew bool) {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(c.Get(t.Context(), client.ObjectKeyFromObject(o), o))
	o.SetFinalizers(nil)
	must(c.Update(t.Context(), o))
	must(client.IgnoreNotFound(c.Delete(t.Context(), o)))
	if anew {
		o.SetUID("")
		o.SetResourceVersion("")
		must(c.Create(t.Context(), o))
	}
}

func TestASiteThatIsGoneButStillInTheCacheIsNoErrorAndIsNotMadeAnew(t *testing.T) {
	for name, anew := range map[string]bool{"gone": false, "made anew": true} {
		for step, phase := range map[string]v1alpha1.SitePhase{"finalizer": "", "status": v1alpha1.SiteActive, "release": v1alpha1.SiteIdle} {
			t.Run(name+", "+step, func(t *testing.T) {
				g := newRig(t)
				g.labelled("quebec")
				g.federation("f", "quebec")
				if phase != "" {
					g.node("quebec", 0)
					g.energy.set("quebec", phase == v1alpha1.SiteActive)
					g.phase("quebec", phase)
				}
				if step == "release" {
					g.must(g.e.Client.Delete(t.Context(), g.site("quebec")))
				}
				was := g.site("quebec")
				away(t, g.e.Client, g.site("quebec"), anew)
				direct := g.r.Client
				g.operate(&stale{Client: direct, object: was})
				g.r.Reader = direct
				g.energy.set("quebec", false)
				g.must(g.reconcile())
				if anew {
					if s := g.site("quebec"); len(s.Finalizers) != 0 {
						t.Errorf("the new one has finalizers %v of the old", s.Finalizers)
					}
				} else if !g.gone("quebec") {
					t.Error("it was made anew")
				}
			})
		}
	}
}

func TestAFederationThatIsGoneButStillInTheCacheIsNoErrorAndIsNotMadeAnew(t *testing.T) {
	for name, anew := range map[string]bool{"gone": false, "made anew": true} {
		for _, step := range []string{"finalizer", "status", "release"} {
			t.Run(name+", "+step, func(t *testing.T) {
				b := newBench(t)
				b.site("lisboa")
				b.energy.want("lisboa", openWindow)
				f := b.federation("gpt", nil, "lisboa")
				if step != "finalizer" {
					b.reconcile("gpt")
				}
				if step == "release" {
					if err := b.env.Client.Delete(context.Background(), f); err != nil {
						t.Fatal(err)
					}
				}
				was := &v1alpha1.Federation{}
				b.get("gpt", was)
				away(t, b.env.Client, f, anew)
				b.coordinator.say(v1alpha1.FederationTraining, 3) // there is something to write
				b.reads = &stale{Client: b.env.Client, object: was}
				b.restart()
				if _, err := b.r.Reconcile(t.Context(), ctrl.Request{NamespacedName: types.NamespacedName{Namespace: b.namespace, Name: "gpt"}}); err != nil {
					t.Error(err)
				}
				now := &v1alpha1.Federation{}
				if gone := b.gone("gpt", now); gone == anew {
					t.Fatalf("gone: %v", gone)
				}
				if len(now.Finalizers) != 0 {
					t.Errorf("the new one has finalizers %v of the old", now.Finalizers)
				}
			})
		}
	}
}

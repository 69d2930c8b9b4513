package capacity

import (
	"context"
	"net/http"
	"strings"
	"sync"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/operator/testenv"
)

func pointer[T any](v T) *T { return &v }

var installTargets sync.Once

// rig moves one target of one site, and counts requests.
type rig struct {
	*testing.T
	admin client.Client
	// c is what the keeper gets; requests are those of it but for discovery.
	c        client.Client
	mu       sync.Mutex
	requests []string
	keeper   *Keeper
	site     *v1alpha1.Site
	target   *unstructured.Unstructured
}

func newRig(t *testing.T, target *unstructured.Unstructured) *rig {
	e := testenv.Shared(t)
	installTargets.Do(func() {
		if _, err := envtest.InstallCRDs(e.Config, envtest.CRDInstallOptions{Paths: []string{"testdata/targets.yaml"}}); err != nil {
			t.Fatal(err)
		}
	})
	r := &rig{T: t, admin: e.Client, target: target}
	config := rest.CopyConfig(e.Config)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return counted{next, r} })
	var err error
	if r.c, err = client.New(config, client.Options{Scheme: testenv.Scheme()}); err != nil {
		t.Fatal(err)
	}
	ns := e.Namespace(t)
	if target.GetKind() != "NodePool" {
		target.SetNamespace(ns)
	}
	if err := r.admin.Create(t.Context(), target); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.admin.Delete(context.Background(), target) })
	r.keeper = New(Options{Local: r.c})
	r.site = &v1alpha1.Site{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "quebec"},
		Spec: v1alpha1.SiteSpec{Capacity: v1alpha1.CapacitySpec{Mode: v1alpha1.CapacityScale, ActiveReplicas: 2,
			ScaleTargetRef: &v1alpha1.ScaleTargetReference{APIVersion: target.GetAPIVersion(), Kind: target.GetKind(), Name: target.GetName()}}},
	}
	return r
}

type counted struct {
	next http.RoundTripper
	r    *rig
}

func (c counted) RoundTrip(req *http.Request) (*http.Response, error) {
	if p := req.URL.Path; strings.Count(p, "/") > 4 {
		c.r.mu.Lock()
		c.r.requests = append(c.r.requests, req.Method+" "+p[strings.LastIndex(p[:strings.LastIndex(p, "/")], "/"):])
		c.r.mu.Unlock()
	}
	return c.next.RoundTrip(req)
}

func object(apiVersion, kind, name string, replicas any) *unstructured.Unstructured {
	spec := map[string]any{}
	if replicas != nil {
		spec["replicas"] = replicas
	}
	u := &unstructured.Unstructured{Object: map[string]any{"spec": spec}}
	u.SetGroupVersionKind(schema.FromAPIVersionAndKind(apiVersion, kind))
	u.SetName(name)
	return u
}

func machines(replicas int64) *unstructured.Unstructured {
	u := object("cluster.x-k8s.io/v1beta2", "MachineDeployment", "quebec-a100", replicas)
	_ = unstructured.SetNestedField(u.Object, "quebec", "spec", "clusterName")
	return u
}

func nodePool(name string, replicas any) *unstructured.Unstructured {
	return object("karpenter.sh/v1", "NodePool", name, replicas)
}

func deployment(replicas int64) *unstructured.Unstructured {
	u := object("apps/v1", "Deployment", "holder", replicas)
	u.Object["spec"].(map[string]any)["selector"] = map[string]any{"matchLabels": map[string]any{"a": "b"}}
	u.Object["spec"].(map[string]any)["template"] = map[string]any{
		"metadata": map[string]any{"labels": map[string]any{"a": "b"}},
		"spec":     map[string]any{"containers": []any{map[string]any{"name": "c", "image": "i"}}}}
	return u
}

// wish writes what membership keeps in the status.
func (r *rig) wish(w v1alpha1.ProvisioningWish, taken bool) {
	p := &v1alpha1.ProvisioningStatus{Wish: w, Since: metav1.Now(), Key: "k"}
	if taken {
		p.AskedAt = pointer(metav1.Now())
	}
	r.site.Status.Provisioning = p
}

func (r *rig) do(state State, err error) State {
	r.Helper()
	if err != nil {
		r.Fatal(err)
	}
	return state
}

func (r *rig) look() State { r.Helper(); return r.do(r.keeper.Look(r.Context(), r.c, r.site)) }

func (r *rig) ask(provision bool) State {
	r.Helper()
	return r.do(r.keeper.Ask(r.Context(), r.c, r.site, provision))
}

// moved asks for a wish as the site's controller does: what is to be remembered
// is, and then it is asked again.
func (r *rig) moved(w v1alpha1.ProvisioningWish) State {
	r.Helper()
	r.wish(w, false)
	s := r.ask(w == v1alpha1.WishProvision)
	if s.AdoptedReplicas != nil && r.site.Status.AdoptedReplicas == nil {
		r.site.Status.AdoptedReplicas = s.AdoptedReplicas
		s = r.ask(w == v1alpha1.WishProvision)
	}
	return s
}

func (r *rig) replicas() int64 {
	r.Helper()
	r.refresh()
	n, _, _ := unstructured.NestedInt64(r.target.Object, "spec", "replicas")
	return n
}

func (r *rig) refresh() {
	r.Helper()
	if err := r.admin.Get(r.Context(), client.ObjectKeyFromObject(r.target), r.target); err != nil {
		r.Fatal(err)
	}
}

// edit changes the target as somebody else.
func (r *rig) edit(by string, change func(u *unstructured.Unstructured)) {
	r.Helper()
	r.refresh()
	change(r.target)
	if err := r.admin.Update(r.Context(), r.target, client.FieldOwner(by)); err != nil {
		r.Fatal(err)
	}
}

func (r *rig) set(by string, n int64) {
	r.Helper()
	r.edit(by, func(u *unstructured.Unstructured) { _ = unstructured.SetNestedField(u.Object, n, "spec", "replicas") })
}

// observe is what the target's controller says.
func (r *rig) observe(held int64, generation int64) {
	r.Helper()
	r.refresh()
	status := map[string]any{"replicas": held, "nodes": held}
	if generation > 0 {
		status["observedGeneration"] = generation
	}
	if r.target.GetKind() == "Deployment" {
		d := &appsv1.Deployment{}
		if err := r.admin.Get(r.Context(), client.ObjectKeyFromObject(r.target), d); err != nil {
			r.Fatal(err)
		}
		d.Status.Replicas, d.Status.ObservedGeneration = int32(held), generation
		if err := r.admin.Status().Update(r.Context(), d); err != nil {
			r.Fatal(err)
		}
		return
	}
	r.target.Object["status"] = status
	if err := r.admin.Status().Update(r.Context(), r.target); err != nil {
		r.Fatal(err)
	}
}

func (r *rig) generation() int64 { r.refresh(); return r.target.GetGeneration() }

func (r *rig) faults(s State, reason v1alpha1.Reason, says ...string) {
	r.Helper()
	if s.Fault == nil || s.Fault.Reason != reason {
		r.Fatalf("fault is %v, want %s", s.Fault, reason)
	}
	for _, word := range says {
		if !strings.Contains(s.Fault.Message, word) {
			r.Errorf("message %q does not say %q", s.Fault.Message, word)
		}
	}
}

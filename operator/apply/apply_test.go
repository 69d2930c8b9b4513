package apply

import (
	"context"
	"errors"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	appsv1ac "k8s.io/client-go/applyconfigurations/apps/v1"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	metav1ac "k8s.io/client-go/applyconfigurations/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/operator/testenv"
)

func TestMain(m *testing.M) { os.Exit(testenv.Main(m)) }

// bench is an Applier whose writing requests are counted on the wire.
type bench struct {
	*Applier
	metrics *prometheus.Registry
	ns      string
	writes  atomic.Int64
}

type counting struct {
	next http.RoundTripper
	n    *atomic.Int64
}

func (c counting) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method != http.MethodGet {
		c.n.Add(1)
	}
	return c.next.RoundTrip(r)
}

func newBench(t *testing.T) *bench {
	e := testenv.Shared(t)
	b := &bench{ns: e.Namespace(t)}
	config := rest.CopyConfig(e.Config)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return counting{next, &b.writes} })
	c, err := client.New(config, client.Options{Scheme: testenv.Scheme()})
	if err != nil {
		t.Fatal(err)
	}
	b.metrics = prometheus.NewRegistry()
	sends := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "girassol_operator_applies_total"}, []string{"kind"})
	b.metrics.MustRegister(sends)
	b.Applier = &Applier{Client: c, Reader: c, Sends: sends}
	return b
}

// applies checks that applying changes something, or nothing, with just as many
// requests.
func (b *bench) applies(t *testing.T, desired runtime.ApplyConfiguration, want bool) {
	t.Helper()
	before := b.writes.Load()
	changed, err := b.Apply(t.Context(), desired)
	if err != nil {
		t.Fatal(err)
	}
	sent := b.writes.Load() - before
	if changed != want || sent != map[bool]int64{true: 1}[want] {
		t.Errorf("changed %v with %d writes, want %v", changed, sent, want)
	}
}

func (b *bench) get(t *testing.T, name string, o client.Object) {
	t.Helper()
	if err := b.Client.Get(t.Context(), types.NamespacedName{Namespace: b.ns, Name: name}, o); err != nil {
		t.Fatal(err)
	}
}

func deployment(ns string) *appsv1ac.DeploymentApplyConfiguration {
	labels := map[string]string{"app": "x"}
	return appsv1ac.Deployment("x", ns).WithLabels(labels).WithSpec(appsv1ac.DeploymentSpec().
		WithSelector(metav1ac.LabelSelector().WithMatchLabels(labels)).
		WithTemplate(corev1ac.PodTemplateSpec().WithLabels(labels).WithSpec(corev1ac.PodSpec().
			WithContainers(corev1ac.Container().WithName("a").WithImage("a:1").WithArgs("--one", "--two").
				WithResources(corev1ac.ResourceRequirements().WithRequests(corev1.ResourceList{
					// Not as the API server would write them.
					corev1.ResourceCPU: resource.MustParse("1000m"), corev1.ResourceMemory: resource.MustParse("1024Mi")}))))))
}

func TestApplyingTwiceSendsOnce(t *testing.T) {
	b := newBench(t)
	b.applies(t, deployment(b.ns), true)
	for range 3 {
		b.applies(t, deployment(b.ns), false)
	}
	families, err := b.metrics.Gather()
	if err != nil || len(families) != 1 || families[0].GetName() != "girassol_operator_applies_total" {
		t.Fatalf("%v, %v", families, err)
	}
	if m := families[0].GetMetric()[0]; m.GetCounter().GetValue() != 1 || m.GetLabel()[0].GetValue() != "Deployment" {
		t.Errorf("counted is %v, want 1 Deployment", m)
	}
}

func TestDriftIsRepairedAndForeignFieldsStay(t *testing.T) {
	b := newBench(t)
	b.applies(t, deployment(b.ns), true)

	// An autoscaler sets what we do not, a person annotates.
	d := &appsv1.Deployment{}
	b.get(t, "x", d)
	d.Spec.Replicas = new(int32)
	*d.Spec.Replicas = 7
	d.Spec.Template.Annotations = map[string]string{"kubectl.kubernetes.io/restartedAt": "today"}
	if err := b.Client.Update(t.Context(), d, client.FieldOwner("autoscaler")); err != nil {
		t.Fatal(err)
	}
	b.applies(t, deployment(b.ns), false)

	for name, drift := range map[string]func(*appsv1.Deployment){
		"a changed value":   func(d *appsv1.Deployment) { d.Spec.Template.Spec.Containers[0].Image = "a:2" },
		"a changed list":    func(d *appsv1.Deployment) { d.Spec.Template.Spec.Containers[0].Args = []string{"--two"} },
		"a removed label":   func(d *appsv1.Deployment) { d.Labels = nil },
		"a changed request": func(d *appsv1.Deployment) { d.Spec.Template.Spec.Containers[0].Resources.Requests = nil },
	} {
		t.Run(name, func(t *testing.T) {
			b.get(t, "x", d)
			drift(d)
			if err := b.Client.Update(t.Context(), d, client.FieldOwner("person")); err != nil {
				t.Fatal(err)
			}
			b.applies(t, deployment(b.ns), true)
			b.applies(t, deployment(b.ns), false)
		})
	}
	b.get(t, "x", d)
	c := d.Spec.Template.Spec.Containers[0]
	if c.Image != "a:1" || len(c.Args) != 2 || d.Labels["app"] != "x" || c.Resources.Requests.Cpu().String() != "1" {
		t.Errorf("ours are %v, labels %v", c, d.Labels)
	}
	if *d.Spec.Replicas != 7 || d.Spec.Template.Annotations["kubectl.kubernetes.io/restartedAt"] != "today" {
		t.Errorf("others' are %d, %v", *d.Spec.Replicas, d.Spec.Template.Annotations)
	}
}

func TestAnotherOwnersForceIsUndone(t *testing.T) {
	b := newBench(t)
	b.applies(t, deployment(b.ns), true)
	theirs := appsv1ac.Deployment("x", b.ns).WithSpec(appsv1ac.DeploymentSpec().WithTemplate(corev1ac.PodTemplateSpec().
		WithSpec(corev1ac.PodSpec().WithContainers(corev1ac.Container().WithName("a").WithImage("a:evil")))))
	if err := b.Client.Apply(t.Context(), theirs, client.FieldOwner("other"), client.ForceOwnership); err != nil {
		t.Fatal(err)
	}
	b.applies(t, deployment(b.ns), true)
	b.applies(t, deployment(b.ns), false)
	d := &appsv1.Deployment{}
	if b.get(t, "x", d); d.Spec.Template.Spec.Containers[0].Image != "a:1" {
		t.Errorf("the image is %s", d.Spec.Template.Spec.Containers[0].Image)
	}
}

func TestWhatWeNoLongerWantGoes(t *testing.T) {
	b := newBench(t)
	cm := func() *corev1ac.ConfigMapApplyConfiguration {
		return corev1ac.ConfigMap("c", b.ns).WithData(map[string]string{"a": "1"})
	}
	b.applies(t, cm().WithData(map[string]string{"b": "2"}).WithLabels(map[string]string{"l": "1"}), true)
	b.applies(t, cm(), true)
	b.applies(t, cm(), false)
	live := &corev1.ConfigMap{}
	if b.get(t, "c", live); len(live.Data) != 1 || live.Data["a"] != "1" || len(live.Labels) != 0 {
		t.Errorf("left are %v, %v", live.Data, live.Labels)
	}
}

func TestAnObjectStaysWithItsController(t *testing.T) {
	b := newBench(t)
	owned := func(uid types.UID) *corev1ac.ConfigMapApplyConfiguration {
		return corev1ac.ConfigMap("c", b.ns).WithData(map[string]string{"of": string(uid)}).WithOwnerReferences(metav1ac.OwnerReference().
			WithAPIVersion(v1alpha1.APIVersion).WithKind(v1alpha1.KindFederation).WithName(string(uid)).WithUID(uid).WithController(true))
	}
	b.applies(t, owned("first"), true)
	before := b.writes.Load()
	_, err := b.Apply(t.Context(), owned("second"))
	var elsewhere *OwnedElsewhereError
	if !errors.As(err, &elsewhere) || elsewhere.Owner.Name != "first" {
		t.Fatalf("%v, want that it belongs to the first", err)
	}
	if b.writes.Load() != before {
		t.Error("something was sent")
	}
}

func TestAPersonsObjectIsNotTakenButABackupsIs(t *testing.T) {
	b := newBench(t)
	const by = "app.kubernetes.io/managed-by"
	ours := func(name string) *corev1ac.ConfigMapApplyConfiguration {
		return corev1ac.ConfigMap(name, b.ns).WithLabels(map[string]string{by: "girassol"}).WithData(map[string]string{"of": "us"}).WithOwnerReferences(metav1ac.OwnerReference().
			WithAPIVersion(v1alpha1.APIVersion).WithKind(v1alpha1.KindFederation).WithName("f").WithUID("f").WithController(true))
	}
	for name, label := range map[string]string{"persons": "helm", "restored": "girassol"} {
		cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: b.ns, Labels: map[string]string{by: label}}, Data: map[string]string{"of": "them"}}
		if err := b.Client.Create(t.Context(), cm, client.FieldOwner("kubectl")); err != nil {
			t.Fatal(err)
		}
	}
	before := b.writes.Load()
	var elsewhere *OwnedElsewhereError
	if _, err := b.Apply(t.Context(), ours("persons")); !errors.As(err, &elsewhere) || !strings.Contains(err.Error(), "someone else made") {
		t.Fatalf("%v, want that a person made it", err)
	}
	if b.writes.Load() != before {
		t.Error("something was sent")
	}
	b.applies(t, ours("restored"), true)
	b.applies(t, ours("restored"), false)
}

func TestAKeyIsCreatedOnceAndNeverOverwritten(t *testing.T) {
	b := newBench(t)
	key := func(v string) *corev1ac.SecretApplyConfiguration {
		return corev1ac.Secret("ca", b.ns).WithData(map[string][]byte{"k": []byte(v)})
	}
	if created, err := b.Create(t.Context(), key("first")); !created || err != nil {
		t.Fatalf("%v, %v", created, err)
	}
	before := b.writes.Load()
	if created, err := b.Create(t.Context(), key("second")); created || err != nil {
		t.Fatalf("again: %v, %v", created, err)
	}
	if b.writes.Load() != before {
		t.Error("something was sent")
	}
	// One that was made between the look and the creation.
	b.Reader = blind{b.Reader}
	if created, err := b.Create(t.Context(), key("third")); created || err != nil {
		t.Fatalf("overtaken: %v, %v", created, err)
	}
	s := &corev1.Secret{}
	if b.get(t, "ca", s); string(s.Data["k"]) != "first" {
		t.Errorf("the key is %q", s.Data["k"])
	}
}

// blind has not seen anything yet.
type blind struct{ client.Reader }

func (blind) Get(_ context.Context, key client.ObjectKey, _ client.Object, _ ...client.GetOption) error {
	return apierrors.NewNotFound(corev1.Resource("secrets"), key.Name)
}

func TestFailuresNameObjectAndOperation(t *testing.T) {
	b := newBench(t)
	bad := deployment(b.ns)
	bad.Spec.WithReplicas(-1)
	_, err := b.Apply(t.Context(), bad)
	var e *Error
	if !errors.As(err, &e) || e.Operation != "apply" || e.Kind != "Deployment" || e.Key.Name != "x" || e.Key.Namespace != b.ns || !apierrors.IsInvalid(err) {
		t.Errorf("%v", err)
	}
	if !strings.HasPrefix(err.Error(), "apply Deployment "+b.ns+"/x: ") {
		t.Errorf("%v", err)
	}
	for name, desired := range map[string]runtime.ApplyConfiguration{
		"no namespace": corev1ac.ConfigMap("c", ""),
		"unknown kind": corev1ac.Node("n"),
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := b.Apply(t.Context(), desired); err == nil {
				t.Error("no error")
			}
		})
	}
}

func TestPruneDeletesOnlyWhatTheOwnerControlsAndNoLongerWants(t *testing.T) {
	b := newBench(t)
	owner := &v1alpha1.Federation{ObjectMeta: metav1.ObjectMeta{Namespace: b.ns, Name: "f", UID: "mine"}}
	of := func(name string, uid types.UID) *corev1ac.ConfigMapApplyConfiguration {
		c := corev1ac.ConfigMap(name, b.ns)
		if uid != "" {
			c.WithOwnerReferences(metav1ac.OwnerReference().WithAPIVersion(v1alpha1.APIVersion).WithKind(v1alpha1.KindFederation).
				WithName("f").WithUID(uid).WithController(true))
		}
		return c
	}
	for _, c := range []*corev1ac.ConfigMapApplyConfiguration{of("wanted", "mine"), of("old", "mine"), of("other", "theirs"), of("free", "")} {
		b.applies(t, c, true)
	}
	lists := func() []client.ObjectList { return []client.ObjectList{&corev1.ConfigMapList{}, &corev1.ServiceList{}} }
	keep := []runtime.ApplyConfiguration{of("wanted", "mine")}
	if n, err := b.Prune(t.Context(), owner, keep, lists()); n != 1 || err != nil {
		t.Fatalf("%d deleted, %v; want 1", n, err)
	}
	before := b.writes.Load()
	if n, err := b.Prune(t.Context(), owner, keep, lists()); n != 0 || err != nil || b.writes.Load() != before {
		t.Errorf("again: %d deleted, %v, %d writes", n, err, b.writes.Load()-before)
	}
	left := &corev1.ConfigMapList{}
	if err := b.Client.List(t.Context(), left, client.InNamespace(b.ns)); err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, c := range left.Items {
		names = append(names, c.Name)
	}
	if got := strings.Join(names, " "); !strings.Contains(got, "free") || !strings.Contains(got, "other") || !strings.Contains(got, "wanted") || strings.Contains(got, "old") {
		t.Errorf("left are %s", got)
	}
}

func TestDeletingSparesAnObjectMadeAnew(t *testing.T) {
	b := newBench(t)
	b.applies(t, corev1ac.ConfigMap("c", b.ns), true)
	old := &corev1.ConfigMap{}
	b.get(t, "c", old)
	if gone, err := b.Delete(t.Context(), old.DeepCopy()); !gone || err != nil {
		t.Fatalf("%v, %v", gone, err)
	}
	if gone, err := b.Delete(t.Context(), old.DeepCopy()); gone || err != nil {
		t.Errorf("a second time: %v, %v", gone, err)
	}
	b.applies(t, corev1ac.ConfigMap("c", b.ns), true)
	if gone, err := b.Delete(t.Context(), old); gone || err != nil {
		t.Errorf("the new one: %v, %v", gone, err)
	}
}

// The comparison is all that an unchanged object costs besides reading the cache.
func BenchmarkComparisonOfAnUnchangedObject(b *testing.B) {
	e := testenv.Shared(b)
	ns := e.Namespace(b)
	a := &Applier{Client: e.Client, Reader: e.Client}
	if _, err := a.Apply(b.Context(), deployment(ns)); err != nil {
		b.Fatal(err)
	}
	live := &appsv1.Deployment{}
	if err := e.Client.Get(b.Context(), types.NamespacedName{Namespace: ns, Name: "x"}, live); err != nil {
		b.Fatal(err)
	}
	k, _, err := identify(deployment(ns))
	if err != nil {
		b.Fatal(err)
	}
	desired := deployment(ns)
	b.ReportAllocs()
	for b.Loop() {
		if same, err := k.same(live, desired); err != nil || !same {
			b.Fatal(same, err)
		}
	}
}

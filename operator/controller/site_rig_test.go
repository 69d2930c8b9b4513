package controller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/operator/apply"
	"girassol.dev/operator/capacity"
	"girassol.dev/operator/membership"
	"girassol.dev/operator/resources"
	"girassol.dev/operator/testenv"
)

// The site controller's tests run the reconciler against a real API server with
// the real keepers of capacity, inventory, builders and appliers. Played are what
// needs processes: the coordinator with its agents (playedCoordinator), the
// signals engine (playedEnergy), and, as a control plane for tests has no
// controllers, machines behind a scale target and pods of a DaemonSet
// (rig.turnWorld). The clock is the test's.

// rig is a world with one or more sites and the means to let time pass.
type rig struct {
	t         *testing.T
	e         *testenv.Environment
	namespace string
	now       time.Time
	// clock is now as of the last look at the sites, for what runs beside the test.
	clock     atomic.Int64
	energy    *playedEnergy
	desk      *playedCoordinator
	journal   *journal
	events    *recorder
	registry  *prometheus.Registry
	metrics   *Metrics
	selection *Selection
	clusters  SiteClusters
	// federations and their sites, for turnWorld.
	sites map[string]string // site -> federation
	// targets are the kinds of the sites' scale targets.
	targets map[string]schema.GroupVersionKind
	// boots says which sites' machines come; noGPUs those that come without.
	boots, noGPUs map[string]bool
	// life of the present operator; the next ones have so many writes.
	life   *life
	writes int
	r      *SiteReconciler
	// pause, if any, comes after each turn: for what answers in its own time.
	pause func()
}

func newRig(t *testing.T) *rig {
	e := testenv.Shared(t)
	g := &rig{
		t: t, e: e, namespace: e.Namespace(t), now: time.Date(2026, 6, 1, 12, 0, 0, 0, time.UTC),
		energy: &playedEnergy{admit: map[string]bool{}, faults: map[string]*membership.Fault{}, value: 20}, journal: &journal{},
		events: &recorder{}, registry: prometheus.NewRegistry(), selection: &Selection{},
		sites: map[string]string{}, boots: map[string]bool{}, targets: map[string]schema.GroupVersionKind{}, noGPUs: map[string]bool{}, writes: -1,
	}
	g.metrics = NewMetrics(g.registry)
	g.desk = &playedCoordinator{log: g.journal, sites: map[string]*coordinatorv1.SiteStatus{}, working: map[string]bool{}}
	g.restart()
	t.Cleanup(g.cleanNodes)
	return g
}

// restart is a new operator, which knows nothing but what the API server has.
func (g *rig) restart() {
	g.t.Helper()
	direct, err := client.NewWithWatch(g.e.Config, client.Options{Scheme: g.e.Client.Scheme(), Mapper: g.e.Client.RESTMapper()})
	g.must(err)
	g.life = newLife(g.writes)
	g.operate(recording(direct, g.journal, g.life))
}

// operate makes a reconciler with this client.
func (g *rig) operate(c client.Client) {
	clusters := g.clusters
	if clusters == nil {
		clusters = localCluster{c}
	}
	now := func() time.Time { return g.now }
	g.clock.Store(g.now.UnixNano())
	g.r = &SiteReconciler{
		Client: c, Reader: c, Applier: &apply.Applier{Client: c, Reader: c},
		Energy: g.energy, Coordinators: g.desk, Clusters: clusters,
		Capacity:  capacity.New(capacity.Options{Local: c, Now: func() time.Time { return time.Unix(0, g.clock.Load()) }, Transport: http.DefaultTransport}),
		Selection: g.selection, Wishes: &Fan{}, ClusterChanges: &Fan{}, CapacityChanges: &Fan{}, Answers: &Fan{},
		Images: resources.Images{Agent: "agent:1", Coordinator: "coordinator:1", Redis: "redis:1"},
		Now:    now, Events: g.events, Metrics: g.metrics, Log: slog.New(slog.DiscardHandler),
	}
}

func (g *rig) create(o client.Object) {
	g.t.Helper()
	if err := g.e.Client.Create(context.Background(), o); err != nil {
		g.t.Fatal(err)
	}
}

func (g *rig) federation(name string, sites ...string) *v1alpha1.Federation {
	g.t.Helper()
	f := &v1alpha1.Federation{ObjectMeta: metav1.ObjectMeta{Namespace: g.namespace, Name: name}}
	for _, s := range sites {
		f.Spec.Sites = append(f.Spec.Sites, v1alpha1.SiteReference{Name: s})
		if g.sites[s] == "" {
			g.sites[s] = name
		}
		g.desk.mu.Lock()
		g.desk.site(name, s)
		g.desk.mu.Unlock()
	}
	g.create(f)
	g.choose()
	return f
}

// nodeSelector of a site's nodes; tests share the cluster's nodes.
func (g *rig) nodeSelector(site string) map[string]string {
	return map[string]string{"test/site": g.namespace + "." + site}
}

// scaled is a site whose capacity is a Deployment's scale.
func (g *rig) scaled(name string, edit ...func(*v1alpha1.Site)) *v1alpha1.Site {
	g.t.Helper()
	zero := int32(0)
	g.create(&appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: g.namespace, Name: "machines-" + name},
		Spec: appsv1.DeploymentSpec{
			Replicas: &zero, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"a": name}},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"a": name}},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "a", Image: "a"}}},
			},
		},
	})
	return g.scaling(name, appsv1.SchemeGroupVersion.WithKind("Deployment"), edit...)
}

// machines is a site whose capacity is a MachineDeployment's scale.
func (g *rig) machines(name string, edit ...func(*v1alpha1.Site)) *v1alpha1.Site {
	g.t.Helper()
	g.e.MachineDeployments(g.t)
	o := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"replicas": int64(0), "clusterName": "north"}}}
	o.SetGroupVersionKind(testenv.MachineDeploymentKind)
	o.SetNamespace(g.namespace)
	o.SetName("machines-" + name)
	g.create(o)
	return g.scaling(name, testenv.MachineDeploymentKind, edit...)
}

func (g *rig) scaling(name string, kind schema.GroupVersionKind, edit ...func(*v1alpha1.Site)) *v1alpha1.Site {
	g.t.Helper()
	g.boots[name], g.targets[name] = true, kind
	return g.labelled(name, append([]func(*v1alpha1.Site){func(s *v1alpha1.Site) {
		s.Spec.Capacity.Mode, s.Spec.Capacity.ActiveReplicas = v1alpha1.CapacityScale, 2
		s.Spec.Capacity.ScaleTargetRef = &v1alpha1.ScaleTargetReference{APIVersion: kind.GroupVersion().String(), Kind: kind.Kind, Name: "machines-" + name}
	}}, edit...)...)
}

// labelled is a site whose nodes stay.
func (g *rig) labelled(name string, edit ...func(*v1alpha1.Site)) *v1alpha1.Site {
	g.t.Helper()
	none := int32(0)
	s := &v1alpha1.Site{ObjectMeta: metav1.ObjectMeta{Namespace: g.namespace, Name: name}, Spec: v1alpha1.SiteSpec{
		Nodes:    &v1alpha1.NodesSpec{Selector: metav1.LabelSelector{MatchLabels: g.nodeSelector(name)}},
		Capacity: v1alpha1.CapacitySpec{SettleSeconds: &none},
	}}
	for _, e := range edit {
		e(s)
	}
	g.create(s)
	return s
}

// node of a site, ready with its GPUs.
func (g *rig) node(site string, number int) *corev1.Node {
	g.t.Helper()
	gpus := 8
	if g.noGPUs[site] {
		gpus = 0
	}
	return g.boot(testenv.NvidiaNode(fmt.Sprintf("%s-%s-%d", g.namespace, site, number), gpus, g.nodeSelector(site)))
}

// boot makes a node that is ready.
func (g *rig) boot(n *corev1.Node) *corev1.Node {
	g.t.Helper()
	want := n.Status
	g.create(n)
	n.Status = want
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady"}}
	g.must(g.e.Client.Status().Update(context.Background(), n))
	return n
}

func (g *rig) must(err error) {
	g.t.Helper()
	if err != nil {
		g.t.Fatal(err)
	}
}

func (g *rig) nodes(site string) []corev1.Node {
	g.t.Helper()
	var nodes corev1.NodeList
	g.must(g.e.Client.List(context.Background(), &nodes, client.MatchingLabels(g.nodeSelector(site))))
	return nodes.Items
}

func (g *rig) cleanNodes() {
	var nodes corev1.NodeList
	_ = g.e.Client.List(context.Background(), &nodes, client.HasLabels{"test/site"})
	for _, n := range nodes.Items {
		if strings.HasPrefix(n.Name, g.namespace) {
			_ = g.e.Client.Delete(context.Background(), &n)
		}
	}
}

func (g *rig) site(name string) *v1alpha1.Site {
	g.t.Helper()
	s := &v1alpha1.Site{}
	g.must(g.e.Client.Get(context.Background(), types.NamespacedName{Namespace: g.namespace, Name: name}, s))
	return s
}

func (g *rig) edit(s client.Object, change func()) {
	g.t.Helper()
	g.must(g.e.Client.Get(context.Background(), client.ObjectKeyFromObject(s), s))
	change()
	g.must(g.e.Client.Update(context.Background(), s))
}

// turnWorld lets machines follow their scale targets, and agents their labels.
func (g *rig) turnWorld() {
	g.t.Helper()
	ctx := context.Background()
	for site, federation := range g.sites {
		if kind, ok := g.targets[site]; ok {
			o := &unstructured.Unstructured{}
			o.SetGroupVersionKind(kind)
			g.must(g.e.Client.Get(ctx, types.NamespacedName{Namespace: g.namespace, Name: "machines-" + site}, o))
			g.turnMachines(site, o)
		}
		var members []string
		for _, n := range g.nodes(site) {
			if n.Labels[v1alpha1.LabelNodeSite] == resources.EnrolledFor(g.namespace, site) && n.Labels[v1alpha1.LabelAgent] != "" {
				members = append(members, n.Name)
			}
		}
		g.desk.connect(federation, site, members...)
	}
}

func (g *rig) turnMachines(site string, o *unstructured.Unstructured) {
	g.t.Helper()
	ctx := context.Background()
	has := g.nodes(site)
	wanted, _, _ := unstructured.NestedInt64(o.Object, "spec", "replicas")
	want := int(wanted)
	if !g.boots[site] {
		want = 0
	}
	for i := len(has); i < want; i++ {
		g.node(site, i)
	}
	for i := want; i < len(has); i++ {
		g.must(g.e.Client.Delete(ctx, &has[i]))
	}
	observed, _, _ := unstructured.NestedInt64(o.Object, "status", "observedGeneration")
	replicas, _, _ := unstructured.NestedInt64(o.Object, "status", "replicas")
	if observed != o.GetGeneration() || int(replicas) != want {
		g.must(unstructured.SetNestedField(o.Object, o.GetGeneration(), "status", "observedGeneration"))
		g.must(unstructured.SetNestedField(o.Object, int64(want), "status", "replicas"))
		// An operator beside the test may have scaled it meanwhile; the next turn sees.
		if err := g.e.Client.Status().Update(ctx, o); !apierrors.IsConflict(err) {
			g.must(err)
		}
	}
}

// choose is what the federation controller does: it selects sites.
func (g *rig) choose() {
	g.t.Helper()
	var federations v1alpha1.FederationList
	g.must(g.e.Client.List(context.Background(), &federations, client.InNamespace(g.namespace)))
	for _, f := range federations.Items {
		var candidates []membership.Candidate
		for _, ref := range f.Spec.Sites {
			s := &v1alpha1.Site{}
			if err := g.e.Client.Get(context.Background(), types.NamespacedName{Namespace: g.namespace, Name: ref.Name}, s); err != nil {
				continue
			}
			wish, _ := g.energy.Wish(types.NamespacedName{}, ref.Name)
			candidates = append(candidates, membership.NewCandidate(s, wish, membership.Coordinator{}))
		}
		selected, why := membership.Select(candidates, f.Spec.MaxSites, g.now)
		g.selection.Set(keyOf(&f), selected, why)
	}
}

// reconcile all sites once, as the watches would.
func (g *rig) reconcile() (errs error) {
	g.t.Helper()
	g.clock.Store(g.now.UnixNano())
	for _, site := range slices.Sorted(maps.Keys(g.sites)) {
		_, err := g.r.Reconcile(context.Background(), ctrl.Request{NamespacedName: types.NamespacedName{Namespace: g.namespace, Name: site}})
		errs = errors.Join(errs, err)
	}
	return errs
}

// until lets the world turn, a second each time, until done; 100 turns at most.
func (g *rig) until(what string, done func() bool) {
	g.t.Helper()
	for range 100 {
		g.turnWorld()
		g.choose()
		if err := g.reconcile(); g.life.over() {
			g.restart()
		} else if err != nil {
			g.t.Fatal(err)
		}
		if done() {
			return
		}
		if g.pause != nil {
			g.pause()
		}
		g.now = g.now.Add(time.Second)
	}
	for site := range g.sites {
		s := &v1alpha1.Site{}
		_ = g.e.Client.Get(context.Background(), types.NamespacedName{Namespace: g.namespace, Name: site}, s)
		g.t.Logf("%s: %s %s: %s; %+v", site, s.Status.Phase, s.Status.Reason, s.Status.Message, s.Status.Provisioning)
	}
	g.t.Fatalf("never %s; done was:\n%s", what, strings.Join(g.journal.all(), "\n"))
}

func (g *rig) phase(site string, p v1alpha1.SitePhase) {
	g.t.Helper()
	g.until(site+" "+string(p), func() bool { return g.site(site).Status.Phase == p })
}

func (g *rig) admitted(site string) bool {
	g.desk.mu.Lock()
	defer g.desk.mu.Unlock()
	return g.desk.site(g.sites[site], site).Membership == coordinatorv1.Membership_MEMBERSHIP_ADMIT
}

// conditionOf a site.
func conditionOf(s *v1alpha1.Site, kind string) metav1.Condition {
	for _, c := range s.Status.Conditions {
		if c.Type == kind {
			return c
		}
	}
	return metav1.Condition{}
}

func (g *rig) gone(site string) bool {
	g.t.Helper()
	err := g.e.Client.Get(context.Background(), types.NamespacedName{Namespace: g.namespace, Name: site}, &v1alpha1.Site{})
	if client.IgnoreNotFound(err) != nil {
		g.t.Fatal(err)
	}
	return err != nil
}

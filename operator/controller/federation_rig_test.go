package controller

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/operator/apply"
	"girassol.dev/operator/coordinators"
	"girassol.dev/operator/membership"
	"girassol.dev/operator/resources"
	"girassol.dev/operator/testenv"
)

// The federation controller's tests run the reconciler against a real API server
// with the real builders, certificates and appliers. Played are the coordinator
// (saidCoordinator) and the signals engine (saidEnergy); the clock is the test's.

// saidEnergy wants what the test says.
type saidEnergy struct {
	mu          sync.Mutex
	wishes      map[string]membership.Energy
	fault       error
	ensured     []string // sites of the last Ensure
	unavailable map[string]bool
	forgotten   bool
}

func (e *saidEnergy) want(site string, w membership.Energy) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.wishes == nil {
		e.wishes = map[string]membership.Energy{}
	}
	e.wishes[site] = w
}

var (
	openWindow   = membership.Energy{Known: true, Admit: true, Window: v1alpha1.WindowOpen, Reason: v1alpha1.ReasonEnergyFavourable}
	closedWindow = membership.Energy{Known: true, Window: v1alpha1.WindowClosed, Reason: v1alpha1.ReasonWaitingForEnergy, Message: "too dirty"}
	noSignal     = membership.Energy{Known: true, Window: v1alpha1.WindowUnknown, Reason: v1alpha1.ReasonSignalStale}
)

func (e *saidEnergy) Ensure(_ context.Context, _ *v1alpha1.Federation, sites []v1alpha1.Site) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.ensured = nil
	for _, s := range sites {
		e.ensured = append(e.ensured, s.Name)
	}
	return e.fault
}

func (e *saidEnergy) Forget(types.NamespacedName) { e.forgotten = true }

func (e *saidEnergy) Wish(_ types.NamespacedName, site string) (membership.Energy, *coordinatorv1.Signal) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.wishes[site], &coordinatorv1.Signal{}
}

func (e *saidEnergy) SetUnavailable(_ types.NamespacedName, sites map[string]bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.unavailable = sites
}

// saidCoordinator answers what the test says.
type saidCoordinator struct {
	mu        sync.Mutex
	status    *coordinatorv1.FederationStatus
	reachable membership.Tri
	why       string
	target    coordinators.Target
	pauses    []bool
	refuse    error
	forgotten bool
}

func (c *saidCoordinator) Ensure(_ types.NamespacedName, t coordinators.Target) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.target = t
}

func (c *saidCoordinator) Forget(types.NamespacedName) { c.forgotten = true }

func (c *saidCoordinator) Status(types.NamespacedName) (*coordinatorv1.FederationStatus, membership.Tri, string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.status, c.reachable, c.why
}

func (c *saidCoordinator) SetPaused(_ context.Context, key types.NamespacedName, paused bool, _ string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.refuse != nil {
		return c.refuse
	}
	c.pauses = append(c.pauses, paused)
	return nil
}

func (c *saidCoordinator) say(phase v1alpha1.FederationPhase, committed uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reachable, c.why = membership.Yes, ""
	c.status = &coordinatorv1.FederationStatus{Phase: string(phase), RoundsCommitted: committed, Round: &coordinatorv1.RoundStatus{Number: committed + 1, State: "Collecting"}}
	if committed > 0 {
		c.status.Version = &committed
	}
}

// heardEvents keeps events as "Normal Reason: note".
type heardEvents struct {
	mu  sync.Mutex
	all []string
}

func (h *heardEvents) Eventf(_, _ runtime.Object, kind, reason, _, note string, args ...any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.all = append(h.all, kind+" "+reason+": "+fmt.Sprintf(note, args...))
}

// count of events with a reason.
func (h *heardEvents) count(reason v1alpha1.Reason) (n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, e := range h.all {
		if strings.Contains(e, " "+string(reason)+":") {
			n++
		}
	}
	return n
}

// bench is one namespace with a reconciler.
type bench struct {
	t           *testing.T
	env         *testenv.Environment
	reads       client.Client
	namespace   string
	r           *FederationReconciler
	energy      *saidEnergy
	coordinator *saidCoordinator
	events      *heardEvents
	now         time.Time
}

func newBench(t *testing.T) *bench {
	e := testenv.Shared(t)
	b := &bench{t: t, env: e, reads: e.Client, namespace: e.Namespace(t), energy: &saidEnergy{}, coordinator: &saidCoordinator{why: "no answer yet"}, events: &heardEvents{}, now: time.Now().Truncate(time.Second)}
	b.restart()
	return b
}

// cached lets the reconciler read from a cache, as in a manager.
func (b *bench) cached() {
	b.t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	c, err := cache.New(b.env.Config, cache.Options{Scheme: testenv.Scheme(), DefaultNamespaces: map[string]cache.Config{b.namespace: {}}})
	if err != nil {
		b.t.Fatal(err)
	}
	done := make(chan struct{})
	go func() { defer close(done); _ = c.Start(ctx) }()
	b.t.Cleanup(func() { stop(); <-done })
	b.reads, err = client.New(b.env.Config, client.Options{Scheme: testenv.Scheme(), Cache: &client.CacheOptions{Reader: c, DisableFor: []client.Object{&corev1.Secret{}}}})
	if err != nil {
		b.t.Fatal(err)
	}
	b.restart()
}

// restart is a new operator process in the same world.
func (b *bench) restart() {
	metrics := NewMetrics(nil)
	b.r = &FederationReconciler{
		Client: b.reads, Reader: b.env.Client,
		Applier:      &apply.Applier{Client: b.reads, Reader: b.env.Client, Sends: metrics.Applies},
		Coordinators: b.coordinator, Energy: b.energy, Selection: &Selection{}, Answers: &Fan{}, Wishes: &Fan{},
		Images:   resources.Images{Coordinator: "coordinator:1", Agent: "agent:1", Redis: "redis:8"},
		Operator: resources.Peer{Namespace: "girassol", Labels: map[string]string{"app.kubernetes.io/name": "girassol"}},
		Now:      func() time.Time { return b.now }, Random: rand.Reader, Events: b.events, Metrics: metrics, Log: slog.New(slog.DiscardHandler),
	}
}

func (b *bench) create(o client.Object) {
	b.t.Helper()
	o.SetNamespace(b.namespace)
	if err := b.env.Client.Create(context.Background(), o); err != nil {
		b.t.Fatal(err)
	}
}

func (b *bench) site(name string) *v1alpha1.Site {
	b.t.Helper()
	s := &v1alpha1.Site{ObjectMeta: metav1.ObjectMeta{Name: name}}
	b.create(s)
	return s
}

// siteIs sets what the site controller would.
func (b *bench) siteIs(name, federation string, phase v1alpha1.SitePhase, reason v1alpha1.Reason) {
	b.t.Helper()
	s := &v1alpha1.Site{}
	b.get(name, s)
	s.Status = v1alpha1.SiteStatus{Federation: federation, Phase: phase, Reason: reason}
	if err := b.env.Client.Status().Update(context.Background(), s); err != nil {
		b.t.Fatal(err)
	}
}

func (b *bench) federation(name string, change func(*v1alpha1.FederationSpec), sites ...string) *v1alpha1.Federation {
	b.t.Helper()
	f := &v1alpha1.Federation{ObjectMeta: metav1.ObjectMeta{Name: name}}
	for _, s := range sites {
		f.Spec.Sites = append(f.Spec.Sites, v1alpha1.SiteReference{Name: s})
	}
	if change != nil {
		change(&f.Spec)
	}
	b.create(f)
	return f
}

func (b *bench) change(name string, f func(*v1alpha1.FederationSpec)) {
	b.t.Helper()
	o := &v1alpha1.Federation{}
	b.get(name, o)
	f(&o.Spec)
	if err := b.env.Client.Update(context.Background(), o); err != nil {
		b.t.Fatal(err)
	}
}

func (b *bench) get(name string, o client.Object) {
	b.t.Helper()
	if err := b.env.Client.Get(context.Background(), types.NamespacedName{Namespace: b.namespace, Name: name}, o); err != nil {
		b.t.Fatal(err)
	}
}

func (b *bench) gone(name string, o client.Object) bool {
	b.t.Helper()
	err := b.env.Client.Get(context.Background(), types.NamespacedName{Namespace: b.namespace, Name: name}, o)
	if client.IgnoreNotFound(err) != nil {
		b.t.Fatal(err)
	}
	return err != nil
}

// reconcile once and give the federation as it is then.
func (b *bench) reconcile(name string) (*v1alpha1.Federation, ctrl.Result) {
	b.t.Helper()
	result, err := b.r.Reconcile(context.Background(), ctrl.Request{NamespacedName: types.NamespacedName{Namespace: b.namespace, Name: name}})
	if err != nil {
		b.t.Fatal(err)
	}
	f := &v1alpha1.Federation{}
	if b.gone(name, f) {
		return nil, result
	}
	return f, result
}

func (b *bench) secret(name string) *corev1.Secret {
	b.t.Helper()
	s := &corev1.Secret{}
	b.get(name, s)
	return s
}

// is checks one condition.
func (b *bench) is(f *v1alpha1.Federation, of string, status metav1.ConditionStatus, reason v1alpha1.Reason) {
	b.t.Helper()
	if c := condition(f, of); c.Status != status || c.Reason != string(reason) {
		b.t.Errorf("%s is %s %s (%s), want %s %s", of, c.Status, c.Reason, c.Message, status, reason)
	}
}

func (b *bench) lacks(f *v1alpha1.Federation, of string) {
	b.t.Helper()
	if c := condition(f, of); c.Type != "" {
		b.t.Errorf("%s is there: %s %s (%s)", of, c.Status, c.Reason, c.Message)
	}
}

func siteOf(f *v1alpha1.Federation, name string) v1alpha1.FederationSite {
	i := slices.IndexFunc(f.Status.Sites, func(s v1alpha1.FederationSite) bool { return s.Name == name })
	if i < 0 {
		return v1alpha1.FederationSite{}
	}
	return f.Status.Sites[i]
}

var errRefused = errors.New("refused")

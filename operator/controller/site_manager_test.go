package controller

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrlconfig "sigs.k8s.io/controller-runtime/pkg/config"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/operator/membership"
)

// requests that may write, counted where they leave for the API server.
type requests struct {
	next    http.RoundTripper
	writes  atomic.Int64
	mu      sync.Mutex
	written []string
}

func (r *requests) RoundTrip(q *http.Request) (*http.Response, error) {
	if q.Method != http.MethodGet && q.Method != http.MethodHead {
		r.writes.Add(1)
		r.mu.Lock()
		r.written = append(r.written, q.Method+" "+q.URL.Path)
		r.mu.Unlock()
	}
	return r.next.RoundTrip(q)
}

// manage runs the reconciler in a manager, with its cache and its watches, until
// stop. The clock stands still.
func (g *rig) manage() (stop func(), sent *requests) {
	g.t.Helper()
	sent = &requests{}
	config := rest.CopyConfig(g.e.Config)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		sent.next = next
		return sent
	})
	g.life = newLife(g.writes)
	l := g.life
	m, err := ctrl.NewManager(config, ctrl.Options{
		Scheme:  g.e.Client.Scheme(),
		Metrics: metricsserver.Options{BindAddress: "0"},
		Cache:   cache.Options{DefaultNamespaces: map[string]cache.Config{g.namespace: {}}},
		NewClient: func(config *rest.Config, o client.Options) (client.Client, error) {
			c, err := client.NewWithWatch(config, o)
			if err != nil {
				return nil, err
			}
			return recording(c, g.journal, l), nil
		},
		Controller: ctrlconfig.Controller{SkipNameValidation: new(true)},
	})
	g.must(err)
	g.operate(m.GetClient())
	g.r.Reader = m.GetAPIReader()
	g.must(g.r.SetupWithManager(m))
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- m.Start(ctx) }()
	var once sync.Once
	stop = func() {
		once.Do(func() {
			cancel()
			if err := <-done; err != nil {
				g.t.Errorf("the manager ends with %v", err)
			}
		})
	}
	g.t.Cleanup(stop)
	return stop, sent
}

// eventually lets the world turn in real time until done.
func (g *rig) eventually(what string, done func() bool) {
	g.t.Helper()
	for end := time.Now().Add(2 * time.Minute); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		g.turnWorld()
		g.choose()
		for federation := range g.federationsOf() {
			g.r.Answers.Tell(types.NamespacedName{Namespace: g.namespace, Name: federation})
		}
		if done() {
			return
		}
	}
	g.t.Fatalf("never %s; done was:\n%s", what, strings.Join(g.journal.all(), "\n"))
}

func (g *rig) federationsOf() map[string]bool {
	out := map[string]bool{}
	for _, f := range g.sites {
		out[f] = true
	}
	return out
}

// flip changes a site's energy and says so, as the engine does.
func (g *rig) flip(site string, admit bool) {
	g.energy.set(site, admit)
	g.r.Wishes.Tell(types.NamespacedName{Namespace: g.namespace, Name: site})
}

func (g *rig) is(site string, p v1alpha1.SitePhase) func() bool {
	return func() bool { return g.site(site).Status.Phase == p }
}

func TestManagersKilledAfterEveryFewWritesEndRight(t *testing.T) {
	for _, writes := range []int{1, 2, 3} {
		t.Run(fmt.Sprintf("%d writes", writes), func(t *testing.T) {
			g := newRig(t)
			g.writes = writes
			g.scaled("quebec")
			g.federation("f", "quebec")
			stop, _ := g.manage()
			lives := 1
			until := func(what string, done func() bool) {
				t.Helper()
				g.eventually(what, func() bool {
					if done() {
						return true
					}
					if g.life.over() {
						stop()
						stop, _ = g.manage()
						lives++
					}
					return false
				})
			}
			until("idle", g.is("quebec", v1alpha1.SiteIdle))
			g.flip("quebec", true)
			until("training", func() bool { return g.is("quebec", v1alpha1.SiteActive)() && g.admitted("quebec") })
			g.flip("quebec", false)
			until("released", func() bool {
				p := g.site("quebec").Status.Provisioning
				return g.is("quebec", v1alpha1.SiteIdle)() && p.Wish == v1alpha1.WishRelease && p.State == v1alpha1.ProvisioningDone
			})
			g.wantOrder("quebec", "scale machines-quebec 2", "label", "seat ADMIT quebec", "seat DRAIN quebec", "unlabel", "scale machines-quebec 0")
			g.must(g.e.Client.Delete(t.Context(), g.site("quebec")))
			until("gone", func() bool { return g.gone("quebec") })
			t.Logf("%d operators", lives)
		})
	}
}

// world is a site in each of the states in which it may stay.
func (g *rig) world() {
	g.t.Helper()
	g.scaled("quebec")
	g.labelled("atlanta")
	g.node("atlanta", 0)
	g.scaled("sleeper")
	g.labelled("blocked")
	g.energy.faults["blocked"] = blockedBySecret
	g.scaled("empty")
	g.boots["empty"] = false
	g.federation("f", "quebec", "atlanta", "sleeper", "blocked", "empty")
	for _, s := range []string{"quebec", "atlanta", "blocked", "empty"} {
		g.energy.set(s, true)
	}
}

func TestAThousandReconcilesOfAnUnchangedWorldWriteNothing(t *testing.T) {
	g := newRig(t)
	g.world()
	_, sent := g.manage()
	g.eventually("at rest", func() bool {
		return g.is("quebec", v1alpha1.SiteActive)() && g.is("atlanta", v1alpha1.SiteActive)() && g.is("sleeper", v1alpha1.SiteIdle)() &&
			g.is("blocked", v1alpha1.SiteBlocked)() && g.is("empty", v1alpha1.SiteProvisioning)() &&
			g.admitted("quebec") && g.admitted("atlanta")
	})
	// What has been written reaches the cache and is looked at once more.
	quiet := 0
	for before := int64(-1); quiet < 10; time.Sleep(20 * time.Millisecond) {
		g.must(g.reconcile())
		if now := sent.writes.Load(); now == before {
			quiet++
		} else {
			before, quiet = now, 0
		}
	}
	before := sent.writes.Load()
	for range 1000 / len(g.sites) {
		g.must(g.reconcile())
	}
	if n := sent.writes.Load() - before; n != 0 {
		t.Errorf("%d writes: %q", n, sent.written[before:])
	}
	if n := g.events.count("quebec", v1alpha1.ReasonSiteJoined); n != 1 {
		t.Errorf("%d events for one join", n)
	}
	// A reading that changes is told to the coordinators, not to the API server.
	g.energy.mu.Lock()
	g.energy.value = 21
	g.energy.mu.Unlock()
	g.must(g.reconcile())
	if n := sent.writes.Load() - before; n != 0 {
		t.Errorf("%d writes for a reading: %q", n, sent.written[before:])
	}
	g.desk.mu.Lock()
	defer g.desk.mu.Unlock()
	if got := g.desk.site("f", "quebec").Signal.GetValue(); got != 21 {
		t.Errorf("the coordinator books at %v", got)
	}
}

func TestTwoSitesThatFlapDoNotDisturbAThird(t *testing.T) {
	g := newRig(t)
	for _, s := range []string{"quebec", "atlanta", "calm"} {
		g.scaled(s)
	}
	g.federation("f", "quebec", "atlanta", "calm")
	g.manage()
	g.flip("calm", true)
	g.eventually("calm trains", func() bool {
		return g.is("calm", v1alpha1.SiteActive)() && g.admitted("calm") && g.site("calm").Status.EnrolledNodes == 2
	})
	versions := func() (out []string) {
		s := g.site("calm")
		out = append(out, s.Name+s.ResourceVersion)
		for _, n := range g.nodes("calm") {
			out = append(out, n.Name+n.ResourceVersion)
		}
		ds := &appsv1.DaemonSet{}
		g.must(g.e.Client.Get(t.Context(), types.NamespacedName{Namespace: g.namespace, Name: "f-calm-nvidia"}, ds))
		return append(out, ds.Name+ds.ResourceVersion)
	}
	var before []string
	same := 0
	g.eventually("calm rests", func() bool { // what was just written has been looked at again
		now := versions()
		same++
		if !slices.Equal(before, now) {
			before, same = now, 0
		}
		return same > 50
	})
	mark := len(g.journal.all())
	for range 5 {
		for _, s := range []string{"quebec", "atlanta"} {
			g.flip(s, true)
		}
		g.eventually("both train", func() bool {
			return g.is("quebec", v1alpha1.SiteActive)() && g.is("atlanta", v1alpha1.SiteActive)()
		})
		for _, s := range []string{"quebec", "atlanta"} {
			g.flip(s, false)
		}
		g.eventually("both sleep", func() bool { return g.is("quebec", v1alpha1.SiteIdle)() && g.is("atlanta", v1alpha1.SiteIdle)() })
	}
	if after := versions(); !slices.Equal(before, after) {
		t.Errorf("objects of the third site changed:\n%v\n%v", before, after)
	}
	for _, l := range g.journal.all()[mark:] {
		if strings.Contains(l, "calm") {
			t.Errorf("the third site was written to: %s", l)
		}
	}
}

// stuckCluster does not answer for one site until its caller gives up.
type stuckCluster struct {
	SiteClusters
	site string
}

func (s stuckCluster) For(ctx context.Context, site *v1alpha1.Site) (client.Client, membership.Cluster, *membership.Fault) {
	if site.Name == s.site {
		<-ctx.Done()
	}
	return s.SiteClusters.For(ctx, site)
}

func TestASiteThatHangsDelaysNoOther(t *testing.T) {
	g := newRig(t)
	g.labelled("quebec")
	g.labelled("hangs")
	g.node("quebec", 0)
	g.federation("f", "quebec", "hangs")
	g.clusters = stuckCluster{localCluster{g.e.Client}, "hangs"}
	g.manage()
	for range 3 {
		g.flip("hangs", true)
		g.flip("quebec", true)
		g.eventually("quebec trains", g.is("quebec", v1alpha1.SiteActive))
		g.flip("quebec", false)
		g.eventually("quebec sleeps", g.is("quebec", v1alpha1.SiteIdle))
	}
}

func TestChangesOfNodesPodsAndFederationsWakeTheSite(t *testing.T) {
	g := newRig(t)
	g.labelled("quebec")
	f := g.federation("f", "quebec")
	g.manage()
	wait := func(what string, done func() bool) {
		t.Helper()
		for end := time.Now().Add(2 * time.Minute); !done(); time.Sleep(10 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("nothing woke the site: never %s", what)
			}
		}
	}
	wait("idle", g.is("quebec", v1alpha1.SiteIdle))
	n := g.node("quebec", 0)
	wait("the node is seen", func() bool { return g.site("quebec").Status.GPUs == 8 })
	g.flip("quebec", true)
	wait("the node is labelled", func() bool { return g.nodes("quebec")[0].Labels[v1alpha1.LabelAgent] != "" })
	p := g.pod("f", "quebec", n, corev1.PodStatus{Phase: corev1.PodPending, ContainerStatuses: []corev1.ContainerStatus{{
		Name: "agent", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff", Message: "not found"}}}}})
	wait("the pod is seen", func() bool {
		return conditionOf(g.site("quebec"), v1alpha1.ConditionNodesHealthy).Reason == string(v1alpha1.ReasonAgentPending)
	})
	zero := int64(0)
	g.must(g.e.Client.Delete(t.Context(), p, &client.DeleteOptions{GracePeriodSeconds: &zero}))
	wait("the pod is gone", func() bool {
		return conditionOf(g.site("quebec"), v1alpha1.ConditionNodesHealthy).Reason == string(v1alpha1.ReasonHealthy)
	})
	ds := &appsv1.DaemonSet{}
	key := types.NamespacedName{Namespace: g.namespace, Name: "f-quebec-nvidia"}
	g.must(g.e.Client.Get(t.Context(), key, ds))
	g.must(g.e.Client.Delete(t.Context(), ds))
	wait("the DaemonSet is there again", func() bool {
		again := &appsv1.DaemonSet{}
		return g.e.Client.Get(t.Context(), key, again) == nil && again.UID != ds.UID
	})
	g.edit(f, func() { f.Spec.State = v1alpha1.StateSuspended })
	wait("asleep", g.is("quebec", v1alpha1.SiteIdle))
}

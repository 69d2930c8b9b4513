package app

import (
	"context"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/operator/testenv"
)

// The crowd: sites of each of several federations, each with a node.
const (
	crowdFederations = 5
	crowdSites       = 40 // of each
	// Bounds: what one site costs from nothing to its place, and what the whole
	// operator keeps. Measured values are in the test's log.
	maxWritesPerSite = 16
	maxReadsPerSite  = 10
	maxHeap          = 48 << 20
	// restarts in an unchanged world: more than 1,000 reconciles.
	restarts = 5
)

// reconciles of all controllers of this process.
func reconciles(t *testing.T) (n float64) {
	t.Helper()
	families, err := metrics.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(families, func(f *dto.MetricFamily) bool { return f.GetName() == "controller_runtime_reconcile_total" })
	if i < 0 {
		return 0
	}
	for _, m := range families[i].GetMetric() {
		n += m.GetCounter().GetValue()
	}
	return n
}

// stillness is longer than what a controller waits before it looks again: a second
// after a first failure or a write that was crossed, two after a second failure.
const stillness = 3 * time.Second

// quiet waits until nothing is reconciled and nothing written for so long.
func quiet(t *testing.T) {
	t.Helper()
	since, lastReconciles, lastWrites := time.Now(), -1.0, -1.0
	eventually(t, "rest", func() error {
		time.Sleep(180 * time.Millisecond)
		r, w := reconciles(t), testenv.Shared(t).Requests(t).Writes()
		if r != lastReconciles || w != lastWrites {
			since, lastReconciles, lastWrites = time.Now(), r, w
		}
		if time.Since(since) < stillness {
			return fmt.Errorf("%v reconciles, %v writes", r, w)
		}
		return nil
	})
}

func heap() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// TestACrowdOfSitesCostsBoundedRequestsAndMemory runs the whole operator over 200
// sites of 5 federations: from nothing, over a new operator in an unchanged world,
// to one change of every site.
func TestACrowdOfSitesCostsBoundedRequestsAndMemory(t *testing.T) {
	if testing.Short() {
		t.Skip("200 sites: not with -short")
	}
	e := testenv.Shared(t)
	namespace, ctx := e.Namespace(t), context.Background()
	base := heap()
	sites, o := crowd(t, namespace)
	t.Cleanup(func() {
		_ = e.Client.DeleteAllOf(ctx, &corev1.Node{}, client.MatchingLabels{"crowd": namespace})
	})

	type row struct {
		what                      string
		reconciles, reads, writes float64
		heap                      uint64
		detail                    testenv.Requests
	}
	var table []row
	measure := func(what string, do func()) row {
		beforeReconciles, before := reconciles(t), e.Requests(t)
		do()
		quiet(t)
		made := e.Requests(t).Since(before)
		r := row{what, reconciles(t) - beforeReconciles, made.Reads(), made.Writes(), heap(), made}
		table = append(table, r)
		return r
	}

	var p *operator
	first := measure("from nothing to training", func() {
		p = run(t, o)
		for i := range crowdFederations {
			eventually(t, "acceptance", accepted(t, namespace, fmt.Sprintf("fed-%d", i)))
		}
		eventually(t, "sites that train", func() error { return train(ctx, e.Client, namespace, sites) })
	})
	written := follow(t, namespace)
	restart := measure(fmt.Sprintf("%d new operators, nothing changed", restarts), func() {
		for range restarts {
			p.end()
			before := reconciles(t)
			p = run(t, o)
			eventually(t, "reconciles of everything", func() error {
				if n := reconciles(t) - before; n < float64(sites+crowdFederations) {
					return fmt.Errorf("%v", n)
				}
				return nil
			})
			quiet(t)
		}
	})
	changes := written.since()
	change := measure("a field of every site changed", func() {
		var all v1alpha1.SiteList
		if err := e.Client.List(ctx, &all, client.InNamespace(namespace)); err != nil {
			t.Fatal(err)
		}
		for i := range all.Items {
			old := all.Items[i].DeepCopy()
			all.Items[i].Spec.Power.IdleWatts++
			if err := e.Client.Patch(ctx, &all.Items[i], client.MergeFrom(old)); err != nil {
				t.Fatal(err)
			}
		}
		eventually(t, "all observed", func() error {
			if err := e.Client.List(ctx, &all, client.InNamespace(namespace)); err != nil {
				return err
			}
			for _, s := range all.Items {
				if s.Status.ObservedGeneration != s.Generation {
					return fmt.Errorf("%s: observed %d of %d", s.Name, s.Status.ObservedGeneration, s.Generation)
				}
			}
			return nil
		})
	})

	t.Logf("%-34s %10s %10s %10s %10s", fmt.Sprintf("%d sites, %d federations", sites, crowdFederations), "reconciles", "reads", "writes", "heap MiB")
	for _, r := range table {
		t.Logf("%-34s %10.0f %10.0f %10.0f %10.1f", r.what, r.reconciles, r.reads, r.writes, float64(r.heap-min(base, r.heap))/(1<<20))
		for _, what := range slices.Sorted(maps.Keys(r.detail)) {
			t.Logf("    %-40s %6.0f", what, r.detail[what])
		}
	}
	if first.writes > float64(maxWritesPerSite*sites) || first.reads > float64(maxReadsPerSite*sites) {
		t.Errorf("from nothing: %.0f reads and %.0f writes for %d sites", first.reads, first.writes, sites)
	}
	if restart.reconciles < 1000 || restart.writes != 0 {
		t.Errorf("%.0f reconciles of an unchanged world make writes: %v\n%s", restart.reconciles, restart.detail, strings.Join(changes, "\n"))
	}
	// Of the test itself: one write for each site; of the operator: its status, and
	// the coordinators' configuration for many at a time.
	if change.writes > float64(6*sites) {
		t.Errorf("a changed field: %.0f writes for %d sites", change.writes, sites)
	}
	for _, r := range table {
		if r.heap > base+maxHeap {
			t.Errorf("%s: heap of %d MiB over the test's own", r.what, (r.heap-base)>>20)
		}
	}
}

// crowd makes the objects and their coordinators and says how many sites there are.
func crowd(t *testing.T, namespace string) (sites int, o Options) {
	t.Helper()
	o = options(t, namespace)
	o.Resolve = map[string]string{}
	for i := range crowdFederations {
		var names []string
		for j := range crowdSites {
			name := fmt.Sprintf("site-%d-%02d", i, j)
			s := site(namespace, name)
			s.Spec.Nodes = &v1alpha1.NodesSpec{Selector: metav1.LabelSelector{MatchLabels: map[string]string{"crowd": namespace, "place": name}}}
			s.Spec.Capacity.SettleSeconds = new(int32(0))
			create(t, s)
			n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: namespace + "-" + name, Labels: map[string]string{"crowd": namespace, "place": name}}}
			create(t, n)
			gpus := resource.MustParse("8")
			n.Status.Allocatable = corev1.ResourceList{"nvidia.com/gpu": gpus}
			n.Status.Capacity = n.Status.Allocatable
			n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
			if err := testenv.Shared(t).Client.Status().Update(context.Background(), n); err != nil {
				t.Fatal(err)
			}
			names = append(names, name)
			sites++
		}
		name := fmt.Sprintf("fed-%d", i)
		create(t, federation(namespace, name, names...))
		from, to := playCoordinator(t, namespace, name, names).resolve(namespace, name)
		o.Resolve[from] = to
	}
	return sites, o
}

// train says whether all sites do.
func train(ctx context.Context, c client.Client, namespace string, want int) error {
	var all v1alpha1.SiteList
	if err := c.List(ctx, &all, client.InNamespace(namespace)); err != nil {
		return err
	}
	n, other := 0, ""
	for _, s := range all.Items {
		if s.Status.Phase == v1alpha1.SiteActive {
			n++
		} else {
			other = fmt.Sprintf("%s is %s %s", s.Name, s.Status.Phase, s.Status.Reason)
		}
	}
	if n != want {
		return fmt.Errorf("%d of %d; %s", n, want, other)
	}
	return nil
}

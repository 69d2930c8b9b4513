// Package remote reaches other clusters by kubeconfigs in Secrets: it keeps a
// connection to each, with a cache of its Nodes, and says how it stands.
//
// It owns what a kubeconfig may hold, the connections, their health and their
// retries. It must not know what is done in a cluster. No call here waits for a
// cluster that does not answer; one that is gone touches no other.
package remote

import (
	"context"
	"log/slog"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/operator/membership"
)

// Options of Clusters. Durations of zero take their default.
type Options struct {
	// Local speaks to the operator's own cluster. Sites are read through it.
	Local client.Client
	// Secrets reads kubeconfigs; nil: Local.
	Secrets client.Reader
	// Timeout of one request to a cluster. Default 10 s.
	Timeout time.Duration
	// ProbeEvery is between two looks at a connected cluster's health; two in a row
	// that fail disconnect it. Default 10 s.
	ProbeEvery time.Duration
	// SecretEvery is between two looks at a Secret. Default 30 s.
	SecretEvery time.Duration
	// FirstWait doubles between tries to connect up to LastWait. Defaults 5 s and
	// 5 min.
	FirstWait, LastWait time.Duration
	// Log; nil: none.
	Log *slog.Logger
}

// Clusters that sites name.
type Clusters struct {
	o       Options
	changed chan event.GenericEvent
	wake    chan struct{} // holds one

	mu       sync.Mutex
	clusters map[secretRef]*cluster
	dirty    map[types.NamespacedName]bool
	// life is nil before Start.
	life    context.Context
	running sync.WaitGroup
}

// secretRef names a kubeconfig. Sites with the same one share a connection.
type secretRef struct {
	types.NamespacedName
	field string
}

// New makes Clusters; nothing is connected before Start.
func New(o Options) *Clusters {
	if o.Secrets == nil {
		o.Secrets = o.Local
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	for d, standard := range map[*time.Duration]time.Duration{
		&o.Timeout: 10 * time.Second, &o.ProbeEvery: 10 * time.Second, &o.SecretEvery: 30 * time.Second,
		&o.FirstWait: 5 * time.Second, &o.LastWait: 5 * time.Minute,
	} {
		if *d <= 0 {
			*d = standard
		}
	}
	return &Clusters{
		o:        o,
		changed:  make(chan event.GenericEvent),
		wake:     make(chan struct{}, 1),
		clusters: map[secretRef]*cluster{},
		dirty:    map[types.NamespacedName]bool{},
	}
}

// For gives a client for the cluster of a site's nodes: the local one, or for a
// site with spec.cluster one whose Nodes come from a cache and whose other
// requests end by Options.Timeout. It is nil while the cluster is not connected:
// then Cluster says why, or, if a person must see to it, the fault.
//
// It reads the Secret of a cluster that it does not know yet, or whose Secret was
// at fault, and never waits for the cluster.
func (c *Clusters) For(ctx context.Context, s *v1alpha1.Site) (client.Client, membership.Cluster, *membership.Fault) {
	site := client.ObjectKeyFromObject(s)
	if s.Spec.Cluster == nil {
		c.Forget(site)
		return c.o.Local, membership.Cluster{Reachable: membership.Yes}, nil
	}
	cl := c.use(site, refOf(s))
	if cl.unsettled() {
		cl.inspect(ctx)
	}
	return cl.view()
}

func refOf(s *v1alpha1.Site) secretRef {
	k := s.Spec.Cluster.KubeconfigSecret
	return secretRef{types.NamespacedName{Namespace: s.Namespace, Name: k.Name}, k.Key}
}

// use gives the cluster of a ref, and starts it at its first use.
func (c *Clusters) use(site types.NamespacedName, ref secretRef) *cluster {
	c.mu.Lock()
	defer c.mu.Unlock()
	for other, cl := range c.clusters {
		if other != ref {
			c.drop(cl, site)
		}
	}
	cl := c.clusters[ref]
	if cl == nil {
		cl = newCluster(c, ref)
		c.clusters[ref] = cl
		c.launch(cl)
	}
	cl.users[site] = true
	return cl
}

// launch runs a cluster if Start has been called; the lock is held.
func (c *Clusters) launch(cl *cluster) {
	if c.life == nil {
		return
	}
	ctx, cancel := context.WithCancel(c.life)
	cl.cancel = cancel
	c.running.Go(func() { cl.run(ctx) })
}

// drop takes a user off, and ends a cluster without users; the lock is held.
func (c *Clusters) drop(cl *cluster, site types.NamespacedName) {
	if delete(cl.users, site); len(cl.users) > 0 {
		return
	}
	if cl.cancel != nil {
		cl.cancel()
	}
	delete(c.clusters, cl.ref)
}

// Forget a site that is gone, or has its nodes here. A cluster that no site uses
// any more is disconnected.
func (c *Clusters) Forget(site types.NamespacedName) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, cl := range c.clusters {
		if cl.users[site] {
			c.drop(cl, site)
		}
	}
}

// Changed tells sites (by namespace and name only) whose cluster has connected,
// disconnected or got a fault, or has changed Nodes. It is for one reader, and
// tells while Start runs; what is not read yet is told once.
func (c *Clusters) Changed() <-chan event.GenericEvent { return c.changed }

// pruneEvery is between two looks for clusters whose sites are gone.
const pruneEvery = time.Minute

// Start keeps the connections until ctx ends, and returns when all are closed.
func (c *Clusters) Start(ctx context.Context) error {
	c.mu.Lock()
	c.life = ctx
	for _, cl := range c.clusters {
		c.launch(cl)
	}
	c.mu.Unlock()
	tick := time.NewTicker(pruneEvery)
	defer tick.Stop()
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-tick.C:
			c.prune(ctx)
		case <-c.wake:
			c.pump(ctx)
		}
	}
	c.mu.Lock()
	c.life = nil // no cluster is launched any more
	c.mu.Unlock()
	c.running.Wait()
	return nil
}

// pump tells all that waits to be told.
func (c *Clusters) pump(ctx context.Context) {
	c.mu.Lock()
	dirty := c.dirty
	c.dirty = map[types.NamespacedName]bool{}
	c.mu.Unlock()
	for site := range dirty {
		s := &v1alpha1.Site{ObjectMeta: metav1.ObjectMeta{Namespace: site.Namespace, Name: site.Name}}
		select {
		case c.changed <- event.GenericEvent{Object: s}:
		case <-ctx.Done():
			return
		}
	}
}

// tell that something about a cluster has changed.
func (c *Clusters) tell(cl *cluster) {
	c.mu.Lock()
	for site := range cl.users {
		c.dirty[site] = true
	}
	c.mu.Unlock()
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// prune forgets sites that are gone without anybody having said so.
func (c *Clusters) prune(ctx context.Context) {
	var sites v1alpha1.SiteList
	if err := c.o.Local.List(ctx, &sites); err != nil {
		return // it is tried again
	}
	refs := map[types.NamespacedName]secretRef{}
	for i := range sites.Items {
		if s := &sites.Items[i]; s.Spec.Cluster != nil {
			refs[client.ObjectKeyFromObject(s)] = refOf(s)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for ref, cl := range c.clusters {
		for site := range cl.users {
			if refs[site] != ref {
				c.drop(cl, site)
			}
		}
	}
}

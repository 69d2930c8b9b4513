package remote

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v4"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/operator/membership"
)

// failedProbes in a row disconnect.
const failedProbes = 2

// cluster is one kubeconfig and what became of it.
type cluster struct {
	of  *Clusters
	ref secretRef
	// users and cancel are guarded by the Clusters' lock.
	users  map[types.NamespacedName]bool
	cancel context.CancelFunc
	kick   chan struct{} // holds one: the Secret has changed

	mu sync.Mutex
	// raw is the Secret's contents as last read; wanted comes of it, nil with a fault.
	raw    []byte
	wanted *rest.Config
	fault  *membership.Fault
	// client is nil unless connected.
	client client.Client
	state  membership.Cluster
}

func newCluster(of *Clusters, ref secretRef) *cluster {
	return &cluster{
		of: of, ref: ref,
		users: map[types.NamespacedName]bool{},
		kick:  make(chan struct{}, 1),
		state: membership.Cluster{Remote: true, Reachable: membership.Unknown, Message: "connecting"},
	}
}

// unsettled: the Secret has to be looked at again before anything can be said.
func (cl *cluster) unsettled() bool {
	cl.mu.Lock()
	defer cl.mu.Unlock()
	return cl.wanted == nil
}

func (cl *cluster) view() (client.Client, membership.Cluster, *membership.Fault) {
	cl.mu.Lock()
	defer cl.mu.Unlock()
	return cl.client, cl.state, cl.fault
}

// inspect reads the Secret and takes over what has changed in it.
func (cl *cluster) inspect(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, cl.of.o.Timeout)
	defer cancel()
	secret := &corev1.Secret{}
	err := cl.of.o.Secrets.Get(ctx, cl.ref.NamespacedName, secret)
	raw, there := secret.Data[cl.ref.field]
	switch {
	case apierrors.IsNotFound(err):
		cl.refuse(nil, v1alpha1.ReasonSecretNotFound, fmt.Sprintf(
			"Secret %s, named by cluster.kubeconfigSecret, does not exist: create it with the kubeconfig under %s", cl.ref.Name, cl.ref.field))
	case apierrors.IsForbidden(err):
		cl.refuse(nil, v1alpha1.ReasonSecretNotFound, fmt.Sprintf(
			"Secret %s, named by cluster.kubeconfigSecret, may not be read: give the operator the verb get on secrets in this namespace", cl.ref.Name))
	case err != nil:
		// What was read before holds until more is known.
	case !there:
		cl.refuse(nil, v1alpha1.ReasonSecretInvalid, fmt.Sprintf(
			"Secret %s has no key %s, which cluster.kubeconfigSecret names", cl.ref.Name, cl.ref.field))
	default:
		cl.take(raw)
	}
}

// take a kubeconfig, if it is another one.
func (cl *cluster) take(raw []byte) {
	cl.mu.Lock()
	same := cl.raw != nil && bytes.Equal(cl.raw, raw)
	cl.mu.Unlock()
	if same {
		return
	}
	config, err := parseKubeconfig(raw)
	if err != nil {
		cl.refuse(raw, v1alpha1.ReasonKubeconfigInvalid, fmt.Sprintf("kubeconfig in Secret %s, key %s: %s", cl.ref.Name, cl.ref.field, err))
		return
	}
	cl.mu.Lock()
	cl.raw, cl.wanted = bytes.Clone(raw), config
	news := cl.fault != nil
	cl.fault = nil
	cl.mu.Unlock()
	cl.nudge()
	if news {
		cl.of.tell(cl)
	}
}

func (cl *cluster) refuse(raw []byte, reason v1alpha1.Reason, message string) {
	fault := &membership.Fault{Reason: reason, Message: message}
	cl.mu.Lock()
	news := cl.fault == nil || *cl.fault != *fault
	cl.raw, cl.wanted, cl.fault = bytes.Clone(raw), nil, fault
	cl.mu.Unlock()
	if news {
		cl.nudge()
		cl.of.tell(cl)
	}
}

func (cl *cluster) nudge() {
	select {
	case cl.kick <- struct{}{}:
	default:
	}
}

// show what can be said now; readers are told if it is new.
func (cl *cluster) show(c client.Client, reachable membership.Tri, message string) {
	cl.mu.Lock()
	state := membership.Cluster{Remote: true, Reachable: reachable, Message: message}
	news := cl.state != state || cl.client != c
	cl.state, cl.client = state, c
	cl.mu.Unlock()
	if !news {
		return
	}
	cl.of.o.Log.Info("cluster", "namespace", cl.ref.Namespace, "secret", cl.ref.Name, "reachable", reachable == membership.Yes, "state", message)
	cl.of.tell(cl)
}

// run keeps the cluster connected until ctx ends.
func (cl *cluster) run(ctx context.Context) {
	o := cl.of.o
	pause := backoff.NewExponentialBackOff(backoff.WithInitialInterval(o.FirstWait), backoff.WithMaxInterval(o.LastWait),
		backoff.WithMaxElapsedTime(0), backoff.WithRandomizationFactor(0.2))
	l := &link{cluster: cl}
	defer l.close()
	secretAt := time.Now().Add(o.SecretEvery)
	for {
		wait := o.ProbeEvery
		if !l.step(ctx) {
			wait = pause.NextBackOff()
		} else if l.proven {
			pause.Reset()
		}
		for stepAt, due := time.Now().Add(wait), false; !due; {
			kicked, ok := cl.sleep(ctx, min(time.Until(stepAt), time.Until(secretAt)))
			if !ok {
				return
			}
			if time.Until(secretAt) <= 0 {
				cl.inspect(ctx) // kicks if there is news
				secretAt = time.Now().Add(o.SecretEvery)
			}
			due = kicked || time.Until(stepAt) <= 0
		}
	}
}

// sleep until the wait is over or the Secret has changed; not ok: ctx ended.
func (cl *cluster) sleep(ctx context.Context, wait time.Duration) (kicked, ok bool) {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false, false
	case <-cl.kick:
		return true, true
	case <-timer.C:
		return false, true
	}
}

// link is what run holds of a cluster: at most one connection.
type link struct {
	cluster  *cluster
	conn     *connection
	config   *rest.Config
	failures int
	// proven: a probe has succeeded since it was connected.
	proven bool
}

// step connects or looks at the connection's health; false says to come back
// later and later.
func (l *link) step(ctx context.Context) bool {
	cl := l.cluster
	cl.mu.Lock()
	wanted := cl.wanted
	cl.mu.Unlock()
	switch {
	case wanted == nil:
		cl.show(nil, membership.Unknown, "its kubeconfig cannot be used")
		l.close()
		return true
	case l.conn == nil || l.config != wanted:
		fresh, err := connect(ctx, wanted, cl.of.o.Local.Scheme(), cl.of.o.Timeout, func() { cl.of.tell(cl) })
		if ctx.Err() != nil {
			fresh.close()
			return false
		}
		if err != nil {
			cl.show(nil, membership.No, describe(err))
			l.close()
			return false
		}
		cl.show(fresh.client, membership.Yes, "connected")
		l.close() // of the kubeconfig before, after nobody gets it any more
		l.conn, l.config = fresh, wanted
		return true
	}
	if err := l.conn.probe(ctx); err != nil {
		if l.failures++; l.failures < failedProbes {
			return true
		}
		cl.show(nil, membership.No, describe(err))
		l.close()
		return false
	}
	l.failures, l.proven = 0, true
	return true
}

func (l *link) close() {
	l.conn.close()
	l.conn, l.config, l.failures, l.proven = nil, nil, 0, false
}

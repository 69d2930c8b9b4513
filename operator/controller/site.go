package controller

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	logf "sigs.k8s.io/controller-runtime/pkg/log"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/operator/capacity"
	"girassol.dev/operator/membership"
	"girassol.dev/operator/resources"
)

// SiteReconciler brings a site to what membership.Decide says: gather, decide,
// write the status, then act. The status goes first because clocks and keys in it
// are what an act counts from: an operator that is killed between the two finds
// the clock running and acts again, and every act is harmless when repeated.
type SiteReconciler struct {
	// Client reads from the cache. Reader reads from the API server itself.
	Client       client.Client
	Reader       client.Reader
	Applier      SiteApplier
	Energy       SiteEnergy
	Coordinators SiteCoordinators
	Capacity     SiteCapacity
	Clusters     SiteClusters
	Selection    *Selection
	// Wishes, ClusterChanges and CapacityChanges tell Sites, Answers Federations, of
	// which something changed outside of the API.
	Wishes, ClusterChanges, CapacityChanges, Answers *Fan
	Images                                           resources.Images
	// Concurrent sites; 0 is 8.
	Concurrent int
	Now        func() time.Time
	Events     events.EventRecorder
	Metrics    *Metrics
	Log        *slog.Logger

	// written are the resource versions of our own last writes, so that a cache that
	// lags behind them is noticed; told is what the coordinators were told since
	// they last spoke; shown are the metrics' labels.
	written sync.Map // types.NamespacedName -> string
	told    sync.Map // types.NamespacedName -> told
	shown   sync.Map // types.NamespacedName -> []string
}

// SiteApplier writes objects that differ from what they should be.
type SiteApplier interface {
	Apply(ctx context.Context, desired runtime.ApplyConfiguration) (changed bool, err error)
	Status(ctx context.Context, wanted, old client.Object) (changed bool, err error)
	Delete(ctx context.Context, o client.Object) (deleted bool, err error)
}

// SiteEnergy is the signals engine.
type SiteEnergy interface {
	Wish(federation types.NamespacedName, site string) (membership.Energy, *coordinatorv1.Signal)
	SiteFault(federation types.NamespacedName, site string) *membership.Fault
}

// SiteCoordinators speak for the federations' coordinators.
type SiteCoordinators interface {
	Status(federation types.NamespacedName) (*coordinatorv1.FederationStatus, membership.Tri, string)
	SetMembership(ctx context.Context, federation types.NamespacedName, r *coordinatorv1.SetMembershipRequest) (*coordinatorv1.SetMembershipResponse, error)
}

// SiteCapacity keeps what makes a site's nodes exist.
type SiteCapacity interface {
	Look(ctx context.Context, c client.Client, s *v1alpha1.Site) (capacity.State, error)
	Ask(ctx context.Context, c client.Client, s *v1alpha1.Site, provision bool) (capacity.State, error)
	// NeedsCluster says whether c must reach the cluster of the nodes.
	NeedsCluster(s *v1alpha1.Site) bool
	Forget(site types.NamespacedName)
}

// SiteClusters finds the cluster in which a site's nodes are.
type SiteClusters interface {
	For(ctx context.Context, s *v1alpha1.Site) (client.Client, membership.Cluster, *membership.Fault)
	Forget(site types.NamespacedName)
}

// outsideTimeout bounds each thing that is asked of another cluster, a
// coordinator or a provisioner.
const outsideTimeout = 10 * time.Second

// soon is when something is tried again that a write of someone else crossed.
const soon = time.Second

// Reconcile implements reconcile.Reconciler.
func (r *SiteReconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	return settled(r.reconcile(ctx, request))
}

func (r *SiteReconciler) reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	s, err := r.site(ctx, request.NamespacedName)
	if apierrors.IsNotFound(err) {
		r.forget(request.NamespacedName)
		return ctrl.Result{}, nil
	}
	if err != nil {
		return ctrl.Result{}, err
	}
	now, going := r.Now(), !s.DeletionTimestamp.IsZero()
	if going && !held(s) {
		return ctrl.Result{}, nil // somebody else's finalizer keeps it
	}
	v, err := r.look(ctx, s, now)
	switch {
	case err != nil && going && !now.Before(releaseDeadline(s)):
		return ctrl.Result{}, errors.Join(err, r.giveUp(ctx, s))
	case err != nil || !v.known:
		return ctrl.Result{}, err
	case !going && v.tenure.name != "" && needsRelease(s) && !held(s):
		if v.world.Site, err = r.hold(ctx, s); err != nil {
			return ctrl.Result{}, err
		}
	}
	d, err := r.settle(ctx, v)
	if going && d.Released {
		err = errors.Join(err, r.sweep(ctx, v.world.Site))
	}
	switch {
	case going && d.Released && (err == nil || !now.Before(releaseDeadline(s))):
		if err != nil {
			logf.FromContext(ctx).Error(err, "the site goes, and something of it is left")
		}
		return ctrl.Result{}, r.letGo(ctx, v.world.Site)
	case errors.Is(err, errCrossed):
		logf.FromContext(ctx).Info("decided again, because an object has changed meanwhile", "what", err.Error())
		return ctrl.Result{RequeueAfter: soon}, nil
	case err != nil:
		return ctrl.Result{}, err
	}
	return again(r.Now(), d.Wake), nil
}

// settle decides, writes the status and acts, and decides once more if an act has
// changed what was decided from. Agents' DaemonSets wait for no decision, and it
// has to know whether they are taken; that they cannot be brought holds up nobody
// who leaves.
func (r *SiteReconciler) settle(ctx context.Context, v *view) (d membership.Decision, err error) {
	failed := r.bringAgents(ctx, v)
	d = membership.Decide(v.world)
	if err := r.write(ctx, v, d); err != nil {
		return d, errors.Join(failed, err)
	}
	changed, err := r.act(ctx, v, d)
	if changed {
		d = membership.Decide(v.world)
		err = errors.Join(err, r.write(ctx, v, d))
	}
	if err = errors.Join(failed, err); err != nil {
		return d, err
	}
	if v.unseen != nil {
		return d, v.unseen // tried again
	}
	if v.state.Recheck > 0 {
		d.Wake = earliest(d.Wake, r.Now().Add(v.state.Recheck))
	}
	if v.refused { // nothing tells of a policy that no longer refuses
		d.Wake = earliest(d.Wake, r.Now().Add(lastRetry))
	}
	return d, r.observed(ctx, v)
}

// site is the newest that is known of it: the cache may lag behind our own last
// write, and deciding from what was before would start clocks anew.
func (r *SiteReconciler) site(ctx context.Context, key types.NamespacedName) (*v1alpha1.Site, error) {
	s := &v1alpha1.Site{}
	if err := r.Client.Get(ctx, key, s); err != nil {
		return nil, err
	}
	if written, ok := r.written.Load(key); ok && isOlder(s.ResourceVersion, written.(string)) {
		if err := r.Reader.Get(ctx, key, s); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// forget a site that is gone.
func (r *SiteReconciler) forget(key types.NamespacedName) {
	r.written.Delete(key)
	r.told.Delete(key)
	r.Capacity.Forget(key)
	r.Clusters.Forget(key)
	r.show(key, nil)
	r.Metrics.forgetSite(key)
}

// again is when to look again though nothing changed; deadlines are whole
// seconds.
func again(now, wake time.Time) ctrl.Result {
	if wake.IsZero() {
		return ctrl.Result{}
	}
	return ctrl.Result{RequeueAfter: max(wake.Sub(now), soon)}
}

func earliest(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

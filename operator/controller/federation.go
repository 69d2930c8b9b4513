package controller

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/operator/coordinators"
	"girassol.dev/operator/membership"
	"girassol.dev/operator/resources"
)

// FederationReconciler brings what a federation runs to what its spec says, and
// its status to what can be seen: gather, issue certificates, apply, say, show.
type FederationReconciler struct {
	// Client reads from the cache. Reader reads from the API server itself: Secrets
	// are in no cache.
	Client       client.Client
	Reader       client.Reader
	Applier      FederationApplier
	Coordinators FederationCoordinators
	Energy       FederationEnergy
	Selection    *Selection
	// Answers tells Federations whose coordinator said something new, Wishes Sites
	// of which energy wants something else.
	Answers, Wishes *Fan
	Images          resources.Images
	// Operator is who may call coordinators.
	Operator resources.Peer
	Now      func() time.Time
	// Random draws keys.
	Random  io.Reader
	Events  events.EventRecorder
	Metrics *Metrics
	Log     *slog.Logger

	// issued are certificates that were looked at, and shown the last statuses
	// written; both only save questions.
	issued sync.Map // types.NamespacedName -> issued
	shown  sync.Map // types.NamespacedName -> shown
}

// FederationApplier writes objects that differ from what they should be.
type FederationApplier interface {
	Apply(ctx context.Context, desired runtime.ApplyConfiguration) (changed bool, err error)
	Create(ctx context.Context, desired runtime.ApplyConfiguration) (created bool, err error)
	Delete(ctx context.Context, o client.Object) (deleted bool, err error)
	Prune(ctx context.Context, owner metav1.Object, keep []runtime.ApplyConfiguration, lists []client.ObjectList, options ...client.ListOption) (deleted int, err error)
	Status(ctx context.Context, wanted, old client.Object) (changed bool, err error)
}

// FederationCoordinators speak for the federations' coordinators.
type FederationCoordinators interface {
	Ensure(federation types.NamespacedName, t coordinators.Target)
	Forget(federation types.NamespacedName)
	Status(federation types.NamespacedName) (*coordinatorv1.FederationStatus, membership.Tri, string)
	SetPaused(ctx context.Context, federation types.NamespacedName, paused bool, message string) error
}

// FederationEnergy is the signals engine.
type FederationEnergy interface {
	Ensure(ctx context.Context, f *v1alpha1.Federation, sites []v1alpha1.Site) error
	Forget(federation types.NamespacedName)
	Wish(federation types.NamespacedName, site string) (membership.Energy, *coordinatorv1.Signal)
	SetUnavailable(federation types.NamespacedName, sites map[string]bool)
}

// federation is what is known of one, and what became of acting on it.
type federation struct {
	*v1alpha1.Federation // as it was read; its status is the last one
	key                  types.NamespacedName
	now                  time.Time
	// sites that it names or that still leave it, by name; those that do not exist
	// are in missing.
	sites   []v1alpha1.Site
	missing []string
	// mine are the names of those that it has.
	mine map[string]bool
	// wishes of energy, for mine.
	wishes map[string]membership.Energy
	// selected of mine.
	selected map[string]bool
	// fault is why the spec cannot be acted on in full; nil if it can.
	fault *membership.Fault
	// asked: the coordinator's answer is on its way. coordinator is nil before it
	// said anything.
	asked       bool
	coordinator *coordinatorv1.FederationStatus
	reachable   membership.Tri
	unreachable string
	// paused: the coordinator has been told to pause by spec.state.
	paused bool
	// wake is when to look again though nothing changed; zero: never.
	wake time.Time
}

// Reconcile implements reconcile.Reconciler.
func (r *FederationReconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	return settled(r.reconcile(ctx, request))
}

func (r *FederationReconciler) reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	f := &v1alpha1.Federation{}
	if err := r.Client.Get(ctx, request.NamespacedName, f); err != nil {
		if apierrors.IsNotFound(err) {
			r.forget(request.NamespacedName)
			return ctrl.Result{}, nil
		}
		return ctrl.Result{}, err
	}
	now := r.Now()
	v, err := r.gather(ctx, f, now)
	if err != nil {
		return ctrl.Result{}, err
	}
	if !f.DeletionTimestamp.IsZero() {
		return r.leave(ctx, v)
	}
	if !drains(f) {
		if err := r.applyFinalizers(ctx, f, v1alpha1.FinalizerFederationDrain); err != nil {
			return ctrl.Result{}, err
		}
	}
	failed := r.act(ctx, v)
	if err := r.show(ctx, v, failed == nil); err != nil || failed != nil {
		return ctrl.Result{}, errors.Join(failed, err)
	}
	return again(r.Now(), v.wake), nil
}

// gather reads what is known; it changes nothing.
func (r *FederationReconciler) gather(ctx context.Context, f *v1alpha1.Federation, now time.Time) (*federation, error) {
	v := &federation{Federation: r.newest(f), key: keyOf(f), now: now.Truncate(time.Second), mine: map[string]bool{}, wishes: map[string]membership.Energy{}}
	var sites v1alpha1.SiteList
	if err := r.Client.List(ctx, &sites, client.InNamespace(f.Namespace)); err != nil {
		return nil, err
	}
	var all v1alpha1.FederationList
	if err := r.Client.List(ctx, &all, client.InNamespace(f.Namespace)); err != nil {
		return nil, err
	}
	exist := map[string]bool{}
	for _, s := range sites.Items {
		exist[s.Name] = true
		t := tenureOf(&s, all.Items)
		mine := t.name == f.Name
		if !mine && !names(f, s.Name) {
			continue
		}
		v.sites = append(v.sites, s)
		if mine {
			v.mine[s.Name] = true
		}
	}
	slices.SortFunc(v.sites, func(a, b v1alpha1.Site) int { return strings.Compare(a.Name, b.Name) })
	for _, s := range f.Spec.Sites {
		if !exist[s.Name] {
			v.missing = append(v.missing, s.Name)
		}
	}
	slices.Sort(v.missing)
	v.coordinator, v.reachable, v.unreachable = r.Coordinators.Status(v.key)
	return v, nil
}

// act does all that the spec asks for, as far as it can; what hinders a part does
// not hinder the others.
func (r *FederationReconciler) act(ctx context.Context, v *federation) error {
	if len(v.missing) > 0 {
		v.blame(&membership.Fault{Reason: v1alpha1.ReasonSiteNotFound, Message: "there is no Site " + list(v.missing) + " in this namespace: create it, or take it out of spec.sites"})
	}
	failed := r.run(ctx, v)
	failed = errors.Join(failed, r.listen(ctx, v))
	if f := v.fault; f != nil && (f.Reason == v1alpha1.ReasonSecretNotFound || f.Reason == v1alpha1.ReasonSecretInvalid) {
		v.wakeBy(v.now.Add(missingSecret)) // nothing tells of Secrets
	}
	v.choose(r)
	return errors.Join(failed, r.pause(ctx, v))
}

// run brings certificates and children about and knows the coordinator.
func (r *FederationReconciler) run(ctx context.Context, v *federation) error {
	certificate, fault, err := r.certify(ctx, v)
	if err != nil {
		return err
	}
	if fault != nil {
		v.blame(fault)
		return nil
	}
	fault, err = r.applyChildren(ctx, v)
	if err != nil {
		return err
	}
	if fault != nil {
		v.blame(fault)
	}
	// A coordinator that runs is spoken to whatever the present spec is.
	r.Coordinators.Ensure(v.key, coordinators.Target{Address: resources.CoordinatorAddress(v.Federation), Certificate: certificate})
	v.asked = true
	v.coordinator, v.reachable, v.unreachable = r.Coordinators.Status(v.key)
	return nil
}

// pause suspends the rounds as spec.state says. A pause that somebody else asked
// for is not ours to end: only a federation that was suspended is resumed.
func (r *FederationReconciler) pause(ctx context.Context, v *federation) error {
	suspend := v.Spec.State == v1alpha1.StateSuspended
	v.paused = isSuspended(v.Federation)
	if suspend == v.paused || v.reachable != membership.Yes {
		return nil
	}
	if err := r.Coordinators.SetPaused(ctx, v.key, suspend, "spec.state of Federation "+v.key.String()); err != nil {
		if errors.Is(err, coordinators.ErrUnreachable) {
			v.reachable, v.unreachable = membership.Unknown, err.Error()
			return nil // the next answer wakes us
		}
		return err
	}
	v.paused = suspend
	r.Log.Info("federation", "namespace", v.Namespace, "federation", v.Name, "suspended", suspend)
	return nil
}

// blame keeps the worst: a later fault is one that more depends on.
func (v *federation) blame(f *membership.Fault) {
	if v.fault == nil || v.fault.Reason == v1alpha1.ReasonSiteNotFound {
		v.fault = f
	}
}

func (v *federation) wakeBy(t time.Time) { v.wake = earliest(v.wake, t) }

// forget a federation that is gone.
func (r *FederationReconciler) forget(key types.NamespacedName) {
	r.Coordinators.Forget(key)
	r.Energy.Forget(key)
	r.Selection.Forget(key)
	r.issued.Delete(key)
	r.shown.Delete(key)
	r.Metrics.forgetFederation(key)
}

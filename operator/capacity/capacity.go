// Package capacity makes a site's nodes come and go: by labels only, through the
// scale subresource of an object, or by asking an outside provisioner.
//
// It owns how each mode is asked, what refuses to be moved, and what an answer
// means. It must not know when capacity is wanted, what a deadline is, or how
// nodes are enrolled: that is decided elsewhere and lies in Site.status, from
// which every question can be asked again after a restart.
package capacity

import (
	"context"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/api/provisioning"
	"girassol.dev/operator/membership"
)

// State is what is known of a site's capacity.
type State struct {
	membership.Capacity
	// AdoptedReplicas that the scale target had before its first move; nil before,
	// and for other modes. It belongs into Site.status: see Ask.
	AdoptedReplicas *int32
	// PollURL at which the provisioner tells the outcome; it belongs into
	// Site.status.provisioning. Empty if there is none.
	PollURL string
	// Recheck is after how long to look and ask again though nothing tells; 0: never.
	Recheck time.Duration
}

// adapter is one way in which nodes come and go.
type adapter interface {
	// look reads.
	look(ctx context.Context, c client.Client, s *v1alpha1.Site) (State, error)
	// ask sees to it that the wish is taken.
	ask(ctx context.Context, c client.Client, s *v1alpha1.Site, provision bool) (State, error)
}

// Options of a Keeper.
type Options struct {
	// Local speaks to the operator's own cluster: it reads Secrets there, and moves
	// scale targets of cluster Management.
	Local client.Client
	// Callback is the public base URL of the provisioning API, such as
	// https://girassol.example; empty without one.
	Callback string
	// Transport for provisioners; nil: one that follows the package's bounds.
	Transport http.RoundTripper
	// Now is the clock; nil: the system's.
	Now func() time.Time
	// Log; nil: none.
	Log *slog.Logger
}

// Keeper looks after the capacity of sites. Its methods may be called at once
// from anywhere.
type Keeper struct {
	local client.Client
	scale *scale
	hook  *webhook
}

// New makes a Keeper.
func New(o Options) *Keeper {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Transport == nil {
		o.Transport = outbound()
	}
	o.Callback = strings.TrimSuffix(o.Callback, "/")
	return &Keeper{local: o.Local, scale: &scale{}, hook: newWebhook(o)}
}

// Look says how the capacity stands, for the wish in Site.status.provisioning. It
// changes nothing: at most two GETs for mode Scale, at most one question to a
// provisioner, which is not waited for. c reaches the cluster of the nodes.
//
// What can be named is a Fault; an error is for what may be gone a moment later.
func (k *Keeper) Look(ctx context.Context, c client.Client, s *v1alpha1.Site) (State, error) {
	a, c := k.adapter(s, c)
	return a.look(ctx, c, s)
}

// Ask wishes for active capacity (provision) or idle capacity. Asking again is
// harmless: nothing is sent when the target is as wished or the provisioner has
// the wish.
//
// The first time that a scale target would be moved, Ask does not: it answers
// with AdoptedReplicas and a short Recheck. Once the caller has these in
// Site.status, the next Ask moves, so that no crash in between can lose them. For
// a Site that is being deleted, !provision puts them back, unless someone else
// has moved the target since.
//
// A provisioner is asked for the wish and key in Site.status.provisioning, which
// must be of the same direction; its answer shows at a later Look or Ask, of which
// Changed tells.
func (k *Keeper) Ask(ctx context.Context, c client.Client, s *v1alpha1.Site, provision bool) (State, error) {
	a, c := k.adapter(s, c)
	return a.ask(ctx, c, s, provision)
}

func (k *Keeper) adapter(s *v1alpha1.Site, nodes client.Client) (adapter, client.Client) {
	switch s.Spec.Capacity.Mode {
	case v1alpha1.CapacityScale:
		if ref := s.Spec.Capacity.ScaleTargetRef; ref != nil && ref.Cluster == v1alpha1.ScaleInManagementCluster {
			nodes = k.local
		}
		return k.scale, nodes
	case v1alpha1.CapacityWebhook:
		return k.hook, nodes
	}
	return unmanaged{}, nodes
}

// NeedsCluster says whether Look and Ask of a site need the client of its nodes'
// cluster; where not, the client may be nil.
func (k *Keeper) NeedsCluster(s *v1alpha1.Site) bool {
	ref := s.Spec.Capacity.ScaleTargetRef
	return s.Spec.Capacity.Mode == v1alpha1.CapacityScale && ref != nil && ref.Cluster != v1alpha1.ScaleInManagementCluster
}

// Report takes what a provisioner told by itself about the wish of that key. It
// is kept in memory only: after a restart the provisioner is asked again with the
// same key. The caller has checked who speaks, and that the key is the present
// one's.
func (k *Keeper) Report(site types.NamespacedName, r provisioning.Result) { k.hook.report(site, r) }

// Changed tells sites (by namespace and name only) of which a provisioner has
// said something. Each is told once, to whom reads; what nobody reads is dropped,
// for Recheck finds it.
func (k *Keeper) Changed() <-chan event.GenericEvent { return k.hook.changed }

// Start waits for ctx to end and then for all questions in flight, which end with
// it. Keeper works without it, but then a question may outlive its caller by
// the time that one may take.
func (k *Keeper) Start(ctx context.Context) error { return k.hook.start(ctx) }

// Forget a site that is gone.
func (k *Keeper) Forget(site types.NamespacedName) { k.hook.forget(site) }

// unmanaged is for modes None and NodeLabel: the nodes stay.
type unmanaged struct{}

func (unmanaged) look(context.Context, client.Client, *v1alpha1.Site) (State, error) {
	return State{Capacity: membership.Capacity{Asked: true, Idle: true}}, nil
}

func (u unmanaged) ask(ctx context.Context, c client.Client, s *v1alpha1.Site, _ bool) (State, error) {
	return u.look(ctx, c, s)
}

var _ = []adapter{unmanaged{}, (*scale)(nil), (*webhook)(nil)}

package controller

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/types"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/operator/membership"
)

// errCrossed: someone else wrote an object since it was read. It is no failure:
// what is to be done is decided again.
var errCrossed = errors.New("crossed by another write")

// act does what was decided. Coming, a site gets its capacity, then its labels,
// then its seat at the coordinator; leaving, it goes the other way. What a later
// step rests on has been done, or the act ends there. changed says that the
// capacity now stands otherwise than it was decided from.
func (r *SiteReconciler) act(ctx context.Context, v *view, d membership.Decision) (changed bool, err error) {
	// A coordinator that hears nothing holds up nobody who leaves: Decide waits for
	// it, until the deadline.
	var failed error
	if d.Seat != nil && !d.Seat.Admit {
		failed = r.tell(ctx, v, *d.Seat)
	}
	release := d.Provision != nil && !*d.Provision
	if !release {
		if changed, err = r.ask(ctx, v, d.Provision); err != nil {
			return changed, errors.Join(failed, err)
		}
	}
	if err := r.enrol(ctx, v, d.Enrolment); err != nil {
		return changed, errors.Join(failed, err)
	}
	if release {
		changed, err = r.ask(ctx, v, d.Provision)
		failed = errors.Join(failed, err)
	}
	if d.Seat != nil && d.Seat.Admit {
		failed = errors.Join(failed, r.tell(ctx, v, *d.Seat))
	}
	return changed, failed
}

// ask says to the capacity's keeper what is wanted.
func (r *SiteReconciler) ask(ctx context.Context, v *view, provision *bool) (changed bool, err error) {
	if provision == nil || !v.world.Capacity.Managed {
		return false, nil
	}
	c, ok := r.keeperClient(v)
	if !ok {
		return false, nil
	}
	ctx, cancel := context.WithTimeout(ctx, outsideTimeout)
	defer cancel()
	known := v.state
	for {
		state, err := r.Capacity.Ask(ctx, c, v.world.Site, *provision)
		if err != nil {
			return false, fmt.Errorf("site %s: ask for its capacity: %w", v.world.Site.Name, err)
		}
		v.take(state)
		if state.AdoptedReplicas == nil || v.world.Site.Status.AdoptedReplicas != nil {
			return state.PollURL != known.PollURL || !sameCapacity(state.Capacity, known.Capacity), nil
		}
		// What the target had must be kept before it is moved for the first time.
		next := v.world.Site.DeepCopy()
		next.Status.AdoptedReplicas = state.AdoptedReplicas
		if err := r.replace(ctx, v, next); err != nil {
			return false, err
		}
	}
}

func sameCapacity(a, b membership.Capacity) bool {
	if (a.Fault == nil) != (b.Fault == nil) || a.Fault != nil && *a.Fault != *b.Fault {
		return false
	}
	a.Fault, b.Fault = nil, nil
	return a == b
}

func siteKey(s *v1alpha1.Site) types.NamespacedName {
	return types.NamespacedName{Namespace: s.Namespace, Name: s.Name}
}

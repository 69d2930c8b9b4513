package controller

import (
	"cmp"
	"context"
	"errors"
	"time"

	"google.golang.org/protobuf/proto"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/operator/coordinators"
	"girassol.dev/operator/membership"
)

// told is a wish that the coordinator has taken since it sent the status of the
// time; its next status shows it.
type told struct {
	request *coordinatorv1.SetMembershipRequest
	saidAt  int64
}

// tell says a site's membership to its coordinator, if the coordinator's own
// status does not show it yet. It needs no memory: a coordinator that forgot
// shows that it did.
func (r *SiteReconciler) tell(ctx context.Context, v *view, seat membership.Seat) error {
	if v.world.Coordinator.Reachable != membership.Yes || v.seat == nil {
		return nil // Changed wakes the site when it answers, or comes to know the site
	}
	want := wish(v, seat)
	if shows(v.seat, want) {
		return nil
	}
	key := siteKey(v.world.Site)
	if t, ok := r.told.Load(key); ok && t.(told).saidAt == v.saidAt && sameWish(t.(told).request, want) {
		return nil
	}
	_, err := r.Coordinators.SetMembership(ctx, v.federation, want)
	if errors.Is(err, coordinators.ErrUnreachable) {
		return nil
	}
	if err == nil {
		r.told.Store(key, told{want, v.saidAt})
	}
	return err
}

// wish is the request for a seat. It always has a signal, because one without is
// a person's.
func wish(v *view, seat membership.Seat) *coordinatorv1.SetMembershipRequest {
	want := &coordinatorv1.SetMembershipRequest{
		Site: v.world.Site.Name, Membership: coordinatorv1.Membership_MEMBERSHIP_ADMIT,
		Reason: string(seat.Reason), Message: seat.Message, Signal: v.signal,
	}
	if want.Signal == nil {
		want.Signal = &coordinatorv1.Signal{}
	}
	if !seat.Admit {
		want.Membership = coordinatorv1.Membership_MEMBERSHIP_DRAIN
		// 0 would be the federation's whole grace.
		want.DeadlineMs = max(seat.Deadline, time.Millisecond).Milliseconds()
	}
	return want
}

// shows says whether a coordinator's status of a site is what is wanted. A
// person's hold wins there and is left alone.
func shows(has *coordinatorv1.SiteStatus, want *coordinatorv1.SetMembershipRequest) bool {
	if !sameSignal(has.GetSignal(), want.GetSignal()) {
		return false
	}
	if isHeld(has) {
		return true
	}
	if has.GetMembership() != want.GetMembership() {
		return false
	}
	// Of an admitted site the reason is how far its members are.
	return want.GetMembership() == coordinatorv1.Membership_MEMBERSHIP_ADMIT || has.GetReason() == cmp.Or(want.GetReason(), string(v1alpha1.ReasonRequested))
}

func sameWish(a, b *coordinatorv1.SetMembershipRequest) bool {
	return a.GetMembership() == b.GetMembership() && a.GetReason() == b.GetReason() && sameSignal(a.GetSignal(), b.GetSignal())
}

// sameSignal leaves out when the window may change next: it moves with the clock.
func sameSignal(a, b *coordinatorv1.Signal) bool {
	if a == nil || b == nil {
		return a == b
	}
	a, b = proto.CloneOf(a), proto.CloneOf(b)
	a.NextChangeUnixMs, b.NextChangeUnixMs = 0, 0
	return proto.Equal(a, b)
}

package capacity

import (
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/operator/membership"
)

const (
	// moving is how often a target on its way is looked at: nothing watches it.
	moving = 10 * time.Second
	// stuck is how often one is looked at that waits for a person.
	stuck = time.Minute
	// remembered: the adopted replicas are being stored.
	remembered = time.Second
	// clusterTimeout bounds what one Look or Ask waits for a cluster.
	clusterTimeout = 15 * time.Second
	// races with other writers of the target before the caller has to come again.
	races = 3
)

// scale moves an object's scale subresource. It keeps nothing.
type scale struct{}

func (a *scale) look(ctx context.Context, c client.Client, s *v1alpha1.Site) (State, error) {
	if c == nil {
		return away(s), nil
	}
	ctx, cancel := context.WithTimeout(ctx, clusterTimeout)
	defer cancel()
	t, fault, err := read(ctx, c, s)
	if t == nil {
		return unseen(s, fault), err
	}
	w := wished(s)
	return t.state(s, w, t.goal(s, w)), nil
}

func (a *scale) ask(ctx context.Context, c client.Client, s *v1alpha1.Site, provision bool) (State, error) {
	if c == nil {
		return away(s), nil
	}
	ctx, cancel := context.WithTimeout(ctx, clusterTimeout)
	defer cancel()
	w := wishRelease
	if provision {
		w = wishProvision
	}
	var refused error
	for range races {
		t, fault, err := read(ctx, c, s)
		if t == nil {
			return unseen(s, fault), err
		}
		g := t.goal(s, w)
		state := t.state(s, w, g)
		if !g.move || state.Fault != nil {
			return state, nil
		}
		if s.Status.AdoptedReplicas == nil {
			state.AdoptedReplicas, state.Recheck = &t.replicas, remembered
			return state, nil
		}
		if refused = t.move(ctx, c, g.to); refused == nil {
			// Idle and settled are for a later look: what is known of the nodes was
			// before the move.
			state.Asked, state.Idle, state.Recheck = true, false, moving
			return state, nil
		}
		if !apierrors.IsConflict(refused) {
			break
		}
	}
	if fault := named(refused, s, verbUpdateScale); fault != nil {
		return unseen(s, fault), nil
	}
	return unseen(s, nil), fmt.Errorf("capacity: scale %s: %w", targetName(s), refused)
}

// away is the state of a target in a cluster that is not connected: what was
// taken is taken, no more is known, and who connects clusters tells when.
func away(s *v1alpha1.Site) State {
	return State{
		Capacity:        membership.Capacity{Managed: true, Asked: taken(s, wished(s))},
		AdoptedReplicas: s.Status.AdoptedReplicas,
	}
}

// unseen is the state of a target that cannot be read or moved.
func unseen(s *v1alpha1.Site, fault *membership.Fault) State {
	return State{
		Capacity:        membership.Capacity{Managed: true, Fault: fault},
		AdoptedReplicas: s.Status.AdoptedReplicas,
		Recheck:         stuck,
	}
}

// wish of the moment.
type wish int

const (
	wishNothing wish = iota
	wishProvision
	wishRelease
)

// wished is the wish in status; a site that goes wishes a release.
func wished(s *v1alpha1.Site) wish {
	switch p := s.Status.Provisioning; {
	case !s.DeletionTimestamp.IsZero():
		return wishRelease
	case p == nil:
		return wishNothing
	case p.Wish == v1alpha1.WishProvision:
		return wishProvision
	}
	return wishRelease
}

// taken says that the wish was taken at an earlier time.
func taken(s *v1alpha1.Site, w wish) bool {
	p := s.Status.Provisioning
	return p != nil && p.AskedAt != nil && (p.Wish == v1alpha1.WishProvision) == (w == wishProvision)
}

// goal is what becomes of a target for a wish.
type goal struct {
	to   int32
	move bool
	// theirs: someone else has moved the target since, and what it holds is theirs.
	theirs bool
}

// goal for a wish. More than asked is left alone while capacity is wanted.
func (t *target) goal(s *v1alpha1.Site, w wish) goal {
	idle := s.Spec.Capacity.IdleReplicas
	switch {
	case w == wishProvision:
		to := max(1, s.Spec.Capacity.ActiveReplicas)
		return goal{to: to, move: t.replicas < to, theirs: taken(s, w) && t.replicas < to && t.foreign()}
	case w == wishNothing:
		return goal{to: idle}
	case !s.DeletionTimestamp.IsZero():
		adopted := s.Status.AdoptedReplicas
		if adopted == nil || t.gone || t.foreign() { // never moved, or no longer ours
			return goal{to: t.replicas, theirs: true}
		}
		return goal{to: *adopted, move: t.replicas != *adopted}
	case taken(s, w) && t.replicas > idle && t.foreign():
		return goal{to: t.replicas, theirs: true}
	}
	return goal{to: idle, move: t.replicas > idle}
}

// state of the target for a wish and its goal.
func (t *target) state(s *v1alpha1.Site, w wish, g goal) State {
	state := State{
		Capacity: membership.Capacity{
			Managed: true,
			Asked:   w != wishNothing && !g.move,
			Idle:    w != wishProvision && !g.move && (g.theirs || t.settled() && t.replicas <= g.to && t.held <= g.to),
		},
		AdoptedReplicas: s.Status.AdoptedReplicas,
	}
	switch {
	case t.owner != nil:
		state.Fault, state.Recheck = t.owner, stuck
	case g.move && t.paused != nil:
		state.Fault, state.Recheck = t.paused, stuck
	case g.move && g.theirs:
		state.Fault, state.Recheck = &membership.Fault{Reason: v1alpha1.ReasonReplicasChanged, Message: fmt.Sprintf(
			"%s was asked for %d replicas and %s has since set it to %d; it is not moved again for this wish: let only one of the two move it",
			targetName(s), g.to, t.movedBy(), t.replicas)}, stuck
	case g.move, w == wishRelease && !state.Idle:
		state.Recheck = moving
	}
	return state
}

// move writes the scale subresource, if the target is still as it was read.
func (t *target) move(ctx context.Context, c client.Client, to int32) error {
	body := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "autoscaling/v1", "kind": "Scale",
		"metadata": map[string]any{"name": t.object.GetName(), "namespace": t.object.GetNamespace(),
			"resourceVersion": t.object.GetResourceVersion(), "uid": string(t.object.GetUID())},
		"spec": map[string]any{"replicas": int64(to)},
	}}
	err := c.SubResource("scale").Update(ctx, t.object, client.WithSubResourceBody(body), client.FieldOwner(v1alpha1.FieldOwner))
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("no answer in %s: %w", clusterTimeout, err)
	}
	return err
}

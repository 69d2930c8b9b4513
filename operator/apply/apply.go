// Package apply brings what the operator owns to the API server, by server-side
// apply, and sends nothing when the world is as it should be.
//
// It owns the comparison of a desired object with the live one and the words of
// failures. It must not know what the objects are for.
//
// Of a live object only the fields that the operator owns are compared: those of
// other owners (an autoscaler's replicas, a person's annotation) stay. A field
// that another owner took over by force is no longer among ours, so it differs
// and is put back.
package apply

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
)

// Applier applies for one field owner, v1alpha1.FieldOwner.
type Applier struct {
	// Client reads from a cache and writes. The cache must keep managedFields: they
	// say what is ours.
	Client client.Client
	// Reader reads past the cache. Create needs it.
	Reader client.Reader
	// Sends counts the requests that may write, by kind; nil counts nothing.
	Sends *prometheus.CounterVec
}

// Error says which operation failed on which object.
type Error struct {
	// Operation is get, apply, create, delete, list or status.
	Operation string
	Kind      string
	Key       types.NamespacedName
	Err       error
}

func (e *Error) Error() string {
	return fmt.Sprintf("%s %s %s: %v", e.Operation, e.Kind, e.Key, e.Err)
}

func (e *Error) Unwrap() error { return e.Err }

// OwnedElsewhereError says that the object of that name belongs to another object,
// or to a person who made it, whose it stays.
type OwnedElsewhereError struct {
	// Owner is empty for an object that a person made.
	Owner metav1.OwnerReference
}

func (e *OwnedElsewhereError) Error() string {
	if e.Owner.Kind == "" {
		return "someone else made an object of this name: rename one of the two, or delete that one if the operator may make its own"
	}
	return fmt.Sprintf("it belongs to the %s %s: rename one of the two, because what belongs to them would have the same name", e.Owner.Kind, e.Owner.Name)
}

// Apply makes what we own in the live object equal to desired, a typed
// configuration of client-go of one of the kinds in this package, with name and
// namespace. Nothing is sent when it is so already; changed says whether
// something was.
//
// The live object comes from the cache, so right after a change the same may be
// sent once more; that is harmless.
func (a *Applier) Apply(ctx context.Context, desired runtime.ApplyConfiguration) (changed bool, err error) {
	k, id, err := identify(desired)
	if err != nil {
		return false, err
	}
	live := k.object()
	switch err := a.Client.Get(ctx, id.key, live); {
	case apierrors.IsNotFound(err):
	case err != nil:
		return false, id.failed("get", err)
	default:
		owner, err := foreign(live, k, desired)
		if err != nil {
			return false, id.failed("apply", err)
		}
		if owner != nil {
			return false, id.failed("apply", &OwnedElsewhereError{*owner})
		}
		same, err := k.same(live, desired)
		if err != nil {
			return false, id.failed("apply", err)
		}
		if same {
			return false, nil
		}
	}
	a.count(k.name)
	if err := a.Client.Apply(ctx, desired, client.FieldOwner(v1alpha1.FieldOwner), client.ForceOwnership); err != nil {
		return false, id.failed("apply", err)
	}
	return true, nil
}

// Create makes an object that must never be overwritten, such as a key: created
// is false if there was one already, whatever it holds. A cache that is behind
// cannot deceive it.
func (a *Applier) Create(ctx context.Context, desired runtime.ApplyConfiguration) (created bool, err error) {
	k, id, err := identify(desired)
	if err != nil {
		return false, err
	}
	switch err := a.Reader.Get(ctx, id.key, k.object()); {
	case err == nil:
		return false, nil
	case !apierrors.IsNotFound(err):
		return false, id.failed("get", err)
	}
	o, err := k.typed(desired)
	if err != nil {
		return false, id.failed("create", err)
	}
	a.count(k.name)
	err = a.Client.Create(ctx, o, client.FieldOwner(v1alpha1.FieldOwner))
	if apierrors.IsAlreadyExists(err) {
		return false, nil
	}
	if err != nil {
		return false, id.failed("create", err)
	}
	return true, nil
}

// Delete deletes an object as it was seen: one that was made anew under the name
// stays. An object that is gone, or on its way, is no error.
func (a *Applier) Delete(ctx context.Context, o client.Object) (deleted bool, err error) {
	if o.GetDeletionTimestamp() != nil {
		return false, nil
	}
	id := identity{a.kindOf(o), client.ObjectKeyFromObject(o)}
	uid := o.GetUID()
	a.count(id.kind)
	err = a.Client.Delete(ctx, o, client.Preconditions{UID: &uid}, client.PropagationPolicy(metav1.DeletePropagationBackground))
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return false, nil
	}
	if err != nil {
		return false, id.failed("delete", err)
	}
	return true, nil
}

func (a *Applier) kindOf(o client.Object) string {
	gvk, err := a.Client.GroupVersionKindFor(o)
	if err != nil {
		return fmt.Sprintf("%T", o)
	}
	return gvk.Kind
}

func (a *Applier) count(kind string) {
	if a.Sends != nil {
		a.Sends.WithLabelValues(kind).Inc()
	}
}

// identity of an object in words of failures.
type identity struct {
	kind string
	key  types.NamespacedName
}

func (i identity) failed(operation string, err error) error {
	return &Error{Operation: operation, Kind: i.kind, Key: i.key, Err: err}
}

// named is what all configurations of client-go have.
type named interface {
	GetKind() *string
	GetAPIVersion() *string
	GetName() *string
	GetNamespace() *string
}

func identify(desired runtime.ApplyConfiguration) (kind, identity, error) {
	n, ok := desired.(named)
	if !ok {
		return kind{}, identity{}, fmt.Errorf("apply: %T has neither kind nor name", desired)
	}
	gvk := schema.FromAPIVersionAndKind(deref(n.GetAPIVersion()), deref(n.GetKind()))
	k, ok := kinds[gvk]
	if !ok {
		return kind{}, identity{}, fmt.Errorf("apply: nothing is known of %s", gvk)
	}
	id := identity{k.name, types.NamespacedName{Namespace: deref(n.GetNamespace()), Name: deref(n.GetName())}}
	if id.key.Name == "" || id.key.Namespace == "" {
		return kind{}, identity{}, id.failed("apply", errors.New("the name or the namespace is missing"))
	}
	return k, id, nil
}

func deref(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// foreign says whose live is, if it is not to be taken: that of another
// controller, or of a person. Ours are what we have applied before, what a
// backup brought back with our label, and a claim that was made ahead for us.
func foreign(live client.Object, k kind, desired runtime.ApplyConfiguration) (*metav1.OwnerReference, error) {
	o, err := k.typed(desired)
	if err != nil {
		return nil, err
	}
	want, has := metav1.GetControllerOf(o), metav1.GetControllerOf(live)
	switch {
	case has != nil:
		if want == nil || want.UID == has.UID {
			return nil, nil
		}
		return has, nil
	case want == nil, k.name == "PersistentVolumeClaim":
		return nil, nil
	case slices.ContainsFunc(live.GetManagedFields(), func(f metav1.ManagedFieldsEntry) bool { return f.Manager == v1alpha1.FieldOwner }):
		return nil, nil
	}
	const label = "app.kubernetes.io/managed-by"
	if by := o.GetLabels()[label]; by != "" && by == live.GetLabels()[label] {
		return nil, nil
	}
	return &metav1.OwnerReference{}, nil
}

// equal compares as the API server does: quantities by value, nothing with empty.
func equal(a, b any) bool { return equality.Semantic.DeepEqual(a, b) }

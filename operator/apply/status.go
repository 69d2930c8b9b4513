package apply

import (
	"context"
	"encoding/json"
	"fmt"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
)

// Status writes the status of a Federation or Site if it differs from old's, the
// object as it was last seen. Times are compared in the whole seconds in which
// they are kept. The whole status is ours: what it does not have goes.
func (a *Applier) Status(ctx context.Context, obj, old client.Object) (changed bool, err error) {
	kind, want, err := statusOf(obj)
	if err != nil {
		return false, err
	}
	_, has, err := statusOf(old)
	if err != nil {
		return false, err
	}
	if equal(want, has) {
		return false, nil
	}
	id := identity{kind, client.ObjectKeyFromObject(obj)}
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(want)
	if err != nil {
		return false, id.failed("status", err)
	}
	u := &unstructured.Unstructured{Object: map[string]any{"status": content}}
	u.SetAPIVersion(v1alpha1.APIVersion)
	u.SetKind(kind)
	u.SetNamespace(id.key.Namespace)
	u.SetName(id.key.Name)
	a.count(kind)
	if err := a.Client.Status().Apply(ctx, client.ApplyConfigurationFromUnstructured(u), client.FieldOwner(v1alpha1.FieldOwner), client.ForceOwnership); err != nil {
		return false, id.failed("status", err)
	}
	if err := a.takeOver(ctx, u, content); err != nil {
		return true, id.failed("status", err)
	}
	obj.SetResourceVersion(u.GetResourceVersion())
	return true, nil
}

// takeOver removes from the status what someone else has put there: an apply
// leaves what other owners own, and status has one writer.
func (a *Applier) takeOver(ctx context.Context, applied *unstructured.Unstructured, want map[string]any) error {
	if equal(applied.Object["status"], any(want)) {
		return nil
	}
	applied.Object["status"] = want
	a.count(applied.GetKind())
	return a.Client.Status().Update(ctx, applied, client.FieldOwner(v1alpha1.FieldOwner))
}

// statusOf is a copy of an object's status as it would be kept.
func statusOf(o client.Object) (kind string, status any, err error) {
	switch o := o.(type) {
	case *v1alpha1.Federation:
		kept, err := kept(o.Status)
		return v1alpha1.KindFederation, kept, err
	case *v1alpha1.Site:
		kept, err := kept(o.Status)
		return v1alpha1.KindSite, kept, err
	}
	return "", nil, fmt.Errorf("apply: %T has no status of ours", o)
}

func kept[T any](status T) (*T, error) {
	b, err := json.Marshal(status)
	if err != nil {
		return nil, fmt.Errorf("apply: status: %w", err)
	}
	var out T
	if err := json.Unmarshal(b, &out); err != nil {
		return nil, fmt.Errorf("apply: status: %w", err)
	}
	return &out, nil
}

package capacity

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/operator/membership"
)

// Groups whose objects are known better than by /scale alone.
const (
	groupClusterAPI = "cluster.x-k8s.io"
	groupKarpenter  = "karpenter.sh"
)

// What says that a target is not ours to move.
const (
	annotationPaused       = "cluster.x-k8s.io/paused"
	labelClusterName       = "cluster.x-k8s.io/cluster-name"
	annotationManagedBy    = "cluster.x-k8s.io/replicas-managed-by"
	annotationAutoscaleMin = "cluster.x-k8s.io/cluster-api-autoscaler-node-group-min-size"
	annotationAutoscaleMax = "cluster.x-k8s.io/cluster-api-autoscaler-node-group-max-size"
)

// target is a scale target as it was read.
type target struct {
	object *unstructured.Unstructured
	// replicas asked of it, and held by it.
	replicas, held int32
	// gone: there is no such object, so it holds nothing.
	gone bool
	// owner is why it is never moved by us, paused why it is not now; nil if it is.
	owner, paused *membership.Fault
}

// read gets the target in at most two requests: the object, and its scale or, for
// Cluster API, whose replicas are in a known place, the Cluster that may be
// paused. A nil target comes with a fault or an error.
func read(ctx context.Context, c client.Client, s *v1alpha1.Site) (*target, *membership.Fault, error) {
	ref := s.Spec.Capacity.ScaleTargetRef
	if ref == nil {
		return nil, &membership.Fault{Reason: v1alpha1.ReasonInvalidSpec, Message: "capacity mode Scale needs capacity.scaleTargetRef"}, nil
	}
	gv, fault := groupVersion(ref.APIVersion)
	if fault != nil {
		return nil, fault, nil
	}
	mapping, err := c.RESTMapper().RESTMapping(schema.GroupKind{Group: gv.Group, Kind: ref.Kind}, gv.Version)
	if err != nil {
		return give(err, s, verbGet)
	}
	t := &target{object: &unstructured.Unstructured{}}
	t.object.SetGroupVersionKind(mapping.GroupVersionKind)
	key := client.ObjectKey{Name: ref.Name}
	if mapping.Scope.Name() == meta.RESTScopeNameNamespace {
		key.Namespace = s.Namespace
	}
	if err := c.Get(ctx, key, t.object); apierrors.IsNotFound(err) {
		t.gone, t.owner = true, named(err, s, verbGet)
		return t, nil, nil
	} else if err != nil {
		return give(err, s, verbGet)
	}
	t.readOwner(gv.Group, s)
	if gv.Group == groupClusterAPI {
		t.replicas = int32At(t.object, "spec", "replicas")
		t.held = int32At(t.object, "status", "replicas")
		return t, nil, t.readPaused(ctx, c, s)
	}
	if _, sized, _ := unstructured.NestedFieldNoCopy(t.object.Object, "spec", "replicas"); gv.Group == groupKarpenter && !sized {
		return t, nil, nil // its scale cannot be read, and it is not ours
	}
	sub := &unstructured.Unstructured{}
	sub.SetGroupVersionKind(schema.GroupVersionKind{Group: "autoscaling", Version: "v1", Kind: "Scale"})
	if err := c.SubResource("scale").Get(ctx, t.object, sub); err != nil {
		return give(err, s, verbGetScale)
	}
	t.replicas = int32At(sub, "spec", "replicas")
	t.held = int32At(sub, "status", "replicas")
	t.pausedByAnnotation(s)
	return t, nil, nil
}

func groupVersion(apiVersion string) (schema.GroupVersion, *membership.Fault) {
	gv, err := schema.ParseGroupVersion(apiVersion)
	if err == nil {
		return gv, nil
	}
	return gv, &membership.Fault{Reason: v1alpha1.ReasonInvalidSpec, Message: fmt.Sprintf(
		"capacity.scaleTargetRef.apiVersion %q is none: write it as group/version", apiVersion)}
}

// give sorts an error into a fault or an error.
func give(err error, s *v1alpha1.Site, v verb) (*target, *membership.Fault, error) {
	if fault := named(err, s, v); fault != nil {
		return nil, fault, nil
	}
	return nil, nil, fmt.Errorf("capacity: read %s: %w", targetName(s), err)
}

// readOwner finds who else moves the target by its own design.
func (t *target) readOwner(group string, s *v1alpha1.Site) {
	a := t.object.GetAnnotations()
	for _, name := range []string{annotationAutoscaleMin, annotationAutoscaleMax} {
		if _, there := a[name]; there {
			t.owner = &membership.Fault{Reason: v1alpha1.ReasonCapacityOwnedByAutoscaler, Message: fmt.Sprintf(
				"%s has the annotation %s, so the cluster autoscaler moves it: take the annotations off, or give the site another target", targetName(s), name)}
			return
		}
	}
	if by := a[annotationManagedBy]; by != "" && by != "false" {
		t.owner = &membership.Fault{Reason: v1alpha1.ReasonCapacityOwnedByAutoscaler, Message: fmt.Sprintf(
			"%s has the annotation %s=%s, so another controller moves it: take the annotation off, or give the site another target", targetName(s), annotationManagedBy, clip(by))}
		return
	}
	if _, static, _ := unstructured.NestedFieldNoCopy(t.object.Object, "spec", "replicas"); group == groupKarpenter && !static {
		t.owner = &membership.Fault{Reason: v1alpha1.ReasonCapacityOwnedByAutoscaler, Message: fmt.Sprintf(
			"%s has no spec.replicas, so Karpenter sizes it by pending pods: use a static NodePool (spec.replicas: 0)", targetName(s))}
	}
}

func (t *target) pausedByAnnotation(s *v1alpha1.Site) {
	if _, there := t.object.GetAnnotations()[annotationPaused]; there {
		t.paused = &membership.Fault{Reason: v1alpha1.ReasonCapacityPaused, Message: fmt.Sprintf(
			"%s has the annotation %s: take it off to let the site move it", targetName(s), annotationPaused)}
	}
}

// readPaused also looks at the Cluster that owns the target. One that may not be
// read, or is gone, does not count.
func (t *target) readPaused(ctx context.Context, c client.Client, s *v1alpha1.Site) error {
	t.pausedByAnnotation(s)
	name, _, _ := unstructured.NestedString(t.object.Object, "spec", "clusterName")
	if name == "" {
		name = t.object.GetLabels()[labelClusterName]
	}
	if t.paused != nil || name == "" {
		return nil
	}
	cluster := &unstructured.Unstructured{}
	cluster.SetGroupVersionKind(t.object.GroupVersionKind().GroupVersion().WithKind("Cluster"))
	err := c.Get(ctx, client.ObjectKey{Namespace: t.object.GetNamespace(), Name: name}, cluster)
	switch {
	case apierrors.IsForbidden(err), apierrors.IsNotFound(err), noKind(err):
		return nil
	case err != nil:
		return fmt.Errorf("capacity: read Cluster %s of %s: %w", name, targetName(s), err)
	}
	if paused, _, _ := unstructured.NestedBool(cluster.Object, "spec", "paused"); paused {
		t.paused = &membership.Fault{Reason: v1alpha1.ReasonCapacityPaused, Message: fmt.Sprintf(
			"Cluster %s, which owns %s, has spec.paused: set it to false to let the site move it", name, targetName(s))}
	}
	return nil
}

// settled says that the target's controller has seen the present spec, so that
// what it holds is an answer to it. One that does not tell is believed.
func (t *target) settled() bool {
	observed, tells, _ := unstructured.NestedFieldNoCopy(t.object.Object, "status", "observedGeneration")
	n, isNumber := observed.(int64)
	return !tells || isNumber && n >= t.object.GetGeneration()
}

// foreign says that someone else set the present number of replicas. Where
// managedFields do not tell, it is ours.
func (t *target) foreign() bool {
	others := false
	for _, by := range t.movers() {
		if by == v1alpha1.FieldOwner {
			return false
		}
		others = true
	}
	return others
}

func (t *target) movedBy() string { return clip(strings.Join(t.movers(), ", ")) }

// movers are the managers that own spec.replicas.
func (t *target) movers() []string {
	var names []string
	for _, m := range t.object.GetManagedFields() {
		var fields struct {
			Spec map[string]json.RawMessage `json:"f:spec"`
		}
		if m.FieldsV1 == nil || json.Unmarshal(m.FieldsV1.GetRawBytes(), &fields) != nil {
			continue
		}
		if _, owns := fields.Spec["f:replicas"]; owns {
			names = append(names, m.Manager)
		}
	}
	return names
}

// verb is a right that a request needs.
type verb int

const (
	verbGet verb = iota
	verbGetScale
	verbUpdateScale
)

// named turns an error that a person must see to into a fault, nil for others.
func named(err error, s *v1alpha1.Site, v verb) *membership.Fault {
	ref := s.Spec.Capacity.ScaleTargetRef
	switch {
	case err == nil:
		return nil
	case noKind(err):
		return &membership.Fault{Reason: v1alpha1.ReasonScaleTargetNotFound, Message: fmt.Sprintf(
			"the cluster does not serve kind %s of %s: install its CRDs or correct capacity.scaleTargetRef", ref.Kind, ref.APIVersion)}
	case apierrors.IsForbidden(err) && quota(err):
	case apierrors.IsForbidden(err):
		group, resource := forbidden(err)
		return &membership.Fault{Reason: v1alpha1.ReasonScaleForbidden, Message: fmt.Sprintf(
			"may not %s: add {group: %q, resource: %s} to the chart's value capacity.scaleTargets, or in another cluster give the kubeconfig's user the verb get on %[3]s and get and update on %[3]s/scale",
			[...]string{"get " + targetName(s), "get the scale of " + targetName(s), "scale " + targetName(s)}[v], group, resource)}
	case apierrors.IsNotFound(err) && v == verbGet:
		return &membership.Fault{Reason: v1alpha1.ReasonScaleTargetNotFound, Message: fmt.Sprintf(
			"%s does not exist: create it or correct capacity.scaleTargetRef", targetName(s))}
	case apierrors.IsNotFound(err), apierrors.IsMethodNotSupported(err):
		return &membership.Fault{Reason: v1alpha1.ReasonInvalidSpec, Message: fmt.Sprintf(
			"%s has no scale subresource: name an object that has one in capacity.scaleTargetRef", targetName(s))}
	case apierrors.IsInternalError(err) && v == verbGetScale && strings.Contains(err.Error(), "replicas field"):
		return &membership.Fault{Reason: v1alpha1.ReasonScaleFailed, Message: fmt.Sprintf(
			"%s has no number of replicas yet: set one for the site to move", targetName(s))}
	case apierrors.IsInvalid(err), apierrors.IsBadRequest(err), apierrors.IsNotAcceptable(err):
	default:
		return nil
	}
	return &membership.Fault{Reason: v1alpha1.ReasonScaleFailed, Message: fmt.Sprintf("%s refuses to be scaled: %s", targetName(s), clip(err.Error()))}
}

// forbidden are the group and the resource that a refusal is about.
func forbidden(err error) (group, resource string) {
	resource = "<its plural>"
	if status := apierrors.APIStatus(nil); errors.As(err, &status) && status.Status().Details != nil {
		if d := status.Status().Details; d.Kind != "" {
			group, resource = d.Group, d.Kind
		}
	}
	return group, resource
}

// quota says that admission, not authorization, refused.
func quota(err error) bool {
	return strings.Contains(err.Error(), "exceeded quota") || strings.Contains(err.Error(), "admission webhook") || strings.Contains(err.Error(), "ValidatingAdmissionPolicy")
}

// noKind says that the cluster does not serve the kind, or the version.
func noKind(err error) bool {
	var discovery *apiutil.ErrResourceDiscoveryFailed
	if errors.As(err, &discovery) {
		for _, each := range *discovery {
			if !meta.IsNoMatchError(each) && !apierrors.IsNotFound(each) {
				return false
			}
		}
		return len(*discovery) > 0
	}
	return meta.IsNoMatchError(err)
}

// targetName is how messages name the target.
func targetName(s *v1alpha1.Site) string {
	ref := s.Spec.Capacity.ScaleTargetRef
	return ref.Kind + " " + ref.Name
}

// clip keeps words from elsewhere short and on one line.
func clip(text string) string {
	const most = 512
	text = strings.Map(func(r rune) rune {
		if !strconv.IsPrint(r) {
			return ' '
		}
		return r
	}, text)
	if len(text) > most {
		text = strings.ToValidUTF8(text[:most], "") + "…"
	}
	return text
}

func int32At(o *unstructured.Unstructured, path ...string) int32 {
	n, _, _ := unstructured.NestedInt64(o.Object, path...)
	return int32(min(max(n, 0), 1<<31-1))
}

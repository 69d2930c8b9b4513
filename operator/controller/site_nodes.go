package controller

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/operator/membership"
	"girassol.dev/operator/resources"
)

// enrol brings the nodes' labels to what was decided. Strays lose theirs whatever
// that is: they are no longer the site's.
func (r *SiteReconciler) enrol(ctx context.Context, v *view, e membership.Enrolment) error {
	if v.cluster == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, outsideTimeout)
	defer cancel()
	mine := resources.EnrolledFor(v.world.Site.Namespace, v.world.Site.Name)
	vendors := map[string]string{} // what the label of each node is to be
	for _, n := range v.world.Nodes.Enrol {
		vendors[n.Name] = resources.VendorLabel(n.Vendor)
	}
	var failed error
	note := func(n *corev1.Node, err error) {
		if err != nil && !apierrors.IsNotFound(err) {
			failed = errors.Join(failed, fmt.Errorf("site %s: label node %s: %w", v.world.Site.Name, n.Name, crossed(err)))
		}
	}
	for i := range v.strays {
		note(&v.strays[i], r.unlabel(ctx, v.cluster, &v.strays[i], mine))
	}
	for i := range v.nodes {
		n := &v.nodes[i]
		has := n.Labels[v1alpha1.LabelNodeSite]
		switch vendor := vendors[n.Name]; {
		case e == membership.EnrolOn && vendor != "" && (has == "" || has == mine):
			note(n, r.label(ctx, v.cluster, n, vendor, mine))
		case has == mine && (e == membership.EnrolOff || e == membership.EnrolOn && slices.Contains(v.world.Nodes.Withdraw, n.Name)):
			note(n, r.unlabel(ctx, v.cluster, n, mine))
		}
	}
	return failed
}

// label enrols a node as it was read: one that is gone is not made anew, and one
// that another site enrolled meanwhile stays there.
func (r *SiteReconciler) label(ctx context.Context, c client.Client, n *corev1.Node, vendor, mine string) error {
	if n.Labels[v1alpha1.LabelAgent] == vendor && n.Labels[v1alpha1.LabelNodeSite] == mine {
		return nil
	}
	r.Metrics.Applies.WithLabelValues("Node").Inc()
	return c.Apply(ctx, asRead(n).WithLabels(map[string]string{v1alpha1.LabelAgent: vendor, v1alpha1.LabelNodeSite: mine}),
		client.FieldOwner(v1alpha1.FieldOwner), client.ForceOwnership)
}

// unlabel takes exactly our labels off. Of a label that someone else set besides
// us theirs would stay, and the node with us, so that the one that is only ours
// to use is then removed by name.
func (r *SiteReconciler) unlabel(ctx context.Context, c client.Client, n *corev1.Node, mine string) error {
	r.Metrics.Applies.WithLabelValues("Node").Inc()
	if applied(n) {
		rest := asRead(n)
		if err := c.Apply(ctx, rest, client.FieldOwner(v1alpha1.FieldOwner), client.ForceOwnership); err != nil {
			return err
		}
		if rest.Labels[v1alpha1.LabelNodeSite] != mine {
			return nil
		}
	}
	patch := fmt.Appendf(nil, `{"metadata":{"uid":%q,"labels":{%q:null}}}`, n.UID, v1alpha1.LabelNodeSite)
	return c.Patch(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.Name}}, client.RawPatch(types.MergePatchType, patch), client.FieldOwner(v1alpha1.FieldOwner))
}

// asRead is a configuration that applies to the node as it was read only.
func asRead(n *corev1.Node) *corev1ac.NodeApplyConfiguration {
	return corev1ac.Node(n.Name).WithUID(n.UID).WithResourceVersion(n.ResourceVersion)
}

// applied says whether the label is ours by an apply.
func applied(n *corev1.Node) bool {
	for _, f := range n.ManagedFields {
		if f.Manager == v1alpha1.FieldOwner && f.Operation == metav1.ManagedFieldsOperationApply && f.Subresource == "" && f.FieldsV1 != nil &&
			bytes.Contains(f.FieldsV1.GetRawBytes(), []byte(`"f:`+v1alpha1.LabelNodeSite+`"`)) {
			return true
		}
	}
	return false
}

// unclaim takes the label of a site that no longer exists off the nodes as they
// are seen here, so that it keeps no other from them. Enrolling replaces it.
func (r *SiteReconciler) unclaim(ctx context.Context, nodes []corev1.Node, mine string) error {
	var claims map[string]bool
	for i := range nodes {
		claim := nodes[i].Labels[v1alpha1.LabelNodeSite]
		if claim == "" || claim == mine {
			continue
		}
		if claims == nil {
			var sites v1alpha1.SiteList
			if err := r.Client.List(ctx, &sites, client.UnsafeDisableDeepCopy); err != nil {
				return err
			}
			claims = claimsOf(sites.Items)
		}
		if _, known := claims[claim]; !known {
			claims[claim] = r.served(ctx, claim)
		}
		if !claims[claim] {
			delete(nodes[i].Labels, v1alpha1.LabelNodeSite)
		}
	}
	return nil
}

// served says whether the site of a claim that the cache does not have exists: the
// cache may have some namespaces only, while another operator serves the others.
// Where that cannot be known, it does.
func (r *SiteReconciler) served(ctx context.Context, claim string) bool {
	namespace, _, whole := strings.Cut(claim, ".")
	if !whole {
		namespace = "" // it was cut
	}
	var sites v1alpha1.SiteList
	if err := r.Reader.List(ctx, &sites, client.InNamespace(namespace)); err != nil {
		return true
	}
	return claimsOf(sites.Items)[claim]
}

func claimsOf(sites []v1alpha1.Site) map[string]bool {
	claims := make(map[string]bool, len(sites))
	for i := range sites {
		claims[resources.EnrolledFor(sites[i].Namespace, sites[i].Name)] = true
	}
	return claims
}

func crossed(err error) error {
	if apierrors.IsConflict(err) {
		return fmt.Errorf("%w: %w", errCrossed, err)
	}
	return err
}

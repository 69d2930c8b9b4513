package controller

import (
	"cmp"
	"context"
	"errors"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/operator/membership"
	"girassol.dev/operator/resources"
)

// applyChildren brings all children but the Secrets to what they should be, and
// deletes what the spec no longer asks for.
func (r *FederationReconciler) applyChildren(ctx context.Context, v *federation) (*membership.Fault, error) {
	children, err := resources.Federation(resources.FederationInput{
		Federation: v.declared(), Sites: v.sites, Images: r.Images, Operator: r.Operator,
	})
	var invalid *resources.InvalidSpecError
	if errors.As(err, &invalid) {
		return &membership.Fault{Reason: v1alpha1.ReasonInvalidSpec, Message: invalid.Error()}, nil
	}
	if err != nil {
		return nil, err
	}
	var first *membership.Fault
	for _, child := range children {
		if _, err := r.Applier.Apply(ctx, child); err != nil {
			fault, err := refusal(err)
			if err != nil {
				return nil, err
			}
			first = cmp.Or(first, fault) // the others are wanted all the same
		}
	}
	_, err = r.Applier.Prune(ctx, v.Federation, children, prunable(), client.MatchingLabelsSelector{Selector: prunableOf(v.Name)})
	return first, errors.Join(err, r.dropSecrets(ctx, v))
}

// declared is the federation as its coordinator is to know it: a site that still
// leaves is in it until it is out.
func (v *federation) declared() *v1alpha1.Federation {
	f := v.DeepCopy()
	f.Spec.Sites = nil
	for _, site := range v.siteNames() {
		f.Spec.Sites = append(f.Spec.Sites, v1alpha1.SiteReference{Name: site})
	}
	return f
}

// prunable are the kinds of children that a changed spec may do without. Claims
// are not among them: the commit log goes by its reclaim policy only.
func prunable() []client.ObjectList {
	return []client.ObjectList{&appsv1.DeploymentList{}, &corev1.ServiceList{}, &networkingv1.NetworkPolicyList{}, &corev1.ServiceAccountList{}}
}

func prunableOf(federation string) labels.Selector {
	return labels.SelectorFromSet(resources.Labels(federation, resources.ComponentRedis))
}

// dropSecrets deletes the certificates of sites that the last status shows and
// that do not belong to the federation any more.
func (r *FederationReconciler) dropSecrets(ctx context.Context, v *federation) error {
	present := map[string]bool{}
	for _, site := range v.siteNames() {
		present[site] = true
	}
	for _, s := range v.Status.Sites {
		if present[s.Name] {
			continue
		}
		var secret corev1.Secret
		err := r.Reader.Get(ctx, types.NamespacedName{Namespace: v.Namespace, Name: resources.SiteSecretName(v.Name, s.Name)}, &secret)
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return err
		}
		if owner := metav1.GetControllerOf(&secret); owner == nil || owner.UID != v.UID {
			continue
		}
		if _, err := r.Applier.Delete(ctx, &secret); err != nil {
			return err
		}
	}
	return nil
}

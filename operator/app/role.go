package app

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/operator/resources"
)

// The leader's pod carries a label, by which the Services of the webhook and of
// the provisioning API find it.
const (
	labelRole  = v1alpha1.Group + "/role"
	roleLeader = "leader"
	// roleOwner of that label.
	roleOwner = v1alpha1.FieldOwner + "-role"
)

// self is who calls the coordinators, as network policies see it: the pods that
// carry the labels of this one's Deployment.
func self(ctx context.Context, reader client.Reader, o Options) (resources.Peer, error) {
	if o.PodName == "" {
		return resources.Peer{}, nil
	}
	var pod corev1.Pod
	if err := reader.Get(ctx, types.NamespacedName{Namespace: o.PodNamespace, Name: o.PodName}, &pod); err != nil {
		return resources.Peer{}, fmt.Errorf("operator: its own pod: %w", err)
	}
	peer := resources.Peer{Namespace: pod.Namespace, Labels: map[string]string{}}
	for _, key := range []string{"app.kubernetes.io/name", "app.kubernetes.io/instance", "app.kubernetes.io/component"} {
		if value := pod.Labels[key]; value != "" {
			peer.Labels[key] = value
		}
	}
	if len(peer.Labels) == 0 {
		return resources.Peer{}, fmt.Errorf("operator: its own pod %s/%s has no label app.kubernetes.io/name, by which network policies could let it in", pod.Namespace, pod.Name)
	}
	return peer, nil
}

// role takes the label off at the start (a container that crashed while it led
// comes back in the same pod) and puts it on with the lead. Whoever loses the
// lead ends.
func role(ctx context.Context, m manager.Manager, o Options) error {
	if o.PodName == "" {
		return nil
	}
	set := func(ctx context.Context, role string) error {
		if err := m.GetClient().Apply(ctx, roleOf(o.PodNamespace, o.PodName, role), client.FieldOwner(roleOwner), client.ForceOwnership); err != nil {
			return fmt.Errorf("operator: label of its own pod: %w", err)
		}
		return nil
	}
	if err := set(ctx, ""); err != nil {
		return err
	}
	return m.Add(leaderOnly(func(ctx context.Context) error {
		if err := set(ctx, roleLeader); err != nil {
			return err
		}
		<-ctx.Done()
		// The Lease is released after this, so the label goes first; if it cannot, the
		// pod ends anyway.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTimeout)
		defer cancel()
		if err := set(ctx, ""); err != nil {
			o.Log.Warn("label of the leader stays until the pod ends", "err", err)
		}
		return nil
	}))
}

// roleOf is the label on a pod; without a role it is taken off.
func roleOf(namespace, name, role string) *corev1ac.PodApplyConfiguration {
	pod := corev1ac.Pod(name, namespace)
	if role != "" {
		pod.WithLabels(map[string]string{labelRole: role})
	}
	return pod
}

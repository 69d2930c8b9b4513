package resources

import (
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	metav1ac "k8s.io/client-go/applyconfigurations/meta/v1"
	networkingv1ac "k8s.io/client-go/applyconfigurations/networking/v1"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
)

// coordinatorNetworkPolicy lets the federation's agents and the operator call the
// coordinator, and pods of the cluster scrape it. With spec.link.address agents
// come from outside, from addresses that nobody knows beforehand: then the link's
// own protection alone decides.
func coordinatorNetworkPolicy(f *v1alpha1.Federation, operator Peer) *networkingv1ac.NetworkPolicyApplyConfiguration {
	calls := networkingv1ac.NetworkPolicyIngressRule().WithPorts(policyPort(GRPCPort))
	if f.Spec.Link.Address == "" {
		calls.WithFrom(pods(selector(f.Name, ComponentAgent)))
		if operator.Namespace != "" {
			calls.WithFrom(pods(operator.Labels).WithNamespaceSelector(metav1ac.LabelSelector().
				WithMatchLabels(map[string]string{corev1.LabelMetadataName: operator.Namespace})))
		}
	}
	scrapes := networkingv1ac.NetworkPolicyIngressRule().WithPorts(policyPort(MetricsPort)).
		WithFrom(networkingv1ac.NetworkPolicyPeer().WithNamespaceSelector(metav1ac.LabelSelector()))
	return networkPolicy(f, CoordinatorName(f.Name), ComponentCoordinator, calls, scrapes)
}

func redisNetworkPolicy(f *v1alpha1.Federation) *networkingv1ac.NetworkPolicyApplyConfiguration {
	return networkPolicy(f, RedisName(f.Name), ComponentRedis,
		networkingv1ac.NetworkPolicyIngressRule().WithPorts(policyPort(redisPort)).
			WithFrom(pods(selector(f.Name, ComponentCoordinator)), pods(selector(f.Name, ComponentAgent))))
}

func networkPolicy(f *v1alpha1.Federation, name, component string, ingress ...*networkingv1ac.NetworkPolicyIngressRuleApplyConfiguration) *networkingv1ac.NetworkPolicyApplyConfiguration {
	return networkingv1ac.NetworkPolicy(name, f.Namespace).
		WithLabels(Labels(f.Name, component)).
		WithOwnerReferences(owner(f.ObjectMeta, v1alpha1.KindFederation)).
		WithSpec(networkingv1ac.NetworkPolicySpec().
			WithPodSelector(metav1ac.LabelSelector().WithMatchLabels(selector(f.Name, component))).
			WithPolicyTypes(networkingv1.PolicyTypeIngress).
			WithIngress(ingress...))
}

func policyPort(number int32) *networkingv1ac.NetworkPolicyPortApplyConfiguration {
	return networkingv1ac.NetworkPolicyPort().WithProtocol(corev1.ProtocolTCP).WithPort(intstr.FromInt32(number))
}

func pods(labels map[string]string) *networkingv1ac.NetworkPolicyPeerApplyConfiguration {
	return networkingv1ac.NetworkPolicyPeer().WithPodSelector(metav1ac.LabelSelector().WithMatchLabels(labels))
}

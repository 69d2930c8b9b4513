package apply

import (
	"encoding/json"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	appsv1ac "k8s.io/client-go/applyconfigurations/apps/v1"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	networkingv1ac "k8s.io/client-go/applyconfigurations/networking/v1"
	policyv1ac "k8s.io/client-go/applyconfigurations/policy/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
)

// kind is one kind of object that is applied.
type kind struct {
	name   string
	object func() client.Object
	// same says whether what we own in live equals desired.
	same func(live client.Object, desired runtime.ApplyConfiguration) (bool, error)
}

// kinds that the operator applies.
var kinds = map[schema.GroupVersionKind]kind{}

func init() {
	register(corev1.SchemeGroupVersion, "Service", corev1ac.ExtractService)
	register(corev1.SchemeGroupVersion, "ConfigMap", corev1ac.ExtractConfigMap)
	register(corev1.SchemeGroupVersion, "Secret", corev1ac.ExtractSecret)
	register(corev1.SchemeGroupVersion, "ServiceAccount", corev1ac.ExtractServiceAccount)
	register(corev1.SchemeGroupVersion, "PersistentVolumeClaim", corev1ac.ExtractPersistentVolumeClaim)
	register(appsv1.SchemeGroupVersion, "StatefulSet", appsv1ac.ExtractStatefulSet)
	register(appsv1.SchemeGroupVersion, "Deployment", appsv1ac.ExtractDeployment)
	register(appsv1.SchemeGroupVersion, "DaemonSet", appsv1ac.ExtractDaemonSet)
	register(policyv1.SchemeGroupVersion, "PodDisruptionBudget", policyv1ac.ExtractPodDisruptionBudget)
	register(networkingv1.SchemeGroupVersion, "NetworkPolicy", networkingv1ac.ExtractNetworkPolicy)
}

// register enters a kind with client-go's function that takes what an owner owns
// out of a live object.
func register[O any, P interface {
	*O
	client.Object
}, A any](gv schema.GroupVersion, name string, extract func(P, string) (*A, error)) {
	kinds[gv.WithKind(name)] = kind{
		name:   name,
		object: func() client.Object { return P(new(O)) },
		same: func(live client.Object, desired runtime.ApplyConfiguration) (bool, error) {
			owned, err := extract(live.(P), v1alpha1.FieldOwner)
			if err != nil {
				return false, fmt.Errorf("read what is ours of the live object: %w", err)
			}
			return equal(any(owned), any(desired)), nil
		},
	}
}

// typed is a configuration as an object.
func (k kind) typed(desired runtime.ApplyConfiguration) (client.Object, error) {
	b, err := json.Marshal(desired)
	if err != nil {
		return nil, err
	}
	o := k.object()
	if err := json.Unmarshal(b, o); err != nil {
		return nil, err
	}
	return o, nil
}

package app

import (
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/selection"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
)

// scheme has our kinds and the built-in ones.
func scheme() *runtime.Scheme {
	s := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(s); err != nil {
			panic(err) // two types of one name: a bug
		}
	}
	return s
}

// cacheOptions bound what is kept in memory: of built-in kinds only what carries
// our label, nodes without their images, and of managed fields only ours.
func cacheOptions(namespaces []string) cache.Options {
	o := cache.Options{DefaultTransform: slim, ByObject: map[client.Object]cache.ByObject{}}
	for _, n := range namespaces {
		if o.DefaultNamespaces == nil {
			o.DefaultNamespaces = map[string]cache.Config{}
		}
		o.DefaultNamespaces[n] = cache.Config{}
	}
	ours, err := labels.NewRequirement(v1alpha1.LabelFederation, selection.Exists, nil)
	if err != nil {
		panic(err) // the label's name is a constant
	}
	for _, kind := range []client.Object{
		&appsv1.StatefulSet{}, &appsv1.DaemonSet{}, &appsv1.Deployment{},
		&corev1.Pod{}, &corev1.Service{}, &corev1.ConfigMap{}, &corev1.ServiceAccount{}, &corev1.PersistentVolumeClaim{},
		&policyv1.PodDisruptionBudget{}, &networkingv1.NetworkPolicy{},
	} {
		o.ByObject[kind] = cache.ByObject{Label: labels.NewSelector().Add(*ours)}
	}
	return o
}

// slim takes off what is big and read by nobody. Our own managed fields tell the
// applier what is ours.
func slim(in any) (any, error) {
	if o, err := meta.Accessor(in); err == nil {
		o.SetManagedFields(ownFields(o.GetManagedFields()))
	}
	switch o := in.(type) {
	case *corev1.Node:
		o.Status.Images, o.Status.VolumesAttached, o.Status.VolumesInUse = nil, nil, nil
	case *corev1.Pod:
		// Of a pod its labels, conditions and containers' states are read.
		o.Spec.Volumes, o.Spec.Tolerations, o.Spec.Affinity = nil, nil, nil
		for _, containers := range [][]corev1.Container{o.Spec.Containers, o.Spec.InitContainers} {
			for i := range containers {
				containers[i].Env, containers[i].VolumeMounts = nil, nil
			}
		}
	}
	return in, nil
}

func ownFields(all []metav1.ManagedFieldsEntry) []metav1.ManagedFieldsEntry {
	var own []metav1.ManagedFieldsEntry
	for _, f := range all {
		if f.Manager == v1alpha1.FieldOwner {
			own = append(own, f)
		}
	}
	return own
}

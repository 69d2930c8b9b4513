package testenv

import (
	"context"
	"os"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
)

func TestTheOperatorsAccountMayDoItsWorkAndNoMore(t *testing.T) {
	e, ctx := Shared(t), context.Background()
	config, own := e.Operator(t, ScaleTarget{Group: "apps", Resource: "deployments"})
	c, err := client.New(config, client.Options{Scheme: Scheme()})
	if err != nil {
		t.Fatal(err)
	}
	elsewhere := e.Namespace(t)
	f := federation(elsewhere, "gpt")
	if err := e.Client.Create(ctx, f); err != nil {
		t.Fatal(err)
	}
	for name, do := range map[string]func() error{
		"list federations everywhere": func() error { return c.List(ctx, &v1alpha1.FederationList{}) },
		"list nodes":                  func() error { return c.List(ctx, &corev1.NodeList{}) },
		"list daemon sets":            func() error { return c.List(ctx, &appsv1.DaemonSetList{}) },
		"list pods of its own":        func() error { return c.List(ctx, &corev1.PodList{}, client.InNamespace(own)) },
		"read a named secret": func() error {
			return client.IgnoreNotFound(c.Get(ctx, client.ObjectKey{Namespace: elsewhere, Name: "a"}, &corev1.Secret{}))
		},
		"write a federation's status": func() error {
			old := f.DeepCopy()
			f.Status.ObservedGeneration = 1
			return c.Status().Patch(ctx, f, client.MergeFrom(old))
		},
	} {
		if err := do(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, do := range map[string]func() error{
		"list secrets":        func() error { return c.List(ctx, &corev1.SecretList{}, client.InNamespace(elsewhere)) },
		"change a federation": func() error { return c.Update(ctx, f) },
		"delete a site":       func() error { return c.DeleteAllOf(ctx, &v1alpha1.Site{}, client.InNamespace(elsewhere)) },
		"make a pod": func() error {
			return c.Create(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: elsewhere, Name: "a"}})
		},
		"make a namespace":          func() error { return c.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "a"}}) },
		"delete a node":             func() error { return c.DeleteAllOf(ctx, &corev1.Node{}) },
		"label a pod of a stranger": func() error { return patch(ctx, c, elsewhere, &corev1.Pod{}) },
	} {
		if err := do(); !apierrors.IsForbidden(err) {
			t.Errorf("%s: the apiserver says %v, want that it is forbidden", name, err)
		}
	}
}

func patch(ctx context.Context, c client.Client, namespace string, o client.Object) error {
	o.SetNamespace(namespace)
	o.SetName("a")
	return c.Patch(ctx, o, client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"labels":{"a":"b"}}}`)))
}

func TestAKubeconfigKeepsWhomItStandsFor(t *testing.T) {
	e := Shared(t)
	path := WriteKubeconfig(t, e.As("somewhere", "somebody"))
	config, err := clientcmd.BuildConfigFromFlags("", path)
	if err != nil {
		t.Fatal(err)
	}
	c, err := client.New(config, client.Options{Scheme: Scheme()})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.List(context.Background(), &corev1.NodeList{}); !apierrors.IsForbidden(err) {
		t.Errorf("the apiserver says %v to an account without rights, want that it is forbidden", err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm()&0o077 != 0 {
		t.Errorf("the kubeconfig is for others to read: %v %v", info, err)
	}
}

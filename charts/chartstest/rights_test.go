package chartstest

import (
	"bytes"
	"context"
	"path/filepath"
	"reflect"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-tools/pkg/genall"
	"sigs.k8s.io/controller-tools/pkg/markers"
	"sigs.k8s.io/controller-tools/pkg/rbac"
	"sigs.k8s.io/yaml"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/operator/testenv"
)

func TestTheRoleFileIsWhatTheMarkersSay(t *testing.T) {
	t.Chdir(testenv.Root())
	roots, err := genall.Generators{}.ForRoots("./operator/...")
	if err != nil {
		t.Fatal(err)
	}
	generator := rbac.Generator{RoleName: testenv.OperatorAccount}
	if err := generator.RegisterMarkers(registry(roots)); err != nil {
		t.Fatal(err)
	}
	made, err := rbac.GenerateRoles(&roots.GenerationContext, testenv.OperatorAccount)
	if err != nil {
		t.Fatal(err)
	}
	cluster, own := testenv.OperatorRoles(t)
	if len(made) != 2 {
		t.Fatalf("the markers make %d roles, want one for all namespaces and one for the operator's own", len(made))
	}
	for i, want := range []any{*cluster, *own} {
		if !reflect.DeepEqual(made[i], want) {
			t.Errorf("charts/girassol/files/rbac/role.yaml is stale (`make generate`):\nmarkers: %s\nfile: %s", mustYAML(t, made[i]), mustYAML(t, want))
		}
	}
}

func registry(r *genall.Runtime) *markers.Registry { return r.Collector.Registry }

// granted reads all rules that the rendered manifests bind to the operator, by
// namespace; "" is everywhere.
func granted(t *testing.T, all []*unstructured.Unstructured) map[string][]rbacv1.PolicyRule {
	t.Helper()
	rules := map[string][]rbacv1.PolicyRule{}
	for _, o := range all {
		switch o.GetKind() {
		case "ClusterRole":
			rules[""] = append(rules[""], into[rbacv1.ClusterRole](t, o).Rules...)
		case "Role":
			rules[o.GetNamespace()] = append(rules[o.GetNamespace()], into[rbacv1.Role](t, o).Rules...)
		}
	}
	return rules
}

func TestTheChartGrantsTheRoleFileAndNothingElse(t *testing.T) {
	cluster, own := testenv.OperatorRoles(t)
	for name, tc := range map[string]struct {
		values            string
		everywhere, local int // rules; local in namespace training
	}{
		"all namespaces":   {"", len(cluster.Rules), 0},
		"named namespaces": {"namespaces: [training]", 1, len(cluster.Rules) - 1},
		"scale targets": {`{namespaces: [training], capacity: {scaleTargets: [
			{group: cluster.x-k8s.io, resource: machinedeployments}, {group: karpenter.sh, resource: nodepools, clusterScoped: true}]}}`,
			1 + 2, len(cluster.Rules) - 1 + 2},
	} {
		t.Run(name, func(t *testing.T) {
			got := granted(t, objects(t, "girassol", tc.values))
			if len(got[""]) != tc.everywhere || len(got[trainingNamespace]) != tc.local || !reflect.DeepEqual(got[systemNamespace], own.Rules) {
				t.Errorf("everywhere %d rules, in the tenant's namespace %d, want %d and %d; in its own %v",
					len(got[""]), len(got[trainingNamespace]), tc.everywhere, tc.local, got[systemNamespace])
			}
			for _, rules := range got {
				for _, r := range rules {
					for _, word := range append(append(append([]string{}, r.APIGroups...), r.Resources...), r.Verbs...) {
						if word == "*" {
							t.Errorf("a rule with a star: %+v", r)
						}
					}
				}
			}
		})
	}
}

// asOperator applies the rendered rights and is the operator from then on.
func asOperator(t *testing.T, e *testenv.Environment, valuesYAML string) client.Client {
	t.Helper()
	for _, o := range objects(t, "girassol", valuesYAML) {
		switch o.GetKind() {
		case "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding":
			if err := e.Client.Apply(context.Background(), client.ApplyConfigurationFromUnstructured(o), client.ForceOwnership, client.FieldOwner("helm")); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = e.Client.Delete(context.Background(), o) })
		}
	}
	c, err := client.New(e.As(systemNamespace, "girassol-operator"), client.Options{Scheme: testenv.Scheme()})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestWithNamedNamespacesTheOperatorSeesNoOthers(t *testing.T) {
	e, ctx := cluster(t), context.Background()
	c := asOperator(t, e, "{namespaces: [training], capacity: {scaleTargets: [{group: apps, resource: deployments}]}}")
	if err := c.List(ctx, &v1alpha1.SiteList{}, client.InNamespace(trainingNamespace)); err != nil {
		t.Error("in its tenant's namespace:", err)
	}
	if err := c.List(ctx, &corev1.NodeList{}); err != nil {
		t.Error("nodes are everyone's:", err)
	}
	for name, err := range map[string]error{
		"sites everywhere":  c.List(ctx, &v1alpha1.SiteList{}),
		"a stranger's":      c.List(ctx, &v1alpha1.SiteList{}, client.InNamespace("default")),
		"secrets by list":   c.List(ctx, &corev1.SecretList{}, client.InNamespace(trainingNamespace)),
		"a stranger's pods": c.List(ctx, &corev1.PodList{}, client.InNamespace("kube-system")),
		"another's lease":   c.Get(ctx, client.ObjectKey{Namespace: trainingNamespace, Name: "a"}, &coordinationv1.Lease{}),
	} {
		if !apierrors.IsForbidden(err) {
			t.Errorf("%s: the apiserver says %v, want that it is forbidden", name, err)
		}
	}
	t.Run("and scales what values name", func(t *testing.T) {
		labels := map[string]string{"a": "b"}
		d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: trainingNamespace, Name: "machines"}, Spec: appsv1.DeploymentSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "a", Image: "a"}}}},
		}}
		if err := e.Client.Create(ctx, d); err != nil {
			t.Fatal(err)
		}
		defer func() { _ = e.Client.Delete(ctx, d) }()
		scale := &autoscalingv1.Scale{}
		if err := c.SubResource("scale").Get(ctx, d, scale); err != nil {
			t.Fatal(err)
		}
		scale.Spec.Replicas = 2
		if err := c.SubResource("scale").Update(ctx, d, client.WithSubResourceBody(scale)); err != nil {
			t.Error(err)
		}
		set := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Namespace: trainingNamespace, Name: "machines"}}
		if err := c.SubResource("scale").Get(ctx, set, scale); !apierrors.IsForbidden(err) {
			t.Errorf("a kind that values do not name: %v", err)
		}
	})
}

// TestTheCRDsOfTheChartAreThoseOfTheCode compares what Helm renders with the
// generated files: the keep policy is all that the template adds.
func TestTheCRDsOfTheChartAreThoseOfTheCode(t *testing.T) {
	all := objects(t, "girassol", "")
	for file, text := range files(t, "crds", ".yaml") {
		want := map[string]any{}
		if err := yaml.Unmarshal([]byte(text), &want); err != nil {
			t.Fatal(err)
		}
		crd := unstructuredOf(want)
		got := find(t, all, "CustomResourceDefinition", crd.GetName())
		if got.GetAnnotations()["helm.sh/resource-policy"] != "keep" {
			t.Errorf("%s goes with the chart, and all objects with it", file)
		}
		annotations := got.GetAnnotations()
		delete(annotations, "helm.sh/resource-policy")
		got.SetAnnotations(annotations)
		if !bytes.Equal([]byte(mustYAML(t, got.Object)), []byte(mustYAML(t, crd.Object))) {
			t.Errorf("%s is changed by its template", filepath.Join("files", "crds", file))
		}
	}
}

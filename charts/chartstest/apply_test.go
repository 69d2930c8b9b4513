package chartstest

import (
	"context"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"girassol.dev/operator/testenv"
)

var monitoring sync.Once

// cluster is the shared control plane with the namespaces and Prometheus' kinds.
func cluster(t testing.TB) *testenv.Environment {
	t.Helper()
	e := testenv.Shared(t)
	monitoring.Do(func() {
		if _, err := envtest.InstallCRDs(e.Config, envtest.CRDInstallOptions{Paths: []string{filepath.Join("testdata", "monitoring.yaml")}}); err != nil {
			t.Fatal(err)
		}
	})
	ensureNamespace(t, e.Client, systemNamespace, "restricted")
	ensureNamespace(t, e.Client, trainingNamespace, "")
	return e
}

func TestTheApiserverTakesEveryObject(t *testing.T) {
	e := cluster(t)
	// A client that refuses what the apiserver would only warn of: unknown fields.
	c := client.WithFieldValidation(e.Client, metav1.FieldValidationStrict)
	for name, v := range variants {
		t.Run(name, func(t *testing.T) {
			for _, o := range objects(t, v.chart, v.values) {
				err := c.Apply(context.Background(), client.ApplyConfigurationFromUnstructured(o), client.DryRunAll, client.ForceOwnership, client.FieldOwner("helm"))
				if err != nil {
					t.Errorf("%s %s: %v", o.GetKind(), o.GetName(), err)
				}
			}
		})
	}
}

func TestPodsRunInANamespaceThatEnforcesRestricted(t *testing.T) {
	e := cluster(t)
	for name, v := range variants {
		t.Run(name, func(t *testing.T) {
			for _, o := range objects(t, v.chart, v.values) {
				if err := createPod(t, e.Client, o); err != nil {
					t.Errorf("%s %s: %v", o.GetKind(), o.GetName(), err)
				}
			}
		})
	}
	t.Run("but a folder of the node is not restricted", func(t *testing.T) {
		o := find(t, objects(t, "siteagent", agentValues+"dataPath: /srv/girassol"), "DaemonSet", "")
		if err := createPod(t, e.Client, o); err == nil || !strings.Contains(err.Error(), "hostPath") {
			t.Errorf("the apiserver says %v; if it takes the pod, say so in values.yaml and docs/kubernetes.md", err)
		}
	})
}

// createPod of an object's template, as its controller would; nothing is kept.
func createPod(t testing.TB, c client.Client, o *unstructured.Unstructured) error {
	t.Helper()
	var template corev1.PodTemplateSpec
	switch o.GetKind() {
	case "Deployment":
		template = into[appsv1.Deployment](t, o).Spec.Template
	case "DaemonSet":
		template = into[appsv1.DaemonSet](t, o).Spec.Template
	default:
		return nil
	}
	if template.Spec.PriorityClassName != "" || template.Spec.RuntimeClassName != nil {
		// Admission looks for those classes, which are the user's.
		template.Spec.PriorityClassName, template.Spec.RuntimeClassName = "", nil
	}
	return c.Create(context.Background(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: systemNamespace, GenerateName: "a-", Labels: template.Labels, Annotations: template.Annotations},
		Spec:       template.Spec,
	}, client.DryRunAll)
}

func TestNothingIsPrivilegedOrOnTheHostsNetwork(t *testing.T) {
	for name, v := range variants {
		t.Run(name, func(t *testing.T) {
			for _, o := range objects(t, v.chart, v.values) {
				text := mustYAML(t, o.Object)
				for _, word := range []string{"privileged: true", "hostNetwork: true", "hostPID: true", "hostIPC: true", "runAsUser: 0\n", "allowPrivilegeEscalation: true"} {
					if strings.Contains(text, word) {
						t.Errorf("%s %s has %s", o.GetKind(), o.GetName(), word)
					}
				}
			}
		})
	}
}

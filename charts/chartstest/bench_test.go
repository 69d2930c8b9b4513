package chartstest

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"helm.sh/helm/v3/pkg/action"
	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/releaseutil"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"girassol.dev/operator/testenv"
)

func TestMain(m *testing.M) { os.Exit(testenv.Main(m)) }

// systemNamespace and trainingNamespace are the release's and a tenant's.
const (
	systemNamespace   = "girassol-system"
	trainingNamespace = "training"
)

func chartDir(name string) string { return filepath.Join(testenv.Root(), "charts", name) }

func load(t testing.TB, dir string) *chart.Chart {
	t.Helper()
	c, err := loader.Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// values from YAML.
func values(t testing.TB, text string) map[string]any {
	t.Helper()
	v := map[string]any{}
	if err := yaml.Unmarshal([]byte(text), &v); err != nil {
		t.Fatalf("values: %v\n%s", err, text)
	}
	return v
}

// render is `helm template` with a release named girassol.
func render(c *chart.Chart, v map[string]any) (string, error) {
	i := action.NewInstall(&action.Configuration{Log: func(string, ...any) {}})
	i.DryRun, i.ClientOnly, i.ReleaseName, i.Namespace = true, true, "girassol", systemNamespace
	i.KubeVersion = &chartutil.KubeVersion{Version: "v1.37.2", Major: "1", Minor: "37"}
	r, err := i.Run(c, v)
	if err != nil {
		return "", err
	}
	return r.Manifest, nil
}

// objects of a chart with values, in the order of their manifests.
func objects(t testing.TB, name, valuesYAML string) []*unstructured.Unstructured {
	t.Helper()
	manifest, err := render(load(t, chartDir(name)), values(t, valuesYAML))
	if err != nil {
		t.Fatal(err)
	}
	return parse(t, manifest)
}

func parse(t testing.TB, manifest string) []*unstructured.Unstructured {
	t.Helper()
	var all []*unstructured.Unstructured
	for _, text := range releaseutil.SplitManifests(manifest) {
		r := utilyaml.NewYAMLReader(bufio.NewReader(strings.NewReader(text)))
		for {
			document, err := r.Read()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			o := &unstructured.Unstructured{}
			if err := yaml.UnmarshalStrict(document, &o.Object, yaml.DisallowUnknownFields); err != nil {
				t.Fatalf("%v in\n%s", err, document)
			}
			if len(o.Object) > 0 {
				all = append(all, o)
			}
		}
	}
	return all
}

// find the one object of a kind with a name; name may be empty if there is only one.
func find(t testing.TB, all []*unstructured.Unstructured, kind, name string) *unstructured.Unstructured {
	t.Helper()
	var found *unstructured.Unstructured
	for _, o := range all {
		if o.GetKind() == kind && (name == "" || o.GetName() == name) {
			if found != nil {
				t.Fatalf("more than one %s %s", kind, name)
			}
			found = o
		}
	}
	if found == nil {
		t.Fatalf("no %s %s", kind, name)
	}
	return found
}

// into decodes strictly: a field that the kind does not have is an error.
func into[T any](t testing.TB, o *unstructured.Unstructured) *T {
	t.Helper()
	v := new(T)
	if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(o.Object, v, true); err != nil {
		t.Fatalf("%s %s: %v", o.GetKind(), o.GetName(), err)
	}
	return v
}

// ensureNamespace with the Pod Security Standard that it enforces.
func ensureNamespace(t testing.TB, c client.Client, name, standard string) {
	t.Helper()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if standard != "" {
		ns.Labels = map[string]string{"pod-security.kubernetes.io/enforce": standard}
	}
	if err := c.Create(context.Background(), ns); err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
}

func name(o *unstructured.Unstructured) string {
	return fmt.Sprintf("%s %s/%s", o.GetKind(), o.GetNamespace(), o.GetName())
}

func mustYAML(t testing.TB, v any) string {
	t.Helper()
	b, err := yaml.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(bytes.TrimSpace(b))
}

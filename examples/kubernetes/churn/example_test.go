package churn

import (
	"bytes"
	"context"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/operator/testenv"
)

// objects are documents by "kind/name".
type objects map[string]map[string]any

// example reads the folder above, and bench patches it as its kustomization does.
func example(t *testing.T, bench bool) objects {
	t.Helper()
	out := objects{}
	for _, path := range listed(t, "..", "resources") {
		for _, o := range documents(t, filepath.Join("..", path)) {
			out[key(o)] = o
		}
	}
	if !bench {
		return out
	}
	for _, path := range listed(t, "../bench", "patches") {
		for _, o := range documents(t, filepath.Join("../bench", path)) {
			if out[key(o)] == nil {
				t.Fatalf("%s patches %s, which does not exist", path, key(o))
			}
			merge(out[key(o)], o)
		}
	}
	return out
}

// listed are the paths under a key of a folder's kustomization.
func listed(t *testing.T, dir, field string) []string {
	t.Helper()
	k := documents(t, filepath.Join(dir, "kustomization.yaml"))[0]
	var out []string
	for _, entry := range k[field].([]any) {
		switch e := entry.(type) {
		case string:
			out = append(out, e)
		case map[string]any:
			out = append(out, e["path"].(string))
		}
	}
	return out
}

func key(o map[string]any) string {
	return o["kind"].(string) + "/" + o["metadata"].(map[string]any)["name"].(string)
}

func documents(t *testing.T, path string) []map[string]any {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var out []map[string]any
	for _, doc := range bytes.Split(b, []byte("\n---\n")) {
		o := map[string]any{}
		if err := yaml.UnmarshalStrict(doc, &o); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		out = append(out, o)
	}
	return out
}

// merge is a JSON merge patch, which is what kustomize does to kinds that it does
// not know.
func merge(into, patch map[string]any) {
	for k, v := range patch {
		sub, isMap := v.(map[string]any)
		have, _ := into[k].(map[string]any)
		switch {
		case v == nil:
			delete(into, k)
		case isMap && have != nil:
			merge(have, sub)
		default:
			into[k] = v
		}
	}
}

// typed reads a document into its type and refuses what that does not know.
func typed[T any](t *testing.T, o map[string]any) *T {
	t.Helper()
	b, err := yaml.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	out := new(T)
	if err := yaml.UnmarshalStrict(b, out); err != nil {
		t.Fatalf("%s: %v", key(o), err)
	}
	return out
}

func TestTheApiserverTakesTheExampleAsItIsAndAsThePatchesMakeIt(t *testing.T) {
	e := testenv.Shared(t)
	e.MachineDeployments(t)
	ns := e.Namespace(t)
	for name, bench := range map[string]bool{"as it is": false, "patched": true} {
		t.Run(name, func(t *testing.T) {
			all := example(t, bench)
			typed[v1alpha1.Federation](t, all["Federation/field-study"])
			for _, site := range []string{"quebec", "atlanta"} {
				typed[v1alpha1.Site](t, all["Site/"+site])
			}
			for name, o := range all {
				u := &unstructured.Unstructured{Object: runtime.DeepCopyJSON(jsonOf(t, o))}
				u.SetNamespace(ns)
				strict := client.WithFieldValidation(e.Client, "Strict")
				if err := strict.Create(context.Background(), u, client.DryRunAll); err != nil {
					t.Errorf("%s: %v", name, err)
				}
			}
			if len(all) != 4 {
				t.Errorf("the example has %d objects: %v", len(all), slices.Sorted(maps.Keys(all)))
			}
		})
	}
}

// jsonOf has int64 where YAML has other numbers.
func jsonOf(t *testing.T, o map[string]any) map[string]any {
	t.Helper()
	b, err := yaml.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	j, err := yaml.YAMLToJSON(b)
	if err != nil {
		t.Fatal(err)
	}
	u := &unstructured.Unstructured{}
	if err := u.UnmarshalJSON(j); err != nil {
		t.Fatal(err)
	}
	return u.Object
}

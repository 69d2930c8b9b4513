package chartstest

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
)

func strictly(o *unstructured.Unstructured, typed runtime.Object) error {
	return runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(o.Object, typed, true)
}

func unstructuredOf(fields map[string]any) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: fields}
}

func contains(all []string, one string) bool { return slices.Contains(all, one) }

// files of the operator's chart below files/, by name.
func files(t testing.TB, folder, suffix string) map[string]string {
	t.Helper()
	dir := filepath.Join(chartDir("girassol"), "files", folder)
	entries, err := os.ReadDir(dir)
	if os.IsNotExist(err) {
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for _, e := range entries {
		if strings.HasSuffix(e.Name(), suffix) {
			b, err := os.ReadFile(filepath.Join(dir, e.Name()))
			if err != nil {
				t.Fatal(err)
			}
			out[e.Name()] = string(b)
		}
	}
	return out
}

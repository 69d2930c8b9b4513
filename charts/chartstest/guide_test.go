package chartstest

import (
	"context"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"helm.sh/helm/v3/pkg/strvals"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/operator/testenv"
)

// guide is docs/kubernetes.md's blocks of one language.
func guide(t *testing.T, language string) []string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(testenv.Root(), "docs", "kubernetes.md"))
	if err != nil {
		t.Fatal(err)
	}
	var blocks []string
	for _, m := range regexp.MustCompile("(?s)```"+language+"\n(.*?)```").FindAllStringSubmatch(string(text), -1) {
		blocks = append(blocks, m[1])
	}
	return blocks
}

func TestTheGuidesObjectsAreTaken(t *testing.T) {
	e := cluster(t)
	c := client.WithFieldValidation(e.Client, metav1.FieldValidationStrict)
	tried := 0
	for _, block := range guide(t, "yaml") {
		if !strings.HasPrefix(block, "apiVersion: "+v1alpha1.Group) {
			continue
		}
		for _, o := range parse(t, block) {
			tried++
			if err := c.Create(context.Background(), o, client.DryRunAll); err != nil {
				t.Error(err)
			}
		}
	}
	if tried < 3 {
		t.Errorf("the guide shows %d objects of ours", tried)
	}
}

func TestTheGuidesValuesRender(t *testing.T) {
	tried := 0
	for _, block := range guide(t, "yaml") {
		if strings.HasPrefix(block, "# values\n") {
			tried++
			objects(t, "girassol", block)
		}
	}
	for _, block := range guide(t, "sh") {
		command := regexp.MustCompile(`helm install \S+ charts/(\S+)`).FindStringSubmatch(block)
		if command == nil {
			continue
		}
		tried++
		v := map[string]any{}
		for _, set := range regexp.MustCompile(`--set (\S+)`).FindAllStringSubmatch(block, -1) {
			if err := strvals.ParseInto(set[1], v); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := render(load(t, chartDir(command[1])), v); err != nil {
			t.Errorf("%s%v", block, err)
		}
	}
	if tried < 3 {
		t.Errorf("the guide installs %d times", tried)
	}
}

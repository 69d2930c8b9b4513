package chartstest

import (
	"testing"

	"helm.sh/helm/v3/pkg/action"
	"helm.sh/helm/v3/pkg/chartutil"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"girassol.dev/operator/testenv"
)

// numbersAsNames: to YAML "2" is a number, and a label or a name that is one is
// refused by the API server. Kubernetes takes all of these.
var numbersAsNames = map[string]string{
	"girassol": `
namespaces: ["2026"]
serviceAccount: {name: "7"}
priorityClassName: "1e3"
tracesConfigMap: "8"
scaler: {tls: {secretName: "9"}}
dashboards: {label: "10"}
metrics: {serviceMonitor: {enabled: true}, podMonitor: {enabled: true}, prometheusRule: {enabled: true}}
`,
	"siteagent": `
site: "2"
federation: "true"
enrolledFor: "1.2"
coordinator: {address: "10.0.0.1:7465", serverName: "10.0.0.1"}
tls: {secretName: "3"}
redis: {urlSecret: {name: "4", key: "5"}}
priorityClassName: "6"
vendors: {nvidia: {enabled: true, gpus: 8, runtimeClassName: "7"}}
trainer:
  image: trainer
  volumes: [{name: "8", mountPath: /data, claimName: "9"}, {name: conf, mountPath: /conf, configMapName: "10"}]
metrics: {podMonitor: {enabled: true}}
`,
}

func TestNamesThatLookLikeNumbersStayNames(t *testing.T) {
	scheme := testenv.Scheme()
	for chart, text := range numbersAsNames {
		for _, o := range parse(t, renderAs(t, chart, text, "42", "43")) {
			for _, path := range [][]string{{"metadata", "name"}, {"metadata", "namespace"}} {
				if v, found, _ := unstructured.NestedFieldNoCopy(o.Object, path...); found {
					if _, text := v.(string); !text {
						t.Errorf("%s: %v of a %s is %v, a %T", chart, path, o.GetKind(), v, v)
					}
				}
			}
			// Of kinds that are not known here, labels and selectors at least.
			for _, path := range [][]string{{"metadata", "labels"}, {"spec", "selector", "matchLabels"}} {
				if _, _, err := unstructured.NestedStringMap(o.Object, path...); err != nil {
					t.Errorf("%s: %s: %v", chart, o.GetKind(), err)
				}
			}
			if object, err := scheme.New(o.GroupVersionKind()); err == nil {
				if err := strictly(o, object); err != nil {
					t.Errorf("%s: %s: %v", chart, o.GetKind(), err)
				}
			}
		}
	}
}

// renderAs is `helm template RELEASE -n NAMESPACE`.
func renderAs(t *testing.T, chart, text, release, namespace string) string {
	t.Helper()
	i := action.NewInstall(&action.Configuration{Log: func(string, ...any) {}})
	i.DryRun, i.ClientOnly, i.ReleaseName, i.Namespace = true, true, release, namespace
	i.KubeVersion = &chartutil.KubeVersion{Version: "v1.37.2", Major: "1", Minor: "37"}
	r, err := i.Run(load(t, chartDir(chart)), values(t, text))
	if err != nil {
		t.Fatal(err)
	}
	return r.Manifest
}

package chartstest

import (
	"slices"
	"strings"
	"testing"

	"helm.sh/helm/v3/pkg/lint"
	"helm.sh/helm/v3/pkg/lint/support"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"girassol.dev/operator/testenv"
	agentapp "girassol.dev/siteagent/app"
)

// agentValues are what charts/siteagent cannot do without.
const agentValues = `
site: quebec
federation: fieldstudy
enrolledFor: training.quebec
coordinator: {address: "coordinator.example:7465"}
tls: {secretName: quebec}
vendors: {nvidia: {enabled: true, gpus: 8}}
`

// everything turns on all that the operator's chart has.
const everything = `
replicas: 1
namespaces: [training]
images:
  registry: registry.example.com/team
  operator: {repository: girassol-operator, digest: "sha256:` + someDigest + `"}
  redis: {repository: docker.io/library/redis, tag: "8"}
imagePullSecrets: [{name: registry}]
capacity:
  scaleTargets:
    - {group: cluster.x-k8s.io, resource: machinedeployments}
    - {group: karpenter.sh, resource: nodepools, clusterScoped: true}
provisioning: {enabled: true, url: "https://girassol.example/provisioning", tokenSecret: {name: readers, key: token}}
scaler: {tls: {secretName: scaler-tls, clientCertificates: true}}
traces: {day.csv: "time,CA-QC\n2026-01-01T00:00:00Z,20\n"}
metrics:
  serviceMonitor: {enabled: true, interval: 30s, labels: {release: prometheus}}
  podMonitor: {enabled: true}
  prometheusRule: {enabled: true}
networkPolicy:
  scalerFrom: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: keda}}}]
serviceAccount: {annotations: {example.com/role: girassol}}
podLabels: {team: ml}
podAnnotations: {example.com/a: b}
priorityClassName: platform
nodeSelector: {role: platform}
tolerations: [{key: platform, operator: Exists, effect: NoSchedule}]
affinity: {podAffinity: {}}
`

const someDigest = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

// variants of values that must render and be taken by the apiserver.
var variants = map[string]struct{ chart, values string }{
	"operator with defaults":       {"girassol", ""},
	"operator with everything":     {"girassol", everything},
	"operator without extras":      {"girassol", "crds: {install: false}\nscaler: {enabled: false}\ndashboards: {enabled: false}\nnetworkPolicy: {enabled: false}\nrbac: {create: false}\nserviceAccount: {create: false, name: mine}"},
	"operator with a trace of its": {"girassol", "tracesConfigMap: mine"},
	"agents on Nvidia":             {"siteagent", agentValues},
	"agents on three vendors": {"siteagent", agentValues + `
redis: {urlSecret: {name: redis, key: url}}
imagePullSecrets: [{name: registry}]
trainer:
  image: registry.example.com/team/trainer@sha256:` + someDigest + `
  command: [python, train.py]
  args: [--lr, "0.1"]
  env: [{name: HOME, value: /home}, {name: TOKEN, valueFrom: {secretKeyRef: {name: a, key: b}}}]
  resources: {requests: {cpu: 4}, limits: {memory: 64Gi}}
  volumes: [{name: data, mountPath: /data, claimName: corpus, readOnly: true}, {name: conf, mountPath: /conf, configMapName: conf}]
metrics: {podMonitor: {enabled: true, interval: 15s}}
`},
	"agents that cap the power": {"siteagent", agentValues + "power: {capWatts: 450}"},
	"agents in a mesh on CPUs":  {"siteagent", strings.ReplaceAll(agentValues, "tls: {secretName: quebec}\nvendors: {nvidia: {enabled: true, gpus: 8}}", "insecure: true\nvendors: {cpu: {enabled: true}}")},
}

func init() {
	v := variants["agents on three vendors"]
	v.values = strings.ReplaceAll(v.values, "vendors: {nvidia: {enabled: true, gpus: 8}}",
		"vendors: {nvidia: {enabled: true, gpus: 8, runtimeClassName: nvidia}, amd: {enabled: true, supplementalGroups: [44, 992], tolerations: [{key: amd.com/gpu, operator: Exists}]}, cpu: {enabled: true}}")
	variants["agents on three vendors"] = v
}

// A container's runtime hides powercap at its own place, and its class links into
// its zones.
func TestAgentsThatMeasureProcessorsReadTheNodesPowercapReadOnly(t *testing.T) {
	o := into[appsv1.DaemonSet](t, find(t, objects(t, "siteagent", agentValues+"measureProcessors: true"), "DaemonSet", ""))
	agent := o.Spec.Template.Spec.Containers[0]
	if err := agentapp.Command().ParseFlags(agent.Args); err != nil || !slices.Contains(agent.Args, "--powercap-root=/host") {
		t.Errorf("%v in %q", err, agent.Args)
	}
	sources := map[string]string{}
	for _, v := range o.Spec.Template.Spec.Volumes {
		if v.HostPath != nil {
			sources[v.Name] = v.HostPath.Path
		}
	}
	if len(sources) != 2 {
		t.Errorf("folders of the node: %v", sources)
	}
	for _, m := range agent.VolumeMounts {
		if path, ok := sources[m.Name]; ok && (m.MountPath != "/host"+path || !m.ReadOnly) {
			t.Errorf("%+v of %s", m, path)
		}
	}
}

func TestChartsPassHelmsLint(t *testing.T) {
	for name, v := range map[string]string{"girassol": "", "siteagent": agentValues} {
		linter := lint.All(chartDir(name), values(t, v), systemNamespace, true)
		for _, m := range linter.Messages {
			// The icon is for catalogues that show one.
			if m.Severity > support.InfoSev || !strings.Contains(m.Err.Error(), "icon is recommended") {
				t.Errorf("%s: %v", name, m)
			}
		}
	}
}

func TestAValueThatCannotWorkIsRefusedWithItsName(t *testing.T) {
	for _, tc := range []struct{ name, chart, values, says string }{
		{"three replicas", "girassol", "replicas: 3", "replicas"},
		{"a misspelt value", "girassol", "replica: 1", "replica"},
		{"a misspelt value below", "girassol", "scaler: {enable: true}", "enable"},
		{"a digest cut short", "girassol", "images: {operator: {repository: a, digest: sha256:12}}", "digest"},
		{"a port of root's", "girassol", "webhook: {service: {port: 80}}", "port"},
		{"a level of log", "girassol", "log: {level: loud}", "level"},
		{"a kind instead of its plural", "girassol", "capacity: {scaleTargets: [{group: apps, resource: Deployment}]}", "resource"},
		{"a toleration of everything", "girassol", "tolerations: [{operator: Exists}]", "key"},
		{"client certificates without TLS", "girassol", "scaler: {tls: {clientCertificates: true}}", "secretName"},
		{"a path as a trace", "girassol", `traces: {"../a.csv": ""}`, "a.csv"},
		{"no site", "siteagent", "", "site"},
		{"no vendor", "siteagent", strings.ReplaceAll(agentValues, "enabled: true", "enabled: false"), "vendors"},
		{"an address with a scheme", "siteagent", strings.ReplaceAll(agentValues, "coordinator.example:7465", "https://coordinator.example"), "address"},
		{"plaintext by oversight", "siteagent", strings.ReplaceAll(agentValues, "secretName: quebec", `secretName: ""`), "secretName"},
		{"a system priority", "siteagent", agentValues + "priorityClassName: system-node-critical", "priorityClassName"},
		{"a volume of two kinds", "siteagent", agentValues + "trainer: {volumes: [{name: a, mountPath: /a, claimName: a, configMapName: b}]}", "volumes"},
		{"a number as a variable", "siteagent", agentValues + "trainer: {env: [{name: EPOCHS, value: 3}]}", "value"},
		{"a variable of ours", "siteagent", agentValues + "trainer: {env: [{name: GIRASSOL_NODE, value: a}]}", "env"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := render(load(t, chartDir(tc.chart)), values(t, tc.values))
			if err == nil || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("Helm says %v, want a refusal that names %s", err, tc.says)
			}
		})
	}
}

func TestAllObjectsDecodeStrictly(t *testing.T) {
	scheme := testenv.Scheme()
	for name, v := range variants {
		t.Run(name, func(t *testing.T) {
			for _, o := range objects(t, v.chart, v.values) {
				typed, err := scheme.New(o.GroupVersionKind())
				if err != nil { // our CRDs and Prometheus' kinds; the apiserver checks them
					continue
				}
				if err := strictly(o, typed); err != nil {
					t.Errorf("%s: %v", o.GetName(), err)
				}
			}
		})
	}
}

func TestImagesAreByDigestWhereGivenAndKeepTheirOwnHost(t *testing.T) {
	d := into[appsv1.Deployment](t, find(t, objects(t, "girassol", everything), "Deployment", ""))
	c := d.Spec.Template.Spec.Containers[0]
	if want := "registry.example.com/team/girassol-operator@sha256:" + someDigest; c.Image != want {
		t.Errorf("the operator's image is %s, want %s", c.Image, want)
	}
	for _, want := range []string{
		"--coordinator-image=registry.example.com/team/girassol-coordinator:0.1.0",
		"--redis-image=docker.io/library/redis:8",
		"--namespaces=training", "--traces=/traces", "--scaler-tls-client-ca=/tls/scaler/ca.crt",
	} {
		if !contains(c.Args, want) {
			t.Errorf("no argument %s in %q", want, c.Args)
		}
	}
}

func TestTheWebhooksServiceFindsTheLeaderAndKEDAsFindsAll(t *testing.T) {
	all := objects(t, "girassol", "provisioning: {enabled: true}")
	pod := into[appsv1.Deployment](t, find(t, all, "Deployment", "")).Spec.Template.Labels
	for service, leader := range map[string]bool{"girassol-webhook": true, "girassol-provisioning": true, "girassol-scaler": false, "girassol-metrics": false} {
		s := into[corev1.Service](t, find(t, all, "Service", service))
		if _, ok := s.Spec.Selector["girassol.dev/role"]; ok != leader {
			t.Errorf("%s selects %v", service, s.Spec.Selector)
		}
		for k, v := range s.Spec.Selector {
			if k != "girassol.dev/role" && pod[k] != v {
				t.Errorf("%s selects %s=%s, the pods have %q", service, k, v, pod[k])
			}
		}
	}
}

// TestReadersOfTheProvisioningAPIHaveAToken: without one the operator lets nobody
// read wishes and explanations.
func TestReadersOfTheProvisioningAPIHaveAToken(t *testing.T) {
	pod := into[appsv1.Deployment](t, find(t, objects(t, "girassol", everything), "Deployment", "")).Spec.Template.Spec
	const file = "/provisioning/token"
	if !contains(pod.Containers[0].Args, "--provisioning-token-file="+file) {
		t.Errorf("no file of a token among %q", pod.Containers[0].Args)
	}
	var volume string
	for _, m := range pod.Containers[0].VolumeMounts {
		if m.MountPath == "/provisioning" && m.ReadOnly {
			volume = m.Name
		}
	}
	secret := ""
	for _, v := range pod.Volumes {
		if v.Name == volume && v.Secret != nil {
			secret = v.Secret.SecretName
		}
	}
	if secret != "readers" {
		t.Errorf("Secret %q is mounted at the file's folder, want readers", secret)
	}
}

func TestOneReplicaHasNoDisruptionBudgetThatBlocksDrains(t *testing.T) {
	for _, o := range objects(t, "girassol", "replicas: 1") {
		if o.GetKind() == "PodDisruptionBudget" {
			t.Error("with one replica there is a PodDisruptionBudget: its node could never be drained")
		}
	}
	find(t, objects(t, "girassol", ""), "PodDisruptionBudget", "girassol-operator")
}

func TestDashboardsAndRulesCarryTheirFilesWordForWord(t *testing.T) {
	all := objects(t, "girassol", everything)
	dashboards := files(t, "dashboards", ".json")
	for file, text := range dashboards {
		found := false
		for _, o := range all {
			if o.GetKind() != "ConfigMap" || o.GetLabels()["grafana_dashboard"] != "1" {
				continue
			}
			m := into[corev1.ConfigMap](t, o)
			if data, ok := m.Data[file]; ok {
				found = strings.TrimSpace(data) == strings.TrimSpace(text)
			}
		}
		if !found {
			t.Errorf("no ConfigMap with the label grafana_dashboard=1 holds %s as it is", file)
		}
	}
	rules := 0
	for _, o := range all {
		if o.GetKind() == "PrometheusRule" {
			rules++
		}
	}
	if want := len(files(t, "alerts", ".yaml")); rules != want {
		t.Errorf("%d PrometheusRules for %d files", rules, want)
	}
}

func TestAChartWithoutDashboardsAndRulesRenders(t *testing.T) {
	c := load(t, chartDir("girassol"))
	kept := c.Files[:0]
	for _, f := range c.Files {
		if !strings.HasPrefix(f.Name, "files/dashboards/") && !strings.HasPrefix(f.Name, "files/alerts/") {
			kept = append(kept, f)
		}
	}
	c.Files = kept
	if _, err := render(c, values(t, everything)); err != nil {
		t.Error(err)
	}
}

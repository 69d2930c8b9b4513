package chartstest

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/operator/resources"
)

// TestAgentsOfTheChartAreThoseThatTheOperatorMakes compares what matters of the
// pods: an agent must not behave differently in another cluster.
func TestAgentsOfTheChartAreThoseThatTheOperatorMakes(t *testing.T) {
	f := &v1alpha1.Federation{ObjectMeta: metav1.ObjectMeta{Namespace: "training", Name: "fieldstudy"}}
	s := &v1alpha1.Site{ObjectMeta: metav1.ObjectMeta{Namespace: "training", Name: "quebec"}}
	made, err := resources.Agent(resources.AgentInput{
		Federation: f, Site: s, Vendor: v1alpha1.VendorNVIDIA, GPUs: 8, Images: resources.Images{Agent: "girassol-agent:0.1.0"},
	})
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(made)
	if err != nil {
		t.Fatal(err)
	}
	operator := &appsv1.DaemonSet{}
	if err := json.Unmarshal(text, operator); err != nil {
		t.Fatal(err)
	}
	chart := into[appsv1.DaemonSet](t, find(t, objects(t, "siteagent", strings.ReplaceAll(agentValues,
		"coordinator.example:7465", resources.CoordinatorAddress(f))), "DaemonSet", ""))

	a, b := operator.Spec.Template.Spec, chart.Spec.Template.Spec
	for what, pair := range map[string][2]any{
		"node selector":    {a.NodeSelector, b.NodeSelector},
		"security context": {a.SecurityContext, b.SecurityContext},
		"tolerations":      {len(a.Tolerations), len(b.Tolerations)},
		"grace":            {a.TerminationGracePeriodSeconds, b.TerminationGracePeriodSeconds},
		"token":            {a.AutomountServiceAccountToken, b.AutomountServiceAccountToken},
		"containers":       {len(a.Containers), len(b.Containers)},
		"update strategy":  {operator.Spec.UpdateStrategy.Type, chart.Spec.UpdateStrategy.Type},
	} {
		if !reflect.DeepEqual(pair[0], pair[1]) {
			t.Errorf("%s: the operator has %v, the chart %v", what, pair[0], pair[1])
		}
	}
	for i := range a.Containers {
		x, y := a.Containers[i], b.Containers[i]
		for what, pair := range map[string][2]any{
			"name":             {x.Name, y.Name},
			"image":            {x.Image, y.Image},
			"security context": {x.SecurityContext, y.SecurityContext},
			"GPUs":             {x.Resources.Limits.Name("nvidia.com/gpu", "").String(), y.Resources.Limits.Name("nvidia.com/gpu", "").String()},
			"arguments":        {flags(x.Args), flags(y.Args)},
			"environment":      {variables(x.Env), variables(y.Env)},
			"mounts":           {paths(x.VolumeMounts), paths(y.VolumeMounts)},
		} {
			if !reflect.DeepEqual(pair[0], pair[1]) {
				t.Errorf("%s of %s: the operator has %v, the chart %v", what, x.Name, pair[0], pair[1])
			}
		}
	}
}

// flags by name, for what must have the same value anywhere; certificates lie
// where each mounts them and the level of logs is a taste.
func flags(args []string) map[string]string {
	out := map[string]string{}
	for _, a := range args {
		name, value, _ := strings.Cut(a, "=")
		switch {
		case strings.HasPrefix(name, "--tls-"):
			value = value[strings.LastIndex(value, "/")+1:]
		case name == "--grace":
			if d, err := time.ParseDuration(value); err == nil {
				value = d.String()
			}
		case name == "--log-level":
			continue
		}
		out[name] = value
	}
	return out
}

func variables(env []corev1.EnvVar) map[string]string {
	out := map[string]string{}
	for _, e := range env {
		out[e.Name] = e.Value
	}
	return out
}

func paths(mounts []corev1.VolumeMount) map[string]bool {
	out := map[string]bool{}
	for _, m := range mounts {
		if !strings.Contains(m.Name, "tls") {
			out[m.MountPath] = m.ReadOnly
		}
	}
	return out
}

package chartstest

import (
	"testing"

	appsv1 "k8s.io/api/apps/v1"

	operatorapp "girassol.dev/operator/app"
	agentapp "girassol.dev/siteagent/app"
)

// TestTheBinariesTakeTheChartsArguments parses them as the processes would.
func TestTheBinariesTakeTheChartsArguments(t *testing.T) {
	for name, v := range variants {
		t.Run(name, func(t *testing.T) {
			for _, o := range objects(t, v.chart, v.values) {
				switch o.GetKind() {
				case "Deployment":
					args := into[appsv1.Deployment](t, o).Spec.Template.Spec.Containers[0].Args
					if err := operatorapp.Command().ParseFlags(args); err != nil {
						t.Errorf("operator: %v in %q", err, args)
					}
				case "DaemonSet":
					args := into[appsv1.DaemonSet](t, o).Spec.Template.Spec.Containers[0].Args
					if err := agentapp.Command().ParseFlags(args); err != nil {
						t.Errorf("agent: %v in %q", err, args)
					}
				}
			}
		})
	}
}

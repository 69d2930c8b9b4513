package dashboards

import (
	"os/exec"
	"path/filepath"
	"testing"
)

func TestAlertsFireWhenTheyShouldAndNotBeside(t *testing.T) {
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		t.Skip("no promtool: install the package prometheus to test the alert rules")
	}
	rules := filepath.Join("..", "..", "charts", "girassol", "files", "alerts", "girassol.yaml")
	for _, args := range [][]string{{"check", "rules", rules}, {"test", "rules", filepath.Join("testdata", "alerts_test.yaml")}} {
		if out, err := exec.Command(promtool, args...).CombinedOutput(); err != nil {
			t.Errorf("promtool %v: %v\n%s", args, err, out)
		}
	}
}

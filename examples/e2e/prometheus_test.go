package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"girassol.dev/operator/dashboards/promtest"
)

// The demo runs with a Prometheus beside it; then every query of every panel must
// have given values. Panels of the operator's own metrics are asked in the churn
// suite, where there is an operator.
func TestNoPanelIsEmptyForTheDemo(t *testing.T) {
	address := freeAddr(t)
	prometheus := promtest.Start(t, address)
	began := time.Now()
	cmd := exec.Command(binary, "--plain", "--speed", "1080", "--out", filepath.Join(t.TempDir(), "demo"), "--metrics-listen", address)
	cmd.Env = append(os.Environ(), "GOMAXPROCS=2")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("the demo: %v\n%s", err, out)
	}
	empty, err := prometheus.Empty(began, time.Now(), func(expr string) bool { return strings.Contains(expr, "girassol_operator_") })
	if err != nil {
		t.Fatal(err)
	}
	for _, q := range empty {
		t.Errorf("no value: %s", q)
	}
}

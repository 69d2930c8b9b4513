// Package churn tests a whole federation on a real Kubernetes control plane: the
// operator as a process with its own account's rights, and for every pod of the
// coordinator and of the agents that comes and goes, the real processes. Nodes
// and their GPUs are played.
//
// It holds tests only. Every wait has a deadline and says what it waited for;
// nothing is asserted about how long anything takes.
package churn

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	// What the programs consist of, so that a cached result is one of these.
	_ "girassol.dev/coordinator/app"
	_ "girassol.dev/operator/app"
	"girassol.dev/operator/testenv"
	_ "girassol.dev/siteagent/app"
	_ "girassol.dev/siteagent/trainer/transformer"
)

var (
	seed  = flag.Uint64("seed", 1, "seed of the day's signals")
	speed = flag.Float64("speed", 400, "virtual seconds of signals per second")
)

// patience bounds every wait of a test.
const patience = 90 * time.Second

// folder of the programs.
var folder string

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "churn-")
	if err != nil {
		fmt.Fprintln(os.Stderr, "churn:", err)
		return 1
	}
	folder = dir
	defer func() { _ = os.RemoveAll(dir) }()
	return testenv.Main(m)
}

// build makes the programs, once.
var build = sync.OnceValue(func() error {
	cmd := exec.Command("go", "build", "-o", folder, "girassol.dev/coordinator/cmd/coordinator", "girassol.dev/siteagent/cmd/agent", "girassol.dev/operator/cmd/operator")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("the programs do not build: %w\n%s", err, out)
	}
	return nil
})

func program(name string) string { return filepath.Join(folder, name) }

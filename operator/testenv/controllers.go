package testenv

import (
	_ "embed"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

//go:embed stages.yaml
var stages []byte

// LabelPower on a node names the KWOK process that keeps it alive; without it the
// one of all nodes does. Nodes of one power are cut off together.
const LabelPower = "testenv.girassol.dev/power"

// GridPower is the power of nodes that are never cut off.
const GridPower = "grid"

// controllers that run: those that make pods, lose nodes, bind volumes and clean up.
var controllers = []string{
	"daemonset-controller", "statefulset-controller", "deployment-controller", "replicaset-controller",
	"node-lifecycle-controller", "taint-eviction-controller", "pod-garbage-collector-controller",
	"garbage-collector-controller", "namespace-controller",
	"persistentvolume-binder-controller", "persistentvolume-protection-controller", "persistentvolumeclaim-protection-controller",
}

// NodeMonitorGrace is how long a node's heartbeat may be missing until it is lost.
const NodeMonitorGrace = 12 * time.Second

// Controllers makes the control plane whole, once: the controller manager, the
// scheduler and KWOK for nodes of GridPower. Without the binaries it skips the test.
func (e *Environment) Controllers(t testing.TB) {
	t.Helper()
	for _, name := range []string{"kube-controller-manager", "kube-scheduler", "kwok"} {
		if _, err := os.Stat(filepath.Join(Assets(), name)); err != nil {
			t.Skipf("no %s in %s: run `make testenv`", name, Assets())
		}
	}
	e.once.Do(func() { e.controllersErr = e.startControllers() })
	if e.controllersErr != nil {
		t.Fatal(e.controllersErr)
	}
}

func (e *Environment) startControllers() error {
	dir, err := e.Dir()
	if err != nil {
		return err
	}
	kubeconfig := filepath.Join(dir, "kubeconfig")
	if err := os.WriteFile(kubeconfig, e.env.KubeConfig, 0o600); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "stages.yaml"), stages, 0o600); err != nil {
		return err
	}
	common := []string{"--kubeconfig=" + kubeconfig, "--leader-elect=false", "--secure-port=0"}
	_, err = e.start("kube-controller-manager", append(slices.Clone(common), "--controllers="+strings.Join(controllers, ","),
		"--node-monitor-grace-period="+NodeMonitorGrace.String(), "--node-monitor-period=1s", "--concurrent-gc-syncs=4",
		"--kube-api-qps=500", "--kube-api-burst=500")...)
	if err != nil {
		return err
	}
	if _, err := e.start("kube-scheduler", append(common, "--kube-api-qps=500", "--kube-api-burst=500")...); err != nil {
		return err
	}
	_, err = e.startKWOK(GridPower)
	return err
}

// Dir is the folder of the control plane's files and logs.
func (e *Environment) Dir() (string, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.dir == "" {
		dir, err := os.MkdirTemp("", "testenv-")
		if err != nil {
			return "", err
		}
		e.dir = dir
	}
	return e.dir, nil
}

// start runs one of the binaries until the control plane ends.
func (e *Environment) start(name string, args ...string) (*Process, error) {
	dir, err := e.Dir()
	if err != nil {
		return nil, err
	}
	p, err := StartProcess(name, filepath.Join(dir, name+".log"), dir, append([]string{filepath.Join(Assets(), name)}, args...), nil)
	if err != nil {
		return nil, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.processes = append(e.processes, p)
	return p, nil
}

func (e *Environment) startKWOK(power string) (*Process, error) {
	dir, err := e.Dir()
	if err != nil {
		return nil, err
	}
	return e.start("kwok", "--kubeconfig="+filepath.Join(dir, "kubeconfig"), "--config="+filepath.Join(dir, "stages.yaml"),
		"--manage-all-nodes=false", "--manage-nodes-with-annotation-selector=", "--manage-nodes-with-label-selector="+LabelPower+"="+power,
		fmt.Sprintf("--node-lease-duration-seconds=%d", int(NodeMonitorGrace.Seconds()/2)))
}

// Power keeps the nodes of its own name alive until it is cut off.
type Power struct {
	t       testing.TB
	e       *Environment
	name    string
	process *Process
}

// Power starts the heartbeat of all nodes with the label LabelPower=name.
func (e *Environment) Power(t testing.TB, name string) *Power {
	t.Helper()
	p := &Power{t: t, e: e, name: name}
	p.On()
	t.Cleanup(p.Off)
	return p
}

// On starts the heartbeat, Off ends it as a power cut does.
func (p *Power) On() {
	p.t.Helper()
	if p.process != nil {
		return
	}
	process, err := p.e.startKWOK(p.name)
	if err != nil {
		p.t.Fatal(err)
	}
	p.process = process
}

// Off ends the heartbeat as a power cut does.
func (p *Power) Off() {
	if p.process != nil {
		p.process.Kill()
		p.process = nil
	}
}

// Logs is the end of what the control plane's processes wrote.
func (e *Environment) Logs(bytes int64) string {
	e.mu.Lock()
	defer e.mu.Unlock()
	var out strings.Builder
	seen := map[string]bool{}
	for _, p := range e.processes {
		if !seen[p.Log] {
			seen[p.Log] = true
			fmt.Fprintf(&out, "--- %s\n%s\n", p.Name, p.Tail(bytes))
		}
	}
	return out.String()
}

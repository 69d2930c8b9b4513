// Package e2e tests whole federations of real processes: the coordinator, an
// agent per site and its trainer, killed, cut off and started again.
//
// It holds tests only. Every wait has a deadline and says what it waited for;
// nothing is asserted about how long anything takes.
package e2e

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	// What the programs consist of, so that a cached result is one of these.
	_ "girassol.dev/coordinator/app"
	"girassol.dev/internal/wire"
	_ "girassol.dev/siteagent/app"
	_ "girassol.dev/siteagent/trainer/transformer"
)

// binary is the quickstart, whose roles are the product's processes; cli is
// girassol.
var binary, cli string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "girassol-e2e-")
	if err != nil {
		panic(err)
	}
	binary, cli = filepath.Join(dir, "quickstart"), filepath.Join(dir, "girassol")
	build := exec.Command("go", "build", "-o", dir, "girassol.dev/examples/quickstart", "girassol.dev/coordinator/cmd/girassol")
	build.Stderr = os.Stderr
	if err := build.Run(); err != nil {
		fmt.Fprintln(os.Stderr, "e2e: the programs do not build:", err)
		os.Exit(1)
	}
	code := m.Run()
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

// patience bounds every wait of a test.
const patience = 90 * time.Second

// cluster is one federation on this machine.
type cluster struct {
	t     *testing.T
	dir   string
	addr  string
	redis string
	admin coordinatorv1.AdminClient
	// trainer arguments beside the data.
	trainer []string
	// agentFlags beside those of every agent.
	agentFlags []string
	coord      *process
	agents     map[string]*process
}

type spec struct {
	algorithm string // of the API: DecoupledMomentum, DiLoCo, FedAvg
	sites     int
	rounds    string // YAML lines under spec.rounds
	redis     string
	trainer   []string
	// energy and grid replace the policy Ignore; YAML flow mappings.
	energy, grid string
	evaluation   string // replaces {every: 2}; a YAML flow mapping
}

func newCluster(t *testing.T, s spec) *cluster {
	t.Helper()
	// Not t.TempDir: a Unix socket's path may have 107 bytes.
	dir, err := os.MkdirTemp("", "e2e-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	c := &cluster{t: t, dir: dir, addr: freeAddr(t), redis: s.redis, trainer: s.trainer, agents: map[string]*process{}}
	var y strings.Builder
	fmt.Fprintf(&y, "apiVersion: girassol.dev/v1alpha1\nkind: Federation\nmetadata: {name: e2e}\nspec:\n  sites:\n")
	for i := range s.sites {
		fmt.Fprintf(&y, "  - {name: %s}\n", siteName(i))
	}
	fmt.Fprintf(&y, "  algorithm: {strategy: %s}\n  energy: %s\n  rounds: {%s}\n  evaluation: %s\n", s.algorithm, cmp.Or(s.energy, "{policy: Ignore}"), s.rounds, cmp.Or(s.evaluation, "{every: 2}"))
	for i := range s.sites {
		fmt.Fprintf(&y, "---\napiVersion: girassol.dev/v1alpha1\nkind: Site\nmetadata: {name: %s}\nspec: {power: {trainingWatts: 100, idleWatts: 10}, grid: %s}\n", siteName(i), cmp.Or(s.grid, "{}"))
	}
	c.write("federation.yaml", y.String())
	for i := range s.sites {
		text := strings.Repeat(fmt.Sprintf("site %d has its own words, %d of them, and says them again and again.\n", i, i*7), 400)
		c.write(filepath.Join("text", siteName(i), "a.txt"), text)
	}
	c.write(filepath.Join("held-out", "h.txt"), strings.Repeat("a site has its own words, and says them again.\n", 200))
	conn, err := wire.Dial(c.addr, wire.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	c.admin = coordinatorv1.NewAdminClient(conn)
	t.Cleanup(func() {
		if t.Failed() {
			c.dumpLogs()
		}
	})
	return c
}

func siteName(i int) string { return string(rune('a' + i)) }

func (c *cluster) write(name, text string) {
	c.t.Helper()
	p := filepath.Join(c.dir, name)
	if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
		c.t.Fatal(err)
	}
	if err := os.WriteFile(p, []byte(text), 0o644); err != nil {
		c.t.Fatal(err)
	}
}

func (c *cluster) edit(name, old, replacement string) {
	c.t.Helper()
	b, err := os.ReadFile(filepath.Join(c.dir, name))
	if err != nil {
		c.t.Fatal(err)
	}
	c.write(name, strings.ReplaceAll(string(b), old, replacement))
}

func (c *cluster) store() string { return filepath.Join(c.dir, "coordinator") }

func (c *cluster) startCoordinator(more ...string) {
	c.t.Helper()
	args := append([]string{"coordinator", "--config", filepath.Join(c.dir, "federation.yaml"), "--data", c.store(), "--listen", c.addr,
		"--heartbeat", "300ms", "--snapshot-every", "100000", "--keep-updates"}, more...)
	if c.redis != "" {
		args = append(args, "--redis", c.redis)
	}
	c.coord = c.run("coordinator", args...)
}

func (c *cluster) startAgent(i int) *process { return c.startAgentAs(i, siteName(i)) }

// startAgentAs starts an agent of site i with a data folder of its own.
func (c *cluster) startAgentAs(i int, folder string) *process {
	c.t.Helper()
	name := siteName(i)
	args := []string{"agent", "--coordinator", c.addr, "--federation", "e2e", "--site", name, "--node", "n1", "--data", filepath.Join(c.dir, "agent-"+folder), "--retry-max", "500ms"}
	if c.redis != "" {
		args = append(args, "--redis", c.redis)
	}
	args = append(args, c.agentFlags...)
	args = append(args, "--", binary, "trainer", "--data", filepath.Join(c.dir, "text", name), "--held-out", filepath.Join(c.dir, "held-out"),
		"--seed", strconv.Itoa(i+1), "--dim", "16", "--layers", "1", "--heads", "2", "--context", "32", "--batch", "2", "--evaluate-tokens", "256")
	args = append(args, c.trainer...)
	p := c.run("agent-"+folder, args...)
	c.agents[name] = p
	return p
}

// until watches the status until it fits.
func (c *cluster) until(what string, ok func(*coordinatorv1.FederationStatus) bool) *coordinatorv1.FederationStatus {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var last *coordinatorv1.FederationStatus
	for ctx.Err() == nil {
		w, err := c.admin.Watch(ctx, &coordinatorv1.WatchRequest{IntervalMs: 50})
		for err == nil {
			var st *coordinatorv1.FederationStatus
			if st, err = w.Recv(); err == nil {
				if last = st; ok(st) {
					return st
				}
			}
		}
		// The coordinator is away; a watch that could not be opened costs a moment.
		select {
		case <-ctx.Done():
		case <-time.After(50 * time.Millisecond):
		}
	}
	c.t.Fatalf("within %s it never %s; last status: %v", patience, what, last)
	return nil
}

func (c *cluster) untilVersion(v uint64) *coordinatorv1.FederationStatus {
	c.t.Helper()
	return c.until(fmt.Sprintf("reached version %d", v), func(s *coordinatorv1.FederationStatus) bool { return s.Version != nil && s.GetVersion() >= v })
}

// untilCollecting waits for a round that is granted to the given sites and from
// which at least one update is still missing.
func (c *cluster) untilCollecting(after uint64, members ...string) *coordinatorv1.FederationStatus {
	c.t.Helper()
	return c.until(fmt.Sprintf("collected from %v after version %d", members, after), func(s *coordinatorv1.FederationStatus) bool {
		r := s.GetRound()
		waiting := map[string]bool{}
		for _, m := range r.GetWaitingFor() {
			waiting[m] = true
		}
		for _, m := range members {
			if !waiting[m] {
				return false
			}
		}
		return s.Version != nil && s.GetVersion() >= after && r.GetState() == "Collecting"
	})
}

func site(s *coordinatorv1.FederationStatus, name string) *coordinatorv1.SiteStatus {
	for _, x := range s.GetSites() {
		if x.GetName() == name {
			return x
		}
	}
	return nil
}

// stop ends everything in order and fails if a process does not end well.
func (c *cluster) stop() {
	c.t.Helper()
	for name, a := range c.agents {
		a.signal(syscall.SIGTERM)
		if code := a.wait(); code != 0 {
			c.t.Errorf("agent %s ended with code %d", name, code)
		}
	}
	c.coord.signal(syscall.SIGTERM)
	if code := c.coord.wait(); code != 0 {
		c.t.Errorf("coordinator ended with code %d", code)
	}
}

func (c *cluster) dumpLogs() {
	logs, _ := filepath.Glob(filepath.Join(c.dir, "*.log"))
	for _, l := range logs {
		b, _ := os.ReadFile(l)
		if len(b) > 6000 {
			b = b[len(b)-6000:]
		}
		c.t.Logf("--- %s\n%s", filepath.Base(l), b)
	}
}

// process is one running child.
type process struct {
	t    *testing.T
	name string
	cmd  *exec.Cmd
	done chan struct{}
}

func (c *cluster) run(name string, args ...string) *process {
	c.t.Helper()
	return c.runProgram(name, binary, nil, args...)
}

// runProgram runs any program with further variables in its environment.
func (c *cluster) runProgram(name, program string, env []string, args ...string) *process {
	c.t.Helper()
	log, err := os.OpenFile(filepath.Join(c.dir, name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		c.t.Fatal(err)
	}
	defer log.Close()
	cmd := exec.Command(program, args...)
	cmd.Env = append(os.Environ(), env...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		c.t.Fatal(err)
	}
	p := &process{t: c.t, name: name, cmd: cmd, done: make(chan struct{})}
	go func() { _ = cmd.Wait(); close(p.done) }()
	c.t.Cleanup(func() { _ = cmd.Process.Kill(); <-p.done })
	return p
}

func (p *process) signal(sig syscall.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(sig); err != nil {
		p.t.Errorf("%s: %v", p.name, err)
	}
}

// kill is kill -9, and waits until the process is gone.
func (p *process) kill() { p.signal(syscall.SIGKILL); p.wait() }

func (p *process) wait() int {
	p.t.Helper()
	select {
	case <-p.done:
	case <-time.After(patience):
		p.t.Fatalf("%s did not end within %s", p.name, patience)
	}
	return p.cmd.ProcessState.ExitCode()
}

// children are the live child processes of p, by /proc.
func (p *process) children() []int {
	var out []int
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, f := range stats {
		b, err := os.ReadFile(f)
		if err != nil {
			continue
		}
		// pid (comm) state ppid ...; comm may hold anything but its last ')' ends it.
		text := string(b)
		rest := strings.Fields(text[strings.LastIndexByte(text, ')')+1:])
		if len(rest) > 1 && rest[0] != "Z" && rest[1] == strconv.Itoa(p.cmd.Process.Pid) {
			pid, _ := strconv.Atoi(text[:strings.IndexByte(text, ' ')])
			out = append(out, pid)
		}
	}
	return out
}

func freeAddr(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

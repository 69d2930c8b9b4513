//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"google.golang.org/grpc"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	"girassol.dev/internal/wire"
)

// patience bounds every wait for the federation to come to itself.
const patience = 90 * time.Second

// The share of a disk, in MiB.
const diskMiB = 24

// federation is the processes and where they live.
type federation struct {
	o       options
	dir     string
	self    string
	net     *network // nil on the loopback
	proxies map[string]*proxy
	me      *host
	hosts   map[string]*host
	ports   map[string]string // on the loopback: address by name
	sites   []string
	procs   map[string]*process
	admin   coordinatorv1.AdminClient
	conn    *grpc.ClientConn
	out     map[string]bool // sites that are not to train
	redis   bool
	active  string          // host of the coordinator
	down    map[string]bool // processes that are to stay away
	revived int
	book    *book
}

func newFederation(o options, dir string) (*federation, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	f := &federation{o: o, dir: dir, self: self, hosts: map[string]*host{}, ports: map[string]string{}, procs: map[string]*process{}, out: map[string]bool{},
		proxies: map[string]*proxy{}, active: "coordinator", down: map[string]bool{}}
	f.book = newBook(f.data("coordinator"))
	for i := range o.agents {
		f.sites = append(f.sites, string(rune('a'+i)))
	}
	_, err = exec.LookPath("redis-server")
	f.redis = err == nil
	if !o.loopback {
		err = f.wireUp()
	} else {
		err = f.loopback()
	}
	if err != nil {
		return nil, err
	}
	return f, f.configure()
}

func (f *federation) configure() error {
	var y strings.Builder
	fmt.Fprint(&y, "apiVersion: girassol.dev/v1alpha1\nkind: Federation\nmetadata: {name: chaos}\nspec:\n  sites:\n")
	for _, s := range f.sites {
		fmt.Fprintf(&y, "  - {name: %s}\n", s)
	}
	fmt.Fprint(&y, "  algorithm: {strategy: DecoupledMomentum}\n"+
		"  rounds: {trainSeconds: 1, collectSeconds: 6, joinSeconds: 10, minSites: 1}\n  drain: {graceSeconds: 3}\n"+
		"  energy: {enterBelowGrams: 100, leaveAboveGrams: 200, enterConfirmations: 1, leaveConfirmations: 1, forecast: Ignore}\n")
	for _, s := range f.sites {
		fmt.Fprintf(&y, "---\napiVersion: girassol.dev/v1alpha1\nkind: Site\nmetadata: {name: %s}\nspec:\n  power: {trainingWatts: 100, idleWatts: 10}\n"+
			"  grid: {provider: Prometheus, url: 'http://%s', region: home, query: %s, kind: Marginal, unit: gCO2/kWh, periodSeconds: 1}\n", s, f.address("source", portSource), s)
		if err := f.carbon(s, 50); err != nil {
			return err
		}
		text := strings.Repeat(fmt.Sprintf("site %s has its own words and says them again and again.\n", s), 400)
		if err := f.write(filepath.Join("text", s, "a.txt"), text); err != nil {
			return err
		}
	}
	return f.write("federation.yaml", y.String())
}

func (f *federation) write(name, text string) error {
	path := filepath.Join(f.dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, []byte(text), 0o644)
}

// carbon sets a site's grid, in grams.
func (f *federation) carbon(site string, grams int) error {
	return f.write(filepath.Join("grid", site), fmt.Sprint(grams))
}

// launch starts a program of ours under a name; it is the process of that name then.
func (f *federation) launch(name, on, program string, args ...string) error {
	p, err := start(f.hosts[on], f.dir, name, program, args...)
	if err != nil {
		return err
	}
	f.procs[name] = p
	return nil
}

func (f *federation) startRedis() error {
	if !f.redis {
		return nil
	}
	host, port, _ := net.SplitHostPort(f.address("redis", portRedis))
	return f.launch("redis", "redis", "redis-server", "--port", port, "--bind", host, "--protected-mode", "no", "--save", "", "--appendonly", "yes", "--dir", f.dir)
}

func (f *federation) startSource() error {
	return f.launch("source", "source", f.self, "source", "--listen", f.address("source", portSource), "--dir", filepath.Join(f.dir, "grid"))
}

// coordinatorArgs are those of a coordinator on its own address.
func (f *federation) coordinatorArgs() []string {
	args := []string{"coordinator", "--config", filepath.Join(f.dir, "federation.yaml"), "--data", f.data("coordinator"),
		"--listen", f.address("coordinator", portCoordinator), "--metrics-listen", f.address("coordinator", portMetrics), "--heartbeat", "500ms", "--insecure"}
	if f.redis {
		args = append(args, "--redis", "redis://"+f.address("redis", portRedis))
	}
	return args
}

func (f *federation) startCoordinator() error {
	return f.launch("coordinator", f.active, f.self, f.coordinatorArgs()...)
}

func (f *federation) startAgent(site string) error {
	to := f.address("coordinator", portCoordinator)
	if p := f.proxies[site]; p != nil {
		to = p.address()
	}
	args := []string{"agent", "--coordinator", to, "--federation", "chaos", "--site", site, "--node", "n1", "--data", f.data(site), "--retry-max", "500ms",
		"--insecure", "--nvml", "off", "--grace", "5s", "--metrics-listen", f.address(site, portMetrics), "--trainer-memory-limit", "400Mi", "--trainer-grace", "5s"}
	if f.redis {
		args = append(args, "--redis", "redis://"+f.address("redis", portRedis))
	}
	args = append(args, "--", f.self, "spy", "--out", f.spied(site), "--", f.self, "trainer", "--data", filepath.Join(f.dir, "text", site),
		"--seed", fmt.Sprint(site[0]), "--dim", "16", "--layers", "1", "--heads", "2", "--context", "32", "--batch", "2")
	return f.launch("agent-"+site, site, f.self, args...)
}

func (f *federation) spied(site string) string { return filepath.Join(f.dir, "spy-"+site+".jsonl") }

func (f *federation) startAll() error {
	err := errors.Join(f.startRedis(), f.startSource(), f.startCoordinator())
	for _, s := range f.sites {
		err = errors.Join(err, f.startAgent(s))
	}
	if err != nil {
		return err
	}
	f.conn, err = wire.Dial(f.address("coordinator", portCoordinator), wire.Options{AllowInsecure: true})
	if err != nil {
		return err
	}
	f.admin = coordinatorv1.NewAdminClient(f.conn)
	return nil
}

func (f *federation) status() (*coordinatorv1.FederationStatus, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	return f.admin.Status(ctx, &coordinatorv1.StatusRequest{})
}

// until polls the status until there is nothing to complain of.
func (f *federation) until(what string, most time.Duration, complaint func(*coordinatorv1.FederationStatus) string) (*coordinatorv1.FederationStatus, error) {
	end := time.Now().Add(most)
	why := "no status yet"
	for time.Now().Before(end) {
		if err := f.watch(); err != nil {
			return nil, err
		}
		st, err := f.status()
		if err != nil {
			why = err.Error()
		} else if why = complaint(st); why == "" {
			return st, nil
		}
		time.Sleep(100 * time.Millisecond)
	}
	return nil, fmt.Errorf("within %s it did not come to this: %s; last: %s", most, what, why)
}

// watch is what goes on at all times: whoever ended is started again, as its
// supervisor would, and the commit log is followed.
func (f *federation) watch() error {
	for name, p := range f.procs {
		if p.running() || f.down[name] {
			continue
		}
		f.revived++
		time.Sleep(200 * time.Millisecond)
		var err error
		switch s, agent := strings.CutPrefix(name, "agent-"); {
		case agent:
			err = f.startAgent(s)
		case name == "coordinator":
			err = f.startCoordinator()
		case name == "redis":
			err = f.startRedis()
		case name == "source":
			err = f.startSource()
		}
		if err != nil {
			return err
		}
	}
	return f.book.follow()
}

// linger lets a fault last.
func (f *federation) linger(span time.Duration) error {
	for end := time.Now().Add(span); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		if err := f.watch(); err != nil {
			return err
		}
	}
	return nil
}

// lingerOnly lasts without starting anybody again: a frozen process is no dead one,
// but asking it would wait.
func (f *federation) lingerOnly(span time.Duration) error {
	for end := time.Now().Add(span); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		if err := f.book.follow(); err != nil {
			return err
		}
	}
	return nil
}

func site(st *coordinatorv1.FederationStatus, name string) *coordinatorv1.SiteStatus {
	for _, s := range st.GetSites() {
		if s.GetName() == name {
			return s
		}
	}
	return nil
}

// sound waits until two more rounds are committed, everybody who is to train has a
// session and the newest or last version, nobody else has a session too many, and
// Redis has all events.
func (f *federation) sound() (*coordinatorv1.FederationStatus, error) {
	first, err := f.until("a status", patience, func(st *coordinatorv1.FederationStatus) string { return "" })
	if err != nil {
		return nil, err
	}
	want := first.GetVersion() + 2
	return f.until(fmt.Sprintf("version %d, all sites at work, no session too many, all events published", want), patience, func(st *coordinatorv1.FederationStatus) string {
		if st.GetVersion() < want {
			return fmt.Sprintf("version %d, %s: %s", st.GetVersion(), st.GetPhase(), st.GetMessage())
		}
		for _, s := range f.sites {
			x := site(st, s)
			switch n := len(x.GetMembers()); {
			case n != 1:
				return fmt.Sprintf("site %s has %d sessions, it has one agent", s, n)
			case f.out[s] != (x.GetPhase() == "Idle"):
				return fmt.Sprintf("site %s is %s because %s", s, x.GetPhase(), x.GetReason())
			case !f.out[s] && x.GetMembers()[0].GetModelVersion()+1 < st.GetVersion():
				return fmt.Sprintf("%s holds version %d of %d, %s: %s", s, x.GetMembers()[0].GetModelVersion(), st.GetVersion(), x.GetMembers()[0].GetState(), x.GetMembers()[0].GetDetail())
			}
		}
		if e := st.GetEvents(); f.redis && (e.GetState() != "Connected" || e.GetPending() > 0) {
			return fmt.Sprintf("events are %s, %d wait: %s", e.GetState(), e.GetPending(), e.GetMessage())
		}
		return ""
	})
}

// stopAll ends everything in order.
func (f *federation) stopAll() error {
	var failed error
	for _, s := range f.sites {
		if code := f.procs["agent-"+s].stop(20 * time.Second); code != 0 {
			failed = errors.Join(failed, fmt.Errorf("agent %s ended with code %d", s, code))
		}
	}
	if code := f.procs["coordinator"].stop(20 * time.Second); code != 0 {
		failed = errors.Join(failed, fmt.Errorf("the coordinator ended with code %d", code))
	}
	return failed
}

// killAll leaves nothing behind.
func (f *federation) killAll() {
	for _, p := range f.procs {
		for _, c := range children(p.pid()) {
			for _, cc := range children(c) {
				_ = syscall.Kill(cc, syscall.SIGKILL)
			}
			_ = syscall.Kill(c, syscall.SIGKILL)
		}
		if p.running() {
			p.kill()
		}
	}
}

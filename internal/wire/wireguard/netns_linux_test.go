package wireguard

import (
	"bufio"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// helperEnv makes the test's binary one end of a tunnel instead of a test.
const helperEnv = "GIRASSOL_TUNNEL_END"

// helperConfig of an end in a process of its own.
type helperConfig struct {
	Role     string // "hub" or "site"
	KeyFile  string
	Peers    []Peer
	Port     uint16
	Hub      string
	Endpoint string
	Device   Device
	MTU      int
}

// answer of an end to a line of its input.
type answer struct {
	Site, Error string
	MTU         int
	Seconds     float64
}

func TestMain(m *testing.M) {
	flag.Parse()
	text := os.Getenv(helperEnv)
	if text == "" {
		verifyTestMain(m)
		return
	}
	var c helperConfig
	err := json.Unmarshal([]byte(text), &c)
	if err == nil {
		err = helper(c)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// helper answers each line of its input with one of JSON, until the input ends.
func helper(c helperConfig) error {
	out := json.NewEncoder(os.Stdout)
	if c.Role == "relay" {
		return relayHelper(c, func() {
			_ = out.Encode(answer{})
			_, _ = io.Copy(io.Discard, os.Stdin)
		})
	}
	if c.Role == "hub" {
		key, err := LoadKey(c.KeyFile)
		if err != nil {
			return err
		}
		h, err := NewHub(HubConfig{Key: key, Port: c.Port, Device: c.Device, MTU: c.MTU})
		if err != nil {
			return err
		}
		if err := h.SetPeers("test", c.Peers); err != nil {
			return err
		}
		l, err := h.Listen(FleetPort)
		if err != nil {
			return err
		}
		go serveHelper(l)
		_ = out.Encode(answer{})
		_, _ = io.Copy(io.Discard, os.Stdin)
		return h.Close()
	}
	hub, err := ParsePublicKey(c.Hub)
	if err != nil {
		return err
	}
	s, err := NewSpoke(SpokeConfig{KeyFile: c.KeyFile, Hub: hub, Endpoint: c.Endpoint, Device: c.Device, MTU: c.MTU})
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	_ = out.Encode(answer{})
	e := &helperSite{spoke: s}
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		began := time.Now()
		a, err := e.do(lines.Text())
		if err != nil {
			a.Error = err.Error()
		}
		a.MTU, a.Seconds = s.MTU(), time.Since(began).Seconds()
		_ = out.Encode(a)
	}
	stop()
	return <-done
}

// namespaces are connected in a row: site - path - hub. The path's two links may be
// made bad; the site reaches the hub through it.
type namespaces struct {
	t               *testing.T
	site, path, hub string
	siteAddr, hubTo string
}

// newNamespaces makes them, or skips the test and says why.
func newNamespaces(t *testing.T) *namespaces {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root, for network namespaces")
	}
	tag := fmt.Sprintf("gw%d%d", os.Getpid()%100000, time.Now().UnixNano()%1000)
	n := &namespaces{t: t, site: tag + "s", path: tag + "p", hub: tag + "h", siteAddr: "10.81.1.2", hubTo: "10.81.2.2"}
	if out, err := exec.Command("ip", "netns", "add", n.site).CombinedOutput(); err != nil {
		t.Skipf("no network namespaces here: ip netns add: %v: %s", err, out)
	}
	t.Cleanup(func() {
		for _, ns := range []string{n.site, n.path, n.hub} {
			_ = exec.Command("ip", "netns", "del", ns).Run()
		}
	})
	n.run("", "ip netns add "+n.path)
	n.run("", "ip netns add "+n.hub)
	n.run("", "ip link add s0 netns "+n.site+" type veth peer name p0 netns "+n.path)
	n.run("", "ip link add h0 netns "+n.hub+" type veth peer name p1 netns "+n.path)
	for _, c := range []struct{ ns, dev, addr string }{
		{n.site, "s0", n.siteAddr + "/24"}, {n.path, "p0", "10.81.1.1/24"}, {n.path, "p1", "10.81.2.1/24"}, {n.hub, "h0", n.hubTo + "/24"},
	} {
		n.run(c.ns, "ip addr add "+c.addr+" dev "+c.dev)
		n.run(c.ns, "ip link set "+c.dev+" up")
		n.run(c.ns, "ip link set lo up")
	}
	n.run(n.site, "ip route add default via 10.81.1.1")
	n.run(n.hub, "ip route add default via 10.81.2.1")
	n.run(n.path, "sysctl -qw net.ipv4.ip_forward=1")
	return n
}

func (n *namespaces) command(ns, line string) *exec.Cmd {
	args := strings.Fields(line)
	if ns != "" {
		args = append([]string{"ip", "netns", "exec", ns}, args...)
	}
	return exec.Command(args[0], args[1:]...)
}

func (n *namespaces) run(ns, line string) {
	n.t.Helper()
	if out, err := n.command(ns, line).CombinedOutput(); err != nil {
		n.t.Fatalf("%s: %v: %s", line, err, out)
	}
}

// process is an end in its namespace.
type process struct {
	t     *testing.T
	cmd   *exec.Cmd
	in    io.WriteCloser
	out   *json.Decoder
	ended bool
}

func (n *namespaces) start(ns string, c helperConfig) *process {
	n.t.Helper()
	text, err := json.Marshal(c)
	if err != nil {
		n.t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		n.t.Fatal(err)
	}
	p := &process{t: n.t, cmd: n.command(ns, self)}
	p.cmd.Env = append(os.Environ(), helperEnv+"="+string(text))
	p.cmd.Stderr = testWriter{n.t}
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		n.t.Fatal(err)
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		n.t.Fatal(err)
	}
	p.out = json.NewDecoder(out)
	if err := p.cmd.Start(); err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(p.end)
	p.read()
	return p
}

func (p *process) end() {
	if !p.ended {
		p.ended = true
		_ = p.in.Close()
		_ = p.cmd.Wait()
	}
}

// kill ends it without a word.
func (p *process) kill() {
	p.ended = true
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait()
}

func (p *process) read() answer {
	p.t.Helper()
	var a answer
	if err := p.out.Decode(&a); err != nil {
		p.t.Fatalf("an end has ended: %v", err)
	}
	return a
}

// ask wants an answer without an error.
func (p *process) ask(line string) answer {
	p.t.Helper()
	a := p.try(line)
	if a.Error != "" {
		p.t.Fatalf("%s: %s", line, a.Error)
	}
	return a
}

func (p *process) try(line string) answer {
	p.t.Helper()
	if _, err := io.WriteString(p.in, line+"\n"); err != nil {
		p.t.Fatal(err)
	}
	return p.read()
}

const hubPort = 51820

// ends starts a hub and a site; change may be nil.
func (n *namespaces) ends(change func(hub, site *helperConfig)) (hub, site *process, again func() *process) {
	n.t.Helper()
	hubFile, hubKey := keyFile(n.t)
	siteFile, siteKey := keyFile(n.t)
	h := helperConfig{Role: "hub", KeyFile: hubFile, Peers: []Peer{{"porto", siteKey}}, Port: hubPort}
	s := helperConfig{Role: "site", KeyFile: siteFile, Hub: hubKey.String(), Endpoint: fmt.Sprintf("%s:%d", n.hubTo, hubPort)}
	if change != nil {
		change(&h, &s)
	}
	return n.start(n.hub, h), n.start(n.site, s), func() *process { return n.start(n.hub, h) }
}

func TestBetweenNamespacesASiteChangesItsAddress(t *testing.T) {
	n := newNamespaces(t)
	_, site, _ := n.ends(nil)
	if a := site.ask("dial"); a.Site != "porto" {
		t.Fatalf("site %q", a.Site)
	}
	site.ask("echo 1000000")
	n.run(n.site, "ip addr del "+n.siteAddr+"/24 dev s0")
	n.run(n.site, "ip addr add 10.81.1.77/24 dev s0")
	n.run(n.site, "ip route replace default via 10.81.1.1")
	site.ask("echo 1000000") // the same connection
}

func TestBetweenNamespacesAHubIsKilledAndComesBack(t *testing.T) {
	n := newNamespaces(t)
	hub, site, again := n.ends(nil)
	site.ask("dial")
	site.ask("echo 100000")
	hub.kill()
	again()
	deadline := time.Now().Add(time.Minute)
	for site.try("dial").Error != "" {
		if time.Now().After(deadline) {
			t.Fatal("the hub is back and not found")
		}
	}
	site.ask("echo 100000")
}

func TestBetweenNamespacesAShortPathWithoutICMPLowersTheMTU(t *testing.T) {
	if raceDetector {
		t.Skip("echoes under the race detector come back too late on a busy machine: make test runs it without")
	}
	n := newNamespaces(t)
	n.run(n.path, "ip link set p1 mtu 1400")
	n.run(n.hub, "ip link set h0 mtu 1400")
	// Nobody is told that a packet was too long.
	if out, err := n.command(n.path, "ip rule add ipproto icmp blackhole").CombinedOutput(); err != nil {
		t.Skipf("ICMP cannot be blocked here: ip rule: %v: %s", err, out)
	}
	_, site, _ := n.ends(nil)
	site.ask("dial")
	if a := site.ask("echo 2000000"); a.MTU > 1340 || a.MTU < LeastMTU {
		t.Errorf("MTU %d over a path of 1400", a.MTU)
	}
}

func TestBetweenNamespacesAKernelDeviceMeetsAUserspaceOne(t *testing.T) {
	for name, c := range map[string]struct{ hub, site Device }{
		"kernel hub": {Kernel, Userspace}, "kernel site": {Userspace, Kernel}, "both": {Kernel, Kernel},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := os.Stat("/dev/net/tun"); err != nil {
				t.Skipf("no TUN devices here: %v", err)
			}
			n := newNamespaces(t)
			for _, ns := range []string{n.hub, n.site} {
				if out, err := n.command(ns, "sysctl -qw net.ipv6.conf.all.disable_ipv6=0").CombinedOutput(); err != nil {
					t.Skipf("no IPv6 in the kernel here: %v: %s", err, out)
				}
			}
			_, site, _ := n.ends(func(h, s *helperConfig) { h.Device, s.Device = c.hub, c.site })
			if a := site.ask("dial"); a.Site != "porto" {
				t.Fatalf("site %q", a.Site)
			}
			site.ask("echo 4000000")
		})
	}
}

// impaired makes the path bad by tc's netem where the kernel has it, else by a
// relay in the path's namespace, and tc's tbf if a rate is given; it returns how.
func (n *namespaces) impaired(netem, rate, relay string, site *helperConfig) string {
	n.t.Helper()
	if n.command(n.path, "tc qdisc add dev p0 root netem "+netem).Run() == nil {
		n.run(n.path, "tc qdisc add dev p1 root netem "+netem)
		return "tc netem"
	}
	how := "a relay, for want of tc's netem in this kernel"
	if rate != "" {
		for _, dev := range []string{"p0", "p1"} {
			n.run(n.path, "tc qdisc add dev "+dev+" root tbf rate "+rate+" burst 64kb latency 250ms")
		}
		how = "tc tbf (rate) and a relay (delay), for want of tc's netem in this kernel"
	}
	n.start(n.path, helperConfig{Role: "relay", KeyFile: relay, Endpoint: site.Endpoint, Port: hubPort})
	site.Endpoint = fmt.Sprintf("10.81.1.1:%d", hubPort)
	return how
}

func TestBetweenNamespacesATransferSurvivesABadPath(t *testing.T) {
	n := newNamespaces(t)
	how := ""
	_, site, _ := n.ends(func(_, s *helperConfig) {
		how = n.impaired("delay 10ms 5ms loss 2%", "", `{"Delay":10000000,"Jitter":5000000,"Loss":0.02}`, s)
	})
	t.Logf("20 ms RTT, 5 ms jitter, 2 %% loss each way by %s", how)
	site.ask("dial")
	site.ask("echo 500000")
}

var measureRound = flag.Bool("round", false, "measure what a round costs between namespaces")

// TestBetweenNamespacesARoundCostsLittle is the figure of a sparse round of a model
// of 561 M parameters over 35 ms and 100 Mbit/s.
func TestBetweenNamespacesARoundCostsLittle(t *testing.T) {
	if !*measureRound {
		t.Skip("a figure of the machine, which a busy one misses: go test ./internal/wire/wireguard -run ARoundCosts -v -args -round")
	}
	n := newNamespaces(t)
	up, down := roundBytes(t)
	how := ""
	_, site, _ := n.ends(func(_, s *helperConfig) {
		how = n.impaired("delay 17.5ms rate 100mbit limit 1000", "100mbit", `{"Delay":17500000}`, s)
	})
	site.ask("dial")
	const round = 600
	// The path is bad as planned, the machine may be busy with something else: the
	// best of three counts.
	best := 0.0
	for range 3 {
		first := site.ask(fmt.Sprintf("push %d", up)).Seconds
		second := site.ask(fmt.Sprintf("pull %d", down)).Seconds
		t.Logf("35 ms RTT, 100 Mbit/s each way by %s: %.1f MB up in %.2f s (%.0f Mbit/s), %.1f MB down in %.2f s (%.0f Mbit/s): %.2f %% of a round of %d s",
			how, float64(up)/1e6, first, float64(up)*8e-6/first, float64(down)/1e6, second, float64(down)*8e-6/second, 100*(first+second)/round, round)
		if best == 0 || first+second < best {
			best = first + second
		}
		if best <= 0.02*round {
			return
		}
	}
	t.Errorf("%.2f s are more than 2 %% of a round", best)
}

package membership

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/operator/inventory"
)

// TestScenarios runs the files under testdata. It is midnight; time stands still
// unless a tick lets it pass. After each command all sites are decided until they
// come to rest, each status on its way through JSON. Commands:
//
//	new SITE... [mode=Scale] [priority=0] [wanted=N] [deadline=900] [settle=10] [retry=300] [retry-max=7200] [release=600] [remote]
//	energy SITE... admit|refuse|unknown [reason=R]
//	nodes SITE... [nodes=1 gpus=8] [going] [trouble=R] [gone-in=30s]
//	agents SITE... [pods=1 ready=1] [trouble=R] [stuck|free]
//	capacity SITE... failed|stuck|idle|free [fault=R]
//	coordinator SITE... [members=1 busy=0 phase=Active] | unreachable | reachable | hold | unhold
//	cluster SITE... reachable|unreachable
//	rest [reason=R]   run
//	block SITE... [reason=R]   unblock SITE...   delete SITE...
//	tick 5m
//	status SITE...    conditions SITE...
func TestScenarios(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		if strings.HasPrefix(path, "testdata/rapid/") {
			return // the property test's record of a failure
		}
		runScenario(t, path, false)
	})
}

// TestScenariosWithAnOperatorKilledAfterEveryStatusWrite runs the same files: the
// one that comes after acts as the one that died would have.
func TestScenariosWithAnOperatorKilledAfterEveryStatusWrite(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		if strings.HasPrefix(path, "testdata/rapid/") {
			return
		}
		runScenario(t, path, true)
	})
}

func runScenario(t *testing.T, path string, crashes bool) {
	m := &sim{now: midnight, crashes: crashes}
	datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
		if out, done := m.tell(t, d); done {
			return out
		}
		if d.Cmd != "tick" {
			m.settle(t)
		}
		return m.flush()
	})
}

type command struct {
	t     *testing.T
	words map[string]bool
	arg   map[string]string
	sites []*simSite
}

func (m *sim) parse(t *testing.T, d *datadriven.TestData) command {
	c := command{t: t, words: map[string]bool{}, arg: map[string]string{}}
	for _, a := range d.CmdArgs {
		if len(a.Vals) > 0 {
			c.arg[a.Key] = strings.Join(a.Vals, ",")
			continue
		}
		if s := m.site(a.Key); s != nil {
			c.sites = append(c.sites, s)
			continue
		}
		c.words[a.Key] = true
	}
	return c
}

func (m *sim) site(name string) *simSite {
	for _, s := range m.sites {
		if s.w.Site.Name == name {
			return s
		}
	}
	return nil
}

func (c command) number(key string, unset int) int {
	v, ok := c.arg[key]
	if !ok {
		return unset
	}
	n, err := strconv.Atoi(v)
	if err != nil {
		c.t.Fatalf("%s=%s: %v", key, v, err)
	}
	return n
}

func (c command) reason(key string, unset v1alpha1.Reason) v1alpha1.Reason {
	return cmp.Or(v1alpha1.Reason(c.arg[key]), unset)
}

// tell the simulated world; done is true for commands that only print.
func (m *sim) tell(t *testing.T, d *datadriven.TestData) (out string, done bool) {
	c := m.parse(t, d)
	switch d.Cmd {
	case "new":
		m.create(c)
	case "tick":
		by, err := time.ParseDuration(d.CmdArgs[0].Key)
		if err != nil {
			t.Fatal(err)
		}
		m.tick(t, by)
	case "rest", "run":
		for _, s := range m.sites {
			s.w.Federation.Rest = nil
			if d.Cmd == "rest" {
				s.w.Federation.Rest = &Fault{c.reason("reason", v1alpha1.ReasonSuspended), "by spec.state"}
			}
		}
	case "status", "conditions":
		var b strings.Builder
		for _, s := range c.sites {
			show(&b, d.Cmd, s.w.Site.Status)
		}
		return b.String(), true
	default:
		tellSite, ok := siteCommands[d.Cmd]
		if !ok {
			t.Fatalf("%s: unknown command %s", d.Pos, d.Cmd)
		}
		for _, s := range c.sites {
			tellSite(m, s, c)
		}
	}
	return "", false
}

func (m *sim) create(c command) {
	if v, ok := c.arg["wanted"]; ok {
		n, _ := strconv.Atoi(v)
		wanted := int32(n)
		m.wanted = &wanted
	}
	for name := range c.words {
		if name == "remote" {
			continue
		}
		s := newSite(name, v1alpha1.CapacityMode(cmp.Or(c.arg["mode"], "Scale")))
		s.w.Site.Spec.Priority = int32(c.number("priority", 0))
		p := &s.w.Site.Spec.Capacity
		p.ProvisioningDeadlineSeconds = int32(c.number("deadline", 0))
		p.RetrySeconds, p.RetryMaxSeconds = int32(c.number("retry", 0)), int32(c.number("retry-max", 0))
		if _, ok := c.arg["settle"]; ok {
			n := int32(c.number("settle", 0))
			p.SettleSeconds = &n
		}
		s.w.Site.Spec.ReleaseTimeoutSeconds = int32(c.number("release", 0))
		s.w.Cluster.Remote = c.words["remote"]
		m.sites = append(m.sites, s)
	}
	// Maps have no order.
	for i := range m.sites {
		for j := i + 1; j < len(m.sites); j++ {
			if m.sites[j].w.Site.Name < m.sites[i].w.Site.Name {
				m.sites[i], m.sites[j] = m.sites[j], m.sites[i]
			}
		}
	}
}

var siteCommands = map[string]func(m *sim, s *simSite, c command){
	"energy": func(_ *sim, s *simSite, c command) {
		s.w.Energy = Energy{Known: !c.words["unknown"], Admit: c.words["admit"], Window: v1alpha1.WindowClosed,
			Reason: c.reason("reason", v1alpha1.ReasonWaitingForEnergy), Message: "420 gCO2/kWh", Fresh: Yes}
		if s.w.Energy.Admit {
			s.w.Energy.Window, s.w.Energy.Reason, s.w.Energy.Message = v1alpha1.WindowOpen, c.reason("reason", v1alpha1.ReasonEnergyFavourable), "30 gCO2/kWh"
		}
	},
	"nodes": func(m *sim, s *simSite, c command) {
		n, gpus := c.number("nodes", 1), c.number("gpus", 8)
		sum := inventory.Summary{Nodes: n, GPUs: gpus, Vendor: v1alpha1.VendorNVIDIA, Enrolled: min(n, s.w.Nodes.Enrolled), Trouble: inventory.Worst()}
		for i := range n {
			name := fmt.Sprintf("n%d", i)
			switch {
			case c.words["going"]:
				sum.Withdraw = append(sum.Withdraw, name)
			case gpus > 0:
				sum.Usable++
				fallthrough
			case sum.Enrolled > i:
				sum.Enrol = append(sum.Enrol, inventory.Node{Name: name, Vendor: v1alpha1.VendorNVIDIA})
			}
		}
		if r := c.reason("trouble", ""); r != "" {
			sum.Trouble = inventory.Trouble{Reason: r, Message: "node n0: trouble"}
		}
		if in, err := time.ParseDuration(c.arg["gone-in"]); err == nil {
			sum.GoneBy = m.now.Add(in)
		}
		s.w.Nodes = sum
	},
	"agents": func(_ *sim, s *simSite, c command) {
		s.w.Agents = Agents{Pods: c.number("pods", 1), Ready: c.number("ready", 1), Trouble: inventory.Worst()}
		if r := c.reason("trouble", ""); r != "" {
			s.w.Agents.Ready, s.w.Agents.Trouble = 0, inventory.Trouble{Reason: r, Message: "pod agent-x: trouble"}
		}
		s.stuckAgents = s.stuckAgents && !c.words["free"] || c.words["stuck"]
	},
	"capacity": func(_ *sim, s *simSite, c command) {
		s.w.Capacity.Fault = nil
		if r := c.reason("fault", ""); r != "" {
			s.w.Capacity.Fault = &Fault{r, "the target says no"}
		}
		if p := s.w.Site.Status.Provisioning; c.words["failed"] && p != nil {
			s.failedKey = p.Key
		}
		s.stuckCapacity = s.stuckCapacity && !c.words["free"] || c.words["stuck"]
		s.w.Capacity.Idle = s.w.Capacity.Idle || c.words["idle"]
	},
	"coordinator": func(_ *sim, s *simSite, c command) {
		now := &s.w.Coordinator
		switch {
		case c.words["unreachable"]:
			now.Reachable = No
		case c.words["reachable"]:
			now.Reachable = Yes
		case c.words["hold"], c.words["unhold"]:
			now.Held = c.words["hold"]
		default:
			now.Members, now.Busy = c.number("members", 1), c.number("busy", 0)
			now.Phase = v1alpha1.SitePhase(cmp.Or(c.arg["phase"], "Active"))
			if now.Members > 0 && s.w.Site.Spec.Nodes != nil && s.w.Agents.Pods == 0 {
				s.w.Agents.Pods, s.w.Agents.Ready = now.Members, now.Members
			}
		}
	},
	"cluster": func(_ *sim, s *simSite, c command) {
		s.w.Cluster.Reachable = Yes
		if c.words["unreachable"] {
			s.w.Cluster.Reachable, s.w.Cluster.Message = No, "no route to host"
		}
	},
	"block": func(_ *sim, s *simSite, c command) {
		s.w.Blocked = &Fault{c.reason("reason", v1alpha1.ReasonSecretNotFound), "Secret credentials does not exist"}
	},
	"unblock": func(_ *sim, s *simSite, _ command) { s.w.Blocked = nil },
	"delete": func(m *sim, s *simSite, _ command) {
		s.w.Site.DeletionTimestamp = &metav1.Time{Time: m.now}
	},
}

func show(b *strings.Builder, what string, st v1alpha1.SiteStatus) {
	if what == "conditions" {
		for _, c := range st.Conditions {
			fmt.Fprintf(b, "%s=%s %s: %s\n", c.Type, c.Status, c.Reason, c.Message)
		}
		return
	}
	fmt.Fprintf(b, "%s since %s, %s: %s\n", st.Phase, clockOf(st.PhaseSince.Time), st.Reason, st.Message)
	if p := st.Provisioning; p != nil {
		fmt.Fprintf(b, "%s %s since %s key=%s failures=%d", p.Wish, p.State, clockOf(p.Since.Time), p.Key, p.Failures)
		for _, at := range []struct {
			name string
			t    *metav1.Time
		}{{"asked", p.AskedAt}, {"deadline", p.Deadline}, {"settled", p.SettledAt}, {"retry", p.RetryAt}} {
			if at.t != nil {
				fmt.Fprintf(b, " %s=%s", at.name, clockOf(at.t.Time))
			}
		}
		fmt.Fprintln(b)
	}
	if st.DrainDeadline != nil {
		fmt.Fprintf(b, "out by %s\n", clockOf(st.DrainDeadline.Time))
	}
}

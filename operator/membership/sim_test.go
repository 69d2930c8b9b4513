package membership

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/operator/inventory"
)

var midnight = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// sim is a federation with sites whose status is all that lives between two
// decisions. What is asked is done at once, unless a site is told otherwise.
type sim struct {
	now    time.Time
	wanted *int32
	sites  []*simSite
	out    strings.Builder
	// crashes: after each status write the operator dies before it acts, and the
	// next one acts.
	crashes bool
	// broken are rules that did not hold.
	broken []string
}

type simSite struct {
	w World
	// keeper of the capacity: the key that it was asked with last.
	key       string
	failedKey string
	provision bool
	// machines of a Scale site vanish when they are handed back, unless stuck.
	stuckCapacity, stuckAgents bool
	wake                       time.Time
	acts                       string
	dead                       bool
}

func newSite(name string, mode v1alpha1.CapacityMode) *simSite {
	s := &v1alpha1.Site{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "lab", UID: types.UID("uid-" + name), Generation: 1}}
	s.Spec.Capacity.Mode = mode
	if mode != v1alpha1.CapacityNone {
		s.Spec.Nodes = &v1alpha1.NodesSpec{}
	}
	return &simSite{w: World{
		Site: s, Federation: &Federation{Name: "f", Selected: true, Grace: time.Minute},
		Cluster:     Cluster{Reachable: Yes},
		Nodes:       inventory.Summary{Trouble: inventory.Worst()},
		Agents:      Agents{Trouble: inventory.Worst()},
		Capacity:    Capacity{Idle: true},
		Coordinator: Coordinator{Reachable: Yes},
	}}
}

// world as it would be gathered now.
func (s *simSite) world(now time.Time) World {
	w := s.w
	w.Now, w.Site = now, s.w.Site.DeepCopy()
	w.Capacity.Managed = w.Site.Spec.Capacity.Mode == v1alpha1.CapacityScale || w.Site.Spec.Capacity.Mode == v1alpha1.CapacityWebhook
	if p := w.Site.Status.Provisioning; w.Capacity.Managed && p != nil {
		w.Capacity.Asked = p.Key == s.key
		w.Capacity.Idle = w.Capacity.Asked && p.Wish == v1alpha1.WishRelease && w.Capacity.Idle
		w.Capacity.Failed = p.Key == s.failedKey
	}
	return w
}

// settle decides for all sites until nothing changes any more.
func (m *sim) settle(t *testing.T) {
	for range 20 {
		changed := false
		var cs []Candidate
		for _, s := range m.sites {
			cs = append(cs, NewCandidate(s.w.Site, s.w.Energy, s.w.Coordinator))
		}
		selected, why := Select(cs, m.wanted, m.now)
		for _, s := range m.sites {
			if s.w.Federation != nil {
				f := *s.w.Federation
				f.Selected, f.NotSelected = selected[s.w.Site.Name], why[s.w.Site.Name]
				s.w.Federation = &f
			}
			changed = m.decide(t, s) || changed
		}
		if !changed {
			return
		}
	}
	t.Errorf("%s: the sites do not come to rest:\n%s", m.clock(), m.out.String())
}

// decide once, store the status as the API server would, and act.
func (m *sim) decide(t *testing.T, s *simSite) (changed bool) {
	if s.dead {
		return false
	}
	before := s.w.Site.Status
	d := Decide(s.world(m.now))
	s.w.Site.Status = stored(t, d.Status)
	m.print(s, before, d)
	if m.crashes {
		d = Decide(s.world(m.now))
		s.w.Site.Status = stored(t, d.Status)
	}
	if !d.Wake.IsZero() && !d.Wake.After(m.now) {
		t.Errorf("%s %s: Wake %s is not after now", m.clock(), s.w.Site.Name, d.Wake)
	}
	m.check(s, before, d)
	acted := s.act(d)
	if acts := describe(d); acts != s.acts {
		s.acts = acts
		fmt.Fprintf(&m.out, "%s %s: %s\n", m.clock(), s.w.Site.Name, acts)
	}
	s.wake = d.Wake
	if d.Released {
		s.dead = true
		fmt.Fprintf(&m.out, "%s %s: gone\n", m.clock(), s.w.Site.Name)
	}
	return acted || !equality.Semantic.DeepEqual(before, s.w.Site.Status)
}

// check that what is about to be done keeps the order of leaving.
func (m *sim) check(s *simSite, was v1alpha1.SiteStatus, d Decision) {
	say := func(what string) {
		m.broken = append(m.broken, fmt.Sprintf("%s %s: %s", m.clock(), s.w.Site.Name, what))
	}
	late := func(at *metav1.Time, by time.Duration) bool { return at != nil && !m.now.Before(at.Add(by)) }
	c := s.w.Coordinator
	training := c.Reachable == Yes && c.Members > 0 && c.Busy > 0 && c.Phase == v1alpha1.SiteActive
	if s.w.Nodes.Enrolled > 0 && d.Enrolment == EnrolOff && training {
		begun := was.Reason == v1alpha1.ReasonDrained || was.Reason == v1alpha1.ReasonDrainTimeout || was.Reason == v1alpha1.ReasonReleasing
		switch was.Phase {
		case v1alpha1.SiteActive, v1alpha1.SiteJoining:
			say("labels go while it trains")
		case v1alpha1.SiteDraining:
			if !begun && !late(was.DrainDeadline, 0) {
				say("labels go while it drains")
			}
		}
	}
	gives := d.Provision != nil && !*d.Provision && s.provision && d.Status.Provisioning.Key != s.key
	begun := was.Provisioning != nil && was.Provisioning.Wish == v1alpha1.WishRelease
	if gives && !begun && (s.w.Nodes.Enrolled > 0 || s.w.Agents.Pods > 0) && !late(was.DrainDeadline, linger) && !late(was.PhaseSince, linger) {
		say("capacity goes before its agents")
	}
}

// stored is a status after its way through the API server.
func stored(t *testing.T, st v1alpha1.SiteStatus) v1alpha1.SiteStatus {
	t.Helper()
	raw, err := json.Marshal(st)
	if err != nil {
		t.Fatal(err)
	}
	var out v1alpha1.SiteStatus
	if err := json.Unmarshal(raw, &out); err != nil {
		t.Fatal(err)
	}
	return out
}

// act does what was decided, as far as the world lets it.
func (s *simSite) act(d Decision) (changed bool) {
	if p := d.Status.Provisioning; d.Provision != nil && p != nil && p.Key != s.key && s.w.Capacity.Fault == nil {
		s.key, s.provision, changed = p.Key, *d.Provision, true
		s.w.Capacity.Idle = false
		if !s.provision && !s.stuckCapacity {
			s.w.Capacity.Idle = true
			s.w.Nodes = inventory.Summary{Trouble: inventory.Worst()}
		}
	}
	if s.w.Cluster.Remote && s.w.Cluster.Reachable != Yes {
		return changed
	}
	n := &s.w.Nodes
	switch {
	case d.Enrolment == EnrolOn && n.Enrolled != len(n.Enrol):
		n.Enrolled, changed = len(n.Enrol), true
	case d.Enrolment == EnrolOff && n.Enrolled > 0:
		n.Enrolled, changed = 0, true
	}
	if n.Enrolled == 0 && s.w.Agents.Pods > 0 && !s.stuckAgents {
		s.w.Agents = Agents{Trouble: inventory.Worst()}
		s.w.Coordinator.Members, s.w.Coordinator.Busy, changed = 0, 0, true
	}
	return changed
}

func describe(d Decision) string {
	out := "capacity kept"
	if d.Provision != nil {
		out = map[bool]string{true: "capacity active", false: "capacity idle"}[*d.Provision]
	}
	out += ", " + map[Enrolment]string{EnrolKeep: "labels kept", EnrolOn: "labels on", EnrolOff: "labels off"}[d.Enrolment]
	switch {
	case d.Seat == nil:
		return out + ", coordinator not told"
	case d.Seat.Admit:
		return out + ", admitted"
	}
	return out + ", not admitted: " + string(d.Seat.Reason)
}

func (m *sim) print(s *simSite, before v1alpha1.SiteStatus, d Decision) {
	if before.Phase != d.Status.Phase || before.Reason != d.Status.Reason {
		fmt.Fprintf(&m.out, "%s %s: %s %s", m.clock(), s.w.Site.Name, d.Status.Phase, d.Status.Reason)
		if !d.Wake.IsZero() {
			fmt.Fprintf(&m.out, ", looks again at %s", clockOf(d.Wake))
		}
		fmt.Fprintln(&m.out)
	}
	for _, e := range d.Events {
		mark := "event"
		if e.Warning {
			mark = "warning"
		}
		fmt.Fprintf(&m.out, "  %s %s: %s\n", mark, e.Reason, e.Message)
	}
}

func (m *sim) clock() string { return clockOf(m.now) }

func clockOf(t time.Time) string { return t.UTC().Format("15:04:05") }

// tick lets time pass; sites are looked at when they asked for it.
func (m *sim) tick(t *testing.T, by time.Duration) {
	end := m.now.Add(by)
	for range 1000 {
		next := end
		for _, s := range m.sites {
			if !s.dead && !s.wake.IsZero() && s.wake.Before(next) {
				next = s.wake
			}
		}
		m.now = next
		m.settle(t)
		if !next.Before(end) {
			return
		}
	}
	t.Errorf("%s: no end of looking again", m.clock())
}

func (m *sim) flush() string {
	out := m.out.String()
	m.out.Reset()
	if out == "" {
		return "nothing\n"
	}
	return out
}

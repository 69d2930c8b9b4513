package membership

import (
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/operator/inventory"
)

func drawBool(t *rapid.T, name string) bool { return rapid.Bool().Draw(t, name) }

func drawOf[T any](t *rapid.T, name string, of ...T) T { return rapid.SampledFrom(of).Draw(t, name) }

// drawTime near now, or none.
func drawTime(t *rapid.T, name string) *metav1.Time {
	s := rapid.IntRange(-2000, 1000).Draw(t, name)
	if s > 900 {
		return nil
	}
	return &metav1.Time{Time: midnight.Add(time.Duration(s) * time.Second)}
}

// drawWorld: any, also ones that contradict themselves.
func drawWorld(t *rapid.T) World {
	s := newSite("s", drawOf(t, "mode", "", v1alpha1.CapacityNone, v1alpha1.CapacityNodeLabel, v1alpha1.CapacityScale, v1alpha1.CapacityWebhook))
	w := s.world(midnight)
	if drawBool(t, "no nodes in spec") {
		w.Site.Spec.Nodes = nil
	}
	if drawBool(t, "settles at once") {
		w.Site.Spec.Capacity.SettleSeconds = new(int32)
	}
	drawStatus(t, &w.Site.Status)
	if drawBool(t, "deleting") && drawBool(t, "really") {
		w.Site.DeletionTimestamp = cmpTime(drawTime(t, "deleted"))
	}
	w.Federation = &Federation{Name: "f", Selected: rapid.IntRange(0, 4).Draw(t, "selected") > 0, Grace: time.Minute,
		Link: drawOf(t, "link", v1alpha1.LinkMTLS, v1alpha1.LinkMesh)}
	switch rapid.IntRange(0, 9).Draw(t, "federation") {
	case 0:
		w.Federation = nil
	case 1:
		w.Federation.Rest = &Fault{v1alpha1.ReasonSuspended, "by spec.state"}
	case 2:
		w.Blocked = &Fault{v1alpha1.ReasonInvalidSpec, "bad"}
	}
	w.Energy = Energy{Known: drawBool(t, "known"), Admit: drawBool(t, "admit"), Fresh: drawOf(t, "fresh", Unknown, No, Yes),
		Window: drawOf(t, "window", "", v1alpha1.WindowOpen, v1alpha1.WindowClosed, v1alpha1.WindowUnknown)}
	w.Cluster = Cluster{Remote: drawBool(t, "remote"), Reachable: drawOf(t, "cluster", Yes, Yes, No, Unknown)}
	n := rapid.IntRange(0, 2).Draw(t, "nodes")
	w.Nodes = inventory.Summary{Nodes: n, Enrolled: rapid.IntRange(0, n).Draw(t, "enrolled"), Trouble: inventory.Worst()}
	for i := range n {
		if drawBool(t, "going") {
			w.Nodes.Withdraw = append(w.Nodes.Withdraw, fmt.Sprint(i))
			w.Nodes.Trouble = inventory.Trouble{Reason: v1alpha1.ReasonNodeGoing, Message: "node x: goes"}
			continue
		}
		w.Nodes.Enrol = append(w.Nodes.Enrol, inventory.Node{Name: fmt.Sprint(i)})
		if drawBool(t, "usable") {
			w.Nodes.Usable++
			w.Nodes.GPUs += 8
		}
	}
	if by := drawTime(t, "gone by"); by != nil && len(w.Nodes.Withdraw) > 0 {
		w.Nodes.GoneBy = by.Time
	}
	w.Agents.Pods = rapid.IntRange(0, 1).Draw(t, "pods")
	w.Capacity.Asked, w.Capacity.Idle = drawBool(t, "asked"), drawBool(t, "idle")
	if w.Capacity.Managed {
		w.Capacity.Failed, w.Capacity.Done = drawBool(t, "failed"), drawBool(t, "done")
		if drawBool(t, "fault") {
			w.Capacity.Fault = &Fault{v1alpha1.ReasonScaleForbidden, "forbidden"}
		}
	}
	w.Coordinator = Coordinator{Reachable: drawOf(t, "coordinator", Yes, Yes, No, Unknown), Members: rapid.IntRange(0, 2).Draw(t, "members"),
		Phase: drawOf(t, "coordinator's phase", "", v1alpha1.SiteActive, v1alpha1.SiteJoining, v1alpha1.SiteIdle, v1alpha1.SiteLost)}
	w.Coordinator.Busy = rapid.IntRange(0, w.Coordinator.Members).Draw(t, "busy")
	w.Coordinator.Held = rapid.IntRange(0, 9).Draw(t, "held") == 0
	return w
}

func cmpTime(t *metav1.Time) *metav1.Time {
	if t == nil {
		return &metav1.Time{Time: midnight}
	}
	return t
}

var phases = []v1alpha1.SitePhase{"", v1alpha1.SiteIdle, v1alpha1.SiteProvisioning, v1alpha1.SiteJoining, v1alpha1.SiteActive,
	v1alpha1.SiteDraining, v1alpha1.SiteLost, v1alpha1.SiteBlocked, v1alpha1.SiteFailed}

func drawStatus(t *rapid.T, st *v1alpha1.SiteStatus) {
	st.Phase = drawOf(t, "phase", phases...)
	st.PhaseSince = drawTime(t, "since")
	st.Reason = drawOf(t, "reason", "", v1alpha1.ReasonWaitingForEnergy, v1alpha1.ReasonDrained, v1alpha1.ReasonReleasing)
	st.DrainDeadline = drawTime(t, "drain deadline")
	if drawBool(t, "provisioning") {
		st.Provisioning = &v1alpha1.ProvisioningStatus{Wish: drawOf(t, "wish", v1alpha1.WishProvision, v1alpha1.WishRelease),
			State: v1alpha1.ProvisioningWanted, Since: *cmpTime(drawTime(t, "wish since")), Key: "k", AskedAt: drawTime(t, "asked at"),
			Deadline: drawTime(t, "deadline"), SettledAt: drawTime(t, "settled at"), RetryAt: drawTime(t, "retry at"),
			Failures: int32(rapid.IntRange(0, 40).Draw(t, "failures"))}
	}
}

var reasonForm = regexp.MustCompile(`^[A-Z][A-Za-z]*$`)

func TestDecisionsOfAnyWorldKeepTheRules(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawWorld(t)
		d := Decide(w)
		checkForm(t, w, d)
		checkOrder(t, w, d)
		checkWaits(t, w, d)
		checkRest(t, w, d)
	})
}

// checkForm: what the API and the coordinator take.
func checkForm(t *rapid.T, w World, d Decision) {
	seen := map[string]bool{}
	for _, c := range d.Status.Conditions {
		if seen[c.Type] || !reasonForm.MatchString(c.Reason) || c.ObservedGeneration != w.Site.Generation || c.Message == "" {
			t.Fatalf("condition %+v", c)
		}
		seen[c.Type] = true
	}
	for _, kind := range []string{v1alpha1.ConditionReady, v1alpha1.ConditionEnergyFavourable, v1alpha1.ConditionSignalFresh, v1alpha1.ConditionCapacityReady,
		v1alpha1.ConditionNodesHealthy, v1alpha1.ConditionAgentConnected, v1alpha1.ConditionLinkEncrypted, v1alpha1.ConditionDraining} {
		if !seen[kind] {
			t.Fatalf("no condition %s", kind)
		}
	}
	if seen[v1alpha1.ConditionClusterReachable] != w.Cluster.Remote {
		t.Fatal("ClusterReachable is for remote sites")
	}
	if (d.Seat == nil) != (w.Federation == nil) {
		t.Fatalf("seat %+v of federation %+v", d.Seat, w.Federation)
	}
	if d.Seat != nil && (d.Seat.Reason == "" || !d.Seat.Admit && d.Seat.Deadline <= 0) {
		t.Fatalf("seat %+v", d.Seat)
	}
	if d.Released && w.Site.DeletionTimestamp == nil {
		t.Fatal("released a Site that is not deleted")
	}
	if p := d.Status.Provisioning; d.Provision != nil && (p == nil || p.Key == "" || (p.Wish == v1alpha1.WishProvision) != *d.Provision) {
		t.Fatalf("provision %v under wish %+v", *d.Provision, p)
	}
}

// checkOrder: coordinator, then labels, then capacity.
func checkOrder(t *rapid.T, w World, d Decision) {
	st, seen := w.Site.Status, !w.Cluster.Remote || w.Cluster.Reachable == Yes
	begun := st.Provisioning != nil && st.Provisioning.Wish == v1alpha1.WishRelease
	vacated := seen && w.Nodes.Enrolled == 0 && w.Agents.Pods == 0
	late := func(at *metav1.Time) bool { return at == nil || !w.Now.Before(at.Add(linger)) }
	if d.Provision != nil && !*d.Provision && !begun && !vacated && st.Reason != v1alpha1.ReasonReleasing &&
		!late(st.DrainDeadline) && !late(st.PhaseSince) {
		t.Fatalf("capacity goes before labels are off: %+v", d)
	}
	if d.Enrolment != EnrolOff {
		return
	}
	c := w.Coordinator
	heard := c.Reachable != Yes || c.Members > 0 && c.Phase != v1alpha1.SiteLost
	switch st.Phase {
	case v1alpha1.SiteActive, v1alpha1.SiteJoining:
		// Nobody to drain, or nodes that said that they are gone by now.
		atRest := c.Reachable == Yes && c.Busy == 0 && c.Phase == v1alpha1.SiteIdle
		if heard && !atRest && d.Status.DrainDeadline != nil && d.Status.DrainDeadline.After(w.Now) {
			t.Fatalf("labels go before the coordinator drained: %+v", d)
		}
	case v1alpha1.SiteDraining:
		drained := c.Reachable == Yes && (c.Members == 0 || c.Busy == 0 && c.Phase == v1alpha1.SiteIdle)
		gone := !w.Nodes.GoneBy.IsZero() && !w.Nodes.GoneBy.After(w.Now)
		begun := slices.Contains([]v1alpha1.Reason{v1alpha1.ReasonDrained, v1alpha1.ReasonReleasing}, st.Reason)
		if !drained && !gone && !begun && st.DrainDeadline != nil && st.DrainDeadline.After(w.Now) {
			t.Fatalf("labels go before the coordinator drained: %+v", d)
		}
	}
}

// checkWaits: what waits says for what, or until when.
func checkWaits(t *rapid.T, w World, d Decision) {
	if !d.Wake.IsZero() && !d.Wake.After(w.Now) {
		t.Fatalf("wake %s is not after now", d.Wake)
	}
	switch d.Status.Phase {
	case v1alpha1.SiteProvisioning, v1alpha1.SiteJoining, v1alpha1.SiteDraining, v1alpha1.SiteLost, v1alpha1.SiteFailed:
		if d.Wake.IsZero() && !d.Released && !strings.Contains(d.Status.Message, "waits for") {
			t.Fatalf("%s waits for nothing: %s", d.Status.Phase, d.Status.Message)
		}
	}
	c := w.Coordinator
	if c.Reachable != Yes && d.Status.Phase == v1alpha1.SiteLost && w.Site.Status.Phase != v1alpha1.SiteLost {
		t.Fatal("lost without hearing so from the coordinator")
	}
}

// checkRest: decided again and again, the world standing still, it comes to rest
// and says nothing more; at once without a keeper. A status that comes back from
// the API server is the same one.
func checkRest(t *rapid.T, w World, d Decision) {
	for i := range 12 {
		next := w
		next.Site = w.Site.DeepCopy()
		next.Site.Status = *d.Status.DeepCopy()
		if i > 0 || sameWish(w.Site.Status.Provisioning, d.Status.Provisioning) {
			next.Capacity = w.Capacity
		}
		again := Decide(next)
		same := equality.Semantic.DeepEqual(d.Status, again.Status) && len(again.Events) == 0 &&
			d.Wake.Equal(again.Wake) && reflect.DeepEqual([]any{d.Provision, d.Enrolment, d.Seat, d.Released}, []any{again.Provision, again.Enrolment, again.Seat, again.Released})
		if same {
			return
		}
		if !w.Capacity.Managed {
			t.Fatalf("not the same when decided again:\n%+v\n%+v", d, again)
		}
		d = again
	}
	t.Fatalf("does not come to rest: %+v", d)
}

func sameWish(a, b *v1alpha1.ProvisioningStatus) bool {
	return a != nil && b != nil && a.Key == b.Key
}

// TestAnyHistoryKeepsTheOrderOfLeaving lets a simulated federation of two sites
// live through a random history.
func TestAnyHistoryKeepsTheOrderOfLeaving(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		one := int32(1)
		m := &sim{now: midnight, wanted: drawOf(rt, "wanted", nil, &one), crashes: drawBool(rt, "crashes")}
		for _, name := range []string{"a", "b"} {
			s := newSite(name, drawOf(rt, "mode of "+name, v1alpha1.CapacityNone, v1alpha1.CapacityNodeLabel, v1alpha1.CapacityScale))
			s.w.Cluster.Remote = drawBool(rt, "remote "+name)
			m.sites = append(m.sites, s)
		}
		pick := func(rt *rapid.T) *simSite { return m.sites[rapid.IntRange(0, 1).Draw(rt, "site")] }
		tell := func(cmd string, args func(rt *rapid.T) map[string]string, words ...string) func(*rapid.T) {
			return func(rt *rapid.T) {
				s := pick(rt)
				c := command{t: t, words: map[string]bool{}, arg: map[string]string{}}
				if args != nil {
					c.arg = args(rt)
				}
				if len(words) > 0 {
					c.words[drawOf(rt, cmd, words...)] = true
				}
				siteCommands[cmd](m, s, c)
			}
		}
		rt.Repeat(map[string]func(*rapid.T){
			"energy":  tell("energy", nil, "admit", "refuse", "unknown"),
			"cluster": tell("cluster", nil, "reachable", "unreachable"),
			"nodes": tell("nodes", func(rt *rapid.T) map[string]string {
				return map[string]string{"nodes": fmt.Sprint(rapid.IntRange(0, 2).Draw(rt, "nodes")), "gpus": drawOf(rt, "gpus", "0", "8")}
			}, "going", "staying", "staying2"),
			"coordinator": tell("coordinator", func(rt *rapid.T) map[string]string {
				return map[string]string{"members": drawOf(rt, "members", "0", "1"), "busy": drawOf(rt, "busy", "0", "1"), "phase": drawOf(rt, "phase", "Active", "Idle", "Joining", "Lost")}
			}),
			"reach":    tell("coordinator", nil, "reachable", "reachable2", "unreachable"),
			"hold":     tell("coordinator", nil, "hold", "unhold"),
			"agents":   tell("agents", func(rt *rapid.T) map[string]string { return map[string]string{"pods": drawOf(rt, "pods", "0", "1")} }, "stuck", "free"),
			"capacity": tell("capacity", nil, "stuck", "free", "idle"),
			"block":    tell("block", nil), "unblock": tell("unblock", nil),
			"tick": func(rt *rapid.T) {
				m.tick(t, time.Duration(rapid.IntRange(1, 1200).Draw(rt, "seconds"))*time.Second)
			},
			"": func(rt *rapid.T) {
				m.settle(t)
				if len(m.broken) > 0 || t.Failed() {
					rt.Fatalf("%v after\n%s", m.broken, m.out.String())
				}
			},
		})
	})
}

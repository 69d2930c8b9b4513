package membership

import (
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/operator/inventory"
)

func TestConditionsTellWhatIsSeen(t *testing.T) {
	for _, c := range []struct {
		name, kind string
		w          World
		status     metav1.ConditionStatus
		reason     v1alpha1.Reason
	}{
		{"the worse of nodes and agents", v1alpha1.ConditionNodesHealthy, at(v1alpha1.SiteActive, time.Hour, func(w *World) {
			w.Nodes.Trouble = inventory.Trouble{Reason: v1alpha1.ReasonNodeCordoned, Message: "node n"}
			w.Agents.Trouble = inventory.Trouble{Reason: v1alpha1.ReasonAgentCrashLoop, Message: "pod p"}
		}), metav1.ConditionFalse, v1alpha1.ReasonAgentCrashLoop},
		{"nodes that cannot be seen are not unhealthy", v1alpha1.ConditionNodesHealthy, at(v1alpha1.SiteActive, time.Hour, remoteAway), metav1.ConditionUnknown, v1alpha1.ReasonClusterUnreachable},
		{"capacity that cannot be seen is not missing", v1alpha1.ConditionCapacityReady, at(v1alpha1.SiteActive, time.Hour, remoteAway), metav1.ConditionUnknown, v1alpha1.ReasonClusterUnreachable},
		{"too few GPUs under way", v1alpha1.ConditionCapacityReady, at(v1alpha1.SiteActive, time.Hour, func(w *World) { w.Nodes.GPUs = 0 }), metav1.ConditionFalse, v1alpha1.ReasonTooFewGPUs},
		{"a window that is not known", v1alpha1.ConditionEnergyFavourable, at(v1alpha1.SiteIdle, time.Hour, refuses, func(w *World) {
			w.Energy.Window, w.Energy.Reason, w.Energy.Fresh = v1alpha1.WindowUnknown, v1alpha1.ReasonSignalStale, No
		}), metav1.ConditionUnknown, v1alpha1.ReasonSignalStale},
		{"a stale signal", v1alpha1.ConditionSignalFresh, at(v1alpha1.SiteIdle, time.Hour, refuses, func(w *World) { w.Energy.Fresh = No }), metav1.ConditionFalse, v1alpha1.ReasonSignalStale},
		{"a signal that is refused says why", v1alpha1.ConditionSignalFresh, at(v1alpha1.SiteIdle, time.Hour, refuses, func(w *World) {
			w.Energy.Fresh, w.Energy.Reason = No, v1alpha1.ReasonSignalSuspectZero
		}), metav1.ConditionFalse, v1alpha1.ReasonSignalSuspectZero},
		{"a site without a signal needs none", v1alpha1.ConditionEnergyFavourable, at(v1alpha1.SiteIdle, time.Hour, func(w *World) { w.Energy = Energy{Known: true, Admit: true} }), metav1.ConditionTrue, v1alpha1.ReasonEnergyFavourable},
		{"certificates", v1alpha1.ConditionLinkEncrypted, at(v1alpha1.SiteActive, time.Hour), metav1.ConditionTrue, v1alpha1.ReasonMutualTLS},
		{"a mesh is declared, not measured", v1alpha1.ConditionLinkEncrypted, at(v1alpha1.SiteActive, time.Hour, func(w *World) { w.Federation.Link = v1alpha1.LinkMesh }), metav1.ConditionUnknown, v1alpha1.ReasonMeshDeclared},
		{"a coordinator that starts", v1alpha1.ConditionAgentConnected, at(v1alpha1.SiteActive, time.Hour, func(w *World) { w.Coordinator.Reachable = Unknown }), metav1.ConditionUnknown, v1alpha1.ReasonCoordinatorStarting},
		{"a coordinator that is away", v1alpha1.ConditionAgentConnected, at(v1alpha1.SiteActive, time.Hour, away), metav1.ConditionUnknown, v1alpha1.ReasonCoordinatorUnreachable},
		{"a lost site", v1alpha1.ConditionAgentConnected, at(v1alpha1.SiteLost, time.Minute, silent), metav1.ConditionFalse, v1alpha1.ReasonHeartbeatMissed},
		{"another cluster", v1alpha1.ConditionClusterReachable, at(v1alpha1.SiteActive, time.Hour, remoteAway), metav1.ConditionFalse, v1alpha1.ReasonClusterUnreachable},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := meta.FindStatusCondition(Decide(c.w).Status.Conditions, c.kind)
			if got == nil || got.Status != c.status || got.Reason != string(c.reason) {
				t.Errorf("%s is %+v, want %s %s", c.kind, got, c.status, c.reason)
			}
		})
	}
}

func TestMessagesOfASignalStayWhileTheReasonStays(t *testing.T) {
	w := at(v1alpha1.SiteIdle, time.Hour, refuses)
	first := Decide(w)
	w.Site.Status = first.Status
	w.Energy.Message = "dirtier"
	if again := Decide(w); again.Status.Message != first.Status.Message || again.Status.Conditions[1].Message != "dirty" {
		t.Errorf("message %q, then %q", first.Status.Message, again.Status.Message)
	}
	w.Energy.Reason, w.Energy.Message = v1alpha1.ReasonConfirming, "one point more"
	if again := Decide(w); !strings.Contains(again.Status.Message, "one point more") {
		t.Errorf("message %q", again.Status.Message)
	}
}

func TestModelIsKeptWhileLabelsAreGone(t *testing.T) {
	w := at(v1alpha1.SiteActive, time.Hour)
	w.Site.Status = Decide(w).Status
	w.Nodes.Model = ""
	if got := Decide(w).Status.Model; got != "A100-SXM4-80GB" {
		t.Errorf("model %q", got)
	}
	bare(&w)
	if got := Decide(w).Status.Model; got != "" {
		t.Errorf("model %q of no nodes", got)
	}
}

func TestKeysOfWishesAreNeverTheSame(t *testing.T) {
	w := at(v1alpha1.SiteIdle, time.Hour)
	seen := map[string]bool{}
	for range 5 {
		for _, energy := range []func(*World){func(w *World) { w.Energy.Admit = true }, refuses} {
			energy(&w)
			d := Decide(w)
			w.Site.Status, w.Capacity.Idle = stored(t, d.Status), true
			if key := d.Status.Provisioning.Key; seen[key] {
				t.Fatalf("key %s twice", key)
			} else {
				seen[key] = true
			}
			w.Site.Status = stored(t, Decide(w).Status)
		}
	}
}

func TestTroubleIsAnEventOnceWhenItBegins(t *testing.T) {
	w := at(v1alpha1.SiteActive, time.Hour)
	w.Site.Status = Decide(w).Status
	w.Nodes.Trouble = inventory.Trouble{Reason: v1alpha1.ReasonNodeLost, Message: "node n"}
	d := Decide(w)
	if !hasEvent(d, v1alpha1.ReasonNodeLost) {
		t.Errorf("events %+v", d.Events)
	}
	w.Site.Status = d.Status
	if d = Decide(w); len(d.Events) > 0 {
		t.Errorf("events again %+v", d.Events)
	}
}

package membership

import (
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/operator/inventory"
)

func ago(d time.Duration) *metav1.Time { return &metav1.Time{Time: midnight.Add(-d)} }

// at puts a site that is wanted into a phase that began a while ago.
func at(phase v1alpha1.SitePhase, since time.Duration, change ...func(w *World)) World {
	s := newSite("quebec", v1alpha1.CapacityScale)
	w := s.world(midnight)
	w.Energy = Energy{Known: true, Admit: true, Window: v1alpha1.WindowOpen, Reason: v1alpha1.ReasonEnergyFavourable, Message: "clean", Fresh: Yes}
	st := &w.Site.Status
	st.Phase, st.PhaseSince, st.Federation = phase, ago(since), "f"
	w.Capacity = Capacity{Managed: true, Asked: true}
	wish := v1alpha1.WishProvision
	switch phase {
	case v1alpha1.SiteIdle, v1alpha1.SiteFailed, v1alpha1.SiteBlocked:
		wish, w.Capacity.Idle = v1alpha1.WishRelease, true
	case v1alpha1.SiteActive:
		usable(&w)
		w.Coordinator.Members, w.Coordinator.Busy, w.Coordinator.Phase = 1, 1, v1alpha1.SiteActive
	case v1alpha1.SiteDraining:
		usable(&w)
		w.Coordinator.Members, w.Coordinator.Busy, w.Coordinator.Phase = 1, 1, v1alpha1.SiteDraining
		st.Reason, st.DrainDeadline = v1alpha1.ReasonWaitingForEnergy, &metav1.Time{Time: st.PhaseSince.Add(time.Minute)}
	case v1alpha1.SiteJoining, v1alpha1.SiteLost:
		usable(&w)
	}
	st.Provisioning = &v1alpha1.ProvisioningStatus{Wish: wish, State: v1alpha1.ProvisioningAsked, Since: *ago(since), Key: "k",
		AskedAt: ago(since), Deadline: &metav1.Time{Time: midnight.Add(-since + 15*time.Minute)}}
	for _, c := range change {
		c(&w)
	}
	return w
}

// usable: one enrolled node with GPUs and its agent.
func usable(w *World) {
	w.Nodes = inventory.Summary{Nodes: 1, Usable: 1, Enrolled: 1, GPUs: 8, Vendor: v1alpha1.VendorNVIDIA, Model: "A100-SXM4-80GB",
		Enrol: []inventory.Node{{Name: "n", Vendor: v1alpha1.VendorNVIDIA}}, Trouble: inventory.Worst()}
	w.Agents.Pods, w.Agents.Ready = 1, 1
}

func bare(w *World) {
	w.Nodes, w.Agents.Pods = inventory.Summary{Trouble: inventory.Worst()}, 0
}

func refuses(w *World) {
	w.Energy.Admit, w.Energy.Window, w.Energy.Reason, w.Energy.Message = false, v1alpha1.WindowClosed, v1alpha1.ReasonWaitingForEnergy, "dirty"
}

func deletes(before time.Duration) func(w *World) {
	return func(w *World) { w.Site.DeletionTimestamp = ago(before) }
}

func silent(w *World) { w.Coordinator = Coordinator{Reachable: Yes, Phase: v1alpha1.SiteLost} }

func away(w *World) { w.Coordinator.Reachable = No }

func remoteAway(w *World) {
	w.Cluster = Cluster{Remote: true, Reachable: No, Message: "no route"}
	w.Nodes, w.Agents = inventory.Summary{}, Agents{}
}

func TestDecide(t *testing.T) {
	yes, no := "yes", "no"
	for _, c := range []struct {
		name   string
		w      World
		phase  v1alpha1.SitePhase
		reason v1alpha1.Reason
		// provision is yes, no or empty: neither.
		provision string
		enrol     Enrolment
		admit     bool
		wake      time.Duration
		// ready is the condition's status.
		ready metav1.ConditionStatus
	}{
		// Who is wanted.
		{"a site of no federation is left alone", at(v1alpha1.SiteIdle, time.Hour, func(w *World) { w.Federation, w.Site.Status.Provisioning = nil, nil }),
			v1alpha1.SiteIdle, v1alpha1.ReasonNotReferenced, "", EnrolOff, false, 0, metav1.ConditionTrue},
		{"a suspended federation's site sleeps", at(v1alpha1.SiteIdle, time.Hour, func(w *World) { w.Federation.Rest = &Fault{v1alpha1.ReasonSuspended, "by spec.state"} }),
			v1alpha1.SiteIdle, v1alpha1.ReasonSuspended, no, EnrolOff, false, 0, metav1.ConditionTrue},
		{"before the first decision about energy nothing begins", at(v1alpha1.SiteIdle, time.Hour, func(w *World) { w.Energy = Energy{} }),
			v1alpha1.SiteIdle, v1alpha1.ReasonSignalMissing, no, EnrolOff, false, 0, metav1.ConditionUnknown},
		{"capacity of a new site is not touched before energy has spoken", at(v1alpha1.SiteIdle, time.Hour, func(w *World) { w.Energy, w.Site.Status.Provisioning = Energy{}, nil }),
			v1alpha1.SiteIdle, v1alpha1.ReasonSignalMissing, "", EnrolOff, false, 0, metav1.ConditionUnknown},
		{"before the first decision about energy nothing ends", at(v1alpha1.SiteActive, time.Hour, func(w *World) { w.Energy = Energy{} }),
			v1alpha1.SiteActive, v1alpha1.ReasonTraining, yes, EnrolOn, true, 0, metav1.ConditionTrue},
		{"a selection made before energy was known ends nothing", at(v1alpha1.SiteActive, time.Hour, func(w *World) {
			w.Energy, w.Federation.Selected, w.Federation.NotSelected = Energy{}, false, Fault{v1alpha1.ReasonNothingWanted, "could not take part"}
		}), v1alpha1.SiteActive, v1alpha1.ReasonTraining, yes, EnrolOn, true, 0, metav1.ConditionTrue},
		{"asleep by energy is ready", at(v1alpha1.SiteIdle, time.Hour, refuses),
			v1alpha1.SiteIdle, v1alpha1.ReasonWaitingForEnergy, no, EnrolOff, false, 0, metav1.ConditionTrue},
		{"a reason of the window is passed on", at(v1alpha1.SiteIdle, time.Hour, refuses, func(w *World) { w.Energy.Reason = v1alpha1.ReasonSignalStale }),
			v1alpha1.SiteIdle, v1alpha1.ReasonSignalStale, no, EnrolOff, false, 0, metav1.ConditionTrue},
		{"others have the places", at(v1alpha1.SiteIdle, time.Hour, func(w *World) {
			w.Federation.Selected, w.Federation.NotSelected = false, Fault{v1alpha1.ReasonHigherPriority, "filled by atlanta"}
		}), v1alpha1.SiteIdle, v1alpha1.ReasonHigherPriority, no, EnrolOff, false, 0, metav1.ConditionTrue},
		{"a person drained it at the coordinator", at(v1alpha1.SiteIdle, time.Hour, func(w *World) { w.Coordinator.Held = true }),
			v1alpha1.SiteIdle, v1alpha1.ReasonDrainRequested, no, EnrolOff, false, 0, metav1.ConditionTrue},
		{"a site that failed cools off", at(v1alpha1.SiteIdle, time.Hour, func(w *World) {
			w.Site.Status.Provisioning.Failures, w.Site.Status.Provisioning.RetryAt = 2, ago(-time.Minute)
		}), v1alpha1.SiteIdle, v1alpha1.ReasonCoolingOff, no, EnrolOff, false, time.Minute, metav1.ConditionFalse},
		{"labels that are left go before capacity does", at(v1alpha1.SiteIdle, time.Hour, refuses, usable, func(w *World) { w.Site.Status.Provisioning = nil }),
			v1alpha1.SiteIdle, v1alpha1.ReasonWaitingForEnergy, "", EnrolOff, false, 0, metav1.ConditionTrue},

		// Coming.
		{"a wanted site asks for capacity", at(v1alpha1.SiteIdle, time.Hour),
			v1alpha1.SiteProvisioning, v1alpha1.ReasonProvisioning, yes, EnrolKeep, false, 15 * time.Minute, metav1.ConditionFalse},
		{"mode None joins at once", at(v1alpha1.SiteIdle, time.Hour, func(w *World) {
			w.Site.Spec.Nodes, w.Site.Spec.Capacity.Mode, w.Capacity = nil, v1alpha1.CapacityNone, Capacity{}
		}), v1alpha1.SiteJoining, v1alpha1.ReasonWaitingForAgent, "", EnrolOn, true, 15 * time.Minute, metav1.ConditionFalse},
		{"without a mode and nodes it is mode None", at(v1alpha1.SiteIdle, time.Hour, func(w *World) {
			w.Site.Spec.Nodes, w.Site.Spec.Capacity.Mode, w.Capacity = nil, "", Capacity{}
		}), v1alpha1.SiteJoining, v1alpha1.ReasonWaitingForAgent, "", EnrolOn, true, 15 * time.Minute, metav1.ConditionFalse},
		{"without a mode, nodes are waited for", at(v1alpha1.SiteIdle, time.Hour, func(w *World) {
			w.Site.Spec.Capacity.Mode, w.Capacity = "", Capacity{}
		}), v1alpha1.SiteProvisioning, v1alpha1.ReasonNoNodes, "", EnrolKeep, false, 15 * time.Minute, metav1.ConditionFalse},
		{"too few GPUs are waited for", at(v1alpha1.SiteProvisioning, time.Minute, func(w *World) {
			usable(w)
			sixteen := int32(16)
			w.Site.Spec.Nodes.MinGPUs = &sixteen
		}), v1alpha1.SiteProvisioning, v1alpha1.ReasonWaitingForGPUs, yes, EnrolKeep, false, 14 * time.Minute, metav1.ConditionFalse},
		{"GPUs settle", at(v1alpha1.SiteProvisioning, time.Minute, usable),
			v1alpha1.SiteProvisioning, v1alpha1.ReasonSettling, yes, EnrolKeep, false, 10 * time.Second, metav1.ConditionFalse},
		{"settled GPUs let agents come", at(v1alpha1.SiteProvisioning, time.Minute, usable, func(w *World) { w.Site.Status.Provisioning.SettledAt = ago(10 * time.Second) }),
			v1alpha1.SiteJoining, v1alpha1.ReasonWaitingForAgent, yes, EnrolOn, true, 15 * time.Minute, metav1.ConditionFalse},
		{"nodes without GPUs do for vendor CPU", at(v1alpha1.SiteProvisioning, time.Minute, usable, func(w *World) {
			w.Nodes.GPUs, w.Site.Spec.Nodes.Vendor, w.Site.Status.Provisioning.SettledAt = 0, v1alpha1.VendorCPU, ago(10*time.Second)
		}), v1alpha1.SiteJoining, v1alpha1.ReasonWaitingForAgent, yes, EnrolOn, true, 15 * time.Minute, metav1.ConditionFalse},
		{"GPUs from before the wish was taken do not count", at(v1alpha1.SiteProvisioning, time.Minute, usable, func(w *World) {
			p := w.Site.Status.Provisioning
			p.SettledAt, p.AskedAt, p.Deadline, w.Capacity.Asked = ago(time.Minute), nil, nil, false
		}), v1alpha1.SiteProvisioning, v1alpha1.ReasonProvisioning, yes, EnrolKeep, false, 14 * time.Minute, metav1.ConditionFalse},
		{"a paused target with GPUs that are there is no hindrance", at(v1alpha1.SiteProvisioning, time.Minute, usable, func(w *World) {
			p := w.Site.Status.Provisioning
			p.SettledAt, p.AskedAt, p.Deadline, w.Capacity.Asked = ago(time.Minute), nil, nil, false
			w.Capacity.Fault = &Fault{v1alpha1.ReasonCapacityPaused, "paused"}
		}), v1alpha1.SiteJoining, v1alpha1.ReasonWaitingForAgent, yes, EnrolOn, true, 15 * time.Minute, metav1.ConditionFalse},
		{"a target that cannot be moved says so", at(v1alpha1.SiteProvisioning, time.Minute, func(w *World) { w.Capacity.Fault = &Fault{v1alpha1.ReasonScaleForbidden, "forbidden"} }),
			v1alpha1.SiteProvisioning, v1alpha1.ReasonScaleForbidden, yes, EnrolKeep, false, 14 * time.Minute, metav1.ConditionFalse},
		{"an unreachable cluster does not reset what settles", at(v1alpha1.SiteProvisioning, time.Minute, remoteAway, func(w *World) { w.Site.Status.Provisioning.SettledAt = ago(time.Minute) }),
			v1alpha1.SiteProvisioning, v1alpha1.ReasonClusterUnreachable, yes, EnrolKeep, false, 14 * time.Minute, metav1.ConditionFalse},
		{"no longer wanted before anybody came", at(v1alpha1.SiteProvisioning, time.Minute, refuses, func(w *World) { w.Capacity.Fault = nil }),
			v1alpha1.SiteDraining, v1alpha1.ReasonReleasing, no, EnrolOff, false, 0, metav1.ConditionFalse},
		{"an agent connects", at(v1alpha1.SiteJoining, time.Minute, func(w *World) { w.Coordinator.Members = 1 }),
			v1alpha1.SiteActive, v1alpha1.ReasonTraining, yes, EnrolOn, true, 0, metav1.ConditionTrue},
		{"agents that crash are the reason", at(v1alpha1.SiteJoining, time.Minute, func(w *World) {
			w.Agents.Trouble = inventory.Trouble{Reason: v1alpha1.ReasonAgentCrashLoop, Message: "pod x"}
		}), v1alpha1.SiteJoining, v1alpha1.ReasonAgentCrashLoop, yes, EnrolOn, true, 14 * time.Minute, metav1.ConditionFalse},
		{"joining with the coordinator away is not blamed on agents", at(v1alpha1.SiteJoining, time.Hour, away),
			v1alpha1.SiteJoining, v1alpha1.ReasonCoordinatorUnreachable, yes, EnrolOn, true, 0, metav1.ConditionFalse},
		{"agents get their time anew when the coordinator is back", at(v1alpha1.SiteJoining, time.Hour, func(w *World) {
			meta.SetStatusCondition(&w.Site.Status.Conditions, metav1.Condition{Type: v1alpha1.ConditionAgentConnected, Status: metav1.ConditionUnknown, Reason: "CoordinatorUnreachable"})
		}), v1alpha1.SiteJoining, v1alpha1.ReasonWaitingForAgent, yes, EnrolOn, true, 15 * time.Minute, metav1.ConditionFalse},

		// Training.
		{"it trains", at(v1alpha1.SiteActive, time.Hour), v1alpha1.SiteActive, v1alpha1.ReasonTraining, yes, EnrolOn, true, 0, metav1.ConditionTrue},
		{"a dip of allocatable GPUs drains nobody", at(v1alpha1.SiteActive, time.Hour, func(w *World) { w.Nodes.GPUs, w.Nodes.Usable = 0, 0 }),
			v1alpha1.SiteActive, v1alpha1.ReasonTraining, yes, EnrolOn, true, 0, metav1.ConditionTrue},
		{"a lost node whose agent is still heard trains on", at(v1alpha1.SiteActive, time.Hour, func(w *World) {
			w.Nodes.GPUs, w.Nodes.Usable, w.Nodes.Trouble = 0, 0, inventory.Trouble{Reason: v1alpha1.ReasonNodeLost, Message: "node n"}
		}), v1alpha1.SiteActive, v1alpha1.ReasonTraining, yes, EnrolOn, true, 0, metav1.ConditionTrue},
		{"agents that are not ready yet are told apart", at(v1alpha1.SiteActive, time.Hour, func(w *World) {
			w.Coordinator.Phase, w.Coordinator.Reason = v1alpha1.SiteJoining, v1alpha1.ReasonWaitingForTrainer
		}), v1alpha1.SiteActive, v1alpha1.ReasonWaitingForTrainer, yes, EnrolOn, true, 0, metav1.ConditionFalse},
		{"the coordinator away is unknown, not lost", at(v1alpha1.SiteActive, time.Hour, away),
			v1alpha1.SiteActive, v1alpha1.ReasonCoordinatorUnreachable, yes, EnrolOn, true, 0, metav1.ConditionUnknown},
		{"an unreachable cluster does not end training", at(v1alpha1.SiteActive, time.Hour, remoteAway),
			v1alpha1.SiteActive, v1alpha1.ReasonTraining, yes, EnrolOn, true, 0, metav1.ConditionTrue},

		// Lost.
		{"no longer heard is lost, and all is kept", at(v1alpha1.SiteActive, time.Hour, silent),
			v1alpha1.SiteLost, v1alpha1.ReasonHeartbeatMissed, yes, EnrolOn, true, 15 * time.Minute, metav1.ConditionFalse},
		{"lost, and heard again", at(v1alpha1.SiteLost, time.Minute, func(w *World) { w.Coordinator.Members = 1 }),
			v1alpha1.SiteActive, v1alpha1.ReasonTraining, yes, EnrolOn, true, 0, metav1.ConditionTrue},
		{"lost for too long is handed back, labels first", at(v1alpha1.SiteLost, 15*time.Minute, silent),
			v1alpha1.SiteFailed, v1alpha1.ReasonHeartbeatMissed, "", EnrolOff, false, time.Minute, metav1.ConditionFalse},
		{"lost and not wanted is not drained", at(v1alpha1.SiteLost, time.Minute, silent, refuses),
			v1alpha1.SiteDraining, v1alpha1.ReasonDrained, "", EnrolOff, false, time.Minute, metav1.ConditionFalse},
		{"lost with the coordinator away stays so", at(v1alpha1.SiteLost, time.Hour, away),
			v1alpha1.SiteLost, v1alpha1.ReasonCoordinatorUnreachable, yes, EnrolOn, true, 0, metav1.ConditionFalse},

		// Leaving.
		{"no longer wanted drains at the coordinator first", at(v1alpha1.SiteActive, time.Hour, refuses),
			v1alpha1.SiteDraining, v1alpha1.ReasonWaitingForEnergy, "", EnrolKeep, false, time.Minute, metav1.ConditionFalse},
		{"all nodes go away", at(v1alpha1.SiteActive, time.Hour, func(w *World) {
			w.Nodes.Withdraw, w.Nodes.Enrol, w.Nodes.Usable = []string{"n"}, nil, 0
			w.Nodes.Trouble = inventory.Trouble{Reason: v1alpha1.ReasonDriverUpgrade, Message: "node n"}
		}), v1alpha1.SiteDraining, v1alpha1.ReasonDriverUpgrade, "", EnrolKeep, false, time.Minute, metav1.ConditionFalse},
		{"nodes that go before the grace is over shorten it", at(v1alpha1.SiteActive, time.Hour, func(w *World) {
			w.Nodes.Withdraw, w.Nodes.Enrol, w.Nodes.GoneBy = []string{"n"}, nil, midnight.Add(20*time.Second)
		}), v1alpha1.SiteDraining, v1alpha1.ReasonHealthy, "", EnrolKeep, false, 20 * time.Second, metav1.ConditionFalse},
		{"an active site that becomes blocked drains first", at(v1alpha1.SiteActive, time.Hour, func(w *World) { w.Blocked = &Fault{v1alpha1.ReasonSecretNotFound, "gone"} }),
			v1alpha1.SiteDraining, v1alpha1.ReasonSecretNotFound, "", EnrolKeep, false, time.Minute, metav1.ConditionFalse},
		{"a drain goes on though the site is wanted again", at(v1alpha1.SiteDraining, 20*time.Second),
			v1alpha1.SiteDraining, v1alpha1.ReasonWaitingForEnergy, "", EnrolKeep, false, 40 * time.Second, metav1.ConditionFalse},
		{"idle at the coordinator: labels off", at(v1alpha1.SiteDraining, 20*time.Second, func(w *World) { w.Coordinator.Busy, w.Coordinator.Phase = 0, v1alpha1.SiteIdle }),
			v1alpha1.SiteDraining, v1alpha1.ReasonDrained, "", EnrolOff, false, 100 * time.Second, metav1.ConditionFalse},
		{"the deadline ends the drain, coordinator or not", at(v1alpha1.SiteDraining, time.Minute, away),
			v1alpha1.SiteDraining, v1alpha1.ReasonDrainTimeout, "", EnrolOff, false, time.Minute, metav1.ConditionFalse},
		{"labels off and agents gone: capacity goes", at(v1alpha1.SiteDraining, 20*time.Second, bare, func(w *World) { w.Site.Status.Reason = v1alpha1.ReasonDrained }),
			v1alpha1.SiteDraining, v1alpha1.ReasonReleasing, no, EnrolOff, false, 0, metav1.ConditionFalse},
		{"agents that do not end hold capacity for a minute", at(v1alpha1.SiteDraining, 2*time.Minute, func(w *World) { w.Site.Status.Reason = v1alpha1.ReasonDrainTimeout }),
			v1alpha1.SiteDraining, v1alpha1.ReasonReleasing, no, EnrolOff, false, 0, metav1.ConditionFalse},
		{"capacity that is still held is waited for", at(v1alpha1.SiteDraining, time.Hour, refuses, bare, func(w *World) {
			w.Site.Status.Reason, w.Site.Status.Provisioning.Wish = v1alpha1.ReasonReleasing, v1alpha1.WishRelease
		}), v1alpha1.SiteDraining, v1alpha1.ReasonReleasing, no, EnrolOff, false, 0, metav1.ConditionFalse},
		{"capacity given back: idle", at(v1alpha1.SiteDraining, time.Hour, refuses, bare, func(w *World) {
			w.Site.Status.Reason, w.Site.Status.Provisioning.Wish, w.Capacity.Idle = v1alpha1.ReasonReleasing, v1alpha1.WishRelease, true
		}), v1alpha1.SiteIdle, v1alpha1.ReasonWaitingForEnergy, no, EnrolOff, false, 0, metav1.ConditionTrue},

		// Failing.
		{"no GPUs by the deadline", at(v1alpha1.SiteProvisioning, 15*time.Minute),
			v1alpha1.SiteFailed, v1alpha1.ReasonCapacityDeadlineExceeded, no, EnrolOff, false, 5 * time.Minute, metav1.ConditionFalse},
		{"the deadline runs while the cluster is away", at(v1alpha1.SiteProvisioning, 15*time.Minute, remoteAway),
			v1alpha1.SiteFailed, v1alpha1.ReasonCapacityDeadlineExceeded, "", EnrolOff, false, time.Minute, metav1.ConditionFalse},
		{"the provisioner gives up", at(v1alpha1.SiteProvisioning, time.Minute, func(w *World) {
			w.Capacity.Failed, w.Capacity.Fault = true, &Fault{v1alpha1.ReasonProvisionerRefused, "quota"}
		}), v1alpha1.SiteFailed, v1alpha1.ReasonProvisionerRefused, no, EnrolOff, false, 5 * time.Minute, metav1.ConditionFalse},
		{"the third failure in a row cools off four times as long", at(v1alpha1.SiteProvisioning, 15*time.Minute, func(w *World) { w.Site.Status.Provisioning.Failures = 2 }),
			v1alpha1.SiteFailed, v1alpha1.ReasonCapacityDeadlineExceeded, no, EnrolOff, false, 20 * time.Minute, metav1.ConditionFalse},
		{"cooling off has a limit", at(v1alpha1.SiteProvisioning, 15*time.Minute, func(w *World) { w.Site.Status.Provisioning.Failures = 2000 }),
			v1alpha1.SiteFailed, v1alpha1.ReasonCapacityDeadlineExceeded, no, EnrolOff, false, 2 * time.Hour, metav1.ConditionFalse},
		{"no agent by the deadline", at(v1alpha1.SiteJoining, 15*time.Minute),
			v1alpha1.SiteFailed, v1alpha1.ReasonNotConnected, "", EnrolOff, false, time.Minute, metav1.ConditionFalse},
		{"GPUs that come late stay released", at(v1alpha1.SiteFailed, time.Minute, usable, func(w *World) {
			w.Nodes.Enrolled, w.Agents.Pods = 0, 0
			w.Site.Status.Reason, w.Site.Status.Message, w.Site.Status.Provisioning.RetryAt = v1alpha1.ReasonCapacityDeadlineExceeded, "late", ago(-time.Minute)
		}), v1alpha1.SiteFailed, v1alpha1.ReasonCapacityDeadlineExceeded, no, EnrolOff, false, time.Minute, metav1.ConditionFalse},
		{"cooled off and wanted: asked again", at(v1alpha1.SiteFailed, 5*time.Minute, func(w *World) { w.Site.Status.Provisioning.RetryAt = ago(0) }),
			v1alpha1.SiteProvisioning, v1alpha1.ReasonProvisioning, yes, EnrolKeep, false, 15 * time.Minute, metav1.ConditionFalse},
		{"cooled off and not wanted: idle", at(v1alpha1.SiteFailed, 5*time.Minute, refuses, func(w *World) { w.Site.Status.Provisioning.RetryAt = ago(0) }),
			v1alpha1.SiteIdle, v1alpha1.ReasonWaitingForEnergy, no, EnrolOff, false, 0, metav1.ConditionTrue},

		// Blocked.
		{"blocked from idle", at(v1alpha1.SiteIdle, time.Hour, func(w *World) { w.Blocked = &Fault{v1alpha1.ReasonKubeconfigInvalid, "exec plugin"} }),
			v1alpha1.SiteBlocked, v1alpha1.ReasonKubeconfigInvalid, no, EnrolOff, false, 0, metav1.ConditionFalse},
		{"blocked without ever having had anything touches nothing", at(v1alpha1.SiteIdle, time.Hour, func(w *World) {
			w.Blocked, w.Site.Status.Provisioning = &Fault{v1alpha1.ReasonKubeconfigInvalid, "exec plugin"}, nil
		}), v1alpha1.SiteBlocked, v1alpha1.ReasonKubeconfigInvalid, "", EnrolOff, false, 0, metav1.ConditionFalse},
		{"no longer blocked", at(v1alpha1.SiteBlocked, time.Hour, refuses),
			v1alpha1.SiteIdle, v1alpha1.ReasonWaitingForEnergy, no, EnrolOff, false, 0, metav1.ConditionTrue},

		// Deletion.
		{"deleted while it trains: drained first", at(v1alpha1.SiteActive, time.Hour, deletes(0)),
			v1alpha1.SiteDraining, v1alpha1.ReasonDeleting, "", EnrolKeep, false, time.Minute, metav1.ConditionFalse},
		{"deleted while blocked", at(v1alpha1.SiteBlocked, time.Hour, deletes(0), func(w *World) { w.Blocked = &Fault{v1alpha1.ReasonSecretNotFound, "gone"} }),
			v1alpha1.SiteIdle, v1alpha1.ReasonDeleting, no, EnrolOff, false, 0, metav1.ConditionFalse},
		{"labels in a cluster that is away are waited for", at(v1alpha1.SiteIdle, time.Hour, deletes(time.Minute), remoteAway),
			v1alpha1.SiteIdle, v1alpha1.ReasonDeleting, no, EnrolOff, false, 9 * time.Minute, metav1.ConditionFalse},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := Decide(c.w)
			if d.Status.Phase != c.phase || d.Status.Reason != c.reason {
				t.Errorf("phase %s, reason %s (%s); want %s, %s", d.Status.Phase, d.Status.Reason, d.Status.Message, c.phase, c.reason)
			}
			provision := ""
			if d.Provision != nil {
				provision = map[bool]string{true: yes, false: no}[*d.Provision]
			}
			if provision != c.provision {
				t.Errorf("provision %q, want %q", provision, c.provision)
			}
			if d.Enrolment != c.enrol {
				t.Errorf("enrolment %d, want %d", d.Enrolment, c.enrol)
			}
			if admit := d.Seat != nil && d.Seat.Admit; admit != c.admit {
				t.Errorf("admit %t, want %t", admit, c.admit)
			}
			var wake time.Duration
			if !d.Wake.IsZero() {
				wake = d.Wake.Sub(midnight)
			}
			if wake != c.wake {
				t.Errorf("wakes in %s, want %s", wake, c.wake)
			}
			if got := meta.FindStatusCondition(d.Status.Conditions, v1alpha1.ConditionReady); got.Status != c.ready || got.Reason != string(c.reason) {
				t.Errorf("Ready is %s (%s), want %s", got.Status, got.Reason, c.ready)
			}
		})
	}
}

func TestDeletedSiteGoesWhenAllIsGivenBackOrItsTimeIsOver(t *testing.T) {
	for _, c := range []struct {
		name     string
		w        World
		released bool
		warns    bool
	}{
		{"all given back", at(v1alpha1.SiteIdle, time.Hour, deletes(0)), true, false},
		{"capacity is not back yet", at(v1alpha1.SiteIdle, time.Hour, deletes(0), func(w *World) { w.Capacity.Idle = false }), false, false},
		{"adopted replicas are put back first", at(v1alpha1.SiteIdle, time.Hour, deletes(0), func(w *World) {
			three := int32(3)
			w.Site.Status.Provisioning, w.Site.Status.AdoptedReplicas, w.Capacity.Idle = nil, &three, false
		}), false, false},
		{"labels are still on", at(v1alpha1.SiteIdle, time.Hour, deletes(0), func(w *World) { w.Nodes.Enrolled = 1 }), false, false},
		{"an unreachable cluster in which nothing was ever done", at(v1alpha1.SiteIdle, time.Hour, deletes(0), remoteAway, func(w *World) { w.Site.Status.Provisioning = nil }), true, false},
		{"a second before its time is over", at(v1alpha1.SiteLost, time.Hour, deletes(599*time.Second), remoteAway, silent), false, false},
		{"its time is over", at(v1alpha1.SiteLost, time.Hour, deletes(600*time.Second), remoteAway, silent), true, true},
		{"its own time is over", at(v1alpha1.SiteActive, time.Hour, deletes(5*time.Second), func(w *World) { w.Site.Spec.ReleaseTimeoutSeconds = 5 }), true, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := Decide(c.w)
			if d.Released != c.released {
				t.Errorf("released %t in phase %s: %s", d.Released, d.Status.Phase, d.Status.Message)
			}
			if warns := hasEvent(d, v1alpha1.ReasonReleaseTimedOut); warns != c.warns {
				t.Errorf("events %+v", d.Events)
			}
			c.w.Site.Status = d.Status
			if again := Decide(c.w); hasEvent(again, v1alpha1.ReasonReleaseTimedOut) || again.Released != c.released {
				t.Errorf("decided again: released %t, events %+v", again.Released, again.Events)
			}
		})
	}
}

func hasEvent(d Decision, r v1alpha1.Reason) bool {
	for _, e := range d.Events {
		if e.Reason == r && e.Warning {
			return true
		}
	}
	return false
}

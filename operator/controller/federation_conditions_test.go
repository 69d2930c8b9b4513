package controller

import (
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/operator/membership"
)

// seen is a federation of two sites with minSites 1 that trains on both.
func seen() *federation {
	f := &v1alpha1.Federation{ObjectMeta: metav1.ObjectMeta{Name: "gpt", Namespace: "field", Generation: 2}}
	v := &federation{
		Federation: f, key: keyOf(f), now: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC),
		mine: map[string]bool{}, wishes: map[string]membership.Energy{}, selected: map[string]bool{}, reachable: membership.Yes,
		coordinator: &coordinatorv1.FederationStatus{Phase: "Training", RoundsCommitted: 4, Round: &coordinatorv1.RoundStatus{Number: 5, State: "Collecting"}},
	}
	for _, name := range []string{"lisboa", "porto"} {
		f.Spec.Sites = append(f.Spec.Sites, v1alpha1.SiteReference{Name: name})
		s := v1alpha1.Site{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "field"}}
		s.Status = v1alpha1.SiteStatus{Federation: "gpt", Phase: v1alpha1.SiteActive, Reason: v1alpha1.ReasonTraining}
		v.sites = append(v.sites, s)
		v.mine[name], v.selected[name], v.wishes[name] = true, true, openWindow
	}
	return v
}

func (v *federation) are(phase v1alpha1.SitePhase, reason v1alpha1.Reason) {
	for i := range v.sites {
		v.sites[i].Status.Phase, v.sites[i].Status.Reason = phase, reason
	}
}

func (v *federation) want(w membership.Energy) {
	for site := range v.wishes {
		v.wishes[site] = w
	}
}

func TestConditionsSayWhatShouldRunAndWhetherItDoes(t *testing.T) {
	const yes, no, unknown = metav1.ConditionTrue, metav1.ConditionFalse, metav1.ConditionUnknown
	type want struct {
		status metav1.ConditionStatus
		reason v1alpha1.Reason
	}
	for name, c := range map[string]struct {
		world                              func(*federation)
		ready, quorum, energy, progressing want
		desired                            int32
		stalled                            bool
	}{
		"trains": {
			func(v *federation) {},
			want{yes, v1alpha1.ReasonTraining}, want{yes, v1alpha1.ReasonQuorumMet}, want{yes, v1alpha1.ReasonEnergyFavourable}, want{yes, v1alpha1.ReasonTraining}, 2, false,
		},
		"one of two is enough": {
			func(v *federation) {
				v.sites[1].Status.Phase, v.wishes["porto"] = v1alpha1.SiteIdle, closedWindow
			},
			want{yes, v1alpha1.ReasonTraining}, want{yes, v1alpha1.ReasonQuorumMet}, want{yes, v1alpha1.ReasonEnergyFavourable}, want{yes, v1alpha1.ReasonTraining}, 1, false,
		},
		"sleeps by energy": {
			func(v *federation) {
				v.are(v1alpha1.SiteIdle, v1alpha1.ReasonWaitingForEnergy)
				v.want(closedWindow)
				v.coordinator.Phase = "WaitingForSites"
			},
			want{yes, v1alpha1.ReasonWaitingForEnergy}, want{no, v1alpha1.ReasonWaitingForEnergy}, want{no, v1alpha1.ReasonWaitingForEnergy}, want{no, v1alpha1.ReasonWaitingForEnergy}, 0, false,
		},
		"window is open and the plan waits for a cleaner hour": {
			func(v *federation) {
				v.are(v1alpha1.SiteIdle, v1alpha1.ReasonCleanerLater)
				v.want(membership.Energy{Known: true, Window: v1alpha1.WindowOpen, Reason: v1alpha1.ReasonCleanerLater})
				v.coordinator.Phase = "WaitingForSites"
			},
			want{yes, v1alpha1.ReasonWaitingForEnergy}, want{no, v1alpha1.ReasonWaitingForEnergy}, want{yes, v1alpha1.ReasonEnergyFavourable}, want{no, v1alpha1.ReasonWaitingForSites}, 0, false,
		},
		"signals are broken": {
			func(v *federation) {
				v.are(v1alpha1.SiteIdle, v1alpha1.ReasonSignalStale)
				v.want(noSignal)
				v.coordinator.Phase = "WaitingForSites"
			},
			want{unknown, v1alpha1.ReasonSignalStale}, want{no, v1alpha1.ReasonSignalStale}, want{unknown, v1alpha1.ReasonSignalStale}, want{no, v1alpha1.ReasonWaitingForEnergy}, 0, false,
		},
		"a broken signal beside a closed window could still be the one": {
			func(v *federation) {
				v.are(v1alpha1.SiteIdle, v1alpha1.ReasonWaitingForEnergy)
				v.wishes["lisboa"], v.wishes["porto"] = closedWindow, noSignal
				v.coordinator.Phase = "WaitingForSites"
			},
			want{unknown, v1alpha1.ReasonSignalStale}, want{no, v1alpha1.ReasonSignalStale}, want{unknown, v1alpha1.ReasonSignalStale}, want{no, v1alpha1.ReasonWaitingForEnergy}, 0, false,
		},
		"sites come": {
			func(v *federation) {
				v.are(v1alpha1.SiteProvisioning, v1alpha1.ReasonProvisioning)
				v.coordinator.Phase = "WaitingForSites"
			},
			want{no, v1alpha1.ReasonWaitingForSites}, want{no, v1alpha1.ReasonWaitingForSites}, want{yes, v1alpha1.ReasonEnergyFavourable}, want{no, v1alpha1.ReasonWaitingForSites}, 2, false,
		},
		"sites are lost": {
			func(v *federation) {
				v.are(v1alpha1.SiteLost, v1alpha1.ReasonHeartbeatMissed)
				v.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionQuorumMet, Status: yes}}
				v.coordinator.Phase = "WaitingForSites"
			},
			want{no, v1alpha1.ReasonQuorumLost}, want{no, v1alpha1.ReasonQuorumLost}, want{yes, v1alpha1.ReasonEnergyFavourable}, want{no, v1alpha1.ReasonWaitingForSites}, 2, false,
		},
		"no capacity anywhere": {
			func(v *federation) {
				v.are(v1alpha1.SiteFailed, v1alpha1.ReasonCapacityDeadlineExceeded)
				v.selected = nil
				v.coordinator.Phase = "WaitingForSites"
			},
			want{no, v1alpha1.ReasonWaitingForSites}, want{no, v1alpha1.ReasonWaitingForSites}, want{yes, v1alpha1.ReasonEnergyFavourable}, want{no, v1alpha1.ReasonWaitingForSites}, 0, false,
		},
		"no model yet": {
			func(v *federation) { v.coordinator.Phase = "WaitingForModel" },
			want{no, v1alpha1.ReasonWaitingForModel}, want{yes, v1alpha1.ReasonQuorumMet}, want{yes, v1alpha1.ReasonEnergyFavourable}, want{no, v1alpha1.ReasonWaitingForModel}, 2, false,
		},
		"last round was void": {
			func(v *federation) {
				v.coordinator.Round.LastVoid = &coordinatorv1.VoidRound{Number: 4, Reason: "TooFewUpdates"}
			},
			want{yes, v1alpha1.ReasonTraining}, want{yes, v1alpha1.ReasonQuorumMet}, want{yes, v1alpha1.ReasonEnergyFavourable}, want{no, v1alpha1.ReasonTooFewUpdates}, 2, false,
		},
		"an earlier round was void": {
			func(v *federation) {
				v.coordinator.Round.LastVoid = &coordinatorv1.VoidRound{Number: 3, Reason: "TooFewUpdates"}
			},
			want{yes, v1alpha1.ReasonTraining}, want{yes, v1alpha1.ReasonQuorumMet}, want{yes, v1alpha1.ReasonEnergyFavourable}, want{yes, v1alpha1.ReasonTraining}, 2, false,
		},
		"a person paused it": {
			func(v *federation) { v.coordinator.Phase = "Paused" },
			want{yes, v1alpha1.ReasonPaused}, want{yes, v1alpha1.ReasonQuorumMet}, want{yes, v1alpha1.ReasonEnergyFavourable}, want{no, v1alpha1.ReasonPaused}, 2, false,
		},
		"the coordinator's disk is full": {
			func(v *federation) { v.coordinator.Phase, v.coordinator.Reason = "Paused", "DiskFull" },
			want{no, v1alpha1.ReasonDiskFull}, want{yes, v1alpha1.ReasonQuorumMet}, want{yes, v1alpha1.ReasonEnergyFavourable}, want{no, v1alpha1.ReasonDiskFull}, 2, false,
		},
		"suspended": {
			func(v *federation) {
				v.Spec.State = v1alpha1.StateSuspended
				v.paused = true
				v.are("Idle", "Suspended")
			},
			want{yes, v1alpha1.ReasonSuspended}, want{no, v1alpha1.ReasonSuspended}, want{yes, v1alpha1.ReasonEnergyFavourable}, want{no, v1alpha1.ReasonPaused}, 0, false,
		},
		"complete": {
			func(v *federation) { v.coordinator.Phase = "Completed"; v.are("Idle", "Completed") },
			want{yes, v1alpha1.ReasonCompleted}, want{no, v1alpha1.ReasonCompleted}, want{yes, v1alpha1.ReasonEnergyFavourable}, want{no, v1alpha1.ReasonCompleted}, 0, false,
		},
		"failed": {
			func(v *federation) { v.coordinator.Phase, v.coordinator.Reason = "Failed", "TooManyVoidRounds" },
			want{no, v1alpha1.ReasonTooManyVoidRounds}, want{yes, v1alpha1.ReasonQuorumMet}, want{yes, v1alpha1.ReasonEnergyFavourable}, want{no, v1alpha1.ReasonTooManyVoidRounds}, 0, true,
		},
		"coordinator restarts": {
			func(v *federation) { v.reachable, v.unreachable = membership.Unknown, "connection refused" },
			want{unknown, v1alpha1.ReasonCoordinatorStarting}, want{yes, v1alpha1.ReasonQuorumMet}, want{yes, v1alpha1.ReasonEnergyFavourable}, want{unknown, v1alpha1.ReasonCoordinatorUnreachable}, 2, false,
		},
		"coordinator is gone": {
			func(v *federation) { v.reachable, v.unreachable = membership.No, "connection refused" },
			want{no, v1alpha1.ReasonCoordinatorUnreachable}, want{yes, v1alpha1.ReasonQuorumMet}, want{yes, v1alpha1.ReasonEnergyFavourable}, want{unknown, v1alpha1.ReasonCoordinatorUnreachable}, 2, false,
		},
		"energy is ignored": {
			func(v *federation) { v.Spec.Energy.Policy = v1alpha1.EnergyIgnore },
			want{yes, v1alpha1.ReasonTraining}, want{yes, v1alpha1.ReasonQuorumMet}, want{yes, v1alpha1.ReasonAdmittedByPolicy}, want{yes, v1alpha1.ReasonTraining}, 2, false,
		},
		"another federation has both sites": {
			func(v *federation) {
				v.mine, v.wishes = map[string]bool{}, map[string]membership.Energy{}
				v.coordinator.Phase = "WaitingForSites"
			},
			want{yes, v1alpha1.ReasonWaitingForEnergy}, want{no, v1alpha1.ReasonWaitingForEnergy}, want{no, v1alpha1.ReasonWaitingForEnergy}, want{no, v1alpha1.ReasonWaitingForEnergy}, 0, false,
		},
		"a refused spec": {
			func(v *federation) {
				v.fault = &membership.Fault{Reason: v1alpha1.ReasonInvalidSpec, Message: "spec.x: bad"}
			},
			want{no, v1alpha1.ReasonInvalidSpec}, want{yes, v1alpha1.ReasonQuorumMet}, want{yes, v1alpha1.ReasonEnergyFavourable}, want{yes, v1alpha1.ReasonTraining}, 2, true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			v := seen()
			c.world(v)
			f := v.DeepCopy()
			f.Status = v.status(true)
			for of, w := range map[string]want{
				v1alpha1.ConditionReady: c.ready, v1alpha1.ConditionQuorumMet: c.quorum, v1alpha1.ConditionEnergyFavourable: c.energy, v1alpha1.ConditionProgressing: c.progressing,
			} {
				if got := condition(f, of); got.Status != w.status || got.Reason != string(w.reason) {
					t.Errorf("%s is %s %s (%s), want %s %s", of, got.Status, got.Reason, got.Message, w.status, w.reason)
				}
			}
			if stalled := condition(f, v1alpha1.ConditionStalled); (stalled.Status == yes) != c.stalled || stalled.Status == no {
				t.Errorf("Stalled is %q, want %v", stalled.Status, c.stalled)
			}
			if f.Status.DesiredSites != c.desired || f.Status.SiteSummary != fmt.Sprintf("%d/%d", f.Status.ActiveSites, c.desired) {
				t.Errorf("%d desired, %s, want %d", f.Status.DesiredSites, f.Status.SiteSummary, c.desired)
			}
		})
	}
}

func TestMinSitesIsWhatAQuorumIs(t *testing.T) {
	v := seen()
	v.Spec.Rounds.MinSites = 2
	v.sites[1].Status.Phase = v1alpha1.SiteJoining
	f := v.DeepCopy()
	f.Status = v.status(true)
	if c := condition(f, v1alpha1.ConditionReady); c.Status != metav1.ConditionFalse || !strings.Contains(c.Message, "porto is Joining") {
		t.Errorf("Ready is %s: %s", c.Status, c.Message)
	}
}

func TestTransitionTimesMoveWithTheStatusOnly(t *testing.T) {
	v := seen()
	v.Status = v.status(true)
	began := v.now
	v.now = v.now.Add(time.Hour)
	v.reachable, v.unreachable = membership.Unknown, "dial tcp 10.0.0.1:7465: connection refused"
	v.Status = v.status(true)
	first := condition(v.Federation, v1alpha1.ConditionCoordinatorAvailable)
	if first.LastTransitionTime.Time != v.now || condition(v.Federation, v1alpha1.ConditionAccepted).LastTransitionTime.Time != began {
		t.Error("transition times do not follow the status")
	}
	v.now = v.now.Add(time.Hour)
	v.unreachable = "read tcp 10.0.0.7:53124->10.0.0.1:7465: connection reset by peer"
	if again := v.status(true); condition(&v1alpha1.Federation{Status: again}, v1alpha1.ConditionCoordinatorAvailable) != first {
		t.Error("the words of each failed try are a write")
	}
}

func TestOnlyWhatWasActedOnInFullIsObserved(t *testing.T) {
	for _, c := range []struct {
		done  bool
		fault v1alpha1.Reason
		want  int64
	}{{true, "", 2}, {false, "", 0}, {true, v1alpha1.ReasonInvalidSpec, 2}, {true, v1alpha1.ReasonSiteNotFound, 0}, {true, v1alpha1.ReasonSecretNotFound, 0}} {
		v := seen()
		if c.fault != "" {
			v.fault = &membership.Fault{Reason: c.fault}
		}
		if got := v.status(c.done).ObservedGeneration; got != c.want {
			t.Errorf("done %v, fault %q: observed %d, want %d", c.done, c.fault, got, c.want)
		}
	}
}

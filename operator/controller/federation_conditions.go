package controller

import (
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/operator/membership"
)

// verdict on one condition.
type verdict struct {
	status  metav1.ConditionStatus
	reason  v1alpha1.Reason
	message string
}

func yes(r v1alpha1.Reason, format string, args ...any) verdict {
	return verdict{metav1.ConditionTrue, r, fmt.Sprintf(format, args...)}
}

func no(r v1alpha1.Reason, format string, args ...any) verdict {
	return verdict{metav1.ConditionFalse, r, fmt.Sprintf(format, args...)}
}

func unknown(r v1alpha1.Reason, format string, args ...any) verdict {
	return verdict{metav1.ConditionUnknown, r, fmt.Sprintf(format, args...)}
}

// conditions of the federation, with active sites. An entry's transition time is
// that of its last change of status.
func (v *federation) conditions(active int) []metav1.Condition {
	var out []metav1.Condition
	set := func(of string, c verdict) {
		entry := metav1.Condition{Type: of, Status: c.status, Reason: string(c.reason), Message: c.message, ObservedGeneration: v.Generation, LastTransitionTime: metav1.NewTime(v.now)}
		if before := meta.FindStatusCondition(v.Status.Conditions, of); before != nil && before.Status == c.status {
			entry.LastTransitionTime = before.LastTransitionTime
			// The words of a lost connection differ with each try.
			if of == v1alpha1.ConditionCoordinatorAvailable && before.Reason == entry.Reason {
				entry.Message = before.Message
			}
		}
		out = append(out, entry)
	}
	accepted, available, energy := v.accepted(), v.available(), v.energyFavourable()
	quorum, suspended := v.quorumMet(active, energy), v.suspendedCondition()
	set(v1alpha1.ConditionAccepted, accepted)
	set(v1alpha1.ConditionCoordinatorAvailable, available)
	set(v1alpha1.ConditionEnergyFavourable, energy)
	set(v1alpha1.ConditionProgressing, v.progressing(energy))
	set(v1alpha1.ConditionQuorumMet, quorum)
	set(v1alpha1.ConditionReady, v.ready(accepted, available, energy, quorum))
	set(v1alpha1.ConditionSuspended, suspended)
	if c := v.stalled(accepted); c != nil {
		set(v1alpha1.ConditionStalled, *c)
	}
	return out
}

// before is what was last said of a condition.
func (v *federation) before(of string) verdict {
	c := condition(v.Federation, of)
	return verdict{c.Status, v1alpha1.Reason(c.Reason), c.Message}
}

// failure is why the run failed; the last words outlive the coordinator.
func (v *federation) failure() v1alpha1.Reason {
	if v.coordinator == nil && v.Status.Phase == v1alpha1.FederationFailed {
		return reasonOr(condition(v.Federation, v1alpha1.ConditionStalled).Reason, v1alpha1.ReasonTooManyVoidRounds)
	}
	return reasonOr(v.coordinator.GetReason(), v1alpha1.ReasonTooManyVoidRounds)
}

// diskFull says that the run waits for room on the coordinator's volume.
func (v *federation) diskFull() bool {
	return v.coordinator.GetReason() == string(v1alpha1.ReasonDiskFull)
}

func (v *federation) accepted() verdict {
	if v.fault != nil {
		return no(v.fault.Reason, "%s", v.fault.Message)
	}
	return yes(v1alpha1.ReasonAccepted, "sites and secrets are there")
}

func (v *federation) available() verdict {
	if v.pending() {
		return v.before(v1alpha1.ConditionCoordinatorAvailable)
	}
	switch v.reachable {
	case membership.Yes:
		return yes(v1alpha1.ReasonCoordinatorAvailable, "the coordinator answers")
	case membership.No:
		return no(v1alpha1.ReasonCoordinatorUnreachable, "%s", v.unreachable)
	}
	return unknown(v1alpha1.ReasonCoordinatorStarting, "%s", v.unreachable)
}

// energyFavourable counts windows; what is not known could be either.
func (v *federation) energyFavourable() verdict {
	if v.Spec.Energy.Policy == v1alpha1.EnergyIgnore {
		return yes(v1alpha1.ReasonAdmittedByPolicy, "spec.energy.policy is Ignore")
	}
	open, closed := 0, 0
	var why v1alpha1.Reason
	for site := range v.mine {
		switch w := v.wishes[site]; w.Window {
		case v1alpha1.WindowOpen:
			open++
		case v1alpha1.WindowClosed:
			closed++
		default:
			if w.Reason != "" && (why == "" || w.Reason < why) {
				why = w.Reason
			}
		}
	}
	least := v.minSites()
	switch {
	case open >= least:
		return yes(v1alpha1.ReasonEnergyFavourable, "at least %s in the window", sites(least))
	case len(v.mine)-closed >= least:
		if why == "" {
			why = v1alpha1.ReasonSignalMissing
		}
		return unknown(why, "the signals of too many sites are not known to say whether %s could be in the window", sites(least))
	}
	return no(v1alpha1.ReasonWaitingForEnergy, "fewer than %s in the window", sites(least))
}

func (v *federation) quorumMet(active int, energy verdict) verdict {
	least := v.minSites()
	if active >= least {
		return yes(v1alpha1.ReasonQuorumMet, "at least %s active", sites(least))
	}
	if rest := v.rest(); rest != nil {
		return no(rest.Reason, "%s", rest.Message)
	}
	if v.desired() < least {
		switch {
		case energy.status == metav1.ConditionUnknown:
			return no(energy.reason, "%s", energy.message)
		case energy.status == metav1.ConditionTrue && v.admitted() >= least:
			return no(v1alpha1.ReasonWaitingForSites, "fewer than %s can be had: %s", sites(least), v.lacking())
		}
		return no(v1alpha1.ReasonWaitingForEnergy, "energy wants fewer than %s now", sites(least))
	}
	if condition(v.Federation, v1alpha1.ConditionQuorumMet).Status == metav1.ConditionTrue || condition(v.Federation, v1alpha1.ConditionQuorumMet).Reason == string(v1alpha1.ReasonQuorumLost) {
		return no(v1alpha1.ReasonQuorumLost, "fewer than %s active: %s", sites(least), v.lacking())
	}
	return no(v1alpha1.ReasonWaitingForSites, "fewer than %s active: %s", sites(least), v.lacking())
}

// admitted is the number of sites that energy wants.
func (v *federation) admitted() (n int) {
	for _, w := range v.wishes {
		if w.Admit {
			n++
		}
	}
	return n
}

// lacking names those that energy wants and that are not active, by phase and
// reason only: words that change less often than the sites.
func (v *federation) lacking() string {
	var all []string
	for _, s := range v.sites {
		if w := v.wishes[s.Name]; v.mine[s.Name] && w.Admit && s.Status.Phase != v1alpha1.SiteActive {
			all = append(all, fmt.Sprintf("%s is %s (%s)", s.Name, s.Status.Phase, s.Status.Reason))
		}
	}
	for _, name := range v.missing {
		all = append(all, name+" does not exist")
	}
	return list(all)
}

func (v *federation) suspendedCondition() verdict {
	want := v.Spec.State == v1alpha1.StateSuspended
	switch {
	case v.paused && want:
		return yes(v1alpha1.ReasonSuspended, "spec.state is Suspended; set it to Running to go on")
	case v.paused:
		return yes(v1alpha1.ReasonSuspended, "goes on as soon as the coordinator answers")
	case want:
		return unknown(v1alpha1.ReasonCoordinatorUnreachable, "spec.state is Suspended; the coordinator is told as soon as it answers")
	case v.Spec.MaxSites != nil && *v.Spec.MaxSites == 0:
		return yes(v1alpha1.ReasonScaledToZero, "spec.maxSites is 0; raise it to go on")
	}
	return no(v1alpha1.ReasonRunning, "spec.state is Running")
}

// progressing says whether rounds are committed.
func (v *federation) progressing(energy verdict) verdict {
	c := v.coordinator
	if v.pending() {
		return v.before(v1alpha1.ConditionProgressing)
	}
	if v.reachable != membership.Yes {
		return unknown(v1alpha1.ReasonCoordinatorUnreachable, "the coordinator does not answer")
	}
	switch v.phase() {
	case v1alpha1.FederationTraining:
		if void := c.GetRound().GetLastVoid(); void != nil && void.GetNumber() >= lastEnded(c.GetRound().GetNumber(), c.GetRound().GetState()) {
			return no(reasonOr(void.GetReason(), v1alpha1.ReasonTooFewUpdates), "the last round was void and changed nothing")
		}
		return yes(v1alpha1.ReasonTraining, "rounds are committed")
	case v1alpha1.FederationCompleted:
		return no(v1alpha1.ReasonCompleted, "all rounds are committed")
	case v1alpha1.FederationFailed:
		return no(v.failure(), "the run has failed")
	case v1alpha1.FederationPaused:
		if v.diskFull() {
			return no(v1alpha1.ReasonDiskFull, "%s", v.coordinator.GetMessage())
		}
		return no(v1alpha1.ReasonPaused, "no round is granted while it is paused")
	case v1alpha1.FederationWaitingForModel:
		return no(v1alpha1.ReasonWaitingForModel, "the first weights come from the first site whose trainer offers them")
	}
	if rest := v.rest(); rest != nil {
		return no(rest.Reason, "%s", rest.Message)
	}
	if v.desired() < v.minSites() && energy.status != metav1.ConditionTrue {
		return no(v1alpha1.ReasonWaitingForEnergy, "rounds go on when enough sites are in the window")
	}
	return no(v1alpha1.ReasonWaitingForSites, "rounds go on when enough sites are ready")
}

// lastEnded is the number of the last round that ended.
func lastEnded(number uint64, state string) uint64 {
	if state == "Idle" || number == 0 {
		return number
	}
	return number - 1
}

// ready says whether what should run now, given energy, runs.
func (v *federation) ready(accepted, available, energy, quorum verdict) verdict {
	phase := v.phase()
	switch {
	case !v.DeletionTimestamp.IsZero():
		return no(v1alpha1.ReasonDeleting, "its sites leave before its coordinator ends")
	case accepted.status != metav1.ConditionTrue:
		return accepted
	case phase == v1alpha1.FederationCompleted:
		return yes(v1alpha1.ReasonCompleted, "all rounds are committed")
	case phase == v1alpha1.FederationFailed:
		return no(v.failure(), "the run has failed: see the sites and the coordinator's log, then make a new Federation")
	case available.status != metav1.ConditionTrue:
		return verdict{available.status, available.reason, "the coordinator does not answer"}
	}
	if rest := v.rest(); rest != nil {
		return yes(rest.Reason, "%s", rest.Message)
	}
	switch {
	case v.diskFull():
		return no(v1alpha1.ReasonDiskFull, "%s", v.coordinator.GetMessage())
	case phase == v1alpha1.FederationPaused:
		return yes(v1alpha1.ReasonPaused, "paused by a person at the coordinator; `girassol resume` goes on")
	case quorum.status == metav1.ConditionTrue && phase == v1alpha1.FederationWaitingForModel:
		return no(v1alpha1.ReasonWaitingForModel, "no trainer has offered the first weights yet")
	case quorum.status == metav1.ConditionTrue:
		return yes(v1alpha1.ReasonTraining, "%s", quorum.message)
	case quorum.reason == v1alpha1.ReasonWaitingForEnergy:
		return yes(v1alpha1.ReasonWaitingForEnergy, "it sleeps until enough sites are in the window")
	case energy.status == metav1.ConditionUnknown && v.desired() < v.minSites():
		return unknown(energy.reason, "%s", energy.message)
	}
	return quorum
}

// stalled is there only while a person is needed.
func (v *federation) stalled(accepted verdict) *verdict {
	switch {
	case accepted.status != metav1.ConditionTrue && needsPerson(accepted.reason):
		c := yes(accepted.reason, "%s", accepted.message)
		return &c
	case v.phase() == v1alpha1.FederationFailed:
		c := yes(v.failure(), "the run has failed")
		return &c
	}
	return nil
}

func reasonOr(said string, other v1alpha1.Reason) v1alpha1.Reason {
	if said == "" {
		return other
	}
	return v1alpha1.Reason(said)
}

func sites(n int) string {
	if n == 1 {
		return "1 site"
	}
	return fmt.Sprintf("%d sites", n)
}

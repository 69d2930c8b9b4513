package inventory

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
)

// crashes after which a container that is not ready loops, though it may just
// run for a moment.
const crashes = 2

// steady is how long a container that looped must run to be believed; after that
// the kubelet forgets its crashes too.
const steady = 10 * time.Minute

// longestMessage of Kubernetes that is passed on.
const longestMessage = 300

// AgentTrouble counts the agents' pods that still exist, those of them that are
// ready, and names the worst trouble. A pod of a lost node keeps its phase
// Running; only its condition tells. One that loops is ready for a moment after
// each start: it counts as looping until it has run for a while; again is when
// that is, if time alone can tell, else zero.
func AgentTrouble(pods []corev1.Pod, now time.Time) (exist, ready int, worst Trouble, again time.Time) {
	byName := slices.SortedFunc(slices.Values(pods), func(a, b corev1.Pod) int { return strings.Compare(a.Name, b.Name) })
	var found []Trouble
	for i := range byName {
		p := &byName[i]
		if p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed && p.DeletionTimestamp != nil {
			continue
		}
		exist++
		if p.DeletionTimestamp != nil {
			continue
		}
		by := steadyBy(p, now)
		if podReady(p) && by.IsZero() {
			ready++
			continue
		}
		found = append(found, agentTrouble(p, now))
		if !by.IsZero() && (again.IsZero() || by.Before(again)) {
			again = by
		}
	}
	return exist, ready, Worst(found...), again
}

// steadyBy is when the last of a pod's containers that looped has run for long
// enough; zero if all have.
func steadyBy(p *corev1.Pod, now time.Time) (by time.Time) {
	for _, c := range p.Status.ContainerStatuses {
		if at := looksSteady(c); at.After(now) && at.After(by) {
			by = at
		}
	}
	return by
}

// looksSteady is from when on a container that runs, and crashed soon after its
// start again and again before, is believed; zero for others.
func looksSteady(c corev1.ContainerStatus) (at time.Time) {
	run, end := c.State.Running, c.LastTerminationState.Terminated
	if run == nil || end == nil || end.ExitCode == 0 || c.RestartCount < crashes || end.FinishedAt.Sub(end.StartedAt.Time) >= steady {
		return at
	}
	return run.StartedAt.Add(steady)
}

func podReady(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodRunning && slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// agentTrouble of a pod that is not ready. Messages leave out what changes with
// every try, such as the next delay.
func agentTrouble(p *corev1.Pod, now time.Time) Trouble {
	say := func(r v1alpha1.Reason, format string, args ...any) Trouble {
		m := fmt.Sprintf("pod %s: %s", p.Name, fmt.Sprintf(format, args...))
		return Trouble{Reason: r, Message: shorten(m)}
	}
	if p.Status.Phase == corev1.PodFailed {
		return say(v1alpha1.ReasonAgentCrashLoop, "failed: %s", cmp.Or(p.Status.Reason, p.Status.Message, "no reason is given"))
	}
	containers := slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses)
	for _, c := range containers {
		if end := crashOf(c, now); end != "" {
			return say(v1alpha1.ReasonAgentCrashLoop, "container %s ends again and again, last with %s; kubectl logs --previous tells why", c.Name, end)
		}
	}
	for _, c := range containers {
		w := c.State.Waiting
		switch {
		case w == nil:
		case w.Reason == "ErrImagePull" || w.Reason == "ImagePullBackOff":
			// The two take turns with each try.
			return say(v1alpha1.ReasonAgentPending, "container %s: its image %s cannot be pulled; kubectl describe pod tells why", c.Name, c.Image)
		case w.Reason != "" && w.Reason != "ContainerCreating" && w.Reason != "PodInitializing":
			return say(v1alpha1.ReasonAgentPending, "container %s: %s: %s", c.Name, w.Reason, w.Message)
		}
	}
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
			return say(v1alpha1.ReasonAgentPending, "not scheduled: %s", cmp.Or(c.Message, c.Reason))
		}
	}
	if p.Status.Phase == corev1.PodRunning {
		return say(v1alpha1.ReasonAgentPending, "runs but is not ready")
	}
	return say(v1alpha1.ReasonAgentPending, "starts")
}

// crashOf tells how a container that loops ended last; empty if it does not.
func crashOf(c corev1.ContainerStatus, now time.Time) string {
	end := cmp.Or(c.State.Terminated, c.LastTerminationState.Terminated)
	loops := c.State.Waiting != nil && c.State.Waiting.Reason == "CrashLoopBackOff" ||
		!c.Ready && c.RestartCount >= crashes && end != nil && end.ExitCode != 0 ||
		looksSteady(c).After(now)
	switch {
	case !loops:
		return ""
	case end == nil:
		return "no state"
	case end.Reason != "" && end.Reason != "Error":
		return fmt.Sprintf("exit code %d (%s)", end.ExitCode, end.Reason)
	}
	return fmt.Sprintf("exit code %d", end.ExitCode)
}

func shorten(s string) string {
	if r := []rune(s); len(r) > longestMessage {
		return string(r[:longestMessage]) + "…"
	}
	return s
}

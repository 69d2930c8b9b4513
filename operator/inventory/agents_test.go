package inventory

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
)

// pod of an agent with its two containers.
func pod(name string, phase corev1.PodPhase, ready bool, changes ...func(*corev1.Pod)) corev1.Pod {
	p := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}}
	p.Status.Phase = phase
	status := corev1.ConditionFalse
	if ready {
		status = corev1.ConditionTrue
	}
	p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionTrue}, {Type: corev1.PodReady, Status: status}}
	p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "agent", Ready: ready}, {Name: "trainer", Image: "example.com/trainer:1", Ready: ready}}
	for _, c := range changes {
		c(&p)
	}
	return p
}

func waiting(container int, reason, message string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		c := &p.Status.ContainerStatuses[container]
		c.State = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}}
	}
}

func ended(container int, restarts, code int32, reason string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		c := &p.Status.ContainerStatuses[container]
		c.RestartCount = restarts
		c.LastTerminationState.Terminated = &corev1.ContainerStateTerminated{ExitCode: code, Reason: reason}
	}
}

func unscheduled(p *corev1.Pod) {
	p.Status.ContainerStatuses = nil
	p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: "Unschedulable",
		Message: "0/4 nodes are available: 1 Insufficient nvidia.com/gpu, 3 node(s) didn't satisfy plugin(s) [NodeAffinity]."}}
}

func deleted(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: now} }

func TestAgentTrouble(t *testing.T) {
	good := pod("agent-ok", corev1.PodRunning, true)
	for _, c := range []struct {
		name         string
		pods         []corev1.Pod
		exist, ready int
		reason       v1alpha1.Reason
		message      string
	}{
		{"no pods, as a DaemonSet of 0/0 has, are not ready", nil, 0, 0, v1alpha1.ReasonHealthy, ""},
		{"all run", []corev1.Pod{good, pod("agent-2", corev1.PodRunning, true)}, 2, 2, v1alpha1.ReasonHealthy, ""},
		{"a pod of a lost node stays Running but is not ready", []corev1.Pod{pod("agent-x", corev1.PodRunning, false)}, 1, 0, v1alpha1.ReasonAgentPending, "pod agent-x: runs but is not ready"},
		{"a crash loop", []corev1.Pod{good, pod("agent-x", corev1.PodRunning, false, waiting(1, "CrashLoopBackOff", "back-off 5m0s restarting failed container"), ended(1, 9, 1, "Error"))},
			2, 1, v1alpha1.ReasonAgentCrashLoop, "pod agent-x: container trainer ends again and again, last with exit code 1; kubectl logs --previous tells why"},
		{"a crash loop that runs for a moment", []corev1.Pod{pod("agent-x", corev1.PodRunning, false, ended(0, 4, 137, "OOMKilled"))},
			1, 0, v1alpha1.ReasonAgentCrashLoop, "container agent ends again and again, last with exit code 137 (OOMKilled)"},
		{"one crash is none", []corev1.Pod{pod("agent-x", corev1.PodRunning, false, ended(0, 1, 1, "Error"))}, 1, 0, v1alpha1.ReasonAgentPending, "not ready"},
		{"crashes of long ago are forgotten once it is ready", []corev1.Pod{pod("agent-x", corev1.PodRunning, true, ended(0, 40, 1, "Error"))}, 1, 1, v1alpha1.ReasonHealthy, ""},
		{"an image that cannot be pulled", []corev1.Pod{pod("agent-x", corev1.PodPending, false, waiting(1, "ImagePullBackOff", `Back-off pulling image "example.com/trainer:1"`))},
			1, 0, v1alpha1.ReasonAgentPending, "pod agent-x: container trainer: its image example.com/trainer:1 cannot be pulled"},
		{"a Secret that is missing", []corev1.Pod{pod("agent-x", corev1.PodPending, false, waiting(1, "CreateContainerConfigError", `secret "data" not found`))},
			1, 0, v1alpha1.ReasonAgentPending, `CreateContainerConfigError: secret "data" not found`},
		{"a site without a free GPU", []corev1.Pod{pod("agent-x", corev1.PodPending, false, unscheduled)}, 1, 0, v1alpha1.ReasonAgentPending, "pod agent-x: not scheduled: 0/4 nodes are available: 1 Insufficient nvidia.com/gpu"},
		{"a pod that starts", []corev1.Pod{pod("agent-x", corev1.PodPending, false, waiting(0, "ContainerCreating", ""))}, 1, 0, v1alpha1.ReasonAgentPending, "pod agent-x: starts"},
		{"an evicted pod", []corev1.Pod{pod("agent-x", corev1.PodFailed, false, func(p *corev1.Pod) { p.Status.Reason = "Evicted" })}, 1, 0, v1alpha1.ReasonAgentCrashLoop, "failed: Evicted"},
		{"a pod that ends still holds its GPUs", []corev1.Pod{pod("agent-x", corev1.PodRunning, true, deleted)}, 1, 0, v1alpha1.ReasonHealthy, ""},
		{"a pod that has ended holds nothing", []corev1.Pod{pod("agent-x", corev1.PodSucceeded, false), pod("agent-y", corev1.PodFailed, false, deleted)}, 0, 0, v1alpha1.ReasonHealthy, ""},
		{"a crash loop is worse than a pod that waits", []corev1.Pod{pod("agent-a", corev1.PodPending, false, unscheduled), pod("agent-b", corev1.PodRunning, false, waiting(0, "CrashLoopBackOff", ""))},
			2, 0, v1alpha1.ReasonAgentCrashLoop, "pod agent-b: container agent ends again and again, last with no state"},
	} {
		t.Run(c.name, func(t *testing.T) {
			exist, ready, trouble, _ := AgentTrouble(c.pods, now)
			if exist != c.exist || ready != c.ready || trouble.Reason != c.reason || !strings.Contains(trouble.Message, c.message) {
				t.Errorf("%d exist, %d ready, %s: %q", exist, ready, trouble.Reason, trouble.Message)
			}
		})
	}
}

func TestLongMessagesAreCut(t *testing.T) {
	_, _, trouble, _ := AgentTrouble([]corev1.Pod{pod("agent-x", corev1.PodPending, false, waiting(0, "CreateContainerError", strings.Repeat("ä", 5000)))}, now)
	if n := len([]rune(trouble.Message)); n > longestMessage+1 {
		t.Errorf("%d characters", n)
	}
}

func TestAnImageThatIsTriedAgainAndAgainIsOneTrouble(t *testing.T) {
	_, _, fails, _ := AgentTrouble([]corev1.Pod{pod("agent-x", corev1.PodPending, false, waiting(1, "ErrImagePull", "rpc error: code = NotFound"))}, now)
	_, _, waits, _ := AgentTrouble([]corev1.Pod{pod("agent-x", corev1.PodPending, false, waiting(1, "ImagePullBackOff", "Back-off pulling image"))}, now)
	if fails != waits {
		t.Errorf("%+v, then %+v", fails, waits)
	}
}

func TestALoopThatRunsForAMomentIsStillOne(t *testing.T) {
	// The trainer, which has no probe, is ready as soon as it runs.
	runs := func(restarts int32, ran, since time.Duration) corev1.Pod {
		return pod("agent-x", corev1.PodRunning, true, ended(1, restarts, 1, "Error"), func(p *corev1.Pod) {
			c := &p.Status.ContainerStatuses[1]
			c.State.Running = &corev1.ContainerStateRunning{StartedAt: metav1.Time{Time: now.Add(-since)}}
			end := c.LastTerminationState.Terminated
			end.FinishedAt = metav1.Time{Time: now.Add(-since - 5*time.Minute)}
			end.StartedAt = metav1.Time{Time: end.FinishedAt.Add(-ran)}
		})
	}
	_, _, waits, _ := AgentTrouble([]corev1.Pod{pod("agent-x", corev1.PodRunning, false, waiting(1, "CrashLoopBackOff", "back-off 5m0s"), ended(1, 9, 1, "Error"))}, now)
	for _, c := range []struct {
		name  string
		pod   corev1.Pod
		want  Trouble
		again time.Duration
	}{
		{"just started again", runs(9, time.Second, time.Second), waits, 10*time.Minute - time.Second},
		{"ran for long enough", runs(9, time.Second, 10*time.Minute), Worst(), 0},
		{"ended after a day", runs(9, 24*time.Hour, time.Second), Worst(), 0},
		{"ended once", runs(1, time.Second, time.Second), Worst(), 0},
	} {
		_, ready, got, again := AgentTrouble([]corev1.Pod{c.pod}, now)
		if got != c.want || (ready == 1) != (c.want == Worst()) || (c.again == 0) != again.IsZero() || c.again != 0 && again.Sub(now) != c.again {
			t.Errorf("%s: %d ready, %+v, again %s", c.name, ready, got, again)
		}
	}
}

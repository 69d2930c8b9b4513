package testenv

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// patience bounds every wait.
const patience = 3 * time.Minute

func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		if ok() {
			return
		}
	}
	t.Fatalf("within %s it never %s\n%s", patience, what, shared.Logs(3000))
}

// bench is a namespace with a kubelet whose programs are shells.
func bench(t *testing.T) (e *Environment, k *Kubelet, ns string) {
	e = Shared(t)
	e.Controllers(t)
	ns = e.Namespace(t)
	dir, err := os.MkdirTemp("", "te-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	k = e.StartKubelet(t, KubeletOptions{Namespace: ns, Dir: dir, Hosts: map[string]string{"svc.example": "127.0.0.9"},
		Program: func(c *corev1.Container) string {
			if c.Image == "shell" {
				return "/bin/sh"
			}
			return ""
		}})
	return e, k, ns
}

// shell is a DaemonSet on nodes with the label agent=<namespace> that runs a script.
func shell(ns, script string, args ...string) *appsv1.DaemonSet {
	labels, grace := map[string]string{"app": "shell"}, int64(3)
	return &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "shell"},
		Spec: appsv1.DaemonSetSpec{Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: corev1.PodTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Labels: labels},
			Spec: corev1.PodSpec{
				NodeSelector: map[string]string{"agent": ns}, TerminationGracePeriodSeconds: &grace,
				Volumes: []corev1.Volume{
					{Name: "disk", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/var/lib/shell"}}},
					{Name: "tls", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "tls"}}},
				},
				Containers: []corev1.Container{{
					Name: "sh", Image: "shell", Command: []string{"sh", "-c"}, Args: append([]string{script, "sh"}, args...),
					Env: []corev1.EnvVar{
						{Name: "NODE", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "spec.nodeName"}}},
						{Name: "DISK", Value: "/data"},
					},
					VolumeMounts: []corev1.VolumeMount{{Name: "disk", MountPath: "/data"}, {Name: "tls", MountPath: "/etc/tls"}},
				}, {Name: "still", Image: "pause"}},
			},
		}},
	}
}

func (e *Environment) label(t *testing.T, node, value string) {
	t.Helper()
	patch := `{"metadata":{"labels":{"agent":` + value + `}}}`
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}
	if err := e.Client.Patch(context.Background(), n, client.RawPatch(types.MergePatchType, []byte(patch))); err != nil {
		t.Fatal(err)
	}
}

func read(path string) string { b, _ := os.ReadFile(path); return string(b) }

func TestALabelBringsARealProcessAndTakesItAwayInOrder(t *testing.T) {
	e, k, ns := bench(t)
	ctx := context.Background()
	node := "plain-" + ns
	e.Node(t, PlainNode(node, nil))
	script := `cat "$2" >>"$DISK/said"; echo "$NODE $1 $3" >>"$DISK/said"; trap 'echo bye >>"$DISK/said"; exit 7' TERM; while :; do sleep 0.05; done`
	if err := e.Client.Create(ctx, shell(ns, script, "--to=svc.example:7", "/etc/tls/word", ":99")); err != nil {
		t.Fatal(err)
	}
	e.label(t, node, `"`+ns+`"`)
	until(t, "made the pod", func() bool { return len(pods(t, e, ns)) == 1 })
	// As with a kubelet, a pod waits for its Secret.
	if err := e.Client.Create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "tls"}, Data: map[string][]byte{"word": []byte("word\n")}}); err != nil {
		t.Fatal(err)
	}
	said := filepath.Join(k.Disk(node, "/var/lib/shell"), "said")
	pod := pods(t, e, ns)[0]
	want := "word\n" + node + " --to=127.0.0.9:7 " + PodAddress(ns, pod.Name) + ":99\n"
	until(t, "started the process", func() bool { return read(said) == want })
	e.label(t, node, "null")
	until(t, "removed the pod", func() bool { return len(pods(t, e, ns)) == 0 })
	if got := read(said); got != want+"bye\n" {
		t.Errorf("the process wrote %q", got)
	}
	if ends := k.Endings(); len(ends) != 1 || !ends[0].Asked || ends[0].Killed || ends[0].ExitCode != 7 || ends[0].Container != "sh" {
		t.Errorf("endings %+v, want one that was asked for, with code 7", ends)
	}
}

func TestAProcessThatEndsIsStartedAgainAndOneThatStaysIsKilledAfterTheGrace(t *testing.T) {
	e, k, ns := bench(t)
	ctx := context.Background()
	node := "plain-" + ns
	e.Node(t, PlainNode(node, map[string]string{"agent": ns}))
	if err := e.Client.Create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "tls"}}); err != nil {
		t.Fatal(err)
	}
	if err := e.Client.Create(ctx, shell(ns, `trap '' TERM; echo up >>"$DISK/said"; while :; do sleep 0.05; done`)); err != nil {
		t.Fatal(err)
	}
	said := filepath.Join(k.Disk(node, "/var/lib/shell"), "said")
	until(t, "started", func() bool { return read(said) == "up\n" })
	k.Kill(pods(t, e, ns)[0].Name, "sh")
	until(t, "started again", func() bool { return read(said) == strings.Repeat("up\n", 2) })
	until(t, "counted the restart", func() bool {
		for _, s := range pods(t, e, ns)[0].Status.ContainerStatuses {
			if s.Name == "sh" {
				return s.RestartCount == 1 && s.State.Running != nil
			}
		}
		return false
	})
	e.label(t, node, "null")
	until(t, "removed the pod", func() bool { return len(pods(t, e, ns)) == 0 })
	if ends := k.Endings(); len(ends) != 2 || ends[0].Asked || !ends[1].Asked || !ends[1].Killed {
		t.Errorf("endings %+v, want one by itself and one killed after the grace", ends)
	}
}

func TestAPowerCutLosesTheNodeAndItsProcesses(t *testing.T) {
	e, k, ns := bench(t)
	ctx := context.Background()
	e.Node(t, PlainNode("healthy-"+ns, nil)) // with all nodes lost the cluster says that it is itself cut off
	power := e.Power(t, ns)
	node := "plain-" + ns
	e.Node(t, PlainNode(node, map[string]string{"agent": ns, LabelPower: ns}))
	if err := e.Client.Create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "tls"}}); err != nil {
		t.Fatal(err)
	}
	set := shell(ns, `echo up >>"$DISK/said"; while :; do sleep 0.05; done`)
	if err := e.Client.Create(ctx, set); err != nil {
		t.Fatal(err)
	}
	said := filepath.Join(k.Disk(node, "/var/lib/shell"), "said")
	until(t, "started", func() bool { return read(said) == "up\n" && ready(t, e, node) == corev1.ConditionTrue })
	power.Off()
	k.PowerOff(node)
	until(t, "lost the node", func() bool { return ready(t, e, node) == corev1.ConditionUnknown })
	// Mostly the set then wants 0, because the node has a taint; at times the
	// controller does not look again and it still wants 1.
	until(t, "had a set with nothing ready", func() bool {
		return e.Client.Get(ctx, client.ObjectKeyFromObject(set), set) == nil && set.Status.NumberReady == 0
	})
	if p := pods(t, e, ns); len(p) != 1 || p[0].Status.Phase != corev1.PodRunning {
		t.Errorf("pods %v, want the one that looks as if it ran", p)
	}
	power.On()
	k.PowerOn(node)
	until(t, "came back", func() bool {
		return ready(t, e, node) == corev1.ConditionTrue && strings.Count(read(said), "up") == 2
	})
}

func TestMachinesComeAfterBootAndTheirGPUsAfterTheDriver(t *testing.T) {
	e, _, ns := bench(t)
	e.MachineDeployments(t)
	ctx := context.Background()
	name := "a100-" + ns
	gone := make(chan string, 1)
	m := &Machines{Namespace: ns, Name: name, Boot: 200 * time.Millisecond, Driver: 2 * time.Second,
		Node: func(name string) *corev1.Node { return NvidiaNode(name, 8, map[string]string{"md": ns}) }, Gone: func(n string) { gone <- n }}
	e.Provide(t, m)
	md := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"replicas": int64(1)}}}
	md.SetGroupVersionKind(MachineDeploymentKind)
	md.SetNamespace(ns)
	md.SetName(name)
	if err := e.Client.Create(ctx, md); err != nil {
		t.Fatal(err)
	}
	node := &corev1.Node{}
	key := types.NamespacedName{Name: name + "-1"}
	until(t, "booted a node without GPUs", func() bool {
		return e.Client.Get(ctx, key, node) == nil && ready(t, e, key.Name) == corev1.ConditionTrue && node.Status.Allocatable.Name(NvidiaGPU, "").IsZero()
	})
	until(t, "had GPUs", func() bool {
		return e.Client.Get(ctx, key, node) == nil && node.Status.Allocatable.Name(NvidiaGPU, "").Value() == 8
	})
	until(t, "counted", func() bool {
		if e.Client.Get(ctx, client.ObjectKeyFromObject(md), md) != nil {
			return false
		}
		n, _, _ := unstructured.NestedInt64(md.Object, "status", "readyReplicas")
		return n == 1
	})
	scale := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "autoscaling/v1", "kind": "Scale", "spec": map[string]any{"replicas": int64(0)}}}
	if err := e.Client.SubResource("scale").Update(ctx, md, client.WithSubResourceBody(scale)); err != nil {
		t.Fatal(err)
	}
	until(t, "took the node away", func() bool { return client.IgnoreNotFound(e.Client.Get(ctx, key, node)) == nil && len(gone) == 1 })
}

func pods(t *testing.T, e *Environment, ns string) []corev1.Pod {
	t.Helper()
	list := &corev1.PodList{}
	if err := e.Client.List(context.Background(), list, client.InNamespace(ns)); err != nil {
		t.Fatal(err)
	}
	return list.Items
}

func ready(t *testing.T, e *Environment, node string) corev1.ConditionStatus {
	t.Helper()
	n := &corev1.Node{}
	if err := e.Client.Get(context.Background(), types.NamespacedName{Name: node}, n); err != nil {
		t.Fatal(err)
	}
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status
		}
	}
	return ""
}

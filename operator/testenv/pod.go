package testenv

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// pod is one pod's processes.
type pod struct {
	k      *Kubelet
	object *corev1.Pod // as it was first seen
	dir    string

	// latest is the object now; these are guarded by k.mu.
	latest              *corev1.Pod
	launched, finishing bool

	endOnce, cutOnce sync.Once
	grace            time.Duration
	// ending is closed when the processes are to end within grace, dead when the
	// node's power is cut.
	ending, dead chan struct{}

	mu        sync.Mutex
	processes map[string]*Process
}

func (p *pod) end(grace time.Duration) { p.endOnce.Do(func() { p.grace = grace; close(p.ending) }) }

func (p *pod) cut() { p.cutOnce.Do(func() { close(p.dead) }) }

func (p *pod) wasCut() bool {
	select {
	case <-p.dead:
		return true
	default:
		return false
	}
}

// kill is kill -9 of a container's process; false if there is none.
func (p *pod) kill(container string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	process := p.processes[container]
	if process != nil {
		process.Kill()
	}
	return process != nil
}

// over says that nothing is to be started any more.
func (p *pod) over() bool {
	select {
	case <-p.ending:
		return true
	case <-p.dead:
		return true
	case <-p.k.stopped:
		return true
	default:
		return false
	}
}

// run runs all containers until they are to end and have ended.
func (p *pod) run() {
	volumes, ok := p.mount()
	if !ok {
		return
	}
	p.showRunning()
	var group sync.WaitGroup
	for i := range p.object.Spec.Containers {
		c := &p.object.Spec.Containers[i]
		program := p.k.Program(c)
		if program == "" {
			continue
		}
		argv, env, err := p.command(program, c, volumes)
		if err != nil {
			p.k.t.Errorf("kubelet: pod %s, container %s: %v", p.object.Name, c.Name, err)
			continue
		}
		group.Go(func() { p.keep(c.Name, argv, env) })
	}
	group.Wait()
	select { // a pod of which nothing is run stays until it is to end
	case <-p.ending:
	case <-p.dead:
	case <-p.k.stopped:
	}
}

// The pauses before a second restart and those after it, which double; a kubelet's
// are ten times as long. It, too, restarts at once the first time.
const (
	firstPause = time.Second
	lastPause  = 8 * time.Second
)

// keep runs one container's process and starts it again when it ends by itself.
func (p *pod) keep(container string, argv, env []string) {
	for pause, restarts := time.Duration(0), 0; !p.over(); pause = max(firstPause, min(2*pause, lastPause)) {
		process, err := StartProcess(p.object.Name+"/"+container, p.k.log(p.object, container), p.dir, argv, env)
		if err != nil {
			p.k.t.Errorf("kubelet: %v", err)
			return
		}
		p.mu.Lock()
		p.processes[container] = process
		p.mu.Unlock()
		if restarts > 0 {
			p.show(container, restarts, corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.Now()}}, nil)
		}
		asked, killed := p.await(process)
		p.mu.Lock()
		delete(p.processes, container)
		p.mu.Unlock()
		p.k.ended(p, container, process, asked, killed)
		if p.over() {
			return
		}
		restarts++
		ended := &corev1.ContainerStateTerminated{ExitCode: int32(process.ExitCode()), Reason: "Error", FinishedAt: metav1.Now()}
		if ended.ExitCode == 0 {
			ended.Reason = "Completed"
		}
		if pause == 0 {
			p.show(container, restarts, corev1.ContainerState{Terminated: ended}, ended)
		} else {
			p.show(container, restarts, corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}}, ended)
		}
		select {
		case <-p.ending:
		case <-p.dead:
		case <-p.k.stopped:
		case <-time.After(pause):
		}
	}
}

// await waits until a process has ended, by itself or because it is to.
func (p *pod) await(process *Process) (asked, killed bool) {
	select {
	case <-process.Done():
		return false, false
	case <-p.ending:
	case <-p.dead:
		process.Kill()
		return false, true
	case <-p.k.stopped:
		process.Kill()
		return false, true
	}
	_ = process.Signal(15)
	select {
	case <-process.Done():
		process.Kill() // children it left behind
		return true, false
	case <-time.After(p.grace):
	case <-p.dead:
	case <-p.k.stopped:
	}
	process.Kill()
	return true, true
}

// showRunning says in the pod's status that it has started.
func (p *pod) showRunning() {
	now := metav1.Now()
	var conditions, containers []any
	for _, kind := range []corev1.PodConditionType{corev1.PodInitialized, corev1.ContainersReady, corev1.PodReady} {
		conditions = append(conditions, map[string]any{"type": kind, "status": corev1.ConditionTrue, "lastTransitionTime": now})
	}
	for _, c := range p.object.Spec.Containers {
		containers = append(containers, map[string]any{"name": c.Name, "image": c.Image, "imageID": "", "ready": true, "started": true, "restartCount": 0,
			"state": corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: now}}})
	}
	address := PodAddress(p.object.Namespace, p.object.Name)
	p.patch(map[string]any{"phase": corev1.PodRunning, "startTime": now, "podIP": address, "podIPs": []corev1.PodIP{{IP: address}},
		"conditions": conditions, "containerStatuses": containers})
}

// show says how a container is after its first end, and how it last ended.
func (p *pod) show(container string, restarts int, now corev1.ContainerState, last *corev1.ContainerStateTerminated) {
	ready := corev1.ConditionFalse
	if now.Running != nil {
		ready = corev1.ConditionTrue
	}
	// All three states by name: one that a patch leaves out stays.
	status := map[string]any{"name": container, "restartCount": restarts, "ready": now.Running != nil,
		"state": map[string]any{"running": now.Running, "waiting": now.Waiting, "terminated": now.Terminated}}
	if last != nil {
		status["lastState"] = map[string]any{"terminated": last}
	}
	p.patch(map[string]any{
		"containerStatuses": []any{status},
		"conditions":        []any{map[string]any{"type": corev1.PodReady, "status": ready, "lastTransitionTime": metav1.Now()}},
	})
}

func (p *pod) patch(status map[string]any) {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": p.object.UID}, "status": status})
	if err != nil {
		p.k.t.Errorf("kubelet: %v", err)
		return
	}
	o := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: p.object.Namespace, Name: p.object.Name}}
	err = p.k.client.Status().Patch(context.Background(), o, client.RawPatch(types.StrategicMergePatchType, patch))
	if client.IgnoreNotFound(err) != nil && !p.k.isStopped() {
		p.k.t.Logf("kubelet: status of pod %s: %v", p.object.Name, err)
	}
}

// listen matches an address on all interfaces at the end of an argument.
var listen = regexp.MustCompile(`(^|=)(?:0\.0\.0\.0|\[::\])?:(\d+)$`)

// command is what runs in a container: its command and arguments with variables
// expanded, paths of mounts and names of hosts replaced.
func (p *pod) command(program string, c *corev1.Container, volumes map[string]string) (argv, env []string, err error) {
	values := map[string]string{}
	for _, e := range c.Env {
		if values[e.Name], err = p.variable(e, values); err != nil {
			return nil, nil, err
		}
	}
	folders := mounts{}
	for _, m := range c.VolumeMounts {
		folders[m.MountPath] = filepath.Join(volumes[m.Name], m.SubPath)
	}
	place := func(s string) string {
		s = folders.replace(s)
		for name, address := range p.k.Hosts {
			s = strings.ReplaceAll(s, name+":", address+":")
		}
		return listen.ReplaceAllString(s, "${1}"+PodAddress(p.object.Namespace, p.object.Name)+":$2")
	}
	argv = []string{program}
	args := slices.Clone(c.Args)
	if len(c.Command) > 0 {
		args = append(slices.Clone(c.Command[1:]), args...)
	}
	for _, a := range args {
		argv = append(argv, place(expand(a, values)))
	}
	if p.k.Extra != nil {
		argv = append(argv, p.k.Extra(p.object, c)...)
	}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		env = append(env, name+"="+place(values[name]))
	}
	return argv, env, nil
}

var reference = regexp.MustCompile(`\$\(([A-Za-z_][A-Za-z0-9_]*)\)`)

// expand replaces $(NAME) as a kubelet does.
func expand(s string, values map[string]string) string {
	return reference.ReplaceAllStringFunc(s, func(r string) string {
		if v, ok := values[r[2:len(r)-1]]; ok {
			return v
		}
		return r
	})
}

func (p *pod) variable(e corev1.EnvVar, values map[string]string) (string, error) {
	from := e.ValueFrom
	switch {
	case from == nil:
		return expand(e.Value, values), nil
	case from.FieldRef != nil:
		fields := map[string]string{"metadata.name": p.object.Name, "metadata.namespace": p.object.Namespace, "metadata.uid": string(p.object.UID),
			"spec.nodeName": p.object.Spec.NodeName, "status.podIP": PodAddress(p.object.Namespace, p.object.Name)}
		if v, ok := fields[from.FieldRef.FieldPath]; ok {
			return v, nil
		}
	case from.SecretKeyRef != nil:
		var s corev1.Secret
		err := p.k.client.Get(context.Background(), types.NamespacedName{Namespace: p.object.Namespace, Name: from.SecretKeyRef.Name}, &s)
		return string(s.Data[from.SecretKeyRef.Key]), err
	}
	return "", fmt.Errorf("variable %s: the test bench cannot tell its value", e.Name)
}

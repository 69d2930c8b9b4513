package testenv

import (
	"cmp"
	"context"
	"fmt"
	"hash/fnv"
	"path/filepath"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Kubelet gives pods life: for every container of a pod that is on a node it runs
// a process of this machine, with SIGTERM, the pod's grace and SIGKILL at the end
// and a restart in between. It writes the pods' status, without probes, and deletes
// a pod whose processes have ended. KWOK plays the nodes.
//
// There are no containers: paths of volume mounts in commands, arguments and the
// environment are replaced by folders, every pod listens on a loopback address of
// its own (PodAddress), and Hosts stands for DNS.
type Kubelet struct {
	KubeletOptions
	t      testing.TB
	client client.Client

	mu      sync.Mutex
	pods    map[types.UID]*pod
	running map[types.NamespacedName]chan struct{} // closed when the pod of that name has ended
	dark    map[string]bool                        // nodes without power
	number  int
	endings []Ending
	group   sync.WaitGroup
	stopped chan struct{}
}

// KubeletOptions of a Kubelet.
type KubeletOptions struct {
	// Namespace whose pods are run.
	Namespace string
	// Program is the executable of a container; empty runs nothing, and the
	// container looks as if it ran.
	Program func(c *corev1.Container) string
	// Extra arguments of a container, put after its own.
	Extra func(p *corev1.Pod, c *corev1.Container) []string
	// Hosts are names in arguments and the addresses that they stand for.
	Hosts map[string]string
	// Dir for logs, volumes and the disks of nodes. Short: a Unix socket's path may
	// have 107 bytes.
	Dir string
}

// Ending of one container's process.
type Ending struct {
	Node, Pod, Container string
	Labels               map[string]string
	// Asked: the pod was deleted. Killed: it did not end within the grace, or its
	// node lost power.
	Asked, Killed bool
	ExitCode      int
	At            time.Time
}

// StartKubelet runs the pods of a namespace until the test ends.
func (e *Environment) StartKubelet(t testing.TB, o KubeletOptions) *Kubelet {
	t.Helper()
	set, err := kubernetes.NewForConfig(e.Config)
	if err != nil {
		t.Fatal(err)
	}
	k := &Kubelet{KubeletOptions: o, t: t, client: e.Client, pods: map[types.UID]*pod{},
		running: map[types.NamespacedName]chan struct{}{}, dark: map[string]bool{}, stopped: make(chan struct{})}
	factory := informers.NewSharedInformerFactoryWithOptions(set, 0, informers.WithNamespace(o.Namespace))
	informer := factory.Core().V1().Pods().Informer()
	if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { k.see(o.(*corev1.Pod)) },
		UpdateFunc: func(_, o any) { k.see(o.(*corev1.Pod)) },
		DeleteFunc: func(o any) {
			if last, ok := o.(cache.DeletedFinalStateUnknown); ok {
				o = last.Obj
			}
			k.gone(o.(*corev1.Pod))
		},
	}); err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	factory.Start(stop)
	factory.WaitForCacheSync(stop)
	t.Cleanup(func() {
		close(stop)
		factory.Shutdown()
		close(k.stopped)
		k.group.Wait()
	})
	return k
}

// PodAddress is the loopback address on which a pod listens.
func PodAddress(namespace, name string) string {
	h := fnv.New32a()
	_, _ = h.Write([]byte(namespace + "/" + name))
	n := h.Sum32()
	return fmt.Sprintf("127.%d.%d.%d", 64+n>>16%64, n>>8%256, 1+n%254)
}

// Disk is the folder of a path on a node's disk.
func (k *Kubelet) Disk(node, path string) string {
	return filepath.Join(k.Dir, "disk", node, path)
}

// Endings are the processes that have ended so far.
func (k *Kubelet) Endings() []Ending {
	k.mu.Lock()
	defer k.mu.Unlock()
	return append([]Ending(nil), k.endings...)
}

// Kill is kill -9 of the processes of a pod's container; they are started again.
func (k *Kubelet) Kill(name, container string) {
	k.t.Helper()
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, p := range k.pods {
		if p.object.Name == name && p.kill(container) {
			return
		}
	}
	k.t.Errorf("nothing runs in container %s of pod %s", container, name)
}

// PowerOff kills all processes on a node, and nothing is started there until
// PowerOn.
func (k *Kubelet) PowerOff(node string) {
	k.mu.Lock()
	k.dark[node] = true
	var victims []*pod
	for _, p := range k.pods {
		if p.object.Spec.NodeName == node {
			victims = append(victims, p)
		}
	}
	k.mu.Unlock()
	for _, p := range victims {
		p.cut()
	}
}

// PowerOn starts the pods on a node again.
func (k *Kubelet) PowerOn(node string) {
	k.mu.Lock()
	delete(k.dark, node)
	var back []*corev1.Pod
	for uid, p := range k.pods {
		if p.object.Spec.NodeName == node {
			back = append(back, p.latest)
			delete(k.pods, uid)
		}
	}
	k.mu.Unlock()
	for _, p := range back {
		k.see(p)
	}
}

// see starts a pod that has come to a node and ends one that is being deleted.
func (k *Kubelet) see(o *corev1.Pod) {
	if o.Spec.NodeName == "" {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	p := k.pods[o.UID]
	if p == nil {
		p = k.newPod(o)
		k.pods[o.UID] = p
		over := o.DeletionTimestamp != nil || o.Status.Phase == corev1.PodSucceeded || o.Status.Phase == corev1.PodFailed
		if !over && !k.dark[o.Spec.NodeName] {
			k.launch(p)
		}
	}
	p.latest = o
	if o.DeletionTimestamp != nil && !k.dark[o.Spec.NodeName] {
		p.end(time.Duration(ptr.Deref(o.DeletionGracePeriodSeconds, 0)) * time.Second)
		if !p.launched && !p.finishing {
			p.finishing = true
			k.group.Go(func() { k.finish(o) })
		}
	}
}

// gone ends a pod whose object vanished, as after a deletion by force.
func (k *Kubelet) gone(o *corev1.Pod) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if p := k.pods[o.UID]; p != nil {
		p.end(time.Duration(ptr.Deref(o.Spec.TerminationGracePeriodSeconds, 30)) * time.Second)
		delete(k.pods, o.UID)
	}
}

// launch runs a pod once the one of the same name before it has ended.
func (k *Kubelet) launch(p *pod) {
	p.launched = true
	key := types.NamespacedName{Namespace: p.object.Namespace, Name: p.object.Name}
	before, ended := k.running[key], make(chan struct{})
	k.running[key] = ended
	k.group.Go(func() {
		defer close(ended)
		if before != nil {
			<-before
		}
		p.run()
		if p.wasCut() || k.isStopped() {
			return
		}
		k.finish(p.object)
	})
}

// finish deletes a pod for good.
func (k *Kubelet) finish(o *corev1.Pod) {
	err := k.client.Delete(context.Background(), o, client.GracePeriodSeconds(0), client.Preconditions{UID: &o.UID})
	if client.IgnoreNotFound(err) != nil && !k.isStopped() {
		k.t.Logf("kubelet: delete pod %s: %v", o.Name, err)
	}
}

func (k *Kubelet) isStopped() bool {
	select {
	case <-k.stopped:
		return true
	default:
		return false
	}
}

func (k *Kubelet) newPod(o *corev1.Pod) *pod {
	k.number++
	return &pod{k: k, object: o, dir: filepath.Join(k.Dir, fmt.Sprintf("p%d", k.number)),
		ending: make(chan struct{}), dead: make(chan struct{}), processes: map[string]*Process{}}
}

func (k *Kubelet) ended(p *pod, container string, process *Process, asked, killed bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.endings = append(k.endings, Ending{Node: p.object.Spec.NodeName, Pod: p.object.Name, Container: container, Labels: p.object.Labels,
		Asked: asked, Killed: killed, ExitCode: process.ExitCode(), At: time.Now()})
}

// log of a container, over restarts and pods of the same name.
func (k *Kubelet) log(o *corev1.Pod, container string) string {
	return filepath.Join(k.Dir, "logs", cmp.Or(o.Spec.NodeName, "none")+"_"+o.Name+"_"+container+".log")
}

// Logs is the end of every container's log, at most so many bytes of each.
func (k *Kubelet) Logs(bytes int64) string {
	logs, _ := filepath.Glob(filepath.Join(k.Dir, "logs", "*.log"))
	var out string
	for _, path := range logs {
		out += "--- " + filepath.Base(path) + "\n" + (&Process{Log: path}).Tail(bytes) + "\n"
	}
	return out
}

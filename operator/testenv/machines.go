package testenv

import (
	"context"
	"fmt"
	"path/filepath"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
)

// MachineDeploymentKind is Cluster API's.
var MachineDeploymentKind = schema.GroupVersionKind{Group: "cluster.x-k8s.io", Version: "v1beta2", Kind: "MachineDeployment"}

// MachineDeployments installs Cluster API's kind, as far as /scale needs it.
func (e *Environment) MachineDeployments(t testing.TB) {
	t.Helper()
	e.mu.Lock() // tests that run at the same time
	defer e.mu.Unlock()
	_, err := envtest.InstallCRDs(e.Config, envtest.CRDInstallOptions{Paths: []string{filepath.Join(Root(), "operator", "testenv", "crds")}})
	if err != nil {
		t.Fatal(err)
	}
}

// Machines plays the provider of one MachineDeployment: nodes come a while after
// spec.replicas asks for them and go when it does not. Every node is a new one.
type Machines struct {
	// Name of the MachineDeployment; its nodes are <name>-1 and so on.
	Namespace, Name string
	// Node makes a node that has booted.
	Node func(name string) *corev1.Node
	// Boot is the time until a node is there, Driver from then until its GPUs are
	// allocatable.
	Boot, Driver time.Duration
	// Gone is told of a machine that was taken away.
	Gone func(node string)

	mu     sync.Mutex
	number int
	nodes  []machine
}

type machine struct {
	node   *corev1.Node
	bootAt time.Time
	gpusAt time.Time
	booted bool
	ready  bool
}

// Provide plays m until the test ends.
func (e *Environment) Provide(t testing.TB, m *Machines) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var group sync.WaitGroup
	group.Go(func() {
		for {
			if err := m.step(ctx, e); err != nil && ctx.Err() == nil {
				t.Logf("machines of %s: %v", m.Name, err)
			}
			select {
			case <-ctx.Done():
				return
			case <-time.After(100 * time.Millisecond):
			}
		}
	})
	t.Cleanup(func() {
		cancel()
		group.Wait()
		for _, x := range m.nodes {
			if x.booted {
				_ = client.IgnoreNotFound(e.Client.Delete(context.Background(), x.node))
			}
		}
	})
}

// SetDriver changes the time from boot to allocatable GPUs for machines to come.
func (m *Machines) SetDriver(d time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.Driver = d
}

// step brings the machines closer to what is asked for.
func (m *Machines) step(ctx context.Context, e *Environment) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	o := &unstructured.Unstructured{}
	o.SetGroupVersionKind(MachineDeploymentKind)
	if err := e.Client.Get(ctx, types.NamespacedName{Namespace: m.Namespace, Name: m.Name}, o); err != nil {
		return client.IgnoreNotFound(err)
	}
	wanted, _, err := unstructured.NestedInt64(o.Object, "spec", "replicas")
	if err != nil {
		return err
	}
	now := time.Now()
	for int64(len(m.nodes)) < wanted {
		m.number++
		boot := now.Add(m.Boot)
		m.nodes = append(m.nodes, machine{node: m.Node(fmt.Sprintf("%s-%d", m.Name, m.number)), bootAt: boot, gpusAt: boot.Add(m.Driver)})
	}
	for int64(len(m.nodes)) > wanted {
		last := m.nodes[len(m.nodes)-1]
		m.nodes = m.nodes[:len(m.nodes)-1]
		if !last.booted {
			continue
		}
		if err := client.IgnoreNotFound(e.Client.Delete(ctx, last.node)); err != nil {
			return err
		}
		if m.Gone != nil {
			m.Gone(last.node.Name)
		}
	}
	ready := int64(0)
	for i := range m.nodes {
		if err := m.nodes[i].step(ctx, e, now); err != nil {
			return err
		}
		if m.nodes[i].ready {
			ready++
		}
	}
	return m.report(ctx, e, o, int64(len(m.nodes)), ready)
}

func (x *machine) step(ctx context.Context, e *Environment, now time.Time) error {
	name, gpus := gpusOf(x.node)
	if !x.booted && !now.Before(x.bootAt) {
		node := x.node.DeepCopy()
		if now.Before(x.gpusAt) {
			delete(node.Status.Allocatable, name)
		} else {
			x.ready = true
		}
		if err := e.Client.Create(ctx, node); err != nil {
			return err
		}
		x.booted = true
	}
	if x.booted && !x.ready && !now.Before(x.gpusAt) {
		if err := e.Allocatable(ctx, x.node.Name, name, gpus); err != nil {
			return err
		}
		x.ready = true
	}
	return nil
}

func gpusOf(n *corev1.Node) (corev1.ResourceName, int) {
	for _, name := range []corev1.ResourceName{NvidiaGPU, AMDGPU} {
		if q, ok := n.Status.Capacity[name]; ok {
			return name, int(q.Value())
		}
	}
	return "", 0
}

// report writes the MachineDeployment's status when it differs.
func (m *Machines) report(ctx context.Context, e *Environment, o *unstructured.Unstructured, replicas, ready int64) error {
	want := map[string]any{"observedGeneration": o.GetGeneration(), "replicas": replicas, "readyReplicas": ready, "availableReplicas": ready,
		"selector": "machines=" + m.Name}
	have, _, err := unstructured.NestedMap(o.Object, "status")
	if err != nil {
		return err
	}
	if fmt.Sprint(have) == fmt.Sprint(want) {
		return nil
	}
	if err := unstructured.SetNestedMap(o.Object, want, "status"); err != nil {
		return err
	}
	return client.IgnoreNotFound(e.Client.Status().Update(ctx, o))
}

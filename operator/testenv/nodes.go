package testenv

import (
	"context"
	"fmt"
	"maps"
	"strconv"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Resources of GPUs on nodes.
const (
	NvidiaGPU corev1.ResourceName = "nvidia.com/gpu"
	AMDGPU    corev1.ResourceName = "amd.com/gpu"
)

// PlainNode has no GPUs. GridPower keeps it alive; another label LabelPower
// gives it to another Power.
func PlainNode(name string, labels map[string]string) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
		"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64", LabelPower: GridPower,
	}}}
	maps.Copy(n.Labels, labels)
	n.Status.Capacity = corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("128"), corev1.ResourceMemory: resource.MustParse("2Ti"), corev1.ResourcePods: resource.MustParse("110"),
		corev1.ResourceEphemeralStorage: resource.MustParse("4Ti"),
	}
	n.Status.Allocatable = n.Status.Capacity.DeepCopy()
	return n
}

// NvidiaNode has so many A100 and the labels of NVIDIA's feature discovery.
func NvidiaNode(name string, gpus int, labels map[string]string) *corev1.Node {
	n := PlainNode(name, map[string]string{
		"feature.node.kubernetes.io/pci-10de.present": "true", "nvidia.com/gpu.present": "true",
		"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB", "nvidia.com/gpu.family": "ampere", "nvidia.com/gpu.count": strconv.Itoa(gpus),
		"nvidia.com/gpu.memory": "81920", "nvidia.com/mig.strategy": "single", "nvidia.com/cuda.driver.major": "580",
	})
	return withGPUs(n, NvidiaGPU, gpus, labels)
}

// AMDNode has so many MI300X and the labels of AMD's node labeller.
func AMDNode(name string, gpus int, labels map[string]string) *corev1.Node {
	n := PlainNode(name, map[string]string{
		"feature.node.kubernetes.io/amd-gpu": "true", "amd.com/gpu.product-name": "AMD_Instinct_MI300X_OAM",
		"amd.com/gpu.vram": "192G", "amd.com/gpu.cu-count": "304", "amd.com/gpu.family": "AI",
	})
	return withGPUs(n, AMDGPU, gpus, labels)
}

func withGPUs(n *corev1.Node, name corev1.ResourceName, gpus int, labels map[string]string) *corev1.Node {
	maps.Copy(n.Labels, labels)
	n.Status.Capacity[name] = *resource.NewQuantity(int64(gpus), resource.DecimalSI)
	n.Status.Allocatable[name] = n.Status.Capacity[name]
	return n
}

// Node makes a node that goes with the test.
func (e *Environment) Node(t testing.TB, n *corev1.Node) {
	t.Helper()
	if err := e.Client.Create(context.Background(), n); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := client.IgnoreNotFound(e.Client.Delete(context.Background(), n)); err != nil {
			t.Error(err)
		}
	})
}

// Allocatable changes how many GPUs of a node can be used.
func (e *Environment) Allocatable(ctx context.Context, node string, name corev1.ResourceName, gpus int) error {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}
	patch := fmt.Sprintf(`{"status":{"allocatable":{%q:"%d"}}}`, name, gpus)
	return e.Client.Status().Patch(ctx, n, client.RawPatch(types.MergePatchType, []byte(patch)))
}

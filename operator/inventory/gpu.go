package inventory

import (
	"cmp"
	"math"
	"strings"

	corev1 "k8s.io/api/core/v1"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
)

// count of devices that does not overflow, whatever nodes claim.
type count int32

func (c count) plus(d count) count {
	return count(min(int64(c)+int64(d), math.MaxInt32))
}

// most is the key with the highest count, by name among equals; zero without any.
func most[K cmp.Ordered](of map[K]count) K {
	var best K
	for k, c := range of {
		if c > of[best] || c == of[best] && k < best {
			best = k
		}
	}
	return best
}

// readGPUs sets vendor, model and GPUs, and says whether the node fits the vendor
// that the site expects; unset, the site takes what the node shows.
func (n *node) readGPUs(o *corev1.Node, want v1alpha1.Vendor, vendors []v1alpha1.VendorSpec) bool {
	has := map[v1alpha1.Vendor]count{}
	for name, q := range o.Status.Allocatable {
		v := vendorOfResource(string(name), vendors)
		if v == "" || q.Sign() <= 0 {
			continue
		}
		c := q.Value()
		has[v] = has[v].plus(count(min(max(c, 0), math.MaxInt32)))
	}
	if want == v1alpha1.VendorCPU {
		n.vendor = want
		return true
	}
	n.vendor = want
	shown := cmp.Or(most(has), vendorByLabels(o.Labels))
	switch {
	case want == "" && shown != "":
		n.vendor = shown
		if len(has) > 1 {
			n.say(v1alpha1.ReasonMixedVendors, "has GPUs of two vendors, of which only "+string(shown)+" are used; say which by nodes.vendor")
		}
	case want == "":
		// A dip: what the node was enrolled as is the best knowledge.
		n.vendor = vendorOfLabel(o.Labels[v1alpha1.LabelAgent])
	case has[want] == 0 && shown != "" && shown != want:
		n.say(v1alpha1.ReasonVendorMismatch, "has GPUs of "+string(shown)+", nodes.vendor says "+string(want))
		return false
	}
	n.gpus = has[n.vendor]
	n.model = modelOf(o.Labels, n.vendor)
	return true
}

// vendorOfResource names whose GPUs an extended resource counts; empty if it
// counts none. MIG slices and AMD partitions are GPUs to a trainer.
func vendorOfResource(name string, vendors []v1alpha1.VendorSpec) v1alpha1.Vendor {
	for _, v := range vendors {
		if v.ResourceName != "" && v.ResourceName == name {
			return v.Vendor
		}
	}
	switch domain, kind, _ := strings.Cut(name, "/"); domain {
	case "nvidia.com":
		if kind == "gpu" || kind == "gpu.shared" || strings.HasPrefix(kind, "mig-") {
			return v1alpha1.VendorNVIDIA
		}
	case "amd.com":
		if kind == "gpu" || amdPartition(kind) {
			return v1alpha1.VendorAMD
		}
	}
	return ""
}

// amdPartition: compute and memory partitions such as spx_nps1 and cpx_nps4.
func amdPartition(kind string) bool {
	compute, memory, ok := strings.Cut(kind, "_nps")
	if !ok || len(memory) != 1 || memory[0] < '1' || memory[0] > '8' {
		return false
	}
	switch compute {
	case "spx", "dpx", "tpx", "qpx", "cpx":
		return true
	}
	return false
}

// vendorByLabels is what discovery says of a node without allocatable GPUs, so
// that a wrong vendor is named before its device plugin runs.
func vendorByLabels(labels map[string]string) v1alpha1.Vendor {
	switch {
	case labels["nvidia.com/gpu.present"] == "true",
		labels["nvidia.com/gpu.present"] == "" && labels["feature.node.kubernetes.io/pci-10de.present"] == "true":
		return v1alpha1.VendorNVIDIA
	case labels["feature.node.kubernetes.io/amd-gpu"] == "true",
		labels["feature.node.kubernetes.io/amd-vgpu"] == "true",
		labels["amd.com/gpu.product-name"] != "":
		return v1alpha1.VendorAMD
	}
	return ""
}

func vendorOfLabel(value string) v1alpha1.Vendor {
	for _, v := range []v1alpha1.Vendor{v1alpha1.VendorNVIDIA, v1alpha1.VendorAMD, v1alpha1.VendorCPU} {
		if strings.EqualFold(value, string(v)) {
			return v
		}
	}
	return ""
}

const (
	labelNVIDIAProduct  = "nvidia.com/gpu.product"
	labelAMDProduct     = "amd.com/gpu.product-name"
	labelAMDProductBeta = "beta.amd.com/gpu.product-name"
)

// modelOf is the product as people name it, without vendor and without how it is
// cut or shared: A100-SXM4-80GB, Instinct-MI300X-OAM; empty when no label tells,
// as on AMD's virtual functions.
func modelOf(labels map[string]string, v v1alpha1.Vendor) string {
	switch v {
	case v1alpha1.VendorNVIDIA:
		model := labels[labelNVIDIAProduct]
		model, _, _ = strings.Cut(model, "-MIG-")
		model = strings.TrimSuffix(model, "-SHARED")
		return strings.TrimPrefix(model, "NVIDIA-")
	case v1alpha1.VendorAMD:
		model := cmp.Or(labels[labelAMDProduct], labels[labelAMDProductBeta], valueInKey(labels, labelAMDProductBeta+"."))
		model = strings.TrimPrefix(model, "AMD_")
		return strings.ReplaceAll(model, "_", "-")
	}
	return ""
}

// valueInKey reads AMD's older labels, which carry the value in the key and the
// number of devices in the value; that of most devices counts, then by name.
func valueInKey(labels map[string]string, prefix string) string {
	found := map[string]count{}
	for k, number := range labels {
		if value, ok := strings.CutPrefix(k, prefix); ok && value != "" {
			found[value] = max(parseCount(number), 1)
		}
	}
	return most(found)
}

// parseCount reads a small number; anything else is 0.
func parseCount(s string) count {
	var c count
	for _, r := range s {
		if r < '0' || r > '9' || c > 1e6 {
			return 0
		}
		c = c*10 + count(r-'0')
	}
	return c
}

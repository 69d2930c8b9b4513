package inventory

import (
	"reflect"
	"testing"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
)

// FuzzNode reads nodes with any labels, resources, taints and annotations.
func FuzzNode(f *testing.F) {
	f.Add("nvidia.com/gpu.product", "NVIDIA-A100-SXM4-80GB-MIG-1g.10gb", "nvidia.com/gpu", "8", "nvidia.com/gpu", "2026-01-01T00:00:00Z")
	f.Add("beta.amd.com/gpu.product-name.AMD_Instinct_MI210", "99999999999999999999", "amd.com/cpx_nps4", "9E18", "amd-dcm", "")
	f.Add("nvidia.com/gpu-driver-upgrade-state", "Upgrade--Required", "nvidia.com/mig-", "-1", "karpenter.sh/disrupted", "soon")
	f.Add("girassol.dev/agent", "nvidia", "amd.com/_nps1", "100m", "", "0000-00-00")
	f.Fuzz(func(t *testing.T, label, value, name, amount, taint, goneBy string) {
		n := machine("n", labelled(label, value), tainted(taint, value, corev1.TaintEffectNoExecute), goneAt(goneBy))
		if q, err := resource.ParseQuantity(amount); err == nil {
			n.Status.Allocatable[corev1.ResourceName(name)] = q
		}
		twice := []corev1.Node{n, *n.DeepCopy()}
		for _, v := range []v1alpha1.Vendor{"", v1alpha1.VendorNVIDIA, v1alpha1.VendorAMD, v1alpha1.VendorCPU} {
			s := site(v1alpha1.NodesSpec{Vendor: v})
			got := Summarize(twice, s, mine, now)
			if got.GPUs < 0 || got.Usable > got.Nodes || len(got.Enrol)+len(got.Withdraw) > len(twice) || got.Usable > 0 && got.Vendor == "" {
				t.Errorf("%+v", got)
			}
			if utf8.ValidString(value) && utf8.ValidString(label) && !utf8.ValidString(got.Model) {
				t.Errorf("model %q", got.Model)
			}
			for _, e := range got.Enrol {
				if e.Vendor == "" {
					t.Errorf("enrols without a vendor: %+v", got)
				}
			}
			if again := Summarize(twice, s, mine, now); !reflect.DeepEqual(got, again) {
				t.Errorf("not the same again: %+v, %+v", got, again)
			}
		}
	})
}

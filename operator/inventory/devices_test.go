package inventory

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
)

func TestDevicesAreThoseOfTheResourceThatHasMost(t *testing.T) {
	own := v1alpha1.VendorSpec{Vendor: v1alpha1.VendorNVIDIA, ResourceName: "example.com/gpu"}
	for name, tc := range map[string]struct {
		allocatable map[string]string
		vendor      v1alpha1.Vendor
		resource    string
		number      int32
	}{
		"none":              {map[string]string{"cpu": "64"}, v1alpha1.VendorNVIDIA, "", 0},
		"of another vendor": {map[string]string{"amd.com/gpu": "8"}, v1alpha1.VendorNVIDIA, "", 0},
		"gone":              {map[string]string{"nvidia.com/gpu": "0"}, v1alpha1.VendorNVIDIA, "", 0},
		"whole":             {map[string]string{"nvidia.com/gpu": "8", "cpu": "64"}, v1alpha1.VendorNVIDIA, "nvidia.com/gpu", 8},
		"slices":            {map[string]string{"nvidia.com/gpu": "0", "nvidia.com/mig-1g.10gb": "7", "nvidia.com/mig-3g.40gb": "1"}, v1alpha1.VendorNVIDIA, "nvidia.com/mig-1g.10gb", 7},
		"equals, by name":   {map[string]string{"nvidia.com/mig-3g.40gb": "1", "nvidia.com/mig-1g.10gb": "1"}, v1alpha1.VendorNVIDIA, "nvidia.com/mig-1g.10gb", 1},
		"partitions":        {map[string]string{"amd.com/cpx_nps4": "64"}, v1alpha1.VendorAMD, "amd.com/cpx_nps4", 64},
		"of the spec":       {map[string]string{"example.com/gpu": "2"}, v1alpha1.VendorNVIDIA, "example.com/gpu", 2},
		"more than counts":  {map[string]string{"nvidia.com/gpu": "9e18"}, v1alpha1.VendorNVIDIA, "nvidia.com/gpu", 1<<31 - 1},
	} {
		t.Run(name, func(t *testing.T) {
			n := &corev1.Node{Status: corev1.NodeStatus{Allocatable: corev1.ResourceList{}}}
			for k, q := range tc.allocatable {
				n.Status.Allocatable[corev1.ResourceName(k)] = resource.MustParse(q)
			}
			if r, c := Devices(n, tc.vendor, own); r != tc.resource || c != tc.number {
				t.Errorf("%d of %q, want %d of %q", c, r, tc.number, tc.resource)
			}
			if tc.number > 0 && VendorOf(tc.resource, own) != tc.vendor {
				t.Errorf("%s is of vendor %q", tc.resource, VendorOf(tc.resource, own))
			}
		})
	}
}

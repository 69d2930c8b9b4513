package inventory

import (
	"math"

	corev1 "k8s.io/api/core/v1"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
)

// VendorOf names whose GPUs an extended resource counts; empty if it counts none.
func VendorOf(resource string, vendors ...v1alpha1.VendorSpec) v1alpha1.Vendor {
	return vendorOfResource(resource, vendors)
}

// Devices of a vendor that are allocatable on a node: the resource that has most
// of them, by name among equals, and its number; 0 without any.
func Devices(o *corev1.Node, vendor v1alpha1.Vendor, vendors ...v1alpha1.VendorSpec) (resource string, number int32) {
	found := map[string]count{}
	for name, q := range o.Status.Allocatable {
		if c := q.Value(); c > 0 && vendorOfResource(string(name), vendors) == vendor {
			found[string(name)] = count(min(c, math.MaxInt32))
		}
	}
	resource = most(found)
	return resource, int32(found[resource])
}

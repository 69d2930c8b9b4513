package provisioning

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	api "girassol.dev/api/provisioning"
)

// deadlineSeconds is the default of capacity.provisioningDeadlineSeconds.
const deadlineSeconds = 900

// ItemOf is the present wish for a site as the API shows it; false without one.
func ItemOf(s *v1alpha1.Site) (api.Item, bool) {
	p := s.Status.Provisioning
	if p == nil {
		return api.Item{}, false
	}
	item := api.Item{
		Namespace:  s.Namespace,
		Site:       s.Name,
		Federation: s.Status.Federation,
		Wish:       api.Action(p.Wish),
		State:      api.State(p.State),
		Reason:     string(p.Reason),
		Message:    p.Message,
		By:         timeOf(p.Deadline),
		Since:      p.Since.UTC(),
		RetryAt:    timeOf(p.RetryAt),
		Key:        p.Key,
		Vendor:     string(s.Status.Vendor),
		MinGPUs:    1,
		Priority:   s.Spec.Priority,
		Mode:       string(s.Spec.Capacity.Mode),
	}
	if item.State == "" {
		item.State = api.Wanted
	}
	if n := s.Spec.Nodes; n != nil {
		if n.Vendor != "" {
			item.Vendor = string(n.Vendor)
		}
		switch {
		case n.MinGPUs != nil:
			item.MinGPUs = *n.MinGPUs
		case n.Vendor == v1alpha1.VendorCPU:
			item.MinGPUs = 0
		}
		if item.Mode == "" {
			item.Mode = string(v1alpha1.CapacityNodeLabel)
		}
	}
	if item.Mode == "" {
		item.Mode = string(v1alpha1.CapacityNone)
	}
	return item, true
}

// WishOf is what a provisioner is asked for; false without a wish. It stays the
// same for a key but for words: By counts from when the wish began, so that asking
// later for the same gives no more time.
func WishOf(s *v1alpha1.Site) (api.Wish, bool) {
	item, ok := ItemOf(s)
	if !ok {
		return api.Wish{}, false
	}
	w := api.Wish{
		APIVersion: api.Version,
		Wish:       item.Wish,
		Namespace:  item.Namespace,
		Site:       item.Site,
		Federation: item.Federation,
		Vendor:     item.Vendor,
		MinGPUs:    item.MinGPUs,
		Priority:   item.Priority,
		Since:      item.Since,
		Reason:     item.Reason,
		Message:    item.Message,
		Key:        item.Key,
	}
	if item.Wish == api.Provision {
		seconds := s.Spec.Capacity.ProvisioningDeadlineSeconds
		if seconds == 0 {
			seconds = deadlineSeconds
		}
		by := item.Since.Add(time.Duration(seconds) * time.Second)
		w.By = &by
	}
	return w, true
}

func timeOf(t *metav1.Time) *time.Time {
	if t == nil {
		return nil
	}
	u := t.UTC()
	return &u
}

package membership

import (
	"cmp"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
)

// Defaults of spec.capacity.
const (
	defaultProvisioning = 900 * time.Second
	defaultSettle       = 10 * time.Second
	defaultRetry        = 300 * time.Second
	defaultRetryMax     = 7200 * time.Second
)

// wish begins w, or goes on with it; one that failed is over. A key names one wish
// for ever: Since grows from wish to wish even within a second.
func (d *decider) wish(w v1alpha1.ProvisioningWish) *v1alpha1.ProvisioningStatus {
	p := d.st.Provisioning
	if p != nil && p.Wish == w && p.State != v1alpha1.ProvisioningFailed {
		return p
	}
	since := d.now
	next := &v1alpha1.ProvisioningStatus{Wish: w, State: v1alpha1.ProvisioningWanted}
	if p != nil {
		if !since.After(p.Since.Time) {
			since = p.Since.Add(time.Second).UTC()
		}
		next.Failures, next.RetryAt = p.Failures, p.RetryAt
	}
	next.Since = metav1.NewTime(since)
	next.Key = fmt.Sprintf("%s-%d", d.w.Site.UID, since.UnixMilli())
	d.st.Provisioning, d.fresh = next, true
	return next
}

// provision wishes active capacity and starts its clock when the keeper has taken
// the wish; without a keeper, at once.
func (d *decider) provision() *v1alpha1.ProvisioningStatus {
	p := d.wish(v1alpha1.WishProvision)
	managed := d.managed()
	if managed {
		yes := true
		d.plan.provision = &yes
	}
	switch {
	case p.AskedAt != nil:
	case !managed:
		p.AskedAt = &metav1.Time{Time: p.Since.Time}
	case d.w.Capacity.Asked && !d.fresh:
		p.AskedAt = d.stamp()
	}
	if p.AskedAt != nil && p.State == v1alpha1.ProvisioningWanted {
		p.State = v1alpha1.ProvisioningAsked
	}
	if p.AskedAt != nil && p.Deadline == nil && d.mode() != v1alpha1.CapacityNone {
		p.Deadline = &metav1.Time{Time: p.AskedAt.Add(d.provisioningDeadline())}
	}
	return p
}

// handBack wishes idle capacity and says whether that is so.
func (d *decider) handBack() bool {
	p := d.wish(v1alpha1.WishRelease)
	if !d.managed() {
		p.AskedAt, p.State = cmp.Or(p.AskedAt, &metav1.Time{Time: p.Since.Time}), v1alpha1.ProvisioningDone
		return true
	}
	no := false
	d.plan.provision = &no
	if d.fresh {
		return false
	}
	if d.w.Capacity.Asked || d.w.Capacity.Idle {
		p.AskedAt = cmp.Or(p.AskedAt, d.stamp())
	}
	switch {
	case d.w.Capacity.Idle:
		p.State = v1alpha1.ProvisioningDone
	case p.AskedAt != nil:
		p.State = v1alpha1.ProvisioningAsked
	}
	return d.w.Capacity.Idle
}

// mayHold: capacity was wished, or moved, for the site.
func (d *decider) mayHold() bool {
	return d.st.Provisioning != nil || d.managed() && d.st.AdoptedReplicas != nil
}

func (d *decider) provisioningDeadline() time.Duration {
	return seconds(d.w.Site.Spec.Capacity.ProvisioningDeadlineSeconds, defaultProvisioning)
}

// lossGrace is how long a site that is no longer heard is waited for: to come up
// and to come back are different matters.
func (d *decider) lossGrace() time.Duration {
	return seconds(d.w.Site.Spec.Capacity.LossGraceSeconds, d.provisioningDeadline())
}

// deadlineOf a wish for capacity. One that its keeper does not take runs out too,
// from when it was wished: another site is asked then.
func (d *decider) deadlineOf(p *v1alpha1.ProvisioningStatus) time.Time {
	if p.Deadline != nil {
		return p.Deadline.Time
	}
	return p.Since.Add(d.provisioningDeadline())
}

// settling keeps SettledAt: since when enough is allocatable. It is zero while
// there is not enough or it cannot be seen.
func (d *decider) settling(p *v1alpha1.ProvisioningStatus) time.Time {
	if !d.nodesKnown() {
		return time.Time{} // neither gone nor there
	}
	if !d.enough() {
		p.SettledAt = nil
		return time.Time{}
	}
	if p.SettledAt == nil {
		p.SettledAt = d.stamp()
	}
	settle := defaultSettle
	if s := d.w.Site.Spec.Capacity.SettleSeconds; s != nil {
		settle = time.Duration(*s) * time.Second
	}
	if !d.hasNodes() {
		settle = 0
	}
	return p.SettledAt.Add(settle)
}

// answered: what is allocatable is there for this wish, not left from before the
// keeper took it. A keeper that cannot move it does not hide what is there.
func (d *decider) answered(p *v1alpha1.ProvisioningStatus) bool {
	return p.AskedAt != nil || d.capacityFault() != nil
}

// capacityFault is why the keeper cannot move the capacity; a failure of the wish
// before this one is none.
func (d *decider) capacityFault() *Fault {
	if d.fresh && d.w.Capacity.Failed {
		return nil
	}
	return d.w.Capacity.Fault
}

// enough GPUs are allocatable for agents to come.
func (d *decider) enough() bool {
	if !d.hasNodes() {
		return d.connected() == Yes || d.w.Capacity.Done && !d.fresh
	}
	return d.w.Nodes.Usable > 0 && d.w.Nodes.GPUs >= d.minGPUs()
}

func (d *decider) minGPUs() int {
	n := d.w.Site.Spec.Nodes
	switch {
	case n == nil:
		return 0
	case n.MinGPUs != nil:
		return int(*n.MinGPUs)
	case n.Vendor == v1alpha1.VendorCPU:
		return 0
	}
	return 1
}

// fail gives the site's place to the next and lets it cool off, longer with each
// failure in a row.
func (d *decider) fail(f Fault) bool {
	p := d.st.Provisioning
	if p == nil {
		p = d.wish(v1alpha1.WishProvision)
	}
	p.Failures++
	p.State, p.Reason, p.Message = v1alpha1.ProvisioningFailed, f.Reason, f.Message
	p.RetryAt = &metav1.Time{Time: d.now.Add(d.coolOff(p.Failures))}
	d.st.Reason = f.Reason
	d.st.Message = fmt.Sprintf("%s; asked again at %s", f.Message, clock(p.RetryAt.Time))
	d.warn(v1alpha1.ReasonFailover, fmt.Sprintf("%s; the capacity is handed back and the next site by priority is asked", d.st.Message))
	return d.enter(v1alpha1.SiteFailed)
}

// coolOff after n failures in a row.
func (d *decider) coolOff(n int32) time.Duration {
	c := d.w.Site.Spec.Capacity
	wait, limit := seconds(c.RetrySeconds, defaultRetry), seconds(c.RetryMaxSeconds, defaultRetryMax)
	for i := int32(1); i < n && wait < limit; i++ {
		wait *= 2
	}
	return min(wait, limit)
}

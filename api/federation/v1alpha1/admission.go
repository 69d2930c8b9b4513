package v1alpha1

import (
	"k8s.io/apimachinery/pkg/api/resource"
)

// AdmissionSpec bounds what a site may send. What it refuses changes nothing, and
// the site is told why; so is everyone who looks at its status.
type AdmissionSpec struct {
	// MaxNormFactor: an update whose norm is more than so many times the median norm
	// of the updates merged lately is refused; above 1. Unset: no such bound.
	// +optional
	MaxNormFactor *resource.Quantity `json:"maxNormFactor,omitempty"`
	// MinCosine: an update whose cosine to the sum of its round's other updates is
	// below that is left out of the merge; between -1 and 1. It is judged where three
	// members or more have reported. Unset: no such bound.
	// +optional
	MinCosine *resource.Quantity `json:"minCosine,omitempty"`
	// QuarantineRounds in which no update of a site counts after one of its updates
	// broke a bound above; 0 (default) none. A person's admit ends it.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1000000
	QuarantineRounds int64 `json:"quarantineRounds,omitempty"`
	// Quotas of each site.
	// +optional
	Quotas QuotasSpec `json:"quotas,omitzero"`
}

// QuotasSpec of one site. Unset fields have defaults that no working site meets.
type QuotasSpec struct {
	// BytesPerRound that a site may upload in a round, all its members and repetitions
	// together. Default: four times what its members' updates can need.
	// +optional
	BytesPerRound *resource.Quantity `json:"bytesPerRound,omitempty"`
	// Members of a site with a session at a time. Default 256.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=65536
	Members int32 `json:"members,omitempty"`
	// CallsPerMinute that a site may make, heartbeats and chunks not counted. Default
	// 6000 for each member that has a session, and 6000 at least.
	// +optional
	// +kubebuilder:validation:Minimum=0
	CallsPerMinute int32 `json:"callsPerMinute,omitempty"`
}

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// FederationStatus is what the operator saw. What changes faster than rounds is
// in metrics. It begins with an
// observedGeneration that no spec has, so that who waits for the object (kstatus)
// does not take it for done before the operator saw it.
type FederationStatus struct {
	// ObservedGeneration is the generation that was acted on in full.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Phase sums up for display; conditions are the API.
	// +optional
	Phase FederationPhase `json:"phase,omitempty"`
	// Round in flight or last; unset before the first.
	// +optional
	Round *int64 `json:"round,omitempty"`
	// RoundsCommitted since the run began.
	// +optional
	RoundsCommitted int64 `json:"roundsCommitted,omitempty"`
	// ModelVersion that all active sites hold; unset before there is a model.
	// +optional
	ModelVersion *int64 `json:"modelVersion,omitempty"`
	// ActiveSites train now; DesiredSites should, given energy and limits.
	// +optional
	ActiveSites int32 `json:"activeSites"`
	// +optional
	DesiredSites int32 `json:"desiredSites"`
	// SiteSummary is "active/desired".
	// +optional
	SiteSummary string `json:"siteSummary,omitempty"`
	// Selector of the agents' pods, for /scale.
	// +optional
	Selector string `json:"selector,omitempty"`
	// Endpoint of the coordinator, host:port.
	// +optional
	Endpoint string `json:"endpoint,omitempty"`
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=16
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// Sites in short; the Site objects have the whole.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=256
	Sites []FederationSite `json:"sites,omitempty"`
}

// FederationSite is a site in short.
type FederationSite struct {
	Name string `json:"name"`
	// +optional
	Phase SitePhase `json:"phase,omitempty"`
	// +optional
	Reason Reason `json:"reason,omitempty"`
}

// ProvisioningWish is what the scheduler wants of whoever makes capacity.
//
// +kubebuilder:validation:Enum=Provision;Release
type ProvisioningWish string

// Wishes.
const (
	WishProvision ProvisioningWish = "Provision"
	WishRelease   ProvisioningWish = "Release"
)

// ProvisioningState is how a wish stands.
//
// +kubebuilder:validation:Enum=Wanted;Asked;Done;Failed
type ProvisioningState string

// Provisioning states.
const (
	// ProvisioningWanted: not asked for yet.
	ProvisioningWanted ProvisioningState = "Wanted"
	// ProvisioningAsked: the capacity's keeper knows; the clock runs.
	ProvisioningAsked ProvisioningState = "Asked"
	// ProvisioningDone: allocatable, or handed back.
	ProvisioningDone   ProvisioningState = "Done"
	ProvisioningFailed ProvisioningState = "Failed"
)

// ProvisioningStatus is the scheduler's wish for one site's capacity, for anyone
// who provisions. It is kept, so that clocks and retries survive restarts.
type ProvisioningStatus struct {
	Wish ProvisioningWish `json:"wish"`
	// +optional
	State ProvisioningState `json:"state,omitempty"`
	// +optional
	Reason Reason `json:"reason,omitempty"`
	// +optional
	Message string `json:"message,omitempty"`
	// Since the wish stands.
	Since metav1.Time `json:"since"`
	// AskedAt is when its keeper first took it: from then the deadline counts.
	// +optional
	AskedAt *metav1.Time `json:"askedAt,omitempty"`
	// Deadline by which it must be fulfilled.
	// +optional
	Deadline *metav1.Time `json:"deadline,omitempty"`
	// Key names this wish; asking again with the same key changes nothing.
	Key string `json:"key"`
	// Failures in a row; RetryAt is when the site is asked again.
	// +optional
	Failures int32 `json:"failures,omitempty"`
	// +optional
	RetryAt *metav1.Time `json:"retryAt,omitempty"`
	// PollURL at which an outside provisioner tells the result.
	// +optional
	PollURL string `json:"pollURL,omitempty"`
	// SettledAt is when GPUs became allocatable and have stayed so since.
	// +optional
	SettledAt *metav1.Time `json:"settledAt,omitempty"`
}

// SiteStatus is what the operator saw of a site. It begins with an
// observedGeneration that no spec has, so that who waits for the object (kstatus)
// does not take it for done before the operator saw it.
type SiteStatus struct {
	// ObservedGeneration is the generation that was acted on in full.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Federation that has the site; empty when none does.
	// +optional
	Federation string `json:"federation,omitempty"`
	// +optional
	Phase SitePhase `json:"phase,omitempty"`
	// PhaseSince is when the phase began; deadlines count from it.
	// +optional
	PhaseSince *metav1.Time `json:"phaseSince,omitempty"`
	// +optional
	Reason Reason `json:"reason,omitempty"`
	// +optional
	Message string `json:"message,omitempty"`
	// Nodes, GPUs and Model that are allocatable now.
	// +optional
	Vendor Vendor `json:"vendor,omitempty"`
	// +optional
	Model string `json:"model,omitempty"`
	// +optional
	Nodes int32 `json:"nodes"`
	// +optional
	GPUs int32 `json:"gpus"`
	// EnrolledNodes carry the label that brings agents.
	// +optional
	EnrolledNodes int32 `json:"enrolledNodes,omitempty"`
	// Members with a session at the coordinator.
	// +optional
	Members int32 `json:"members,omitempty"`
	// +optional
	Provisioning *ProvisioningStatus `json:"provisioning,omitempty"`
	// DrainDeadline by which the site is out, while it leaves.
	// +optional
	DrainDeadline *metav1.Time `json:"drainDeadline,omitempty"`
	// AdoptedReplicas of the scale target when the operator first moved it; what
	// the Site's deletion puts back.
	// +optional
	AdoptedReplicas *int32 `json:"adoptedReplicas,omitempty"`
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=16
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

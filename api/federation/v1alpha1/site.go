package v1alpha1

import (
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Site is one place with its own grid: the unit of energy decisions, admission
// and drain. It outlives federations; of those that name it, the oldest that
// runs has it.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:categories=girassol
// +kubebuilder:printcolumn:name="Region",type=string,JSONPath=`.spec.grid.region`
// +kubebuilder:printcolumn:name="Vendor",type=string,JSONPath=`.status.vendor`
// +kubebuilder:printcolumn:name="GPUs",type=integer,JSONPath=`.status.gpus`
// +kubebuilder:printcolumn:name="Phase",type=string,JSONPath=`.status.phase`
// +kubebuilder:printcolumn:name="Energy",type=string,JSONPath=`.status.conditions[?(@.type=="EnergyFavourable")].status`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Reason",type=string,priority=1,JSONPath=`.status.reason`
// +kubebuilder:printcolumn:name="Federation",type=string,priority=1,JSONPath=`.status.federation`
// +kubebuilder:validation:XValidation:rule="size(self.metadata.name) <= 63 && self.metadata.name.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')",message="a site's name is one DNS label: at most 63 lower-case letters, digits and '-'",fieldPath=".metadata"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.status) || !has(oldSelf.status.adoptedReplicas) || !has(oldSelf.spec) || !has(oldSelf.spec.capacity) || !has(oldSelf.spec.capacity.scaleTargetRef) || (has(self.spec) && has(self.spec.capacity) && has(self.spec.capacity.scaleTargetRef) && self.spec.capacity.scaleTargetRef == oldSelf.spec.capacity.scaleTargetRef)",message="the site has moved its scale target and nobody else would put it back: delete the Site, which does so, and make it anew with another capacity",fieldPath=".spec.capacity",reason=FieldValueForbidden
type Site struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +optional
	Spec SiteSpec `json:"spec,omitzero"`
	// +optional
	// +kubebuilder:default={"observedGeneration":-1}
	Status SiteStatus `json:"status,omitzero"`
}

// SiteList is a list of sites.
//
// +kubebuilder:object:root=true
type SiteList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Site `json:"items"`
}

// SiteSpec describes a place.
//
// +kubebuilder:validation:XValidation:rule="!has(self.energy) || !(has(self.energy.targetSites) || has(self.energy.budget) || has(self.energy.webhook))",message="targetSites, budget and webhook belong to the Federation; remove them from the Site",fieldPath=".energy"
// +kubebuilder:validation:XValidation:rule="!has(self.capacity) || !has(self.capacity.mode) || self.capacity.mode == 'None' || self.capacity.mode == 'Webhook' || has(self.nodes)",message="capacity modes NodeLabel and Scale need nodes: say by nodes.selector which nodes are the site's",fieldPath=".nodes"
type SiteSpec struct {
	// +optional
	Grid GridSpec `json:"grid,omitzero"`
	// Energy overrides the federation's thresholds, field by field.
	// +optional
	Energy *EnergySpec `json:"energy,omitempty"`
	// Power is the stated model for sites without a counter.
	// +optional
	Power PowerSpec `json:"power,omitzero"`
	// Override decides until it ends, whatever the window says; demand-response
	// emergencies and a spent budget still win. Kubernetes only: elsewhere it is
	// `girassol override`.
	// +optional
	Override *OverrideSpec `json:"override,omitempty"`
	// Priority among sites that could take part: the highest is asked first.
	// Default 0.
	// +optional
	// +kubebuilder:validation:Minimum=-1000
	// +kubebuilder:validation:Maximum=1000
	Priority int32 `json:"priority,omitempty"`
	// Nodes that are the site's. Unset: its agents are run by someone else and are
	// known by their sessions only. Kubernetes only.
	// +optional
	Nodes *NodesSpec `json:"nodes,omitempty"`
	// Capacity says how nodes come and go. Kubernetes only.
	// +optional
	Capacity CapacitySpec `json:"capacity,omitzero"`
	// Cluster is another cluster in which the nodes are; its agents come from the
	// siteagent chart there. Kubernetes only.
	// +optional
	Cluster *ClusterSpec `json:"cluster,omitempty"`
	// ReleaseTimeoutSeconds after which a Site that is deleted goes even if nodes
	// and capacity could not be given back. Default 600.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=86400
	ReleaseTimeoutSeconds int32 `json:"releaseTimeoutSeconds,omitempty"`
}

// OverrideAction is Admit or Drain.
//
// +kubebuilder:validation:Enum=Admit;Drain
type OverrideAction string

// Override actions.
const (
	OverrideAdmit OverrideAction = "Admit"
	OverrideDrain OverrideAction = "Drain"
)

// OverrideSpec is a person's decision with an end.
type OverrideSpec struct {
	Action OverrideAction `json:"action"`
	// Until it holds.
	Until metav1.Time `json:"until"`
	// Reason that is shown.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	Reason string `json:"reason,omitempty"`
}

// CordonPolicy says what a cordoned node means.
//
// +kubebuilder:validation:Enum=Drain;Ignore
type CordonPolicy string

// Cordon policies.
const (
	// CordonDrain takes the agent off a cordoned node. Default.
	CordonDrain CordonPolicy = "Drain"
	// CordonIgnore trains on.
	CordonIgnore CordonPolicy = "Ignore"
)

// NodesSpec selects nodes.
type NodesSpec struct {
	// Selector by labels that the nodes have before they are enrolled.
	Selector metav1.LabelSelector `json:"selector"`
	// Vendor of the GPUs; unset: what the nodes show.
	// +optional
	Vendor Vendor `json:"vendor,omitempty"`
	// MinGPUs that must be allocatable before the site joins. Default 1, for
	// vendor CPU 0.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100000
	MinGPUs *int32 `json:"minGPUs,omitempty"`
	// OnCordon: Drain (default) or Ignore.
	// +optional
	OnCordon CordonPolicy `json:"onCordon,omitempty"`
}

// CapacityMode says how nodes come and go.
//
// +kubebuilder:validation:Enum=None;NodeLabel;Scale;Webhook
type CapacityMode string

// Capacity modes.
const (
	// CapacityNone: nothing to do, agents are there or not. Default without nodes.
	CapacityNone CapacityMode = "None"
	// CapacityNodeLabel: the nodes stay; labels let agents come and go. Default
	// with nodes.
	CapacityNodeLabel CapacityMode = "NodeLabel"
	// CapacityScale moves the scale subresource of an object.
	CapacityScale CapacityMode = "Scale"
	// CapacityWebhook asks an outside provisioner.
	CapacityWebhook CapacityMode = "Webhook"
)

// CapacitySpec says how nodes come and go.
//
// +kubebuilder:validation:XValidation:rule="(has(self.mode) && self.mode == 'Scale') == has(self.scaleTargetRef)",message="scaleTargetRef belongs to mode Scale, and mode Scale needs it",fieldPath=".scaleTargetRef"
// +kubebuilder:validation:XValidation:rule="(has(self.mode) && self.mode == 'Webhook') == has(self.webhook)",message="webhook belongs to mode Webhook, and mode Webhook needs it",fieldPath=".webhook"
// +kubebuilder:validation:XValidation:rule="(has(self.idleReplicas) ? self.idleReplicas : 0) < (has(self.activeReplicas) ? self.activeReplicas : 1)",message="idleReplicas must be below activeReplicas (default 1)",fieldPath=".idleReplicas"
type CapacitySpec struct {
	// +optional
	Mode CapacityMode `json:"mode,omitempty"`
	// +optional
	ScaleTargetRef *ScaleTargetReference `json:"scaleTargetRef,omitempty"`
	// ActiveReplicas while the site takes part. Default 1.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100000
	ActiveReplicas int32 `json:"activeReplicas,omitempty"`
	// IdleReplicas otherwise. Default 0.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100000
	IdleReplicas int32 `json:"idleReplicas,omitempty"`
	// ProvisioningDeadlineSeconds from the wish until the GPUs are allocatable;
	// then the capacity is handed back and the next site is asked. Default 900.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=86400
	ProvisioningDeadlineSeconds int32 `json:"provisioningDeadlineSeconds,omitempty"`
	// LossGraceSeconds that a site keeps its nodes and its place after it is no
	// longer heard: it may be a tunnel. Default as provisioningDeadlineSeconds.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=86400
	LossGraceSeconds int32 `json:"lossGraceSeconds,omitempty"`
	// SettleSeconds that GPUs must stay allocatable before agents come. Default 10.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=3600
	SettleSeconds *int32 `json:"settleSeconds,omitempty"`
	// RetrySeconds after the first failure until the site is asked again; it
	// doubles with each failure in a row up to RetryMaxSeconds. Default 300 and 7200.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=604800
	RetrySeconds int32 `json:"retrySeconds,omitempty"`
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=604800
	RetryMaxSeconds int32 `json:"retryMaxSeconds,omitempty"`
	// +optional
	Webhook *ProvisionerSpec `json:"webhook,omitempty"`
}

// ScaleTargetReference names an object with /scale in the Site's namespace: a
// Cluster API MachineDeployment, a static Karpenter NodePool (cluster-scoped), a
// Deployment.
type ScaleTargetReference struct {
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=317
	APIVersion string `json:"apiVersion"`
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Kind string `json:"kind"`
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
	// Cluster in which the object is, for a Site with spec.cluster: Nodes (default),
	// the cluster of the nodes, or Management, the operator's own, where a Cluster
	// API MachineDeployment is.
	// +optional
	Cluster ScaleCluster `json:"cluster,omitempty"`
}

// ScaleCluster says in which cluster a scale target is.
//
// +kubebuilder:validation:Enum=Nodes;Management
type ScaleCluster string

// Clusters of a scale target.
const (
	ScaleInNodesCluster      ScaleCluster = "Nodes"
	ScaleInManagementCluster ScaleCluster = "Management"
)

// ProvisionerSpec is an outside provisioner that is asked by signed requests;
// docs/provisioning.md has the contract.
type ProvisionerSpec struct {
	// URL that takes the wishes, https except on loopback.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=2048
	// +kubebuilder:validation:XValidation:rule="isURL(self) && (url(self).getScheme() == 'https' || (url(self).getScheme() == 'http' && url(self).getHostname() in ['127.0.0.1', 'localhost', '::1']))",message="the provisioner's URL must be https; plain http is for loopback only"
	URL string `json:"url"`
	// Secret with a Standard Webhooks secret (whsec_...) that signs requests and
	// callbacks.
	Secret SecretKeyReference `json:"secret"`
	// PollSeconds between questions for a result that is pending. Default 15.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=3600
	PollSeconds int32 `json:"pollSeconds,omitempty"`
}

// ClusterSpec reaches another cluster.
type ClusterSpec struct {
	// KubeconfigSecret holds a kubeconfig with inline credentials: no exec plugin,
	// no files, no skipped verification.
	KubeconfigSecret SecretKeyReference `json:"kubeconfigSecret"`
}

// PowerSpec is the stated power model of one member of the site.
type PowerSpec struct {
	// +optional
	// +kubebuilder:validation:Minimum=0
	TrainingWatts int32 `json:"trainingWatts,omitempty"`
	// +optional
	// +kubebuilder:validation:Minimum=0
	IdleWatts int32 `json:"idleWatts,omitempty"`
	// CapWatts caps the power of each GPU while it trains, where the driver and the
	// agent's rights allow it; the limit before is put back when training pauses and
	// when the agent ends. 0 (default): no cap.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=10000
	CapWatts int32 `json:"capWatts,omitempty"`
	// PUE, facility over IT power. Default 1.
	// +optional
	PUE *resource.Quantity `json:"pue,omitempty"`
}

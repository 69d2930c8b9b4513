package v1alpha1

import (
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Federation says what to train, which sites may take part, how rounds run and
// which electricity is good enough.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:subresource:scale:specpath=.spec.maxSites,statuspath=.status.activeSites,selectorpath=.status.selector
// +kubebuilder:resource:shortName=fed,categories=girassol
// +kubebuilder:printcolumn:name="Sites",type=string,JSONPath=`.status.siteSummary`,description="Sites that train, of those that are wanted"
// +kubebuilder:printcolumn:name="Round",type=integer,JSONPath=`.status.round`
// +kubebuilder:printcolumn:name="Phase",type=string,JSONPath=`.status.phase`
// +kubebuilder:printcolumn:name="Energy",type=string,JSONPath=`.status.conditions[?(@.type=="EnergyFavourable")].status`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Reason",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Endpoint",type=string,priority=1,JSONPath=`.status.endpoint`
// +kubebuilder:validation:XValidation:rule="size(self.metadata.name) <= 40 && self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",message="metadata.name must have at most 40 characters, lower-case letters, digits and '-', and begin with a letter: names of what belongs to the federation, its Service's too, are made from it",fieldPath=".metadata"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.status) || !has(oldSelf.status.modelVersion) || (has(self.spec.model) ? has(oldSelf.spec.model) && self.spec.model == oldSelf.spec.model : !has(oldSelf.spec.model))",message="the model cannot change once training has started; make a new Federation for another model",fieldPath=".spec.model",reason=FieldValueForbidden
type Federation struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec FederationSpec `json:"spec"`
	// +optional
	// +kubebuilder:default={"observedGeneration":-1}
	Status FederationStatus `json:"status,omitzero"`
}

// FederationList is a list of federations.
//
// +kubebuilder:object:root=true
type FederationList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Federation `json:"items"`
}

// FederationSpec is what a person wishes. Durations are whole seconds with the
// unit in the name; fractions are decimal quantities ("0.7").
//
// +kubebuilder:validation:XValidation:rule="!has(self.rounds) || !has(self.rounds.minSites) || self.rounds.minSites <= size(self.sites)",message="minSites is more than there are sites: no round could ever commit; lower rounds.minSites or name more sites",fieldPath=".rounds.minSites"
// +kubebuilder:validation:XValidation:rule="!has(self.evaluation) || !has(self.evaluation.site) || size(self.evaluation.site) == 0 || self.sites.exists(s, s.name == self.evaluation.site)",message="evaluation.site is none of the federation's sites: name one of spec.sites, or leave it out to evaluate on all",fieldPath=".evaluation.site"
// +kubebuilder:validation:XValidation:rule="!has(self.maxSites) || self.maxSites == 0 || !has(self.rounds) || !has(self.rounds.minSites) || self.rounds.minSites <= self.maxSites",message="maxSites is below rounds.minSites: no round could ever commit; raise maxSites, or set it to 0 to let the federation sleep",fieldPath=".maxSites"
type FederationSpec struct {
	// Sites that may take part, by the name of their Site object.
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=256
	Sites []SiteReference `json:"sites"`
	// MaxSites that take part at a time, those with the highest priority first; 0
	// lets the federation sleep, unset takes all. It is what /scale moves.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=256
	MaxSites *int32 `json:"maxSites,omitempty"`
	// Model says where the first weights come from.
	// +optional
	Model ModelSpec `json:"model,omitzero"`
	// Algorithm merges the sites' work. Its defaults need not be touched.
	// +optional
	Algorithm AlgorithmSpec `json:"algorithm,omitzero"`
	// +optional
	Rounds RoundsSpec `json:"rounds,omitzero"`
	// Admission bounds what a site may send and send how often.
	// +optional
	Admission AdmissionSpec `json:"admission,omitzero"`
	// Evaluation of the committed model on held-out data.
	// +optional
	Evaluation EvaluationSpec `json:"evaluation,omitzero"`
	// Data is the ledger of a corpus that all sites share; unset: none is kept.
	// +optional
	Data *DataSpec `json:"data,omitempty"`
	// +optional
	Energy EnergySpec `json:"energy,omitzero"`
	// +optional
	Drain DrainSpec `json:"drain,omitzero"`
	// +optional
	Events EventsSpec `json:"events,omitzero"`
	// Trainer is passed to every trainer as its task's config.
	// +optional
	// +kubebuilder:validation:MaxProperties=64
	Trainer map[string]string `json:"trainer,omitempty"`
	// State is Running (default) or Suspended.
	// +optional
	// +kubebuilder:validation:Enum=Running;Suspended
	State RunState `json:"state,omitempty"`
	// Link says how agents and coordinator reach each other.
	// +optional
	Link LinkSpec `json:"link,omitzero"`
	// Coordinator says where and how the coordinator runs. Kubernetes only.
	// +optional
	Coordinator CoordinatorSpec `json:"coordinator,omitzero"`
	// Agent says how the sites' agents and trainers run. Kubernetes only.
	// +optional
	Agent AgentSpec `json:"agent,omitzero"`
}

// SiteReference names a Site.
type SiteReference struct {
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')",message="a site's name has lower-case letters, digits and '-', and begins and ends with a letter or digit"
	Name string `json:"name"`
}

// ModelSource says who gives the first weights.
//
// +kubebuilder:validation:Enum=Site;File
type ModelSource string

// Model sources.
const (
	// ModelFromSite takes the first weights from the first admitted site whose
	// trainer offers them. Default.
	ModelFromSite ModelSource = "Site"
	// ModelFromFile reads a safetensors file at the coordinator.
	ModelFromFile ModelSource = "File"
)

// ModelSpec says where the first weights come from.
//
// +kubebuilder:validation:XValidation:rule="(has(self.source) && self.source == 'File') == (has(self.path) && size(self.path) > 0)",message="path belongs to source File, and source File needs it: the path of a safetensors file that the coordinator can read",fieldPath=".path"
type ModelSpec struct {
	// +optional
	Source ModelSource `json:"source,omitempty"`
	// Path of the safetensors file, for source File.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Path string `json:"path,omitempty"`
}

// Strategy names a way to merge.
//
// +kubebuilder:validation:Enum=DecoupledMomentum;DiLoCo;FedAvg
type Strategy string

// Strategies.
const (
	// DecoupledMomentum sends the largest DCT coefficients of the momentum and
	// keeps the rest at the site. Default.
	DecoupledMomentum Strategy = "DecoupledMomentum"
	// DiLoCo averages dense pseudo-gradients and steps with Nesterov momentum.
	DiLoCo Strategy = "DiLoCo"
	// FedAvg averages weights.
	FedAvg Strategy = "FedAvg"
)

// AlgorithmSpec chooses the strategy; unset fields take the strategy's defaults.
//
// +kubebuilder:validation:XValidation:rule="!has(self.robust) || (has(self.strategy) && self.strategy in ['DiLoCo', 'FedAvg'])",message="robust merging compares dense updates element by element: it needs strategy DiLoCo or FedAvg",fieldPath=".robust"
// +kubebuilder:validation:XValidation:rule="!has(self.schedule) || size(self.schedule) == 0 || !has(self.strategy) || self.strategy == 'DecoupledMomentum'",message="a schedule of densities needs strategy DecoupledMomentum: the others send everything",fieldPath=".schedule"
type AlgorithmSpec struct {
	// +optional
	Strategy Strategy `json:"strategy,omitempty"`
	// OuterLearningRate and OuterMomentum of the outer step. Where neither is set,
	// DecoupledMomentum follows the number of members in a commit and their agreement.
	// +optional
	OuterLearningRate *resource.Quantity `json:"outerLearningRate,omitempty"`
	// +optional
	OuterMomentum *resource.Quantity `json:"outerMomentum,omitempty"`
	// +optional
	Uplink *EncodingSpec `json:"uplink,omitempty"`
	// +optional
	Downlink *EncodingSpec `json:"downlink,omitempty"`
	// Schedule of densities over the run, by committed version: each entry holds from
	// its version on. Unset: uplink and downlink hold for all of it.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:XValidation:rule="self.map(d, d.fromVersion).isSorted() && self.all(d, self.exists_one(e, e.fromVersion == d.fromVersion))",message="the entries must have ascending fromVersion, each another one"
	Schedule []DensitySpec `json:"schedule,omitempty"`
	// Robust merging of dense updates (DiLoCo, FedAvg).
	// +optional
	Robust *RobustSpec `json:"robust,omitempty"`
}

// DensitySpec is how much is sent from a version on.
type DensitySpec struct {
	// FromVersion, ascending.
	// +kubebuilder:validation:Minimum=0
	FromVersion int64 `json:"fromVersion"`
	// UplinkKeepOneIn and DownlinkKeepOneIn; unset: as in uplink and downlink.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=4096
	UplinkKeepOneIn int32 `json:"uplinkKeepOneIn,omitempty"`
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=4096
	DownlinkKeepOneIn int32 `json:"downlinkKeepOneIn,omitempty"`
}

// RobustSpec bounds what single members can do to a merge of dense updates.
type RobustSpec struct {
	// TrimFraction of the members cut off at each end of every coordinate before the
	// mean, which is then unweighted: at least 0, below 0.5.
	// +optional
	// +kubebuilder:validation:XValidation:rule="quantity(string(self)).compareTo(quantity('0')) >= 0 && quantity(string(self)).compareTo(quantity('0.5')) < 0",message="trimFraction is cut off at both ends: it must be at least 0 and below 0.5"
	TrimFraction *resource.Quantity `json:"trimFraction,omitempty"`
	// ClipFactor: an update whose norm is more than so many times the median of its
	// round's is scaled down to that; above 0.
	// +optional
	// +kubebuilder:validation:XValidation:rule="quantity(string(self)).compareTo(quantity('0')) > 0",message="clipFactor must be above 0; leave it out to clip nothing"
	ClipFactor *resource.Quantity `json:"clipFactor,omitempty"`
}

// ValueFormat is how one value travels.
//
// +kubebuilder:validation:Enum=FP32;BF16;EightBit;FourBit;TwoBit;OneBit
type ValueFormat string

// Value formats.
const (
	ValuesFP32 ValueFormat = "FP32"
	ValuesBF16 ValueFormat = "BF16"
	// The others share scales by group, and what they round away is sent later.
	ValuesEightBit ValueFormat = "EightBit"
	ValuesFourBit  ValueFormat = "FourBit"
	ValuesTwoBit   ValueFormat = "TwoBit"
	ValuesOneBit   ValueFormat = "OneBit"
)

// EncodingSpec is how one direction is compressed.
type EncodingSpec struct {
	// KeepOneIn sends one of so many coefficients: 1 all, 16 the largest sixteenth.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=4096
	KeepOneIn int32 `json:"keepOneIn,omitempty"`
	// +optional
	Values ValueFormat `json:"values,omitempty"`
	// Transform: DCT of blocks of 64, or Identity, which chooses among the elements
	// themselves. Only DecoupledMomentum has a choice.
	// +optional
	Transform TransformName `json:"transform,omitempty"`
	// GroupSize of the coefficients that are chosen and scaled together: a power of
	// two from 256 to 4096. Default 4096.
	// +optional
	// +kubebuilder:validation:Enum=256;512;1024;2048;4096
	GroupSize int32 `json:"groupSize,omitempty"`
}

// TransformName names a transform.
//
// +kubebuilder:validation:Enum=DCT;Identity
type TransformName string

// Transforms.
const (
	TransformDCT      TransformName = "DCT"
	TransformIdentity TransformName = "Identity"
)

// RoundsSpec says how rounds run.
type RoundsSpec struct {
	// Total committed rounds after which the run is complete; 0 runs for ever.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Total int64 `json:"total,omitempty"`
	// MinSites whose accepted updates commit a round; fewer void it. Default 1.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=256
	MinSites int32 `json:"minSites,omitempty"`
	// LocalSteps per round of a member of mean speed; each member's own number
	// follows its measured step time so that all finish together. 0 (default)
	// budgets by TrainSeconds alone.
	// +optional
	// +kubebuilder:validation:Minimum=0
	LocalSteps int64 `json:"localSteps,omitempty"`
	// TrainSeconds of local training until the stop time. Default 600.
	// +optional
	// +kubebuilder:validation:Minimum=0
	TrainSeconds int32 `json:"trainSeconds,omitempty"`
	// CollectSeconds after the stop time in which updates are still taken.
	// Default 120.
	// +optional
	// +kubebuilder:validation:Minimum=0
	CollectSeconds int32 `json:"collectSeconds,omitempty"`
	// JoinSeconds that the first round waits for all expected sites; then it
	// begins with those present, if there are MinSites. Default 300.
	// +optional
	// +kubebuilder:validation:Minimum=0
	JoinSeconds int32 `json:"joinSeconds,omitempty"`
	// MaxConsecutiveVoid rounds after which the run fails; 0 (default) never.
	// +optional
	// +kubebuilder:validation:Minimum=0
	MaxConsecutiveVoid int64 `json:"maxConsecutiveVoid,omitempty"`
}

// DrainSpec bounds the orderly leave.
type DrainSpec struct {
	// GraceSeconds from the wish to the end. Default 60.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=86400
	GraceSeconds int32 `json:"graceSeconds,omitempty"`
}

// EventsSpec says where announcements go.
type EventsSpec struct {
	// +optional
	Redis *RedisSpec `json:"redis,omitempty"`
}

// RedisMode says whose Redis it is.
//
// +kubebuilder:validation:Enum=Existing;Trial
type RedisMode string

// Redis modes.
const (
	// RedisExisting is at URL. Default.
	RedisExisting RedisMode = "Existing"
	// RedisTrial is a small one without storage that the operator runs beside the
	// coordinator: rounds do without it, so nothing is lost with it. Kubernetes
	// only.
	RedisTrial RedisMode = "Trial"
)

// RedisSpec addresses a Redis.
//
// +kubebuilder:validation:XValidation:rule="(has(self.mode) && self.mode == 'Trial') != ((has(self.url) && size(self.url) > 0) || has(self.urlSecret) || (has(self.addresses) && size(self.addresses) > 0))",message="an existing Redis needs url, urlSecret or addresses; mode Trial makes its own and takes none of them"
// +kubebuilder:validation:XValidation:rule="!(has(self.addresses) && size(self.addresses) > 0 && ((has(self.url) && size(self.url) > 0) || has(self.urlSecret)))",message="give addresses, or url or urlSecret, not both"
// +kubebuilder:validation:XValidation:rule="!(has(self.masterName) && size(self.masterName) > 0) || (has(self.addresses) && size(self.addresses) > 0)",message="masterName belongs to the addresses of Sentinels",fieldPath=".masterName"
// +kubebuilder:validation:XValidation:rule="!(has(self.url) && size(self.url) > 0 && has(self.urlSecret))",message="give url or urlSecret, not both"
// +kubebuilder:validation:XValidation:rule="!(has(self.username) && size(self.username) > 0) && !(has(self.passwordFile) && size(self.passwordFile) > 0)",message="username and passwordFile are for a coordinator outside Kubernetes: use urlSecret, whose URL holds both"
// +kubebuilder:validation:XValidation:rule="!has(self.tls) || !((has(self.tls.caFile) && size(self.tls.caFile) > 0) || (has(self.tls.certFile) && size(self.tls.certFile) > 0) || (has(self.tls.keyFile) && size(self.tls.keyFile) > 0))",message="files of TLS are for a coordinator outside Kubernetes, no pod has them: use a Redis whose certificate the system's authorities vouch for",fieldPath=".tls"
// +kubebuilder:validation:XValidation:rule="!has(self.tls) || !has(self.mode) || self.mode != 'Trial'",message="the Redis of mode Trial speaks no TLS: its NetworkPolicy says who may come",fieldPath=".tls"
type RedisSpec struct {
	// +optional
	Mode RedisMode `json:"mode,omitempty"`
	// URL: redis://host:port/db.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	URL string `json:"url,omitempty"`
	// URLSecret holds the URL with its password. Kubernetes only.
	// +optional
	URLSecret *SecretKeyReference `json:"urlSecret,omitempty"`
	// Addresses, host:port, of a Cluster's nodes, or of Sentinels where MasterName is
	// given.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MaxLength=261
	Addresses []string `json:"addresses,omitempty"`
	// MasterName that the Sentinels watch.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	MasterName string `json:"masterName,omitempty"`
	// Username of the coordinator's ACL user; agents have one of their own. Not on
	// Kubernetes, where urlSecret holds it.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Username string `json:"username,omitempty"`
	// PasswordFile that the coordinator reads, again for each connection. Not on
	// Kubernetes, where urlSecret holds the password.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	PasswordFile string `json:"passwordFile,omitempty"`
	// TLS to Redis.
	// +optional
	TLS *RedisTLSSpec `json:"tls,omitempty"`
}

// RedisTLSSpec of the connections to Redis. On Kubernetes without files.
type RedisTLSSpec struct {
	// CAFile with the authority of Redis's certificate; unset: the system's.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	CAFile string `json:"caFile,omitempty"`
	// CertFile and KeyFile, where Redis asks for a client's certificate.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	CertFile string `json:"certFile,omitempty"`
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	KeyFile string `json:"keyFile,omitempty"`
	// ServerName that the certificate must carry; unset: the host dialled.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	ServerName string `json:"serverName,omitempty"`
}

// RunState is Running or Suspended.
type RunState string

// Run states.
const (
	StateRunning   RunState = "Running"
	StateSuspended RunState = "Suspended"
)

// SecretReference names a Secret of the same namespace.
type SecretReference struct {
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$')",message="no Secret can have this name: give lower-case letters, digits, '-' and '.', with a letter or digit at both ends"
	Name string `json:"name"`
}

// SecretKeyReference names one key of a Secret of the same namespace.
type SecretKeyReference struct {
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$')",message="no Secret can have this name: give lower-case letters, digits, '-' and '.', with a letter or digit at both ends"
	Name string `json:"name"`
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Key string `json:"key"`
}

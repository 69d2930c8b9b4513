package v1alpha1

import "k8s.io/apimachinery/pkg/api/resource"

// GridProvider names a source of signals.
//
// +kubebuilder:validation:Enum=Replay;WattTime;ElectricityMaps;NESO;EnergyCharts;Prometheus;Webhook
type GridProvider string

// Grid providers.
const (
	// GridReplay reads a CSV trace.
	GridReplay GridProvider = "Replay"
	// GridWattTime is WattTime's API v3.
	GridWattTime GridProvider = "WattTime"
	// GridElectricityMaps is Electricity Maps' API v3.
	GridElectricityMaps GridProvider = "ElectricityMaps"
	// GridNESO is Great Britain's Carbon Intensity API.
	GridNESO GridProvider = "NESO"
	// GridEnergyCharts is Fraunhofer ISE's Energy-Charts.
	GridEnergyCharts GridProvider = "EnergyCharts"
	// GridPrometheus is a query to a Prometheus server.
	GridPrometheus GridProvider = "Prometheus"
	// GridWebhook takes what a source of spec.energy.webhook pushes.
	GridWebhook GridProvider = "Webhook"
)

// GridSpec says which signal speaks for the site.
type GridSpec struct {
	GridSource `json:",inline"`
	// Check is a second source against which readings are checked.
	// +optional
	Check *GridSource `json:"check,omitempty"`
}

// GridSource is one source of a signal.
//
// +kubebuilder:validation:XValidation:rule="has(self.latitude) == has(self.longitude)",message="latitude and longitude belong together"
// +kubebuilder:validation:XValidation:rule="!has(self.provider) || self.provider != 'Prometheus' || (has(self.url) && has(self.query))",message="provider Prometheus needs url and query"
// +kubebuilder:validation:XValidation:rule="!has(self.provider) || self.provider != 'Webhook' || has(self.source)",message="provider Webhook needs source: a name under spec.energy.webhook.sources of the Federation"
// +kubebuilder:validation:XValidation:rule="!has(self.provider) || self.provider != 'Replay' || has(self.tracePath)",message="provider Replay needs tracePath"
type GridSource struct {
	// +optional
	Provider GridProvider `json:"provider,omitempty"`
	// Region is the provider's name of the grid: a WattTime region, an Electricity
	// Maps zone, a NESO region number or outward postcode (empty: Great Britain),
	// an Energy-Charts country, the CSV column of a Replay.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Region string `json:"region,omitempty"`
	// Latitude and Longitude, decimal degrees, instead of a region, for WattTime and
	// Electricity Maps.
	// +optional
	Latitude *resource.Quantity `json:"latitude,omitempty"`
	// +optional
	Longitude *resource.Quantity `json:"longitude,omitempty"`
	// Kind of signal: Marginal (WattTime, default there; Replay), Average, Percentile,
	// Price, RenewableShare, as far as the provider has it.
	// +optional
	Kind SignalKind `json:"kind,omitempty"`
	// Unit of the values of Prometheus and Webhook, such as gCO2/kWh.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Unit string `json:"unit,omitempty"`
	// URL of a Prometheus; of another provider only to replace its standard one.
	// +optional
	// +kubebuilder:validation:MaxLength=2048
	URL string `json:"url,omitempty"`
	// Query of a Prometheus: it must give one series.
	// +optional
	// +kubebuilder:validation:MaxLength=4096
	Query string `json:"query,omitempty"`
	// PeriodSeconds of the points of Prometheus (default 300) and Electricity Maps
	// (default 3600).
	// +optional
	// +kubebuilder:validation:Minimum=0
	PeriodSeconds int32 `json:"periodSeconds,omitempty"`
	// Source is the name under spec.energy.webhook.sources that speaks for the
	// site, for provider Webhook.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Source string `json:"source,omitempty"`
	// Credentials for the provider.
	// +optional
	Credentials *CredentialsSpec `json:"credentials,omitempty"`
	// TracePath is the CSV file of a Replay: marginal intensity, gCO2/kWh. On
	// Kubernetes a file in the operator's folder of traces, by its name there.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	TracePath string `json:"tracePath,omitempty"`
	// AverageTracePath is the same for the average intensity, for the second
	// ledger; optional.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	AverageTracePath string `json:"averageTracePath,omitempty"`
}

// SignalKind is what a signal's value means.
//
// +kubebuilder:validation:Enum=Marginal;Average;Percentile;Price;RenewableShare
type SignalKind string

// Signal kinds.
const (
	KindMarginal       SignalKind = "Marginal"
	KindAverage        SignalKind = "Average"
	KindPercentile     SignalKind = "Percentile"
	KindPrice          SignalKind = "Price"
	KindRenewableShare SignalKind = "RenewableShare"
)

// CredentialsSpec says where the secrets are. On Kubernetes in a Secret;
// standalone in files, read again when they change, or in environment variables
// of the coordinator, one secret each.
//
// +kubebuilder:validation:XValidation:rule="!has(self.secret) || !(has(self.userFile) || has(self.passwordFile) || has(self.tokenFile) || has(self.userEnv) || has(self.passwordEnv) || has(self.tokenEnv))",message="give secret, or files and environment variables of a standalone coordinator, not both"
type CredentialsSpec struct {
	// Secret with the keys user and password, or token.
	// +optional
	Secret *SecretReference `json:"secret,omitempty"`
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	UserFile string `json:"userFile,omitempty"`
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	PasswordFile string `json:"passwordFile,omitempty"`
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	TokenFile string `json:"tokenFile,omitempty"`
	// +optional
	// +kubebuilder:validation:MaxLength=253
	UserEnv string `json:"userEnv,omitempty"`
	// +optional
	// +kubebuilder:validation:MaxLength=253
	PasswordEnv string `json:"passwordEnv,omitempty"`
	// +optional
	// +kubebuilder:validation:MaxLength=253
	TokenEnv string `json:"tokenEnv,omitempty"`
}

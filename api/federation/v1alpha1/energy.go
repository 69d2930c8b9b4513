package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// EnergyPolicy says how much the signal counts.
//
// +kubebuilder:validation:Enum=Required;Ignore
type EnergyPolicy string

// Energy policies.
const (
	// EnergyRequired lets a site train in its window only. Default.
	EnergyRequired EnergyPolicy = "Required"
	// EnergyIgnore admits all sites always; signals are shown and accounted.
	EnergyIgnore EnergyPolicy = "Ignore"
)

// StalePolicy says what happens while the signal is unknown.
//
// +kubebuilder:validation:Enum=Hold;Drain;Admit
type StalePolicy string

// Stale policies.
const (
	// StaleHold keeps an open window for MaxStaleSeconds, then drains; it never
	// opens one. Default.
	StaleHold  StalePolicy = "Hold"
	StaleDrain StalePolicy = "Drain"
	StaleAdmit StalePolicy = "Admit"
)

// EnergySpec decides when a site's electricity is good enough. Thresholds are
// gCO2/kWh or percentiles of the trailing window, one of the two.
//
// +kubebuilder:validation:XValidation:rule="!has(self.enterBelowGrams) || !has(self.leaveAboveGrams) || self.enterBelowGrams < self.leaveAboveGrams",message="enterBelowGrams must be below leaveAboveGrams: without a gap between them a site would come and go with every point",fieldPath=".enterBelowGrams"
// +kubebuilder:validation:XValidation:rule="!has(self.enterBelowPercentile) || !has(self.leaveAbovePercentile) || self.enterBelowPercentile < self.leaveAbovePercentile",message="enterBelowPercentile must be below leaveAbovePercentile: without a gap between them a site would come and go with every point",fieldPath=".enterBelowPercentile"
// +kubebuilder:validation:XValidation:rule="!((has(self.enterBelowGrams) || has(self.leaveAboveGrams)) && (has(self.enterBelowPercentile) || has(self.leaveAbovePercentile)))",message="thresholds are in grams or percentiles, one of the two; remove the other pair"
type EnergySpec struct {
	// +optional
	Policy EnergyPolicy `json:"policy,omitempty"`
	// EnterBelowGrams opens a window when the intensity is below, gCO2/kWh.
	// +optional
	// +kubebuilder:validation:Minimum=0
	EnterBelowGrams *int32 `json:"enterBelowGrams,omitempty"`
	// LeaveAboveGrams closes it when the intensity is above.
	// +optional
	// +kubebuilder:validation:Minimum=0
	LeaveAboveGrams *int32 `json:"leaveAboveGrams,omitempty"`
	// EnterBelowPercentile and LeaveAbovePercentile: of the trailing window.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100
	EnterBelowPercentile *int32 `json:"enterBelowPercentile,omitempty"`
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100
	LeaveAbovePercentile *int32 `json:"leaveAbovePercentile,omitempty"`
	// EnterConfirmations and LeaveConfirmations: consecutive distinct points. Default 2 and 2.
	// +optional
	// +kubebuilder:validation:Minimum=0
	EnterConfirmations int32 `json:"enterConfirmations,omitempty"`
	// +optional
	// +kubebuilder:validation:Minimum=0
	LeaveConfirmations int32 `json:"leaveConfirmations,omitempty"`
	// MinimumOnSeconds and MinimumOffSeconds between changes. Default 0.
	// +optional
	// +kubebuilder:validation:Minimum=0
	MinimumOnSeconds int32 `json:"minimumOnSeconds,omitempty"`
	// +optional
	// +kubebuilder:validation:Minimum=0
	MinimumOffSeconds int32 `json:"minimumOffSeconds,omitempty"`
	// MaxStaleSeconds that a Hold lasts. Default 1800.
	// +optional
	// +kubebuilder:validation:Minimum=0
	MaxStaleSeconds int32 `json:"maxStaleSeconds,omitempty"`
	// +optional
	OnStale StalePolicy `json:"onStale,omitempty"`
	// CooldownSeconds that a site stays out after it was in, whatever ended its
	// window. Default 0.
	// +optional
	// +kubebuilder:validation:Minimum=0
	CooldownSeconds int32 `json:"cooldownSeconds,omitempty"`
	// Forecast says whether forecasts of the provider are used, to leave out
	// windows that are too short and to leave before one closes. Use (default) or
	// Ignore.
	// +optional
	Forecast ForecastPolicy `json:"forecast,omitempty"`
	// ProvisioningSeconds from the wish to the first step; a window shorter than
	// that and one round is not opened, as far as a forecast tells. Default 0.
	// +optional
	// +kubebuilder:validation:Minimum=0
	ProvisioningSeconds int32 `json:"provisioningSeconds,omitempty"`
	// Zero says what a reading of exactly 0 is: Suspect (default) until history or
	// a second source confirms it, or Trust.
	// +optional
	Zero ZeroPolicy `json:"zero,omitempty"`
	// TolerancePercent by which the second source (spec.grid.check) may differ
	// before the reading is held. Default 25.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100
	TolerancePercent int32 `json:"tolerancePercent,omitempty"`
	// TargetSites is the most sites at a time; of more that are open the cheapest
	// in grams for a token are taken. 0 (default) takes all. Federation only.
	// +optional
	// +kubebuilder:validation:Minimum=0
	TargetSites int32 `json:"targetSites,omitempty"`
	// Budget of the run. Federation only.
	// +optional
	Budget *BudgetSpec `json:"budget,omitempty"`
	// Webhook takes pushed signals. Federation only.
	// +optional
	Webhook *WebhookSpec `json:"webhook,omitempty"`
}

// ForecastPolicy is Use or Ignore.
//
// +kubebuilder:validation:Enum=Use;Ignore
type ForecastPolicy string

// Forecast policies.
const (
	ForecastUse    ForecastPolicy = "Use"
	ForecastIgnore ForecastPolicy = "Ignore"
)

// ZeroPolicy is Suspect or Trust.
//
// +kubebuilder:validation:Enum=Suspect;Trust
type ZeroPolicy string

// Zero policies.
const (
	ZeroSuspect ZeroPolicy = "Suspect"
	ZeroTrust   ZeroPolicy = "Trust"
)

// BudgetSpec bounds what a run may cost; with a budget spent no site is
// admitted.
//
// +kubebuilder:validation:XValidation:rule="has(self.tokens) == has(self.deadline)",message="tokens and deadline belong together: so much work until then"
type BudgetSpec struct {
	// CarbonGrams of CO2 by the marginal ledger; unset is unlimited.
	// +optional
	// +kubebuilder:validation:Minimum=0
	CarbonGrams *int64 `json:"carbonGrams,omitempty"`
	// EnergyKWh; unset is unlimited.
	// +optional
	// +kubebuilder:validation:Minimum=0
	EnergyKWh *int64 `json:"energyKWh,omitempty"`
	// Tokens to be trained until Deadline: with both, the sites wait for the
	// cleaner hours that forecasts know, as long as the work still gets done.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Tokens *int64 `json:"tokens,omitempty"`
	// +optional
	Deadline *metav1.Time `json:"deadline,omitempty"`
}

// WebhookSpec takes signals that are pushed to POST /v1/signals.
type WebhookSpec struct {
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	Sources []WebhookSource `json:"sources"`
}

// WebhookFormat is what a sender speaks.
//
// +kubebuilder:validation:Enum=Girassol;OpenADR3
type WebhookFormat string

// Webhook formats.
const (
	WebhookGirassol WebhookFormat = "Girassol"
	WebhookOpenADR3 WebhookFormat = "OpenADR3"
)

// WebhookSource is one sender and what it may speak for.
//
// +kubebuilder:validation:XValidation:rule="(has(self.sites) && size(self.sites) > 0) || (has(self.regions) && size(self.regions) > 0)",message="name the sites or regions that the sender may speak for"
type WebhookSource struct {
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Name string `json:"name"`
	// Format of the messages: Girassol (default, api/signalpush) or OpenADR3, the
	// notifications of an OpenADR 3 server.
	// +optional
	Format WebhookFormat `json:"format,omitempty"`
	// SecretFiles with a Standard Webhooks secret (whsec_...) each; several for
	// rotation. Standalone only.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=8
	// +kubebuilder:validation:items:MaxLength=1024
	SecretFiles []string `json:"secretFiles,omitempty"`
	// BearerFiles with a token each, for senders that cannot sign. Standalone only.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=8
	// +kubebuilder:validation:items:MaxLength=1024
	BearerFiles []string `json:"bearerFiles,omitempty"`
	// Secret whose keys that begin with "secret" hold a Standard Webhooks secret
	// each, and those that begin with "bearer" a token each. Kubernetes only.
	// +optional
	Secret *SecretReference `json:"secret,omitempty"`
	// Sites and Regions that the sender may speak for.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:items:MaxLength=63
	Sites []string `json:"sites,omitempty"`
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:items:MaxLength=253
	Regions []string `json:"regions,omitempty"`
}

package v1alpha1

import (
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Federation says what to train, which sites may take part, how rounds run and
// which electricity is good enough.
type Federation struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec FederationSpec `json:"spec"`
}

// FederationSpec is what a person wishes. Durations are whole seconds with the
// unit in the name; fractions are decimal quantities ("0.7").
type FederationSpec struct {
	// Sites that may take part, by the name of their Site object.
	Sites []SiteReference `json:"sites"`
	// Model says where the first weights come from.
	Model ModelSpec `json:"model,omitempty"`
	// Algorithm merges the sites' work. Its defaults need not be touched.
	Algorithm AlgorithmSpec `json:"algorithm,omitempty"`
	Rounds    RoundsSpec    `json:"rounds,omitempty"`
	Energy    EnergySpec    `json:"energy,omitempty"`
	Drain     DrainSpec     `json:"drain,omitempty"`
	Events    EventsSpec    `json:"events,omitempty"`
	// Trainer is passed to every trainer as its task's config.
	Trainer map[string]string `json:"trainer,omitempty"`
	// State is Running (default) or Suspended.
	State RunState `json:"state,omitempty"`
}

// SiteReference names a Site.
type SiteReference struct {
	Name string `json:"name"`
}

// ModelSource says who gives the first weights.
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
type ModelSpec struct {
	Source ModelSource `json:"source,omitempty"`
	// Path of the safetensors file, for source File.
	Path string `json:"path,omitempty"`
}

// Strategy names a way to merge.
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
type AlgorithmSpec struct {
	Strategy          Strategy           `json:"strategy,omitempty"`
	OuterLearningRate *resource.Quantity `json:"outerLearningRate,omitempty"`
	OuterMomentum     *resource.Quantity `json:"outerMomentum,omitempty"`
	Uplink            *EncodingSpec      `json:"uplink,omitempty"`
	Downlink          *EncodingSpec      `json:"downlink,omitempty"`
}

// ValueFormat is how one value travels.
type ValueFormat string

// Value formats.
const (
	ValuesFP32   ValueFormat = "FP32"
	ValuesBF16   ValueFormat = "BF16"
	ValuesTwoBit ValueFormat = "TwoBit"
)

// EncodingSpec is how one direction is compressed.
type EncodingSpec struct {
	// KeepOneIn sends one of so many coefficients: 1 all, 16 the largest sixteenth.
	KeepOneIn int32       `json:"keepOneIn,omitempty"`
	Values    ValueFormat `json:"values,omitempty"`
}

// RoundsSpec says how rounds run.
type RoundsSpec struct {
	// Total committed rounds after which the run is complete; 0 runs for ever.
	Total int64 `json:"total,omitempty"`
	// MinSites whose accepted updates commit a round; fewer void it. Default 1.
	MinSites int32 `json:"minSites,omitempty"`
	// LocalSteps per round of a member of mean speed; each member's own number
	// follows its measured step time so that all finish together. 0 (default)
	// budgets by TrainSeconds alone.
	LocalSteps int64 `json:"localSteps,omitempty"`
	// TrainSeconds of local training until the stop time. Default 600.
	TrainSeconds int32 `json:"trainSeconds,omitempty"`
	// CollectSeconds after the stop time in which updates are still taken.
	// Default 120.
	CollectSeconds int32 `json:"collectSeconds,omitempty"`
	// JoinSeconds that the first round waits for all expected sites; then it
	// begins with those present, if there are MinSites. Default 300.
	JoinSeconds int32 `json:"joinSeconds,omitempty"`
	// EvaluateEvery so many rounds the sites evaluate the committed model; 0 never.
	EvaluateEvery int64 `json:"evaluateEvery,omitempty"`
	// MaxConsecutiveVoid rounds after which the run fails; 0 (default) never.
	MaxConsecutiveVoid int64 `json:"maxConsecutiveVoid,omitempty"`
}

// EnergyPolicy says how much the signal counts.
type EnergyPolicy string

// Energy policies.
const (
	// EnergyRequired lets a site train in its window only. Default.
	EnergyRequired EnergyPolicy = "Required"
	// EnergyIgnore admits all sites always; signals are shown and accounted.
	EnergyIgnore EnergyPolicy = "Ignore"
)

// StalePolicy says what happens while the signal is unknown.
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
type EnergySpec struct {
	Policy EnergyPolicy `json:"policy,omitempty"`
	// EnterBelowGrams opens a window when the intensity is below, gCO2/kWh.
	EnterBelowGrams *int32 `json:"enterBelowGrams,omitempty"`
	// LeaveAboveGrams closes it when the intensity is above.
	LeaveAboveGrams *int32 `json:"leaveAboveGrams,omitempty"`
	// EnterBelowPercentile and LeaveAbovePercentile: of the trailing window.
	EnterBelowPercentile *int32 `json:"enterBelowPercentile,omitempty"`
	LeaveAbovePercentile *int32 `json:"leaveAbovePercentile,omitempty"`
	// EnterConfirmations and LeaveConfirmations: consecutive distinct points. Default 2 and 2.
	EnterConfirmations int32 `json:"enterConfirmations,omitempty"`
	LeaveConfirmations int32 `json:"leaveConfirmations,omitempty"`
	// MinimumOnSeconds and MinimumOffSeconds between changes. Default 0.
	MinimumOnSeconds  int32 `json:"minimumOnSeconds,omitempty"`
	MinimumOffSeconds int32 `json:"minimumOffSeconds,omitempty"`
	// MaxStaleSeconds that a Hold lasts. Default 1800.
	MaxStaleSeconds int32       `json:"maxStaleSeconds,omitempty"`
	OnStale         StalePolicy `json:"onStale,omitempty"`
	// CooldownSeconds that a site stays out after it was in, whatever ended its
	// window. Default 0.
	CooldownSeconds int32 `json:"cooldownSeconds,omitempty"`
	// Forecast says whether forecasts of the provider are used, to leave out
	// windows that are too short and to leave before one closes. Use (default) or
	// Ignore.
	Forecast ForecastPolicy `json:"forecast,omitempty"`
	// ProvisioningSeconds from the wish to the first step; a window shorter than
	// that and one round is not opened, as far as a forecast tells. Default 0.
	ProvisioningSeconds int32 `json:"provisioningSeconds,omitempty"`
	// Zero says what a reading of exactly 0 is: Suspect (default) until history or
	// a second source confirms it, or Trust.
	Zero ZeroPolicy `json:"zero,omitempty"`
	// TolerancePercent by which the second source (spec.grid.check) may differ
	// before the reading is held. Default 25.
	TolerancePercent int32 `json:"tolerancePercent,omitempty"`
	// TargetSites is the most sites at a time; of more that are open the cheapest
	// in grams for a token are taken. 0 (default) takes all. Federation only.
	TargetSites int32 `json:"targetSites,omitempty"`
	// Budget of the run. Federation only.
	Budget *BudgetSpec `json:"budget,omitempty"`
	// Webhook takes pushed signals. Federation only.
	Webhook *WebhookSpec `json:"webhook,omitempty"`
}

// ForecastPolicy is Use or Ignore.
type ForecastPolicy string

// Forecast policies.
const (
	ForecastUse    ForecastPolicy = "Use"
	ForecastIgnore ForecastPolicy = "Ignore"
)

// ZeroPolicy is Suspect or Trust.
type ZeroPolicy string

// Zero policies.
const (
	ZeroSuspect ZeroPolicy = "Suspect"
	ZeroTrust   ZeroPolicy = "Trust"
)

// BudgetSpec bounds what a run may cost; with a budget spent no site is
// admitted.
type BudgetSpec struct {
	// CarbonGrams of CO2 by the marginal ledger; unset is unlimited.
	CarbonGrams *int64 `json:"carbonGrams,omitempty"`
	// EnergyKWh; unset is unlimited.
	EnergyKWh *int64 `json:"energyKWh,omitempty"`
	// Tokens to be trained until Deadline: with both, the sites wait for the
	// cleaner hours that forecasts know, as long as the work still gets done.
	Tokens   *int64       `json:"tokens,omitempty"`
	Deadline *metav1.Time `json:"deadline,omitempty"`
}

// WebhookSpec takes signals that are pushed to POST /v1/signals.
type WebhookSpec struct {
	Sources []WebhookSource `json:"sources"`
}

// WebhookFormat is what a sender speaks.
type WebhookFormat string

// Webhook formats.
const (
	WebhookGirassol WebhookFormat = "Girassol"
	WebhookOpenADR3 WebhookFormat = "OpenADR3"
)

// WebhookSource is one sender and what it may speak for.
type WebhookSource struct {
	Name string `json:"name"`
	// Format of the messages: Girassol (default, api/signalpush) or OpenADR3, the
	// notifications of an OpenADR 3 server.
	Format WebhookFormat `json:"format,omitempty"`
	// SecretFiles with a Standard Webhooks secret (whsec_...) each; several for
	// rotation.
	SecretFiles []string `json:"secretFiles,omitempty"`
	// BearerFiles with a token each, for senders that cannot sign.
	BearerFiles []string `json:"bearerFiles,omitempty"`
	// Sites and Regions that the sender may speak for.
	Sites   []string `json:"sites,omitempty"`
	Regions []string `json:"regions,omitempty"`
}

// DrainSpec bounds the orderly leave.
type DrainSpec struct {
	// GraceSeconds from the wish to the end. Default 60.
	GraceSeconds int32 `json:"graceSeconds,omitempty"`
}

// EventsSpec says where announcements go.
type EventsSpec struct {
	Redis *RedisSpec `json:"redis,omitempty"`
}

// RedisSpec addresses a Redis.
type RedisSpec struct {
	// URL: redis://host:port/db.
	URL string `json:"url"`
}

// RunState is Running or Suspended.
type RunState string

// Run states.
const (
	StateRunning   RunState = "Running"
	StateSuspended RunState = "Suspended"
)

// Site is one place with its own grid: the unit of energy decisions, admission
// and drain.
type Site struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec SiteSpec `json:"spec"`
}

// SiteSpec describes a place.
type SiteSpec struct {
	Grid GridSpec `json:"grid,omitempty"`
	// Energy overrides the federation's thresholds, field by field.
	Energy *EnergySpec `json:"energy,omitempty"`
	// Power is the stated model for sites without a counter.
	Power PowerSpec `json:"power,omitempty"`
}

// GridProvider names a source of signals.
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
	Provider GridProvider `json:"provider,omitempty"`
	// Region is the provider's name of the grid: a WattTime region, an Electricity
	// Maps zone, a NESO region number or outward postcode (empty: Great Britain),
	// an Energy-Charts country, the CSV column of a Replay.
	Region string `json:"region,omitempty"`
	// Latitude and Longitude, decimal degrees, instead of a region, for WattTime and
	// Electricity Maps.
	Latitude  *resource.Quantity `json:"latitude,omitempty"`
	Longitude *resource.Quantity `json:"longitude,omitempty"`
	// Kind of signal: Marginal (WattTime, default there; Replay), Average, Percentile,
	// Price, RenewableShare, as far as the provider has it.
	Kind SignalKind `json:"kind,omitempty"`
	// Unit of the values of Prometheus and Webhook, such as gCO2/kWh.
	Unit string `json:"unit,omitempty"`
	// URL of a Prometheus; of another provider only to replace its standard one.
	URL string `json:"url,omitempty"`
	// Query of a Prometheus: it must give one series.
	Query string `json:"query,omitempty"`
	// PeriodSeconds of the points of Prometheus (default 300) and Electricity Maps
	// (default 3600).
	PeriodSeconds int32 `json:"periodSeconds,omitempty"`
	// Source is the name under spec.energy.webhook.sources that speaks for the
	// site, for provider Webhook.
	Source string `json:"source,omitempty"`
	// Credentials are files, read again when they change.
	Credentials *CredentialsSpec `json:"credentials,omitempty"`
	// Check is a second source against which readings are checked.
	Check *GridSpec `json:"check,omitempty"`
	// TracePath is the CSV file of a Replay: marginal intensity, gCO2/kWh.
	TracePath string `json:"tracePath,omitempty"`
	// AverageTracePath is the same for the average intensity, for the second
	// ledger; optional.
	AverageTracePath string `json:"averageTracePath,omitempty"`
}

// SignalKind is what a signal's value means.
type SignalKind string

// Signal kinds.
const (
	KindMarginal       SignalKind = "Marginal"
	KindAverage        SignalKind = "Average"
	KindPercentile     SignalKind = "Percentile"
	KindPrice          SignalKind = "Price"
	KindRenewableShare SignalKind = "RenewableShare"
)

// CredentialsSpec names files, or environment variables of the coordinator, that
// hold one secret each.
type CredentialsSpec struct {
	UserFile     string `json:"userFile,omitempty"`
	PasswordFile string `json:"passwordFile,omitempty"`
	TokenFile    string `json:"tokenFile,omitempty"`
	UserEnv      string `json:"userEnv,omitempty"`
	PasswordEnv  string `json:"passwordEnv,omitempty"`
	TokenEnv     string `json:"tokenEnv,omitempty"`
}

// PowerSpec is the stated power model of one member of the site.
type PowerSpec struct {
	TrainingWatts int32 `json:"trainingWatts,omitempty"`
	IdleWatts     int32 `json:"idleWatts,omitempty"`
	// PUE, facility over IT power. Default 1.
	PUE *resource.Quantity `json:"pue,omitempty"`
}

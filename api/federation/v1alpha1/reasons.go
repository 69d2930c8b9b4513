package v1alpha1

// Group and Version name the API.
const (
	Group      = "girassol.dev"
	Version    = "v1alpha1"
	APIVersion = Group + "/" + Version

	KindFederation = "Federation"
	KindSite       = "Site"
)

// SitePhase is where a site stands:
//
//	Idle -> Provisioning -> Joining -> Active -> Draining -> Idle
//
// and aside Lost, Blocked and Failed.
type SitePhase string

// The phases of a site.
const (
	SiteIdle         SitePhase = "Idle"
	SiteProvisioning SitePhase = "Provisioning"
	SiteJoining      SitePhase = "Joining"
	SiteActive       SitePhase = "Active"
	SiteDraining     SitePhase = "Draining"
	SiteLost         SitePhase = "Lost"
	SiteBlocked      SitePhase = "Blocked"
	SiteFailed       SitePhase = "Failed"
)

// FederationPhase is where a federation stands; display only.
type FederationPhase string

// The phases of a federation.
const (
	FederationWaitingForModel FederationPhase = "WaitingForModel"
	FederationWaitingForSites FederationPhase = "WaitingForSites"
	FederationTraining        FederationPhase = "Training"
	FederationPaused          FederationPhase = "Paused"
	FederationCompleted       FederationPhase = "Completed"
	FederationFailed          FederationPhase = "Failed"
)

// WindowState says whether a site's electricity is good enough.
type WindowState string

// The states of a window. Unknown is not Closed: the policy decides.
const (
	WindowOpen    WindowState = "Open"
	WindowClosed  WindowState = "Closed"
	WindowUnknown WindowState = "Unknown"
)

// Reason is a CamelCase word that says why. The same words appear in status,
// events, metric labels and logs; they are API.
type Reason string

// Why a site takes part or does not.
const (
	ReasonEnergyFavourable   Reason = "EnergyFavourable"
	ReasonWaitingForEnergy   Reason = "WaitingForEnergy"
	ReasonSignalMissing      Reason = "SignalMissing"
	ReasonSignalStale        Reason = "SignalStale"
	ReasonSignalSuspect      Reason = "SignalSuspect"
	ReasonConfirming         Reason = "Confirming"
	ReasonMinimumOn          Reason = "MinimumOn"
	ReasonMinimumOff         Reason = "MinimumOff"
	ReasonOverride           Reason = "Override"
	ReasonAdmittedByPolicy   Reason = "AdmittedByPolicy"
	ReasonRequested          Reason = "Requested"
	ReasonWaitingForAgent    Reason = "WaitingForAgent"
	ReasonWaitingForTrainer  Reason = "WaitingForTrainer"
	ReasonSynchronizing      Reason = "Synchronizing"
	ReasonTraining           Reason = "Training"
	ReasonReady              Reason = "Ready"
	ReasonWaitingForRound    Reason = "WaitingForRound"
	ReasonDrainRequested     Reason = "DrainRequested"
	ReasonAgentLeaving       Reason = "AgentLeaving"
	ReasonDrained            Reason = "Drained"
	ReasonDrainTimeout       Reason = "DrainTimeout"
	ReasonExcluded           Reason = "Excluded"
	ReasonHeartbeatMissed    Reason = "HeartbeatMissed"
	ReasonConnectionLost     Reason = "ConnectionLost"
	ReasonSuperseded         Reason = "Superseded"
	ReasonReplicaDiverged    Reason = "ReplicaDiverged"
	ReasonWrongFederation    Reason = "WrongFederation"
	ReasonUnknownSite        Reason = "UnknownSite"
	ReasonIdentityMismatch   Reason = "IdentityMismatch"
	ReasonUnsupportedVersion Reason = "UnsupportedVersion"
)

// Why a provider of signals gave none.
const (
	// ReasonSignalUnauthorized: the credentials are missing or wrong.
	ReasonSignalUnauthorized Reason = "SignalUnauthorized"
	// ReasonSignalNotCovered: the plan of the account does not cover the region,
	// or the provider does not offer this of its signal.
	ReasonSignalNotCovered Reason = "SignalNotCovered"
	// ReasonSignalRefused: the provider does not know the region or refuses the
	// question.
	ReasonSignalRefused Reason = "SignalRefused"
	// ReasonSignalRateLimited: too many calls, by the provider's or our own limit.
	ReasonSignalRateLimited Reason = "SignalRateLimited"
	// ReasonSignalNoData: the answer holds no values.
	ReasonSignalNoData Reason = "SignalNoData"
	// ReasonSignalBadAnswer: the answer is not what the provider's contract says.
	ReasonSignalBadAnswer Reason = "SignalBadAnswer"
	// ReasonSignalUnreachable: no answer in time, or a server's fault.
	ReasonSignalUnreachable Reason = "SignalUnreachable"
)

// What is wrong with a signal. SignalSuspect is any other doubt.
const (
	ReasonSignalGood Reason = "SignalGood"
	// ReasonSignalSuspectZero: a value of exactly 0 that nothing confirms yet.
	ReasonSignalSuspectZero Reason = "SignalSuspectZero"
	// ReasonSignalFlatZero: a forecast of 0 over its whole horizon.
	ReasonSignalFlatZero Reason = "SignalFlatZero"
	// ReasonSignalOutage: all regions are at 0 at once.
	ReasonSignalOutage Reason = "SignalOutage"
	// ReasonSignalJump: far outside of what was seen, waits for one more point.
	ReasonSignalJump Reason = "SignalJump"
	// ReasonSignalDisagrees: two sources differ by more than the tolerance.
	ReasonSignalDisagrees Reason = "SignalDisagrees"
)

// Why a window's decision is not that of its thresholds.
const (
	// ReasonWindowTooShort: the forecast closes it before a start pays.
	ReasonWindowTooShort Reason = "WindowTooShort"
	// ReasonWindowClosing: left before the forecast end, to drain in time.
	ReasonWindowClosing Reason = "WindowClosing"
	ReasonCooldown      Reason = "Cooldown"
	// ReasonGridEmergency: demand response asks for less load now.
	ReasonGridEmergency   Reason = "GridEmergency"
	ReasonCurtailed       Reason = "Curtailed"
	ReasonBudgetExhausted Reason = "BudgetExhausted"
)

// Why a site whose window is open is chosen or not.
const (
	ReasonChosen Reason = "Chosen"
	// ReasonCleanerSite: the wanted number is filled by sites with less grams
	// for a token.
	ReasonCleanerSite Reason = "CleanerSite"
	// ReasonCleanerLater: the work fits into cleaner hours before the deadline.
	ReasonCleanerLater Reason = "CleanerLater"
	// ReasonDeadlineAtRisk: every open site is needed, whatever its intensity.
	ReasonDeadlineAtRisk Reason = "DeadlineAtRisk"
	// ReasonOneChangePerRound: the site has changed in this round already.
	ReasonOneChangePerRound Reason = "OneChangePerRound"
	// ReasonSmallGain: another site is cleaner, but not enough to change.
	ReasonSmallGain     Reason = "SmallGain"
	ReasonWindowNotOpen Reason = "WindowNotOpen"
)

// Why a site's capacity, nodes or agents are as they are.
const (
	ReasonProvisioning  Reason = "Provisioning"
	ReasonCapacityReady Reason = "CapacityReady"
	// ReasonSettling: GPUs are allocatable, but not for long enough yet.
	ReasonSettling Reason = "Settling"
	// ReasonWaitingForGPUs: nodes are there, their GPUs are not allocatable yet.
	ReasonWaitingForGPUs Reason = "WaitingForGPUs"
	ReasonNoNodes        Reason = "NoNodes"
	// ReasonCapacityReleased: nothing is wanted and nothing is held.
	ReasonCapacityReleased Reason = "CapacityReleased"
	ReasonReleasing        Reason = "Releasing"
	// ReasonCapacityDeadlineExceeded: no allocatable GPUs by the deadline; the
	// capacity is handed back and the next site is asked.
	ReasonCapacityDeadlineExceeded Reason = "CapacityDeadlineExceeded"
	// ReasonCoolingOff: failed before and is asked again later.
	ReasonCoolingOff Reason = "CoolingOff"
	// ReasonCapacityPaused: the scale target or its cluster is paused.
	ReasonCapacityPaused Reason = "CapacityPaused"
	// ReasonCapacityOwnedByAutoscaler: another autoscaler moves the scale target.
	ReasonCapacityOwnedByAutoscaler Reason = "CapacityOwnedByAutoscaler"
	ReasonScaleTargetNotFound       Reason = "ScaleTargetNotFound"
	ReasonScaleForbidden            Reason = "ScaleForbidden"
	ReasonScaleFailed               Reason = "ScaleFailed"
	ReasonProvisionerUnreachable    Reason = "ProvisionerUnreachable"
	ReasonProvisionerRefused        Reason = "ProvisionerRefused"
	// ReasonProvisionerFailed: it took the wish and gave up on it.
	ReasonProvisionerFailed Reason = "ProvisionerFailed"
	// ReasonReplicasChanged: someone else has moved the scale target since the wish
	// was taken.
	ReasonReplicasChanged Reason = "ReplicasChanged"
	ReasonHealthy         Reason = "Healthy"
	ReasonNodeLost        Reason = "NodeLost"
	ReasonNodeCordoned    Reason = "NodeCordoned"
	ReasonNodeTainted     Reason = "NodeTainted"
	// ReasonNodeGoing: its machine is being deleted or reclaimed.
	ReasonNodeGoing      Reason = "NodeGoing"
	ReasonDriverUpgrade  Reason = "DriverUpgrade"
	ReasonAgentCrashLoop Reason = "AgentCrashLoop"
	ReasonAgentPending   Reason = "AgentPending"
	ReasonMixedVendors   Reason = "MixedVendors"
	ReasonVendorMismatch Reason = "VendorMismatch"
	ReasonTooFewGPUs     Reason = "TooFewGPUs"
	ReasonNodesOverlap   Reason = "NodesOverlap"
	ReasonNotDraining    Reason = "NotDraining"
	ReasonMutualTLS      Reason = "MutualTLS"
	ReasonMeshDeclared   Reason = "MeshDeclared"
	// ReasonTunnelUp: a WireGuard handshake is recent.
	ReasonTunnelUp Reason = "TunnelUp"
	// ReasonTunnelSilent: there was none lately, or never.
	ReasonTunnelSilent    Reason = "TunnelSilent"
	ReasonPlaintext       Reason = "Plaintext"
	ReasonConnected       Reason = "Connected"
	ReasonNotConnected    Reason = "NotConnected"
	ReasonNothingWanted   Reason = "NothingWanted"
	ReasonReleaseTimedOut Reason = "ReleaseTimedOut"
)

// Why the operator cannot see or act.
const (
	ReasonCoordinatorUnreachable Reason = "CoordinatorUnreachable"
	ReasonCoordinatorStarting    Reason = "CoordinatorStarting"
	ReasonCoordinatorAvailable   Reason = "CoordinatorAvailable"
	ReasonClusterUnreachable     Reason = "ClusterUnreachable"
	ReasonClusterReachable       Reason = "ClusterReachable"
	ReasonKubeconfigInvalid      Reason = "KubeconfigInvalid"
	ReasonSecretNotFound         Reason = "SecretNotFound"
	ReasonSecretInvalid          Reason = "SecretInvalid"
	ReasonSiteNotFound           Reason = "SiteNotFound"
	// ReasonSiteInUse: another federation has the site.
	ReasonSiteInUse Reason = "SiteInUse"
	// ReasonNotReferenced: no federation names the site.
	ReasonNotReferenced Reason = "NotReferenced"
	ReasonInvalidSpec   Reason = "InvalidSpec"
	ReasonAccepted      Reason = "Accepted"
	ReasonSuspended     Reason = "Suspended"
	ReasonRunning       Reason = "Running"
	// ReasonScaledToZero: maxSites is 0.
	ReasonScaledToZero Reason = "ScaledToZero"
	// ReasonHigherPriority: the wanted number is filled by sites of higher priority.
	ReasonHigherPriority Reason = "HigherPriority"
	ReasonQuorumMet      Reason = "QuorumMet"
	ReasonDeleting       Reason = "Deleting"
)

// Events that are no state: what just happened.
const (
	ReasonSiteJoined         Reason = "SiteJoined"
	ReasonSiteDraining       Reason = "SiteDraining"
	ReasonSiteLeft           Reason = "SiteLeft"
	ReasonSiteLost           Reason = "SiteLost"
	ReasonCapacityRequested  Reason = "CapacityRequested"
	ReasonFailover           Reason = "Failover"
	ReasonCertificateIssued  Reason = "CertificateIssued"
	ReasonCertificateRenewed Reason = "CertificateRenewed"
)

// What a federation does or waits for, and how a round ended.
const (
	ReasonWaitingForModel Reason = "WaitingForModel"
	ReasonWaitingForSites Reason = "WaitingForSites"
	ReasonQuorumLost      Reason = "QuorumLost"
	ReasonPaused          Reason = "Paused"
	ReasonCompleted       Reason = "Completed"
	ReasonCollecting      Reason = "Collecting"
	ReasonCommitting      Reason = "Committing"
	ReasonCommitted       Reason = "Committed"
	// ReasonRolledBack: the model is that of an older version again.
	ReasonRolledBack Reason = "RolledBack"
	// ReasonVersionNotKept: a version that is wanted is not in the commit log.
	ReasonVersionNotKept Reason = "VersionNotKept"
	// ReasonEvaluationWorse: the held-out loss is worse than the best by more than
	// the gate's margin.
	ReasonEvaluationWorse Reason = "EvaluationWorse"
	// ReasonTooManyRollbacks: one bad version after the other.
	ReasonTooManyRollbacks Reason = "TooManyRollbacks"
	// ReasonDataExhausted: what is left of the pass is leased to others.
	ReasonDataExhausted     Reason = "DataExhausted"
	ReasonRoundDeadline     Reason = "RoundDeadline"
	ReasonTooFewUpdates     Reason = "TooFewUpdates"
	ReasonNothingToMerge    Reason = "NothingToMerge"
	ReasonTooManyVoidRounds Reason = "TooManyVoidRounds"
	ReasonCommitLogFailed   Reason = "CommitLogFailed"
	// ReasonDiskFull: the coordinator's disk is; it goes on by itself once there is room.
	ReasonDiskFull           Reason = "DiskFull"
	ReasonCoordinatorStopped Reason = "CoordinatorStopped"
	ReasonFenced             Reason = "Fenced"
	ReasonShutdown           Reason = "Shutdown"
)

// Why an update was not taken.
const (
	ReasonStaleRound        Reason = "StaleRound"
	ReasonFencedEpoch       Reason = "FencedEpoch"
	ReasonNotGranted        Reason = "NotGranted"
	ReasonInvalidWeight     Reason = "InvalidWeight"
	ReasonNotFinite         Reason = "NotFinite"
	ReasonShapeMismatch     Reason = "ShapeMismatch"
	ReasonDTypeMismatch     Reason = "DTypeMismatch"
	ReasonUnknownTensor     Reason = "UnknownTensor"
	ReasonMissingTensor     Reason = "MissingTensor"
	ReasonEncodingMismatch  Reason = "EncodingMismatch"
	ReasonTooLarge          Reason = "TooLarge"
	ReasonChecksumMismatch  Reason = "ChecksumMismatch"
	ReasonTruncated         Reason = "Truncated"
	ReasonMalformed         Reason = "Malformed"
	ReasonUnexpectedOffset  Reason = "UnexpectedOffset"
	ReasonConflictingUpdate Reason = "ConflictingUpdate"
	ReasonAlreadySeeded     Reason = "AlreadySeeded"
	// ReasonDataNotLeased: it used samples that were not leased to it.
	ReasonDataNotLeased  Reason = "DataNotLeased"
	ReasonTrainerFailed  Reason = "TrainerFailed"
	ReasonTrainerTimeout Reason = "TrainerTimeout"
)

// Why a site's or a member's identity was not believed.
const (
	ReasonTokenUnknown        Reason = "TokenUnknown"
	ReasonTokenUsed           Reason = "TokenUsed"
	ReasonTokenExpired        Reason = "TokenExpired"
	ReasonCertificateRevoked  Reason = "CertificateRevoked"
	ReasonCertificateExpired  Reason = "CertificateExpired"
	ReasonCertificateExpiring Reason = "CertificateExpiring"
	ReasonClockSkew           Reason = "ClockSkew"
	ReasonIdentityRevoked     Reason = "IdentityRevoked"
)

// What spec.admission refuses.
const (
	ReasonNormTooLarge       Reason = "NormTooLarge"
	ReasonDirectionTooFar    Reason = "DirectionTooFar"
	ReasonQuarantined        Reason = "Quarantined"
	ReasonBytesQuota         Reason = "BytesQuota"
	ReasonMembersQuota       Reason = "MembersQuota"
	ReasonCallsQuota         Reason = "CallsQuota"
	ReasonTooManyConnections Reason = "TooManyConnections"
)

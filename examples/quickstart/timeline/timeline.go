// Package timeline is the quickstart's memory of a run: what changed, when, in
// virtual and in real time, one JSON line each, so that a stopped run can be
// taken up again and the report be drawn from the file alone.
//
// It owns the entries, how they follow from a coordinator's statuses, and their
// file. It must not know how anything is drawn or which processes run.
package timeline

import "time"

// Kind says which of an Entry's parts is set.
type Kind string

// The kinds of entries.
const (
	// KindStart: a run began or was taken up again.
	KindStart Kind = "start"
	// KindSite: a site's phase, window or training changed.
	KindSite Kind = "site"
	// KindRound: a round was committed or void.
	KindRound Kind = "round"
	// KindEvaluation: a held-out result of one version.
	KindEvaluation Kind = "evaluation"
	// KindProgress: running totals, at most one in five virtual minutes.
	KindProgress Kind = "progress"
	// KindPhase: the federation's phase changed.
	KindPhase Kind = "phase"
	// KindStop: the run stopped or ended.
	KindStop Kind = "stop"
)

// Entry is one line of the timeline. Time is virtual (the signals' clock), Real
// is the wall clock.
type Entry struct {
	Kind       Kind        `json:"kind"`
	Time       time.Time   `json:"time"`
	Real       time.Time   `json:"real"`
	Start      *Start      `json:"start,omitempty"`
	Site       *Site       `json:"site,omitempty"`
	Round      *Round      `json:"round,omitempty"`
	Evaluation *Evaluation `json:"evaluation,omitempty"`
	Progress   *Progress   `json:"progress,omitempty"`
	Phase      *Phase      `json:"phase,omitempty"`
	Stop       *Stop       `json:"stop,omitempty"`
}

// Start opens a run or a further stretch of one.
type Start struct {
	Resumed bool `json:"resumed,omitempty"`
	// Speed in virtual seconds per real second.
	Speed float64 `json:"speed"`
}

// Site is where a site stands from the entry's time on.
type Site struct {
	Name string `json:"name"`
	// Phase is a site phase of federation/v1alpha1.
	Phase   string `json:"phase"`
	Reason  string `json:"reason,omitempty"`
	Message string `json:"message,omitempty"`
	// Training says that a member of the site runs local steps.
	Training bool `json:"training,omitempty"`
	// Window is "Open", "Closed", "Unknown" or empty before the first signal.
	Window string `json:"window,omitempty"`
	// Intensity at the change, in Unit; nil when unknown.
	Intensity *float64 `json:"intensity,omitempty"`
	Unit      string   `json:"unit,omitempty"`
}

// Round is one finished round.
type Round struct {
	Number uint64 `json:"number"`
	// Version after the round; a void round leaves it.
	Version uint64   `json:"version"`
	Void    bool     `json:"void,omitempty"`
	Reason  string   `json:"reason,omitempty"`
	Message string   `json:"message,omitempty"`
	Members []Member `json:"members,omitempty"`
	// Tokens of this round and of all rounds so far.
	Tokens      uint64 `json:"tokens"`
	TokensTotal uint64 `json:"tokensTotal"`
	// Loss is the members' training loss, weighted by tokens; nil when none
	// was reported.
	Loss   *float64 `json:"loss,omitempty"`
	Digest string   `json:"digest,omitempty"`
	// BytesUp and BytesDown on the members' sockets since the round before.
	BytesUp   uint64 `json:"bytesUp"`
	BytesDown uint64 `json:"bytesDown"`
}

// Member is one member's part in a round.
type Member struct {
	Name   string   `json:"name"`
	Site   string   `json:"site"`
	Steps  uint64   `json:"steps"`
	Tokens uint64   `json:"tokens"`
	Loss   *float64 `json:"loss,omitempty"`
	// PayloadBytes of its update.
	PayloadBytes int64 `json:"payloadBytes,omitempty"`
}

// Evaluation is a held-out result.
type Evaluation struct {
	Version uint64 `json:"version"`
	// TokensTotal that version had been trained on.
	TokensTotal uint64 `json:"tokensTotal"`
	// Tokens evaluated and their mean loss in nats per token.
	Tokens uint64  `json:"tokens"`
	Loss   float64 `json:"loss"`
}

// Progress holds totals since the start of the run.
type Progress struct {
	RoundsCommitted uint64       `json:"roundsCommitted"`
	RoundsVoid      uint64       `json:"roundsVoid"`
	Tokens          uint64       `json:"tokens"`
	BytesUp         uint64       `json:"bytesUp"`
	BytesDown       uint64       `json:"bytesDown"`
	Parameters      uint64       `json:"parameters"`
	Sites           []SiteTotals `json:"sites"`
}

// SiteTotals are one site's totals since the start of the run.
type SiteTotals struct {
	Name   string `json:"name"`
	Rounds uint64 `json:"rounds"`
	Tokens uint64 `json:"tokens"`
	// TrainingSeconds of accepted work, real.
	TrainingSeconds float64 `json:"trainingSeconds"`
	EnergyKWh       float64 `json:"energyKWh"`
	// MarginalKg and AverageKg of CO2; nil when the ledger does not know.
	MarginalKg   *float64 `json:"marginalKg,omitempty"`
	AverageKg    *float64 `json:"averageKg,omitempty"`
	EnergySource string   `json:"energySource,omitempty"`
	// Coverage is the share of the energy whose intensity was known.
	Coverage  float64 `json:"coverage"`
	BytesUp   uint64  `json:"bytesUp"`
	BytesDown uint64  `json:"bytesDown"`
}

// Phase is where the federation stands.
type Phase struct {
	Phase   string `json:"phase"`
	Reason  string `json:"reason,omitempty"`
	Message string `json:"message,omitempty"`
}

// Stop ends a stretch. Complete says that nothing is left to resume.
type Stop struct {
	Complete bool   `json:"complete"`
	Why      string `json:"why"`
}

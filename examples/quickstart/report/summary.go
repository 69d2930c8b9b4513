// Package report turns a finished quickstart run into what a person reads: a
// table for the terminal, one self-contained HTML page, and JSON.
//
// It owns the figures (what is summed, compared with what, and in which unit)
// and their pictures. Everything is a pure function of its input. It must not
// know how a run is made, where files lie or what the time is.
package report

import (
	"time"

	"girassol.dev/examples/quickstart/timeline"
)

// Summary is a run in figures. Pointers are nil where a figure is not known:
// missing is never zero.
type Summary struct {
	Federation string    `json:"federation"`
	Algorithm  Algorithm `json:"algorithm"`
	Seed       uint64    `json:"seed"`
	// Speed is virtual seconds per real second.
	Speed float64 `json:"speed"`
	// Start and End bound the trace; RanUntil is where the run stopped. All
	// three are virtual.
	Start    time.Time `json:"start"`
	End      time.Time `json:"end"`
	RanUntil time.Time `json:"ranUntil"`
	// RealSeconds that the federated run took.
	RealSeconds float64 `json:"realSeconds"`
	// Ended says why the run stopped.
	Ended string `json:"ended"`

	Parameters uint64 `json:"parameters"`
	Corpus     Corpus `json:"corpus"`
	Sites      []Site `json:"sites"`
	// Elsewhere are regions without a site here, for baselines only.
	Elsewhere []Region `json:"elsewhere,omitempty"`
	// Rounds that were committed, by version; VoidRounds had no effect.
	Rounds     []Round     `json:"rounds"`
	VoidRounds int         `json:"voidRounds"`
	Tokens     uint64      `json:"tokens"`
	HeldOut    HeldOut     `json:"heldOut"`
	Wire       Wire        `json:"wire"`
	Energy     Energy      `json:"energy"`
	Comparison *Comparison `json:"comparison,omitempty"`
}

// Algorithm in words.
type Algorithm struct {
	Strategy          string  `json:"strategy"`
	OuterLearningRate float64 `json:"outerLearningRate"`
	OuterMomentum     float64 `json:"outerMomentum"`
	// Adaptive: rate and momentum are those of the newest commit.
	Adaptive bool   `json:"adaptive,omitempty"`
	Uplink   string `json:"uplink"`
	Downlink string `json:"downlink"`
}

// Corpus is the text that was trained on.
type Corpus struct {
	Source       string `json:"source"`
	HeldOutFiles int    `json:"heldOutFiles"`
	HeldOutBytes int64  `json:"heldOutBytes"`
}

// Site is one site's share.
type Site struct {
	Name   string `json:"name"`
	Region string `json:"region"`
	// Text says what it trained on.
	Text      string `json:"text"`
	TextBytes int64  `json:"textBytes"`

	Rounds uint64 `json:"rounds"`
	Tokens uint64 `json:"tokens"`
	// Virtual hours with the window open and with local steps running.
	WindowHours   float64 `json:"windowHours"`
	TrainingHours float64 `json:"trainingHours"`

	EnergyKWh    float64  `json:"energyKWh"`
	MarginalKg   *float64 `json:"marginalKg"`
	AverageKg    *float64 `json:"averageKg"`
	EnergySource string   `json:"energySource"`
	Coverage     float64  `json:"coverage"`
	BytesUp      uint64   `json:"bytesUp"`
	BytesDown    uint64   `json:"bytesDown"`

	Power Power `json:"power"`
	// EnterBelow and LeaveAbove in gCO2/kWh; nil for percentile policies.
	EnterBelow *float64        `json:"enterBelow"`
	LeaveAbove *float64        `json:"leaveAbove"`
	Trace      Trace           `json:"trace"`
	Windows    []timeline.Span `json:"windows"`
	Training   []timeline.Span `json:"training"`
}

// Power is a stated model, not a measurement.
type Power struct {
	TrainingWatts float64 `json:"trainingWatts"`
	IdleWatts     float64 `json:"idleWatts"`
	PUE           float64 `json:"pue"`
}

// Trace is a region's intensity in gCO2/kWh; a point holds until the next.
// Average is empty when the trace has none.
type Trace struct {
	Marginal []Point `json:"marginal"`
	Average  []Point `json:"average,omitempty"`
}

// Region is a grid and its trace.
type Region struct {
	Name  string `json:"name"`
	Trace Trace  `json:"trace"`
}

// Point is one value of a trace; nil is a gap.
type Point struct {
	Time  time.Time `json:"time"`
	Value *float64  `json:"value"`
}

// Round is a committed round and, when the version was evaluated, its loss on
// held-out text in nats per byte.
type Round struct {
	timeline.Round
	Time        time.Time `json:"time"`
	HeldOutLoss *float64  `json:"heldOutLoss,omitempty"`
}

// HeldOut is how well held-out text is predicted, in nats per byte.
type HeldOut struct {
	// Untrained and Final are measured the same way, over all held-out text.
	Untrained *float64 `json:"untrained"`
	Final     *float64 `json:"final"`
	// Tokens behind each of the two.
	Tokens uint64 `json:"tokens"`
	// Points were measured by the sites during the run.
	Points []LossPoint `json:"points"`
}

// LossPoint is one evaluation on the way.
type LossPoint struct {
	Tokens  uint64  `json:"tokens"`
	Version uint64  `json:"version"`
	Loss    float64 `json:"loss"`
}

// Wire is what crossed the members' sockets.
type Wire struct {
	BytesUp   uint64 `json:"bytesUp"`
	BytesDown uint64 `json:"bytesDown"`
	// DenseBytes is the model once in fp32, what a member sends and receives
	// per round without compression.
	DenseBytes uint64 `json:"denseBytes"`
	// Medians over rounds of the bytes per member.
	MedianUp   *float64 `json:"medianUp"`
	MedianDown *float64 `json:"medianDown"`
	// Fewer is 2*DenseBytes over MedianUp+MedianDown. FewerWithJoins counts
	// every byte of the run, first weights and joins included.
	Fewer          *float64 `json:"fewer"`
	FewerWithJoins *float64 `json:"fewerWithJoins"`
}

// Energy compares the run with one site that is always on. Marginal and average
// are two ledgers; they are never added.
type Energy struct {
	KWh        float64  `json:"kWh"`
	MarginalKg *float64 `json:"marginalKg"`
	AverageKg  *float64 `json:"averageKg"`
	// UsefulHours of training over all sites; the baselines do the same.
	UsefulHours float64    `json:"usefulHours"`
	Baselines   []Baseline `json:"baselines"`
}

// Baseline is one site that trains without pause from Start for UsefulHours.
// When that is longer than the trace, the trace is taken again from its start.
type Baseline struct {
	Site       string   `json:"site"`
	Region     string   `json:"region"`
	KWh        float64  `json:"kWh"`
	MarginalKg *float64 `json:"marginalKg"`
	AverageKg  *float64 `json:"averageKg"`
	// Ratios: the run's kilograms over this baseline's.
	MarginalRatio *float64 `json:"marginalRatio"`
	AverageRatio  *float64 `json:"averageRatio"`
}

// Comparison is what the same initial weights become without a federation, each
// judged on the same held-out text.
type Comparison struct {
	// Alone: each site on its own text with the tokens it had in the federation.
	Alone []Contender `json:"alone"`
	// Central: one run on all text with the tokens of all.
	Central *Contender `json:"central"`
	Seconds float64    `json:"seconds"`
}

// Contender is one trained model.
type Contender struct {
	Name   string   `json:"name"`
	Tokens uint64   `json:"tokens"`
	Loss   *float64 `json:"loss"`
}

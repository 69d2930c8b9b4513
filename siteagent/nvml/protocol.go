package nvml

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
)

// Op is what is asked of agent-nvml.
type Op string

// The operations.
const (
	OpInventory     Op = "inventory"
	OpSample        Op = "sample"
	OpSetPowerLimit Op = "setPowerLimit"
	// OpRestorePowerLimits puts all limits back that were set, or that of one GPU.
	OpRestorePowerLimits Op = "restorePowerLimits"
)

// MaxLine bounds a line of either direction in bytes, its end included.
const MaxLine = 1 << 20

// Request is one line of JSON to agent-nvml's standard input.
type Request struct {
	// ID comes back in the answer.
	ID uint64 `json:"id"`
	Op Op     `json:"op"`
	// UUID of the GPU; empty for all.
	UUID  string  `json:"uuid,omitempty"`
	Watts float64 `json:"watts,omitempty"`
	// Keep says that the limit is to stay: what was to be put back is forgotten.
	Keep bool `json:"keep,omitempty"`
	// Originals are limits by UUID that an earlier child has changed: this one puts
	// them back when asked to, or when its standard input ends.
	Originals map[string]Limit `json:"originals,omitempty"`
}

// Limit of a GPU's power in watts, as it was before and as it was set.
type Limit struct {
	Before float64 `json:"beforeWatts"`
	Set    float64 `json:"setWatts"`
}

// InForce says that the limit in force is the one that was set, drivers' rounding
// aside; otherwise somebody else has set another, which is theirs.
func (l Limit) InForce(watts float64) bool { return math.Abs(watts-l.Set) <= 1 }

// Change is the limit after another was set over the one that was in force. The one
// to put back stays, but for one that somebody else has set meanwhile.
func (l Limit) Change(inForce, set float64) Limit {
	if !l.InForce(inForce) {
		l.Before = inForce
	}
	l.Set = set
	return l
}

// Answer is one line of JSON from agent-nvml's standard output. Exactly one of the
// answers is there, or neither for an operation that returns nothing.
type Answer struct {
	ID        uint64      `json:"id"`
	Inventory *Inventory  `json:"inventory,omitempty"`
	Samples   []GPUSample `json:"samples,omitempty"`
	// BeforeWatts is the limit before it was set.
	BeforeWatts *float64 `json:"beforeWatts,omitempty"`
	Error       *Error   `json:"error,omitempty"`
	// Unavailable says that the error is of the whole library and not of this
	// request.
	Unavailable bool `json:"unavailable,omitempty"`
}

// ParseAnswer reads a line. Figures that cannot be are left out.
func ParseAnswer(line []byte) (Answer, error) {
	var a Answer
	d := json.NewDecoder(bytes.NewReader(line))
	if err := d.Decode(&a); err != nil {
		return Answer{}, fmt.Errorf("not an answer: %w", err)
	}
	if d.InputOffset() < int64(len(bytes.TrimRight(line, " \t\r\n"))) {
		return Answer{}, errors.New("not an answer: more than one value in a line")
	}
	if a.ID == 0 {
		return Answer{}, errors.New("not an answer: no id")
	}
	if a.Unavailable && a.Error == nil {
		return Answer{}, errors.New("not an answer: unavailable without an error")
	}
	if a.BeforeWatts != nil && !possible(*a.BeforeWatts, mostWatts) {
		return Answer{}, fmt.Errorf("not an answer: a limit of %g W before", *a.BeforeWatts)
	}
	if a.Inventory != nil {
		for i := range a.Inventory.GPUs {
			a.Inventory.GPUs[i].keepPossible()
		}
	}
	for i := range a.Samples {
		a.Samples[i].keepPossible()
	}
	return a, nil
}

// Bounds of what a GPU may be.
const (
	mostWatts   = 100e3
	mostCelsius = 1000
)

func possible(v, most float64) bool { return v >= 0 && v <= most }

// keep a figure that can be.
func keep(v **float64, most float64) {
	if *v != nil && !possible(**v, most) {
		*v = nil
	}
}

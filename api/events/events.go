// Package events is what a coordinator announces over Redis: the entries of one
// stream per federation, and their names.
//
// Every announcement is one stream entry plus a publish of its stream id on the
// channel of the same name as a wake-up. The entry has three fields: "event", the
// JSON of Event; "key", which names the coordinator's key; "signature", by that key
// (see SignedBytes), without which no reader believes it: whoever can write to Redis
// can write anything. Readers keep the last id that they have handled and replay
// from there. Events are hints: grants, their stop times and the Fleet service are
// authoritative.
package events

import (
	"encoding/json"
	"fmt"
)

// Field of a stream entry that holds the event.
const Field = "event"

// Stream is the name of a federation's stream and of its wake-up channel.
func Stream(federation string) string { return "girassol:" + federation + ":events" }

// Type says what happened.
type Type string

// The types of events.
const (
	// RoundCommitted: a version was committed; Version and Digest are set.
	RoundCommitted Type = "RoundCommitted"
	// RolledBack: Version has the state of an older one again; Digest is set.
	RolledBack Type = "RolledBack"
	// Evaluated: Version has a held-out result; Loss is its loss, if it has one.
	Evaluated Type = "Evaluated"
	// RoundVoid: a round ended without effect; Reason says why.
	RoundVoid Type = "RoundVoid"
	// RoundStopped: members of the round are to finish their step and upload.
	RoundStopped Type = "RoundStopped"
	// MembershipChanged: a site was admitted, drained or excluded.
	MembershipChanged Type = "MembershipChanged"
	// Paused: no round starts until Resumed, which comes by itself; Reason says why.
	Paused Type = "Paused"
	// Resumed: what Paused told of is over.
	Resumed Type = "Resumed"
	// Quarantined: no update of Site counts for some rounds; Reason says why.
	Quarantined Type = "Quarantined"
	// Released: what Quarantined told of is over.
	Released Type = "Released"
	// Shutdown: the coordinator stops.
	Shutdown Type = "Shutdown"
)

// Event is one announcement. Sequence grows by one with each event of a
// coordinator incarnation (Term), so that a reader can tell a gap.
type Event struct {
	Type       Type   `json:"type"`
	Federation string `json:"federation"`
	Term       uint64 `json:"term"`
	Sequence   uint64 `json:"sequence"`
	UnixMilli  int64  `json:"unixMilli"`
	Round      uint64 `json:"round,omitempty"`
	// Version is set with RoundCommitted, RolledBack and Evaluated; version 0 is the
	// first weights.
	Version *uint64  `json:"version,omitempty"`
	Loss    *float64 `json:"loss,omitempty"`
	// Digest of the model after the event, hexadecimal.
	Digest  string `json:"digest,omitempty"`
	Site    string `json:"site,omitempty"`
	Reason  string `json:"reason,omitempty"`
	Message string `json:"message,omitempty"`
}

// Parse reads an entry's field and refuses what no coordinator writes.
func Parse(s string) (Event, error) {
	var e Event
	if err := json.Unmarshal([]byte(s), &e); err != nil {
		return Event{}, fmt.Errorf("events: %w", err)
	}
	switch e.Type {
	case RoundCommitted, RolledBack, Evaluated, RoundVoid, RoundStopped, MembershipChanged, Paused, Resumed, Quarantined, Released, Shutdown:
	default:
		return Event{}, fmt.Errorf("events: unknown type %q", e.Type)
	}
	if e.Federation == "" {
		return Event{}, fmt.Errorf("events: %s without a federation", e.Type)
	}
	return e, nil
}

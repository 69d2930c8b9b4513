// Package round decides how a training round runs: who is granted work and for
// how long, when the round ends, whether it commits, and what everything waits
// for. It is a pure state machine: every method takes the present time and
// returns the actions that its caller must carry out.
//
//	Waiting -> Collecting -> Committing -> Waiting ... -> Completed | Failed
//
// It must not know how messages travel, what an update contains, how it is
// merged or where time comes from. Its scenario files are under testdata.
package round

import (
	"time"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
)

// Config of a run. All spans are on the caller's clock.
type Config struct {
	// Sites that are declared; others cannot join.
	Sites []string
	// Total committed rounds that complete the run; 0 runs for ever.
	Total uint64
	// MinSites with an accepted update that commit a round.
	MinSites int
	// LocalSteps of a member of mean speed; 0 budgets by Train alone.
	LocalSteps uint64
	// Train is the span from a round's start to its stop time.
	Train time.Duration
	// Collect is the span after the stop time in which updates are still taken.
	Collect time.Duration
	// Join is how long the first round waits for all admitted sites.
	Join time.Duration
	// Settle is how long a later round waits for the members of the one before.
	Settle time.Duration
	// Grace is the default span of a drain.
	Grace time.Duration
	// MaxConsecutiveVoid rounds after which the run fails; 0 never.
	MaxConsecutiveVoid uint64
	// EvaluateEvery so many rounds the grants ask for an evaluation; 0 never.
	EvaluateEvery uint64
}

// State is where the machine stands.
type State string

// The states.
const (
	Waiting    State = "Waiting"
	Collecting State = "Collecting"
	Committing State = "Committing"
	Completed  State = "Completed"
	Failed     State = "Failed"
)

// Membership is what the energy director, the operator or a person wishes.
type Membership string

// The memberships.
const (
	Admit   Membership = "Admit"
	Drain   Membership = "Drain"
	Exclude Membership = "Exclude"
)

// MemberState is what a member says of itself.
type MemberState string

// The states of a member.
const (
	// MemberBusy: connected but not ready (no trainer, no replica yet).
	MemberBusy MemberState = "Busy"
	// MemberReady: can take a grant.
	MemberReady MemberState = "Ready"
	// MemberWorking: trains or uploads for the round it names.
	MemberWorking MemberState = "Working"
)

// Action is something that the caller must do. The concrete types are Grant,
// Stop, DrainMember, Commit, Void, Changed and Ended.
type Action interface{ action() }

// Grant gives a member permission to train.
type Grant struct {
	Member   string
	Round    uint64
	MaxSteps uint64 // 0: until StopAt
	StopAt   time.Time
	Deadline time.Time // no update is taken after this
	Alone    bool
	Evaluate bool
}

// Stop asks a granted member to finish its step and upload, or, for reason
// Excluded, to drop its work.
type Stop struct {
	Member string
	Round  uint64
	Reason v1alpha1.Reason
}

// DrainMember asks a member to leave by the deadline.
type DrainMember struct {
	Member   string
	Deadline time.Time
	Reason   v1alpha1.Reason
	Message  string
}

// Commit asks for the merge of these members' accepted updates (sorted). The
// caller answers with Machine.Committed or Machine.CommitFailed.
type Commit struct {
	Round   uint64
	Members []string
	// Alone: the round had one member, so that agreement was not measured.
	Alone bool
}

// Void says that a round ended without effect.
type Void struct {
	Round   uint64
	Reason  v1alpha1.Reason
	Message string
}

// SiteChanged says that a site's phase or reason is another one now.
type SiteChanged struct {
	Site    string
	Phase   v1alpha1.SitePhase
	Reason  v1alpha1.Reason
	Message string
}

// Ended says that the run is over: Completed or Failed.
type Ended struct {
	State   State
	Reason  v1alpha1.Reason
	Message string
}

func (Grant) action()       {}
func (Stop) action()        {}
func (DrainMember) action() {}
func (Commit) action()      {}
func (Void) action()        {}
func (SiteChanged) action() {}
func (Ended) action()       {}

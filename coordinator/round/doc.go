// Package round decides how a training round runs: who is granted work and for
// how long, when the round ends, whether it commits, and what everything waits
// for. It is a pure state machine: every method takes the present time and
// returns the actions that its caller must carry out.
//
//	Waiting -> Collecting -> Committing -> Waiting ... -> Completed | Failed
//
// What moves it (everything else leaves the state as it is):
//
//	from        to          when
//	Waiting     Collecting  there is a model, no pause, MinSites sites are ready, and either
//	                        nobody is missing and the round before was not void, or Join
//	                        (first round) or Settle (later ones) is over
//	Collecting  Committing  nothing more is to come or the deadline is there, and MinSites
//	                        sites have an accepted update
//	Collecting  Waiting     the same with fewer: the round is void
//	Collecting  Failed      the same, MaxConsecutiveVoid times in a row
//	Committing  Waiting     Committed, or CommitFailed: void
//	Committing  Completed   Committed for the Total-th time, or Complete
//	Waiting     Completed   Complete
//	Completed   Waiting     Reopen, unless Total is reached
//	Committing  Failed      CommitFailed, MaxConsecutiveVoid times in a row
//	Collecting  Waiting     RollBack: void. No round starts before RolledBack
//	Committing  Waiting     the same, for a caller that has not begun to merge
//	any         Failed      Fail, unless the run is Completed
//
// And a member's part in the round at work:
//
//	from      to        when
//	none      pending   a grant: at the start, or later for what is left of the span, if a
//	                    step of its fits
//	pending   accepted  Accepted
//	pending   declined  Refused, or READY with nothing to report
//	pending   none      a newer session is READY without work for the round: the process is
//	                    new or the grant was lost; it may be granted the rest
//	pending   expired   its drain or leave is over time, its site is excluded, or the round
//	                    closes without it
//	pending   withheld  Withhold: there is no data for it; its site counts as heard
//	accepted  expired   its site is excluded before the merge
//
// A member whose step time is known gets as many steps as fit into the time in
// which all together do LocalSteps each, beside the overhead that its rounds showed;
// one of unknown speed gets LocalSteps. One that lags behind the common end by more
// than a tenth of the round is asked for what it has.
//
// A pending member without its session is waited for until the others should be
// done, and at least for Settle; its update counts for as long as the round is
// open. A pending member that is connected is waited for until the deadline.
//
// The machine must not know how messages travel, what an update contains, how it
// is merged or where time comes from. Its scenario files are under testdata.
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
	// Settle is how long a later round waits for the members of the one before, the
	// pause after a void round, and the least that a lost member has to reconnect.
	Settle time.Duration
	// Grace is the default span of a drain.
	Grace time.Duration
	// MaxConsecutiveVoid rounds after which the run fails; 0 never.
	MaxConsecutiveVoid uint64
	// EvaluateEvery so many commits the grants ask for an evaluation, in each round
	// until there is a result; 0 never.
	EvaluateEvery uint64
	// EvaluateVoid: also after a void round, if the model at work has no result, which
	// may be spoiled: when nobody can train on it, no commit comes any more.
	EvaluateVoid bool
	// EvaluateSite is the only site whose members are asked; empty: all.
	EvaluateSite string
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

// Stop asks a granted member to finish its step and upload, because the others are
// done by now (RoundDeadline), or, for reason Excluded, to drop its work.
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

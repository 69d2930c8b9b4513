package protocol

// Fault is something that a world does wrong on purpose: a simulation that does not
// find it proves nothing.
type Fault int

// The faults.
const (
	None Fault = iota
	// The coordinator:
	TakesFencedEpoch     // counts an update whose session was fenced
	TakesStaleRound      // counts an update of an older round in the round at work
	TakesLateUpdate      // counts an update past the round's deadline
	KeepsCountedUploads  // does not clear a round's updates after its commit
	SpeaksForOthers      // believes the name in a header instead of the session's
	MergesInArrivalOrder // names updates by their arrival, which orders the sum
	AnnouncesBeforeWrite // tells of a commit before it is on disk
	ForgetsRoundNumber   // does not keep a round's number before its grants
	ForgetsTerm          // starts again in the term before
	ForgetsResidual      // recovers without what the downlink has held back
	IgnoresFencing       // writes to a store that a newer coordinator has opened
	MissesDeadlines      // has no timer
	// The member:
	DropsStaleWork     // does not put a stale update back
	SendsMergedAgain   // leaves merged work in its residual
	TrainsPastStop     // does not look at the stop time
	StepsTwice         // applies a delta again when told of the commit again
	CountsFromTheta    // measures its work from the model, not from its start
	ClaimsFullWeight   // tells the granted steps of a drained round as done
	ForgetsPendingWork // does not keep an update on disk before it sends it
	AsksNobody         // goes by the first answer when a commit was passed over
	faults
)

var faultNames = [...]string{
	"none", "takes a fenced epoch", "takes a stale round", "takes a late update", "keeps counted uploads", "speaks for others",
	"merges in arrival order", "announces before it writes", "forgets the round number", "forgets the term", "forgets the residual",
	"ignores fencing", "misses deadlines", "drops stale work", "sends merged work again", "trains past the stop", "steps twice",
	"counts from theta", "claims full weight", "forgets pending work", "asks nobody",
}

func (f Fault) String() string { return faultNames[f] }

// Faults are all faults.
func Faults() []Fault {
	var out []Fault
	for f := None + 1; f < faults; f++ {
		out = append(out, f)
	}
	return out
}

package ledger

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"
)

// Place is a site as a bound needs it.
type Place struct {
	Site  string
	Trace Trace
	// Watts of IT power while it trains, at this PUE.
	Watts, PUE float64
}

// Bound is the least that a schedule can emit that knows the traces from the
// start and loses nothing: no provisioning, no idle power, no synchronisation.
type Bound struct {
	Start, Deadline time.Time
	// Done are the useful site-hours in it; less than what was asked for if the
	// traces do not have more before the deadline.
	Done time.Duration
	// Complete says that all were.
	Complete bool
	Joules   float64
	Grams    float64
	// Sites are the useful hours by site.
	Sites map[string]time.Duration
	// Limit is the intensity, in grams for a useful hour, of the dearest piece
	// that was needed.
	Limit float64
	// Finished is when the last of the cheapest pieces ends.
	Finished time.Time
}

// Clairvoyant takes the cheapest pieces of the traces before the deadline until
// work useful site-hours are done: each piece is one site over one step of its
// trace, any number of sites at once. Spans without a value are not taken.
func Clairvoyant(places []Place, start, deadline time.Time, work time.Duration) (Bound, error) {
	b := Bound{Start: start, Deadline: deadline, Sites: map[string]time.Duration{}}
	if work < 0 || deadline.Before(start) {
		return Bound{}, fmt.Errorf("ledger: bound of %s of work from %s to %s", work, stamp(start), stamp(deadline))
	}
	type piece struct { // small: a year of many sites has millions
		gramsAnHour  float64
		from, length time.Duration // from the start
		place        int32
	}
	var pieces []piece
	for i, p := range places {
		if !(p.Watts > 0) || math.IsInf(p.Watts, 0) || !(p.PUE >= 1) || math.IsInf(p.PUE, 0) {
			return Bound{}, fmt.Errorf("ledger: bound: site %s draws %v W at a PUE of %v", p.Site, p.Watts, p.PUE)
		}
		for at := start; at.Before(deadline); {
			step := p.Trace.At(at)
			until := deadline
			if step.Until.After(at) && step.Until.Before(deadline) {
				until = step.Until
			}
			if step.Value != nil {
				pieces = append(pieces, piece{p.Watts * p.PUE / 1000 * *step.Value, at.Sub(start), until.Sub(at), int32(i)})
			}
			at = until
		}
	}
	slices.SortFunc(pieces, func(x, y piece) int {
		return cmp.Or(cmp.Compare(x.gramsAnHour, y.gramsAnHour), cmp.Compare(x.from, y.from), cmp.Compare(x.place, y.place))
	})
	for _, p := range pieces {
		if b.Done >= work {
			break
		}
		length := min(p.length, work-b.Done)
		b.Done += length
		b.Sites[places[p.place].Site] += length
		b.Joules += places[p.place].Watts * places[p.place].PUE * length.Seconds()
		b.Grams += p.gramsAnHour * length.Hours()
		b.Limit = p.gramsAnHour
		if end := start.Add(p.from + length); end.After(b.Finished) {
			b.Finished = end
		}
	}
	b.Complete = b.Done >= work
	return b, nil
}

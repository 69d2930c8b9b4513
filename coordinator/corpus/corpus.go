// Package corpus owns the ledger of a corpus that all members of a federation
// share: which samples of which pass are consumed, and which are leased to whom
// in the round at work. A sample is consumed at most once a pass, and a pass is
// over when all of it is consumed.
//
// A lease lives as long as its round: what a commit has not consumed by then is
// free again. So a position, which a commit's manifest holds, is all that must
// survive, and whoever is lost, late, refused or void returns its lease by
// nothing more than the round's end.
//
// Leases are cut from the front of what is free, so that what is consumed stays
// close to one range. When little of a pass is left, leases reach into the next
// one, and no further.
//
// It is pure. It must not know rounds, sessions, updates or where a position is
// kept.
package corpus

import (
	"cmp"
	"fmt"
	"math"
	"slices"
)

// Config of a ledger.
type Config struct {
	// Samples of the corpus, numbered from 0; at most MaxSamples.
	Samples uint64
	// Lease is the least that a member is leased at a time, as long as there is
	// that much.
	Lease uint64
	// Passes after which nothing is left; 0: for ever.
	Passes uint64
}

// Limits.
const (
	// MaxSamples of a corpus: exact in float64, and two passes fit an uint64.
	MaxSamples = 1e15
	// MaxRanges of a lease.
	MaxRanges = 64
	// MaxUsed is how many ranges one update may have used.
	MaxUsed = 1024
	// maxPieces is into how many ranges members may break what is consumed.
	maxPieces = 4096
)

// Position is what commits have consumed.
type Position struct {
	// Samples of the corpus when it was written.
	Samples uint64 `json:"samples"`
	// Pass is the first that is not consumed whole; all before it are.
	Pass uint64 `json:"pass"`
	// Consumed of that pass and the next.
	Consumed Ranges `json:"consumed,omitempty"`
}

// Check says what is wrong with a position by itself.
func (p Position) Check() error {
	if err := p.Consumed.Check(); err != nil {
		return err
	}
	for _, r := range p.Consumed {
		switch {
		case r.Pass < p.Pass || r.Pass-p.Pass > 1:
			return fmt.Errorf("%s is of neither pass %d nor the one after it", r, p.Pass)
		case r.End > p.Samples:
			return fmt.Errorf("%s ends behind the %d samples of the corpus", r, p.Samples)
		}
	}
	return nil
}

// Ledger says who may use which samples. It is not safe for concurrent use.
type Ledger struct {
	cfg      Config
	first    uint64 // pass at the axis' begin
	consumed spans
	// leases of the round at work; empty where it was returned.
	leases map[string]spans
	pace   map[string]pace
	// idle counts the rounds in a row whose lease a member brought back whole. The
	// others are served first, so that the last samples of a pass do not go round
	// with a member that never uses them.
	idle map[string]int
}

// New makes a ledger that goes on from a position, the zero one at the begin.
func New(cfg Config, at Position) (*Ledger, error) {
	if cfg.Samples == 0 || cfg.Samples > MaxSamples {
		return nil, fmt.Errorf("a corpus of %d samples; it must have 1 to %.0g", cfg.Samples, float64(MaxSamples))
	}
	l := &Ledger{cfg: cfg, leases: map[string]spans{}, pace: map[string]pace{}, idle: map[string]int{}}
	l.cfg.Lease = min(max(1, cfg.Lease), cfg.Samples)
	return l, l.place(at)
}

// place makes a position the ledger's; after an error nothing has changed.
func (l *Ledger) place(at Position) error {
	if err := at.Check(); err != nil {
		return err
	}
	if at.Samples > l.cfg.Samples {
		return fmt.Errorf("the run has counted a corpus of %d samples, which cannot shrink to %d: give it back its size, or start with an empty data folder", at.Samples, l.cfg.Samples)
	}
	l.first = at.Pass
	l.consumed = l.axis(at.Consumed)
	l.advance()
	return nil
}

// advance moves the axis over passes that are consumed whole.
func (l *Ledger) advance() { l.first, l.consumed = normal(l.first, l.consumed, l.cfg.Samples) }

func normal(first uint64, consumed spans, samples uint64) (uint64, spans) {
	for len(consumed) > 0 && consumed[0].lo == 0 && consumed[0].hi >= samples {
		first++
		var shifted spans
		for _, s := range consumed.remove(spans{{0, samples}}) {
			shifted = append(shifted, span{s.lo - samples, s.hi - samples})
		}
		consumed = shifted
	}
	return first, consumed
}

// axis puts checked ranges of the two open passes on the axis.
func (l *Ledger) axis(rs Ranges) spans {
	var out spans
	for _, r := range rs {
		from := (r.Pass - l.first) * l.cfg.Samples
		next := span{from + r.Begin, from + r.End}
		if n := len(out); n > 0 && out[n-1].hi == next.lo {
			out[n-1].hi = next.hi
			continue
		}
		out = append(out, next)
	}
	return out
}

// ranges is the reverse of axis.
func ranges(s spans, first, samples uint64) Ranges {
	var out Ranges
	for _, r := range s {
		for r.lo < r.hi {
			pass := r.lo / samples
			end := min(r.hi, (pass+1)*samples)
			out = append(out, Range{first + pass, r.lo - pass*samples, end - pass*samples})
			r.lo = end
		}
	}
	return out
}

// open is the part of the axis that may be consumed.
func (l *Ledger) open() spans {
	passes := uint64(2)
	if l.cfg.Passes > 0 {
		passes = min(passes, l.cfg.Passes-min(l.cfg.Passes, l.first))
	}
	if passes == 0 {
		return nil
	}
	return spans{{0, passes * l.cfg.Samples}}
}

func (l *Ledger) free() spans {
	var leased spans
	for _, lease := range l.leases {
		leased = append(leased, lease...)
	}
	slices.SortFunc(leased, func(a, b span) int { return cmp.Compare(a.lo, b.lo) })
	return l.open().remove(l.consumed).remove(leased)
}

// Done says whether all passes are consumed.
func (l *Ledger) Done() bool { return l.open() == nil }

// Status counts the samples of the pass at work, the last one when all are done.
type Status struct{ Pass, Samples, Consumed, Leased uint64 }

// Status tells where the ledger stands.
func (l *Ledger) Status() Status {
	st := Status{Pass: l.first, Samples: l.cfg.Samples}
	if l.Done() {
		st.Pass, st.Consumed = l.cfg.Passes-1, st.Samples
		return st
	}
	ahead := spans{{l.cfg.Samples, 2 * l.cfg.Samples}}
	st.Consumed = l.consumed.remove(ahead).size()
	for _, lease := range l.leases {
		st.Leased += lease.remove(ahead).size()
	}
	return st
}

// Claim is a member that is about to work.
type Claim struct {
	Member string
	// Steps it will do at most; 0 unknown.
	Steps uint64
	// Seconds until its stop time.
	Seconds float64
}

// Lease leases each claimant what it should use, and a quarter more. When there
// is less than all want they share it in proportion, so some may get nothing. A
// member that holds a lease keeps that.
func (l *Ledger) Lease(claims []Claim) {
	claims = slices.DeleteFunc(slices.Clone(claims), func(c Claim) bool { _, holds := l.leases[c.Member]; return holds })
	slices.SortFunc(claims, func(a, b Claim) int {
		return cmp.Or(cmp.Compare(l.idle[a.Member], l.idle[b.Member]), cmp.Compare(a.Member, b.Member))
	})
	left := 0.0
	for _, c := range claims {
		left += float64(l.want(c))
	}
	free := l.free()
	for _, c := range claims {
		want := float64(l.want(c))
		share := min(want, math.Ceil(float64(free.size())*(want/left)))
		left -= want
		var lease spans
		// A pass's end within a span makes two ranges of it.
		lease, free = free.take(uint64(share), MaxRanges-1)
		if lease != nil {
			l.leases[c.Member] = lease
		}
	}
}

// Leased is what a member holds, empty without a lease.
func (l *Ledger) Leased(member string) Ranges {
	return ranges(l.leases[member], l.first, l.cfg.Samples)
}

// Return frees a member's lease before the round's end: it will not use it, and
// gets no other in this round.
func (l *Ledger) Return(member string) {
	if _, holds := l.leases[member]; holds {
		l.leases[member] = nil
	}
}

// Check says why a member cannot have used these samples; nil if it can.
func (l *Ledger) Check(member string, used Ranges) error {
	lease := l.leases[member]
	switch {
	case len(lease) == 0:
		return fmt.Errorf("%s holds no lease in this round", member)
	case len(used) == 0:
		return fmt.Errorf("the update does not say which samples of its lease (%s) it used: the trainer's result needs them as consumed; in Python draw them from round.data", short(l.Leased(member)))
	case len(used) > MaxUsed:
		return fmt.Errorf("the update used %d ranges, at most %d can be: use the samples of a lease in their order, and shuffle by how the corpus is numbered", len(used), MaxUsed)
	}
	if err := used.Check(); err != nil {
		return fmt.Errorf("consumed samples: %w", err)
	}
	for _, r := range used {
		if r.Pass < l.first || r.Pass-l.first > 1 || r.End > l.cfg.Samples || !lease.holds(l.axis(Ranges{r})) {
			return fmt.Errorf("%s is not leased to %s in this round (it holds %s): a trainer uses the samples of its task's data only, and an update of an older lease cannot count", r, member, short(l.Leased(member)))
		}
	}
	rest := lease.remove(l.axis(used))
	if added := len(rest) - len(lease); added > 1 && len(l.consumed)+added > maxPieces {
		return fmt.Errorf("the update leaves %d ranges of its lease between what it used, and the ledger has %d already: use the samples of a lease in their order, and shuffle by how the corpus is numbered", len(rest), len(l.consumed))
	}
	return nil
}

// short is ranges in a message.
func short(rs Ranges) string {
	if len(rs) <= 4 {
		return rs.String()
	}
	return fmt.Sprintf("%s and %d more ranges", rs[:4], len(rs)-4)
}

// Use is what one member's update used, in so many steps and seconds.
type Use struct {
	Member  string
	Ranges  Ranges
	Steps   uint64
	Seconds float64
}

// After is the position once these updates, all checked, are consumed too. The
// ledger stays as it is until Settle.
func (l *Ledger) After(uses []Use) Position {
	consumed := l.consumed
	for _, u := range uses {
		consumed = consumed.add(l.axis(u.Ranges))
	}
	first, consumed := normal(l.first, consumed, l.cfg.Samples)
	return Position{Samples: l.cfg.Samples, Pass: first, Consumed: ranges(consumed, first, l.cfg.Samples)}
}

// Settle makes a committed position the ledger's, also an older one after a
// rollback. The round is over: all leases are void.
func (l *Ledger) Settle(at Position, uses []Use) error {
	if err := l.place(at); err != nil {
		return err
	}
	l.Void()
	for _, u := range uses {
		delete(l.idle, u.Member)
		l.measure(u)
	}
	return nil
}

// Void ends a round without effect: all leases are free again.
func (l *Ledger) Void() {
	idle := map[string]int{}
	for member := range l.leases {
		idle[member] = l.idle[member] + 1
	}
	l.idle = idle
	clear(l.leases)
}

package corpus

import "math"

// pace is how many samples a member uses; zero where not measured.
type pace struct{ perStep, perSecond float64 }

const (
	// headroom over what a member should use, so that none runs dry when it is
	// faster than last time. What is left over is one range a member.
	headroom = 1.25
	// memory of a faster round before.
	memory = 0.95
	// maxPaces is how many members' paces are remembered.
	maxPaces = 4096
)

func (l *Ledger) measure(u Use) {
	n := float64(u.Ranges.Size())
	var p pace
	if u.Steps > 0 {
		p.perStep = n / float64(u.Steps)
	}
	if u.Seconds > 0 {
		p.perSecond = n / u.Seconds
	}
	if len(l.pace) >= maxPaces && l.pace[u.Member] == (pace{}) {
		clear(l.pace) // members under ever new names; those at work are measured again
	}
	old := l.pace[u.Member]
	l.pace[u.Member] = pace{max(p.perStep, memory*old.perStep), max(p.perSecond, memory*old.perSecond)}
}

// want is how much a claimant should be leased.
func (l *Ledger) want(c Claim) uint64 {
	p := l.pace[c.Member]
	n := p.perSecond * c.Seconds
	if c.Steps > 0 && p.perStep > 0 {
		n = p.perStep * float64(c.Steps)
	}
	n = math.Ceil(n * headroom)
	if !(n < float64(l.cfg.Samples)) {
		return l.cfg.Samples
	}
	return max(uint64(n), l.cfg.Lease)
}

package transformer

import (
	"slices"
	"time"
)

// reserve is how many typical step times must be left before the stop time for
// a step to begin.
const reserve = 1.2

// pace estimates from recent steps whether another one ends before the stop
// time. One step that stalled, because its machine did, says nothing about the
// next.
type pace struct {
	recent [16]time.Duration // a ring of the steps so far
	n      int
	// doubted values were halved: the next measured one replaces them all.
	doubted bool
}

// took notes a step's time.
func (p *pace) took(d time.Duration) {
	if p.doubted {
		*p = pace{}
	}
	p.recent[p.n%len(p.recent)] = d
	p.n++
}

func (p *pace) known() []time.Duration { return p.recent[:min(p.n, len(p.recent))] }

// typical is the upper quartile of recent steps: a machine shared with others
// stutters, and a stop time is better met than missed. 0 before the first step.
func (p *pace) typical() time.Duration {
	known := p.known()
	if len(known) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(known))
	return sorted[(len(sorted)-1)*3/4]
}

// least is the shortest of recent steps.
func (p *pace) least() time.Duration {
	if p.n == 0 {
		return 0
	}
	return slices.Min(p.known())
}

// fits says whether a step may begin with so much time left. A task's first one
// is worth a risk: without it the whole round is lost.
func (p *pace) fits(left time.Duration, first bool) bool {
	if first {
		return left > 0 && left >= p.least()
	}
	return left > 0 && left >= time.Duration(reserve*float64(p.typical()))
}

// doubt halves what is believed: no step fitted into a task, and without a step
// nothing new is learnt.
func (p *pace) doubt() {
	p.doubted = true
	for i := range p.recent {
		p.recent[i] /= 2
	}
}

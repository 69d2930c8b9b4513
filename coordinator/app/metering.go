package app

import (
	"maps"
	"slices"
	"strings"
	"time"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	"girassol.dev/coordinator/engine"
	"girassol.dev/signals/ledger"
)

const (
	// counterPatience is how long a counter may stand still, or its member be away,
	// before the stated model stands in for the time since it last told.
	counterPatience = 2 * time.Minute
	// longestDowntime of a coordinator over which counters go on.
	longestDowntime = 24 * time.Hour
	// mostMemberWatts is more than any one machine draws; counters that say more are
	// not believed. counterLag is how late a counter may tell.
	mostMemberWatts = 100_000
	counterLag      = 10 * time.Second
	// mostStretches bounds what is remembered of a counter that does not tell.
	mostStretches = 512
	// modelAccuracy is what a stated model is allowed to be wrong by, as a share of
	// its energy: what agents allow theirs.
	modelAccuracy = 0.3
)

// counter follows the energy counter of one member: what it last told, and the
// time since, whose energy it will tell. Only differences are booked, so that what
// a machine drew before it was heard of, or for somebody else, is not the
// federation's.
type counter struct {
	Site        string  `json:"site"`
	Boot        uint64  `json:"boot"`
	Joules      float64 `json:"joules"`
	Metered     float64 `json:"meteredJoules"`
	Uncertainty float64 `json:"uncertaintyJoules"`
	// Open is the time since, without gaps.
	Open []stretch `json:"open,omitempty"`
	// End of the open time.
	End time.Time `json:"end"`
	// Counts of the last stretch.
	Counts bool `json:"counts"`
	// Void: the model has stood in since it last told, so that the next that it
	// tells is where it begins anew.
	Void bool `json:"void,omitempty"`
	// heard is when it last told something new, or the start of this process.
	heard time.Time
}

// stretch is a part of a counter's open time.
type stretch struct {
	From time.Time `json:"from"`
	To   time.Time `json:"to"`
	// Round that it was for; nil if for none.
	Round *uint64 `json:"round,omitempty"`
	// Watts of the stated model, which stands in if the counter never tells.
	Watts float64 `json:"watts"`
	// Counts: the machine was there for the federation.
	Counts bool `json:"counts"`
}

// metering turns counters into spans of the ledger. It has no clock.
type metering struct {
	counters map[string]*counter // by member
	// changed says that the books should be written even if nothing was booked.
	changed bool
	// refused hears of a counter that is not believed; may be nil.
	refused func(member string, joules, seconds float64)
}

// booked is energy of a site with what tells it.
type booked struct {
	ledger.Span
	source string
}

// restore takes over the counters of an earlier process, of the sites that still
// are.
func (m *metering) restore(old map[string]counter, power map[string]ledger.Power, now time.Time) {
	m.counters = map[string]*counter{}
	for member, c := range old {
		away := now.Sub(c.End)
		if _, declared := power[c.Site]; !declared || away < 0 || away > longestDowntime {
			continue
		}
		c.heard = now
		m.counters[member] = &c
	}
}

// snapshot is what restore takes.
func (m *metering) snapshot() map[string]counter {
	out := make(map[string]counter, len(m.counters))
	for member, c := range m.counters {
		kept := *c
		kept.Open = append([]stretch(nil), c.Open...)
		out[member] = kept
	}
	return out
}

// observe takes a look at one site over a span of time. It gives what can be
// booked now, and how many members, and of them in training, have their energy told
// by nothing but the stated model.
func (m *metering) observe(act engine.Activity, round *uint64, from, to time.Time, p ledger.Power) (out []booked, members, training int) {
	members, training = act.Members, act.Training
	present := map[string]bool{}
	for _, e := range act.Energies {
		s := stretch{From: from, To: to, Round: round, Counts: act.Admitted || e.Training}
		switch {
		case e.Training:
			s.Watts = p.TrainingWatts
		case act.Admitted:
			s.Watts = p.IdleWatts
		}
		spans, covered := m.see(e, act.Site, s, p.PUE)
		out = append(out, spans...)
		present[e.Member] = true
		if covered {
			members--
			if e.Training {
				training--
			}
		}
	}
	for member, c := range m.counters {
		if c.Site != act.Site || present[member] {
			continue
		}
		// Away: the model says nothing of it, its counter goes on if it comes back.
		m.open(c, stretch{From: from, To: to, Counts: act.Admitted})
		if to.Sub(c.heard) > counterPatience {
			out = append(out, c.settle(p.PUE)...)
			m.forget(member)
		}
	}
	return out, members, training
}

// see takes what a member tells. covered says that its counter tells the energy of
// the stretch, now or later.
func (m *metering) see(e engine.MemberEnergy, site string, s stretch, pue float64) (out []booked, covered bool) {
	c, told := m.counters[e.Member], e.Counter
	switch {
	case c == nil:
	case e.Silent && c.Void:
		return nil, false
	case e.Silent:
		m.open(c, s)
		return c.wait(s.To, pue), true
	case told == nil: // no counter any more; were it back, it would not be known since when
		out = c.settle(pue)
	case c.Boot != told.GetBoot() || c.Site != site:
		// Another process: what the old one did not tell is lost to the counter.
		out = c.settle(pue)
	case !c.Void:
		m.open(c, s)
		return c.tell(e, s.To, pue, m.refused), true
	case told.GetMeteredJoules() <= c.Metered:
		return nil, false
	}
	m.forget(e.Member)
	if told.GetMeteredJoules() > 0 { // an agent's own model is no counter
		c = &counter{Site: site, Boot: told.GetBoot(), End: s.To, Counts: s.Counts}
		c.take(told, s.To)
		m.counters[e.Member], m.changed = c, true
	}
	return out, false
}

// take remembers what was told.
func (c *counter) take(e *coordinatorv1.Energy, now time.Time) {
	c.Joules, c.Metered, c.Uncertainty = e.GetJoules(), e.GetMeteredJoules(), e.GetUncertaintyJoules()
	c.Open, c.heard = nil, now
}

func (m *metering) forget(member string) {
	if _, known := m.counters[member]; known {
		delete(m.counters, member)
		m.changed = true
	}
}

// open adds time that the counter has not told of, and the time since its last,
// of which this process knows nothing.
func (m *metering) open(c *counter, s stretch) {
	if gap := s.From.Sub(c.End); gap > 0 {
		c.add(stretch{From: c.End, To: s.From, Counts: c.Counts})
	}
	c.add(s)
	m.changed = m.changed || c.Counts != s.Counts
	c.End, c.Counts = s.To, s.Counts
}

func (c *counter) add(s stretch) {
	if n := len(c.Open); n > 0 {
		last := &c.Open[n-1]
		same := last.Watts == s.Watts && last.Counts == s.Counts && (last.Round == nil) == (s.Round == nil) && (s.Round == nil || *last.Round == *s.Round)
		if same && last.To.Equal(s.From) {
			last.To = s.To
			return
		}
	}
	c.Open = append(c.Open, s)
}

// tell books the difference to what was told before, spread evenly over the open
// time; of that only what counts. The model stands in for a counter that has stood
// still or been lower for too long, of which too long nothing was metered, or that
// tells more than a machine draws.
func (c *counter) tell(e engine.MemberEnergy, now time.Time, pue float64, refused func(string, float64, float64)) (out []booked) {
	told := e.Counter
	joules, metered := told.GetJoules()-c.Joules, told.GetMeteredJoules()-c.Metered
	if !(joules > 0 && metered > 0) { // nothing new, an older heartbeat, or what is metered comes later
		return c.wait(now, pue)
	}
	metered = min(metered, joules)
	seconds := c.seconds()
	if joules > mostMemberWatts*(seconds+counterLag.Seconds()) {
		if refused != nil {
			refused(e.Member, joules, seconds)
		}
		c.Void = true
		return c.settle(pue)
	}
	// The error is that of the whole; each part has its share by energy. More than a
	// machine draws says no more.
	spread := min(max(told.GetUncertaintyJoules()-c.Uncertainty, 0)/seconds, mostMemberWatts)
	for _, s := range c.Open {
		if !s.Counts {
			continue
		}
		span := ledger.Span{Site: c.Site, Round: s.Round, From: s.From, To: s.To, PUE: pue}
		span.Watts, span.Uncertainty, span.Measured = metered/seconds, spread*metered/joules, true
		out = append(out, booked{span, told.GetSource()})
		if rest := joules - metered; rest > 0 {
			span.Watts, span.Uncertainty, span.Measured = rest/seconds, spread*rest/joules, false
			out = append(out, booked{span, told.GetSource()})
		}
	}
	c.take(told, now)
	return out
}

// wait for the counter; not for too long.
func (c *counter) wait(now time.Time, pue float64) (out []booked) {
	if now.Sub(c.heard) <= counterPatience && len(c.Open) <= mostStretches {
		return nil
	}
	c.Void = true
	return c.settle(pue)
}

func (c *counter) seconds() float64 {
	var sum float64
	for _, s := range c.Open {
		sum += s.To.Sub(s.From).Seconds()
	}
	return sum
}

// settle books the open time by the stated model.
func (c *counter) settle(pue float64) (out []booked) {
	for _, s := range c.Open {
		if s.Watts > 0 {
			out = append(out, modelled(c.Site, s.Round, s.From, s.To, s.Watts, pue))
		}
	}
	c.Open = nil
	return out
}

// modelled is energy by the stated model.
func modelled(site string, round *uint64, from, to time.Time, watts, pue float64) booked {
	return booked{ledger.Span{Site: site, Round: round, From: from, To: to, Watts: watts, PUE: pue, Uncertainty: modelAccuracy * watts}, sourceModel}
}

// sourceModel names the stated power model.
const sourceModel = "model"

// sources are the names of what tells a site's energy, as members give them.
type sources map[string]bool

const mostSources = 8

func (s sources) add(joined string) {
	for name := range strings.SplitSeq(joined, "+") {
		if name != "" && len(s) < mostSources {
			s[name] = true
		}
	}
}

func (s sources) String() string { return strings.Join(slices.Sorted(maps.Keys(s)), "+") }

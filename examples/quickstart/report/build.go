package report

import (
	"math"
	"slices"
	"time"

	"girassol.dev/examples/quickstart/timeline"
	"girassol.dev/signals"
	"girassol.dev/signals/ledger"
	"girassol.dev/signals/replay"
)

// Fill computes everything that follows from the timeline and the traces. The
// caller has set the identity of the run (Federation to Ended, Parameters when
// known, Corpus, each site's name, region, text, power, thresholds and trace,
// HeldOut's two ends, Comparison).
func Fill(s Summary, entries []timeline.Entry) Summary {
	s.Sites = slices.Clone(s.Sites)
	dropUnknown(&s)
	s.RanUntil = timeline.End(entries)
	if s.RanUntil.After(s.End) {
		s.RanUntil = s.End // what followed was the orderly end
	}
	fillRounds(&s, entries)
	fillSites(&s, entries)
	fillWire(&s)
	s.Energy = energyOf(s)
	return s
}

// dropUnknown turns figures that are no numbers into missing ones, so that
// nothing downstream meets them.
func dropUnknown(s *Summary) {
	clean := func(p **float64) {
		if *p != nil && !finite(**p) {
			*p = nil
		}
	}
	clean(&s.HeldOut.Untrained)
	clean(&s.HeldOut.Final)
	for i := range s.Sites {
		site := &s.Sites[i]
		clean(&site.EnterBelow)
		clean(&site.LeaveAbove)
		for _, trace := range []*[]Point{&site.Trace.Marginal, &site.Trace.Average} {
			*trace = slices.Clone(*trace)
			for j := range *trace {
				clean(&(*trace)[j].Value)
			}
		}
	}
	if s.Comparison != nil {
		c := *s.Comparison
		c.Alone = slices.Clone(c.Alone)
		for i := range c.Alone {
			clean(&c.Alone[i].Loss)
		}
		if c.Central != nil {
			central := *c.Central
			clean(&central.Loss)
			c.Central = &central
		}
		s.Comparison = &c
	}
}

func fillRounds(s *Summary, entries []timeline.Entry) {
	s.Rounds, s.VoidRounds, s.HeldOut.Points, s.RealSeconds = nil, 0, nil, 0
	var first time.Time
	for _, e := range entries {
		switch {
		case e.Start != nil:
			first = e.Real
		case e.Stop != nil && !first.IsZero():
			s.RealSeconds += max(0, e.Real.Sub(first).Seconds())
			first = time.Time{}
		case e.Round != nil && e.Round.Void:
			s.VoidRounds++
		case e.Round != nil:
			// A version again replaces the earlier one: its commit was lost.
			s.Rounds = slices.DeleteFunc(s.Rounds, func(r Round) bool { return r.Version >= e.Round.Version })
			s.Rounds = append(s.Rounds, Round{Round: *e.Round, Time: e.Time})
		case e.Evaluation != nil && finite(e.Evaluation.Loss):
			s.HeldOut.Points = slices.DeleteFunc(s.HeldOut.Points, func(p LossPoint) bool { return p.Version == e.Evaluation.Version })
			s.HeldOut.Points = append(s.HeldOut.Points, LossPoint{e.Evaluation.TokensTotal, e.Evaluation.Version, e.Evaluation.Loss})
		}
	}
	slices.SortStableFunc(s.HeldOut.Points, func(a, b LossPoint) int { return int(int64(a.Version) - int64(b.Version)) })
	for i := range s.Rounds {
		for _, p := range s.HeldOut.Points {
			if p.Version == s.Rounds[i].Version {
				l := p.Loss
				s.Rounds[i].HeldOutLoss = &l
			}
		}
	}
	if n := len(s.Rounds); n > 0 {
		s.Tokens = s.Rounds[n-1].TokensTotal
	}
}

func fillSites(s *Summary, entries []timeline.Entry) {
	p := timeline.LastProgress(entries)
	if p != nil {
		s.Wire.BytesUp, s.Wire.BytesDown = p.BytesUp, p.BytesDown
		if s.Parameters == 0 {
			s.Parameters = p.Parameters
		}
	}
	for i := range s.Sites {
		site := &s.Sites[i]
		site.Windows = timeline.Spans(entries, site.Name, timeline.WindowOpen)
		site.Training = timeline.Spans(entries, site.Name, timeline.Training)
		site.WindowHours = timeline.Total(site.Windows)
		site.TrainingHours = timeline.Total(site.Training)
		if p == nil {
			continue
		}
		for _, t := range p.Sites {
			if t.Name != site.Name {
				continue
			}
			site.Rounds, site.Tokens = t.Rounds, t.Tokens
			if t.TrainingSeconds > 0 && s.Speed > 0 {
				// What the coordinator accepted, rather than what was seen.
				site.TrainingHours = t.TrainingSeconds * s.Speed / 3600
			}
			site.EnergyKWh, site.MarginalKg, site.AverageKg = t.EnergyKWh, t.MarginalKg, t.AverageKg
			site.EnergySource, site.Coverage = t.EnergySource, t.Coverage
			site.BytesUp, site.BytesDown = t.BytesUp, t.BytesDown
		}
	}
}

func fillWire(s *Summary) {
	w := &s.Wire
	w.DenseBytes = 4 * s.Parameters
	w.MedianUp, w.MedianDown, w.Fewer, w.FewerWithJoins = nil, nil, nil, nil
	var up, down []float64
	memberRounds := 0
	for _, r := range s.Rounds {
		n := len(r.Members)
		memberRounds += n
		if n == 0 || (r.BytesUp == 0 && r.BytesDown == 0) {
			continue
		}
		up = append(up, float64(r.BytesUp)/float64(n))
		down = append(down, float64(r.BytesDown)/float64(n))
	}
	if len(up) > 0 {
		u, d := median(up), median(down)
		w.MedianUp, w.MedianDown = &u, &d
		w.Fewer = ratio(2*float64(w.DenseBytes), u+d)
	}
	w.FewerWithJoins = ratio(2*float64(w.DenseBytes)*float64(memberRounds), float64(w.BytesUp+w.BytesDown))
}

func energyOf(s Summary) Energy {
	e := Energy{}
	marginal, average := true, true
	var mkg, akg float64
	for _, site := range s.Sites {
		e.KWh += site.EnergyKWh
		e.UsefulHours += site.TrainingHours
		if site.MarginalKg != nil {
			mkg += *site.MarginalKg
		} else if site.EnergyKWh > 0 {
			marginal = false
		}
		if site.AverageKg != nil {
			akg += *site.AverageKg
		} else if site.EnergyKWh > 0 {
			average = false
		}
	}
	if marginal && e.KWh > 0 {
		e.MarginalKg = &mkg
	}
	if average && e.KWh > 0 {
		e.AverageKg = &akg
	}
	if e.UsefulHours <= 0 {
		return e
	}
	seen := map[string]bool{}
	baseline := func(name, region string, power Power, trace Trace) {
		if seen[region] {
			return
		}
		seen[region] = true
		b := Baseline{Site: name, Region: region, KWh: power.TrainingWatts * power.PUE / 1000 * e.UsefulHours}
		b.MarginalKg = alwaysOn(region, trace.Marginal, s.Start, e.UsefulHours, power)
		b.AverageKg = alwaysOn(region, trace.Average, s.Start, e.UsefulHours, power)
		b.MarginalRatio, b.AverageRatio = ratioOf(e.MarginalKg, b.MarginalKg), ratioOf(e.AverageKg, b.AverageKg)
		e.Baselines = append(e.Baselines, b)
	}
	for _, site := range s.Sites {
		baseline(site.Name, site.Region, site.Power, site.Trace)
	}
	for _, r := range s.Elsewhere {
		if len(s.Sites) > 0 {
			baseline(r.Name, r.Name, s.Sites[0].Power, r.Trace)
		}
	}
	return e
}

// alwaysOn is the kilograms of one site that trains for so many hours without
// pause, by the same ledger that accounted the run. Nil when the trace has a gap
// on the way or covers nothing.
func alwaysOn(region string, trace []Point, start time.Time, hours float64, power Power) *float64 {
	times, values := make([]time.Time, len(trace)), make([]*float64, len(trace))
	for i, p := range trace {
		times[i], values[i] = p.Time, p.Value
	}
	t, err := replay.NewTrace(region, signals.Marginal, signals.GramsPerKWh, times, []string{region}, [][]*float64{values})
	if err != nil {
		return nil
	}
	series, err := t.Column(region)
	if err != nil {
		return nil
	}
	b, err := ledger.AlwaysOn(region, series, start, time.Duration(hours*float64(time.Hour)), power.TrainingWatts, power.PUE)
	if err != nil || b.Grams == nil || b.CoveredJoules < b.Joules*(1-1e-9) {
		return nil
	}
	kg := *b.Grams / 1000
	return &kg
}

// Shares says where the federation's loss lies between the best site alone (0)
// and the central run (1); nil when it cannot be said.
func (c *Comparison) Shares(final *float64) *float64 {
	if c == nil || c.Central == nil || c.Central.Loss == nil || final == nil {
		return nil
	}
	best := math.Inf(1)
	for _, a := range c.Alone {
		if a.Loss != nil && finite(*a.Loss) {
			best = min(best, *a.Loss)
		}
	}
	if !finite(best) {
		return nil
	}
	share := (best - *final) / (best - *c.Central.Loss)
	if !finite(share) || *c.Central.Loss >= best {
		return nil
	}
	return &share
}

func ratio(a, b float64) *float64 {
	r := a / b
	if b == 0 || a == 0 || !finite(r) {
		return nil
	}
	return &r
}

func ratioOf(a, b *float64) *float64 {
	if a == nil || b == nil || *b == 0 {
		return nil
	}
	r := *a / *b
	return &r
}

func median(x []float64) float64 {
	x = slices.Sorted(slices.Values(x))
	n := len(x)
	if n%2 == 1 {
		return x[n/2]
	}
	return (x[n/2-1] + x[n/2]) / 2
}

func finite(x float64) bool { return !math.IsNaN(x) && !math.IsInf(x, 0) }

package report

import (
	"math"
	"slices"
	"time"

	"girassol.dev/examples/quickstart/timeline"
)

// Fill computes everything that follows from the timeline and the traces. The
// caller has set the identity of the run (Federation to Ended, Parameters when
// known, Corpus, each site's name, region, text, power, thresholds and trace,
// HeldOut's two ends, Comparison).
func Fill(s Summary, entries []timeline.Entry) Summary {
	s.Sites = slices.Clone(s.Sites)
	dropUnknown(&s)
	s.RanUntil = timeline.End(entries)
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
	s.Rounds, s.VoidRounds, s.HeldOut.Points = nil, 0, nil
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
	seen := map[string]bool{}
	for _, site := range s.Sites {
		if seen[site.Region] || e.UsefulHours <= 0 {
			continue
		}
		seen[site.Region] = true
		watts := site.Power.TrainingWatts * site.Power.PUE
		b := Baseline{Site: site.Name, Region: site.Region, KWh: watts / 1000 * e.UsefulHours}
		b.MarginalKg = emissions(site.Trace.Marginal, s.Start, s.End, e.UsefulHours, watts)
		b.AverageKg = emissions(site.Trace.Average, s.Start, s.End, e.UsefulHours, watts)
		b.MarginalRatio, b.AverageRatio = ratioOf(e.MarginalKg, b.MarginalKg), ratioOf(e.AverageKg, b.AverageKg)
		e.Baselines = append(e.Baselines, b)
	}
	return e
}

// emissions of a constant draw from start on for so many hours, in kg: each
// point's value holds until the next, the trace repeats when hours outlast it.
// Nil when the trace has a gap or covers nothing.
func emissions(trace []Point, start, end time.Time, hours, watts float64) *float64 {
	span := end.Sub(start).Hours()
	if len(trace) == 0 || span <= 0 {
		return nil
	}
	var kg float64
	for left := hours; left > 1e-9; left -= span {
		part, ok := integrate(trace, start, start.Add(time.Duration(min(left, span)*float64(time.Hour))))
		if !ok {
			return nil
		}
		kg += part * watts / 1e6
	}
	return &kg
}

// integrate returns the integral of the trace in (g/kWh)*h.
func integrate(trace []Point, from, to time.Time) (float64, bool) {
	var sum float64
	covered := time.Duration(0)
	for i, p := range trace {
		lo, hi := p.Time, to
		if i+1 < len(trace) {
			hi = trace[i+1].Time
		}
		if lo.Before(from) {
			lo = from
		}
		if hi.After(to) {
			hi = to
		}
		if !hi.After(lo) {
			continue
		}
		if p.Value == nil || !finite(*p.Value) {
			return 0, false
		}
		sum += *p.Value * hi.Sub(lo).Hours()
		covered += hi.Sub(lo)
	}
	return sum, covered == to.Sub(from)
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

package director

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"girassol.dev/api/federation/v1alpha1"
	"girassol.dev/signals"
	"girassol.dev/signals/sanity"
	"girassol.dev/signals/window"
)

// judgement is what was last thought of a site's reading and forecast.
type judgement struct {
	verdict, forecast *sanity.Verdict
	second            *signals.Reading // that the reading was compared with
	block             *Curtailed
}

// publish makes a reading known to other sites, whose zeros it may explain or
// show to be an outage.
func (s *site) publish(r *signals.Reading) {
	s.mu.Lock()
	same := s.newest != nil && s.newest.PointTime.Equal(r.PointTime)
	fresh := !same || !reflect.DeepEqual(s.newest.Value, r.Value)
	if !same {
		s.before = s.newest
	}
	s.newest = r
	s.shown.Reading = r
	s.mu.Unlock()
	if !fresh {
		return
	}
	for _, o := range s.director.order {
		if o != s && o.Sanity != nil {
			if n := o.reading(); n != nil && n.Value != nil && *n.Value == 0 && peer(*n, *r) {
				o.look()
			}
		}
	}
}

func (s *site) reading() *signals.Reading {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.newest
}

// peer says that two readings are of two regions of one feed.
func peer(a, b signals.Reading) bool {
	return a.Source == b.Source && a.Kind == b.Kind && a.Region != b.Region
}

// overlap says that two readings speak of one moment.
func overlap(a, b signals.Reading) bool {
	return a.ValidUntil().After(b.PointTime) && b.ValidUntil().After(a.PointTime)
}

// peers are the readings of the other regions of r's feed: those of the same
// moment, and the newest of regions that said nothing of it yet, or of which
// that is no longer known.
func (s *site) peers(r signals.Reading) (present, silent []signals.Reading) {
	var seen []string
	for _, o := range s.director.order {
		o.mu.Lock()
		newest, before := o.newest, o.before
		o.mu.Unlock()
		if o == s || newest == nil || !peer(*newest, r) || slices.Contains(seen, newest.Region) {
			continue
		}
		switch {
		case overlap(*newest, r):
			present = append(present, *newest)
		case before != nil && overlap(*before, r) && peer(*before, r):
			present = append(present, *before)
		case newest.ValidUntil().Add(newest.Period).After(r.PointTime): // at most one point behind
			silent = append(silent, *newest)
		default:
			continue
		}
		seen = append(seen, newest.Region)
	}
	return present, silent
}

// consider judges the newest reading and lets the window decide by it. r is nil
// if there is none that was not seen before.
func (s *site) consider(r *signals.Reading, now time.Time) (window.Decision, window.State) {
	if r == nil && s.Sanity != nil {
		r = s.reading() // once more, with other evidence
	}
	in := window.Inputs{Reading: r, Override: s.overridden(now), Forecast: s.forecast.get()}
	s.judged.verdict, s.judged.forecast, s.judged.second = nil, nil, nil
	if s.Sanity != nil {
		in.Verdict, in.ForecastVerdict = s.judge(r, in.Forecast, now)
	}
	blocks, block, begins := s.blocks(now)
	in.Blocks, s.judged.block = blocks, block
	state, d := window.DecideWith(s.Policy, s.state, in, now)
	if v := in.Verdict; v != nil && (v.Class == sanity.Suspect || v.Class == sanity.Held) {
		if !state.Open && doubtable[d.Reason] {
			d.Reason = v.Reason
		}
		if !strings.Contains(d.Message, v.Message) {
			d.Message += "; newest reading held: " + v.Message
		}
	}
	if !begins.IsZero() && (d.NextChange.IsZero() || begins.Before(d.NextChange)) {
		d.NextChange = begins
	}
	return d, state
}

// doubtable are the reasons of a closed window that a doubt of the newest reading
// is more telling than.
var doubtable = map[v1alpha1.Reason]bool{
	v1alpha1.ReasonWaitingForEnergy: true, v1alpha1.ReasonConfirming: true, v1alpha1.ReasonSignalMissing: true,
	v1alpha1.ReasonSignalStale: true, v1alpha1.ReasonSignalSuspect: true, v1alpha1.ReasonSignalSuspectZero: true,
	v1alpha1.ReasonSignalJump: true, v1alpha1.ReasonSignalOutage: true, v1alpha1.ReasonSignalFlatZero: true,
	v1alpha1.ReasonSignalDisagrees: true,
}

// judge gives the verdicts on the reading and on the forecast.
func (s *site) judge(r *signals.Reading, f *signals.Forecast, now time.Time) (v, fv *sanity.Verdict) {
	in := sanity.Input{Reading: r, Price: s.price.get(), Share: s.share.get(), Forecast: f}
	var silent []signals.Reading
	if r != nil {
		if second := s.second.get(); second != nil && overlap(*second, *r) {
			s.compared, s.comparedPoint = second, r.PointTime
		}
		if s.compared != nil && s.comparedPoint.Equal(r.PointTime) { // or what it was compared with before
			in.Second, s.judged.second = s.compared, s.compared
		}
		in.Peers, silent = s.peers(*r)
	}
	before := s.sanity
	state, verdict := sanity.Check(*s.Sanity, before, in, now)
	if verdict.Class == sanity.Good && *verdict.Reading.Value == 0 && len(silent) > 0 {
		// What the others say of this moment may show an outage.
		worst := in
		worst.Peers = slices.Clone(in.Peers)
		names := make([]string, len(silent))
		for i, b := range silent {
			zero := 0.0
			b.Value, b.PointTime, names[i] = &zero, r.PointTime, b.Region
			worst.Peers = append(worst.Peers, b)
		}
		if _, w := sanity.Check(*s.Sanity, before, worst, now); w.Class != sanity.Good {
			verdict.Class, verdict.Reason = sanity.Held, v1alpha1.ReasonSignalSuspectZero
			verdict.Message = fmt.Sprintf("%s %s: waits for what %s says of the same moment", "0", verdict.Reading.Unit, strings.Join(names, ", "))
		}
	}
	s.sanity = state
	s.judged.verdict = &verdict
	if s.forecast != nil {
		forecast := sanity.CheckForecast(*s.Sanity, state, f, in.Price, now)
		s.judged.forecast = &forecast
		if f != nil {
			fv = &forecast
		}
	}
	if r == nil || verdict.Class == sanity.Superseded {
		return &verdict, fv
	}
	if last := s.counted; last != verdict.Class || !s.countedPoint.Equal(r.PointTime) {
		s.counted, s.countedPoint = verdict.Class, r.PointTime
		s.director.metrics.verdicts.WithLabelValues(s.Name, string(verdict.Class)).Inc()
	}
	return &verdict, fv
}

// believed is the present intensity in gCO2/kWh, nil if it is not known: a held
// reading does not count before it is confirmed.
func believed(state window.State, before sanity.State, now time.Time) *float64 {
	l := state.Last
	if l == nil || l.Kind != signals.Marginal && l.Kind != signals.Average || l.Unit != signals.GramsPerKWh ||
		!now.Before(signals.StaleAt(l.PointTime, l.Period)) {
		return nil
	}
	v := l.Value
	if l.Suspect {
		p := before.Previous
		if p == nil || p.Class != sanity.Good || !now.Before(signals.StaleAt(p.Time, p.Period)) {
			return nil
		}
		v = p.Value
	}
	return &v
}

// keep makes the outcome the site's own: what is remembered, on disk if it
// changed, and what is shown.
func (s *site) keep(state window.State, d window.Decision, now time.Time) {
	if s.Policy.Cooldown > 0 { // the window knows of its own word only
		if s.in && !d.Admit && state.Admitted {
			state.Left = now.Round(0).UTC()
		}
		state.Admitted = d.Admit
	}
	s.in = d.Admit
	changed := !reflect.DeepEqual(state, s.state)
	s.state = state
	var errs []string
	if store := s.director.config.Store; store != nil && changed {
		if err := store.Save(s.Name, state); err != nil {
			errs = append(errs, err.Error())
		}
	}
	if m := s.director.memory; m != nil && s.Sanity != nil && !reflect.DeepEqual(s.sanity, s.savedSanity) {
		if err := m.SaveSanity(s.Name, s.sanity); err != nil {
			errs = append(errs, err.Error())
		} else {
			s.savedSanity, changed = s.sanity, true
		}
	}
	if changed || len(errs) > 0 {
		s.stored(strings.Join(errs, "; "))
	}
	judged := s.judged
	s.show(func(e *Explanation) {
		e.Decision, e.Decided, e.State = d, now, state
		e.judged = judged
	})
}

// stored notes that the store worked, or its error.
func (s *site) stored(text string) {
	s.show(func(e *Explanation) { e.StoreError = text })
	s.outage(&s.storeFailure, text, "window state could not be saved")
}

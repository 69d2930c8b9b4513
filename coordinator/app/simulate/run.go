package simulate

import (
	"fmt"
	"time"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/coordinator/round"
	"girassol.dev/signals/ledger"
	"girassol.dev/signals/planner"
)

// run is a simulation under way.
type run struct {
	c       Config
	q       *queue
	m       *round.Machine
	ledger  *ledger.Ledger
	sites   []*site
	members map[string]*site
	now     time.Time
	picture *picture

	// The round at work.
	atWork  uint64
	granted int
	open    bool

	asked   []*site // whose windows decide at this instant
	planned planner.State
	// dirty: the choice is to be made anew; moved: other sites train; touched:
	// the machine had an input.
	dirty, moved, touched bool
	// held: the machine's inputs of this instant are not settled yet.
	held            bool
	finishing, over bool
	committed       float64
	rounds, voids   uint64
	ended           string
	err             error
}

// Run simulates c.
func Run(c Config) (*Result, error) {
	if c.Work.Unit == "" {
		c.Work.Unit = SiteHours
	}
	if err := c.check(); err != nil {
		return nil, err
	}
	r := newRun(c)
	r.loop()
	if r.err != nil {
		return nil, fmt.Errorf("simulate: federation %s at %s: %w", c.Federation, stamp(r.now), r.err)
	}
	return r.result()
}

func newRun(c Config) *run {
	r := &run{c: c, q: newQueue(len(c.Sites)), members: map[string]*site{}, now: c.Start}
	grids := map[string]ledger.Grid{}
	c.Round.Sites = nil
	for i, s := range c.Sites {
		st := &site{Site: s, index: i, member: s.Name + "/sim", rate: s.rate(c.Work.Unit), since: c.Start,
			reasons: map[v1alpha1.Reason]float64{}}
		grids[s.Name] = s.Grid
		c.Round.Sites = append(c.Round.Sites, s.Name)
		r.sites = append(r.sites, st)
		r.members[st.member] = st
		if s.Signal == nil {
			r.q.set(c.Start, wake, i)
			continue
		}
		st.first(c.Start)
		r.q.set(later(at(st, st.row), c.Start), point, i)
		// Of the issues before the start the last one counts.
		for st.issue+1 < len(s.Forecasts) && !s.Forecasts[st.issue+1].GeneratedAt.After(c.Start) {
			st.issue++
		}
		if st.issue < len(s.Forecasts) {
			r.q.set(later(s.Forecasts[st.issue].GeneratedAt, c.Start), forecast, i)
		}
	}
	r.ledger = ledger.New(grids)
	r.picture = newPicture(c)
	r.q.set(c.Start.Add(r.picture.width), sample, nobody)
	if !c.Plan.zero() {
		r.q.set(c.Start.Add(r.step()), plan, nobody)
	}
	r.m = round.New(c.Round, 0, 0, 0, c.Start)
	r.hold()
	r.act(r.m.SetModel(c.Start))
	return r
}

// step is how often the choice of sites is made anew.
func (r *run) step() time.Duration {
	if r.c.Round.Train > 0 {
		return r.c.Round.Train
	}
	return planner.DefaultStep
}

func at(s *site, row int) time.Time { return s.Signal.Time(row) }

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// loop takes events until the work is done or the time is over. What follows
// from an instant is settled before time goes on.
func (r *run) loop() {
	for !r.over && r.err == nil {
		e, ok := r.q.next()
		if ok && e.at == r.now.UnixNano() {
			r.q.drop()
			if r.now.Before(r.c.End) || e.kind >= trained { // the end brings in what is done
				r.handle(e)
			}
			continue
		}
		if r.settle() {
			continue
		}
		if !ok || e.at > r.c.End.UnixNano() {
			r.now = r.c.End
			break
		}
		r.now = time.Unix(0, e.at).UTC()
	}
	for _, s := range r.sites {
		r.advance(s)
	}
	r.picture.take(r)
}

// settle does what the present facts ask for; true if there may be more to do
// at this instant.
func (r *run) settle() bool {
	if len(r.asked) > 0 {
		for _, s := range r.asked {
			s.asked = false
			r.decide(s)
		}
		r.asked = r.asked[:0]
		return true
	}
	if r.dirty {
		r.dirty = false
		r.choose()
		return true
	}
	if r.held {
		r.held = false
		r.act(r.m.Release(r.now))
		return true
	}
	if r.finishing && !r.open {
		if r.complete() {
			r.over, r.ended = true, "the work is done"
			return true
		}
		// The last round was void or lost an update: there is more to do.
		r.finishing = false
		r.act(r.m.Resume(r.now))
		return true
	}
	if r.moved {
		r.moved = false
		r.estimate()
		return true
	}
	if r.touched {
		r.touched = false
		if next := r.m.Next(); next.IsZero() {
			r.q.cancel(tick, nobody)
		} else {
			r.q.set(next, tick, nobody)
		}
		return true
	}
	return false
}

// complete says that the work asked for is committed.
func (r *run) complete() bool {
	return r.c.Work.Amount > 0 && r.committed >= r.c.Work.Amount*(1-1e-9)
}

// estimate tells when the work will be done if nothing changes.
func (r *run) estimate() {
	if r.c.Work.Amount == 0 || r.finishing {
		return
	}
	left, rate := r.c.Work.Amount-r.committed, 0.0
	for _, s := range r.sites {
		left -= s.pending
		if s.activity == training {
			left -= s.rate * r.now.Sub(s.trainFrom).Seconds()
			rate += s.rate
		}
	}
	if rate == 0 {
		r.q.cancel(enough, nobody)
		return
	}
	if wait := left / rate; wait < 1e9 {
		// A nanosecond more, so that rounding leaves nothing to do.
		r.q.set(r.now.Add(time.Duration(max(0, wait)*float64(time.Second))+1), enough, nobody)
	} else {
		r.q.cancel(enough, nobody)
	}
}

func (r *run) handle(e event) {
	s := r.sites[e.site]
	switch e.kind {
	case sample:
		for _, s := range r.sites {
			r.advance(s)
		}
		r.picture.take(r)
		r.q.set(r.now.Add(r.picture.width), sample, nobody)
	case forecast:
		s.foresee()
		if s.issue < len(s.Forecasts) {
			r.q.set(later(s.Forecasts[s.issue].GeneratedAt, r.now), forecast, s.index)
		}
		r.ask(s)
	case point:
		r.point(s)
	case wake:
		r.ask(s)
	case plan:
		r.dirty = true
		r.q.set(r.now.Add(r.step()), plan, nobody)
	case ready:
		r.turn(s, idle)
		s.epoch++
		r.hold()
		actions, err := r.m.Join(r.now, s.member, s.Name, s.epoch)
		r.fail(err)
		r.act(actions)
		r.heard(s)
	case trained:
		r.stop(s)
	case reported:
		r.report(s)
	case off:
		r.off(s)
	case tick:
		r.act(r.m.Tick(r.now))
	case enough:
		r.finishing = true
		r.act(r.m.Pause(r.now))
		for _, s := range r.sites {
			if s.activity == training {
				r.q.set(r.now, trained, s.index)
			}
		}
	}
}

// hold lets the round machine take the inputs of this instant together.
func (r *run) hold() {
	r.held = true
	r.m.Hold()
}

func (r *run) fail(err error) {
	if err != nil && r.err == nil {
		r.err = err
	}
}

func (r *run) advance(s *site) { r.fail(s.advance(r.ledger, r.now)) }

// turn books the time so far and begins another activity.
func (r *run) turn(s *site, a activity) {
	r.advance(s)
	if s.activity == training || a == training {
		r.moved = true
	}
	s.activity = a
}

// point takes the present point, and later the end of its validity if no other
// follows at once.
func (r *run) point(s *site) {
	from := at(s, s.row)
	if ends := from.Add(s.Signal.Period()); !r.now.Before(ends) { // a gap
		r.cleanliness(s)
	} else {
		reading := s.reading(r.now)
		s.present = &reading
		r.ask(s)
		if s.row+1 == s.Signal.Len() || at(s, s.row+1).After(ends) {
			r.q.set(ends, point, s.index)
			return
		}
	}
	if s.row++; s.row < s.Signal.Len() {
		r.q.set(at(s, s.row), point, s.index)
	} else {
		s.row--
	}
}

// ask has the window decide when all that is known at this instant is.
func (r *run) ask(s *site) {
	if !s.asked {
		s.asked = true
		r.asked = append(r.asked, s)
	}
}

func (r *run) cleanliness(s *site) {
	if clean := s.isClean(r.now); clean != s.clean {
		r.advance(s)
		s.clean = clean
	}
}

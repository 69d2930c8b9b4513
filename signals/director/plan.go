package director

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"strings"
	"sync"
	"time"

	"girassol.dev/api/federation/v1alpha1"
	"girassol.dev/signals"
	"girassol.dev/signals/planner"
	"girassol.dev/signals/window"
)

// The pace of planning, in real time: sites whose points come together are
// planned together, and the first plan waits for the sites' first decisions.
const (
	planWait      = 50 * time.Millisecond
	firstPlanWait = 500 * time.Millisecond
)

// plans chooses among the sites that are open. A site that closes waits for no
// plan; one that opens does.
type plans struct {
	d       *Director
	changed chan struct{}

	// These are run's, and Run's before it starts. moved is when a site last came
	// in or went out.
	failed outage
	state  planner.State
	moved  map[string]time.Time

	mu      sync.Mutex
	entries map[string]entry
	choices map[string]choice
	// made is the last plan, of this round and time.
	made  planner.Plan
	round uint64
	at    time.Time
}

// entry is a site's decision as a plan needs it.
type entry struct {
	// decided: by the site itself, not from before the start.
	decided bool
	d       window.Decision
	grams   *float64
	slots   []planner.Slot
}

func (e entry) forced() bool { return e.d.Admit && e.d.Reason == v1alpha1.ReasonOverride }

// choice is what the plan says of one site.
type choice struct {
	planner.Choice
	// open: the plan knew that the site could be in.
	open bool
	next time.Time
}

func newPlans(d *Director) *plans {
	return &plans{d: d, changed: make(chan struct{}, 1), entries: map[string]entry{}, choices: map[string]choice{}, moved: map[string]time.Time{}}
}

// restore goes on with a plan of before: what was chosen stays so until the
// first plan.
func (p *plans) restore(state planner.State, moved map[string]time.Time) {
	now := p.d.config.Clock.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.state = state
	for _, s := range p.d.order {
		m, ok := state.Sites[s.Name]
		if !ok {
			continue
		}
		s.in = m.Chosen
		if at, ok := moved[s.Name]; ok {
			p.moved[s.Name] = at
		}
		blocks, _, _ := s.blocks(now)
		after, d := window.DecideWith(s.Policy, s.state, window.Inputs{Override: s.overridden(now), Blocks: blocks}, now)
		p.entries[s.Name] = newEntry(s, d, after, now)
		if m.Chosen {
			p.choices[s.Name] = choice{open: true, Choice: planner.Choice{Site: s.Name, Chosen: true,
				Reason: v1alpha1.ReasonChosen, Message: "chosen before the restart"}}
		}
	}
}

func newEntry(s *site, d window.Decision, state window.State, now time.Time) entry {
	return entry{d: d, grams: believed(state, s.sanity, now), slots: slots(state)}
}

// slots is the forecast that the window knows, if it is one of an intensity.
func slots(state window.State) []planner.Slot {
	f := state.Forecast
	if f == nil || f.Kind != signals.Marginal && f.Kind != signals.Average || f.Unit != signals.GramsPerKWh {
		return nil
	}
	out := make([]planner.Slot, len(f.Points))
	for i, pt := range f.Points {
		out[i] = planner.Slot{From: pt.Time, Until: pt.Time.Add(pt.Period), Grams: &f.Points[i].Value}
	}
	return out
}

func (p *plans) wake() {
	if p == nil {
		return
	}
	select {
	case p.changed <- struct{}{}:
	default:
	}
}

// settle takes a site's decision and gives what the plan says of it; not planned
// if the next plan will say. Nil and planned if the plan has no say.
func (p *plans) settle(s *site, d window.Decision, state window.State) (c *choice, planned bool) {
	if p == nil {
		return nil, true
	}
	e := newEntry(s, d, state, p.d.config.Clock.Now())
	e.decided = true
	p.mu.Lock()
	defer p.mu.Unlock()
	p.entries[s.Name] = e
	p.wake()
	if !d.Admit || e.forced() {
		return nil, true
	}
	have, ok := p.choices[s.Name]
	if !ok || !have.open {
		return nil, false
	}
	return &have, true
}

// apply puts the choice into an open site's decision.
func (c choice) apply(d window.Decision, now time.Time) window.Decision {
	if c.Chosen {
		d.Message += "; chosen: " + c.Message
	} else {
		d.Admit, d.Reason = false, c.Reason
		d.Message = c.Message + "; " + d.Message
	}
	if c.next.After(now) && (d.NextChange.IsZero() || c.next.Before(d.NextChange)) {
		d.NextChange = c.next
	}
	return d
}

// unplanned leaves a site as it is.
func (s *site) unplanned(d window.Decision) window.Decision {
	if d.Admit = s.in; !s.in {
		d.Reason, d.Message = v1alpha1.ReasonWindowNotOpen, "waits for the plan; "+d.Message
	}
	return d
}

// run plans whenever a decision changed, and when the plan is over.
func (p *plans) run(ctx context.Context) {
	first := time.NewTimer(firstPlanWait)
	defer first.Stop()
	for waiting := true; waiting && !p.complete(); {
		select {
		case <-p.changed:
		case <-first.C:
			waiting = false
		case <-ctx.Done():
			return
		}
	}
	for {
		p.plan()
		over := p.d.config.Clock.NewTimer(p.made.NextChange.Sub(p.d.config.Clock.Now()))
		select {
		case <-p.changed:
		case <-over.C():
		case <-ctx.Done():
			over.Stop()
			return
		}
		over.Stop()
		settled := time.NewTimer(planWait)
		select {
		case <-settled.C:
		case <-ctx.Done():
			settled.Stop()
			return
		}
		select { // what came meanwhile is in the plan
		case <-p.changed:
		default:
		}
	}
}

// complete says that every site has decided.
func (p *plans) complete() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.d.order {
		if !p.entries[s.Name].decided {
			return false
		}
	}
	return true
}

// watch plans anew in a new round.
func (p *plans) watch() {
	if p == nil {
		return
	}
	now := p.number(p.d.config.Clock.Now())
	p.mu.Lock()
	defer p.mu.Unlock()
	if now != p.round {
		p.wake()
	}
}

func (p *plans) step() time.Duration {
	if s := p.d.config.Planner.Step; s > 0 {
		return s
	}
	return planner.DefaultStep
}

// number of the round.
func (p *plans) number(now time.Time) uint64 {
	if p.d.config.Round != nil {
		return p.d.config.Round()
	}
	return uint64(max(now.UnixNano(), 0)) / uint64(p.step())
}

// plan chooses and wakes the sites whose choice changed.
func (p *plans) plan() {
	now := p.d.config.Clock.Now()
	c := *p.d.config.Planner
	c.Round, c.Step = p.number(now), p.step()
	if p.d.config.Remaining != nil {
		c.Tokens = max(p.d.config.Remaining(), 0)
	}
	p.budgets(&c)
	known := map[string]facts{}
	for _, s := range p.d.order {
		known[s.Name], _ = s.facts()
	}

	p.mu.Lock()
	entries := maps.Clone(p.entries)
	p.mu.Unlock()
	var forced []string
	var sites []planner.Site
	unavailable := map[string]bool{}
	for _, s := range p.d.order {
		e, f := entries[s.Name], known[s.Name]
		unavailable[s.Name] = p.d.config.Unavailable != nil && p.d.config.Unavailable(s.Name)
		if e.forced() {
			forced = append(forced, s.Name)
			reserve(&c, f, e.grams)
			continue
		}
		site := planner.Site{Name: s.Name, Open: e.d.Admit && !unavailable[s.Name], Running: p.state.Sites[s.Name].Chosen,
			TokensPerSecond: f.speed, TrainingWatts: f.watts, IdleWatts: f.idle, PUE: f.pue,
			Provisioning: max(s.Provisioning, 0), Grams: e.grams, Forecast: e.slots}
		if s.Policy.Mode == window.Grams {
			enter := s.Policy.Enter
			site.OpenBelow = &enter
		}
		sites = append(sites, site)
	}
	full := c.Wanted > 0 && len(forced) >= c.Wanted
	if c.Wanted > 0 && !full {
		c.Wanted -= len(forced)
	}
	if full {
		for i := range sites {
			sites[i].Open = false
		}
	}
	state, plan, err := planner.Choose(c, p.remembered(c, now), sites, now)
	if err != nil { // which must not cost training
		state, plan = all(c, sites, now, err)
	}
	for _, name := range forced {
		m := planner.Memory{Chosen: true, Changed: p.state.Sites[name].Changed}
		if !p.state.Sites[name].Chosen {
			round := c.Round
			m.Changed = &round
		}
		state.Sites[name] = m
		plan.Choices = append(plan.Choices, planner.Choice{Site: name, Chosen: true,
			Reason: v1alpha1.ReasonOverride, Message: "put in by an override"})
	}
	p.move(c, state, &plan, now)
	choices := map[string]choice{}
	for _, k := range plan.Choices {
		e := entries[k.Site]
		open := e.d.Admit && !e.forced()
		switch {
		case open && unavailable[k.Site]:
			k.Reason, k.Message = v1alpha1.ReasonCoolingOff, "its capacity failed, it is passed over until it is asked again"
		case !e.d.Admit && e.d.Window == v1alpha1.WindowOpen:
			k.Reason, k.Message = e.d.Reason, "held out, whatever its window"
		case full && open:
			k.Reason = v1alpha1.ReasonOverride
			k.Message = fmt.Sprintf("all %d places are taken by overrides: %s", c.Wanted, strings.Join(forced, ", "))
		}
		choices[k.Site] = choice{Choice: k, open: open, next: plan.NextChange}
	}
	// No lock is held over a disk: sites that close do not wait for it.
	if m := p.d.memory; m != nil && !reflect.DeepEqual(state, p.state) {
		err = errors.Join(err, m.SavePlan(state, p.moved))
	}
	p.note(err)
	p.mu.Lock()
	defer p.mu.Unlock()
	before := p.choices
	p.state, p.choices, p.made, p.round, p.at = state, choices, plan, c.Round, now
	for _, s := range p.d.order {
		was, is := before[s.Name], choices[s.Name]
		if was.Chosen != is.Chosen || was.Reason != is.Reason || was.open != is.open {
			s.look()
		}
	}
}

// note logs each failure once.
func (p *plans) note(err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	noteOutage(p.d.config.Log, &p.failed, text, "sites could not be planned")
}

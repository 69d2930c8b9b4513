package simulate

import (
	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/signals/ledger"
	"girassol.dev/signals/planner"
	"girassol.dev/signals/window"
)

// choose tells the sites whose wish has changed: their window's, or with limits
// the planner's.
func (r *run) choose() {
	if r.c.Plan.zero() {
		for _, s := range r.sites {
			if s.decision.Admit != s.admitted {
				r.tell(s, s.decision.Admit, s.decision.Reason, s.decision.Message)
			}
		}
		return
	}
	state, plan, err := planner.Choose(r.planConfig(), r.planned, r.candidates(), r.now)
	if err != nil {
		r.fail(err)
		return
	}
	r.planned = state
	wishes := make(map[string]planner.Choice, len(plan.Choices))
	for _, c := range plan.Choices {
		wishes[c.Site] = c
	}
	for _, s := range r.sites {
		c := wishes[s.Name]
		if c.Reason != s.why {
			r.advance(s)
			s.why = c.Reason
		}
		switch {
		case c.Chosen == s.admitted:
		case s.decision.Admit:
			r.tell(s, c.Chosen, c.Reason, c.Message)
		default:
			r.tell(s, false, s.decision.Reason, s.decision.Message)
		}
	}
}

// planConfig is what the planner plans with. Its rounds are steps of time: the
// machine's stand still while no site is in.
func (r *run) planConfig() planner.Config {
	p := r.c.Plan
	c := planner.Config{
		Round:  uint64(r.now.Sub(r.c.Start)/r.step()) + 1,
		Wanted: p.Wanted, Step: r.step(),
	}
	if r.c.Work.Amount > 0 && p.Deadline > 0 {
		c.Tokens = max(0, r.c.Work.Amount-r.committed)
		c.Deadline = r.c.Start.Add(p.Deadline)
	}
	var total ledger.Account
	if p.BudgetGrams != nil || p.BudgetKWh != nil {
		for _, s := range r.sites {
			r.advance(s)
			total = total.Plus(r.ledger.Account(s.Name))
		}
	}
	if p.BudgetGrams != nil {
		left := *p.BudgetGrams
		if total.MarginalGrams != nil {
			left -= *total.MarginalGrams
		}
		c.BudgetGrams = &left
	}
	if p.BudgetKWh != nil {
		left := *p.BudgetKWh - total.KWh()
		c.BudgetKWh = &left
	}
	return c
}

func (r *run) candidates() []planner.Site {
	out := make([]planner.Site, len(r.sites))
	for i, s := range r.sites {
		out[i] = planner.Site{
			Name: s.Name, Open: s.decision.Admit, Running: s.admitted,
			TokensPerSecond: s.rate / (1 + r.c.Sync), TrainingWatts: s.Power.TrainingWatts, IdleWatts: s.Power.IdleWatts, PUE: s.Power.PUE,
			Provisioning: s.Provisioning, Grams: s.grams(r.now), Forecast: s.slots,
		}
		if s.Policy.Mode == window.Grams && !s.Policy.Ignore {
			enter := s.Policy.Enter
			out[i].OpenBelow = &enter
		}
	}
	return out
}

// reasonOf says why a site is out: the planner's word if its window is open.
func (s *site) reasonOf() v1alpha1.Reason {
	if s.decision.Admit && s.why != "" {
		return s.why
	}
	return s.decision.Reason
}

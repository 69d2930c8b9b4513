package director

import (
	"maps"
	"time"

	"girassol.dev/api/federation/v1alpha1"
	"girassol.dev/signals/planner"
)

// facts of a site with a PUE of at least 1; not ok if they cannot be right.
type facts struct{ speed, watts, idle, pue float64 }

func (s *site) facts() (facts, bool) {
	if s.director.config.Facts == nil {
		return facts{pue: 1}, false
	}
	speed, watts, idle, pue, ok := s.director.config.Facts(s.Name)
	if pue == 0 {
		pue = 1
	}
	probe := planner.Site{Name: s.Name, TokensPerSecond: speed, TrainingWatts: watts, IdleWatts: idle, PUE: pue}
	if !ok || planner.Validate(planner.Config{}, []planner.Site{probe}) != nil {
		return facts{pue: 1}, false
	}
	return facts{speed, watts, idle, pue}, true
}

// remembered is the state for the next plan. In a round that takes longer than a
// step a site may change again: a round without sites would wait for ever for
// those that left in it.
func (p *plans) remembered(c planner.Config, now time.Time) planner.State {
	out := planner.State{Sites: maps.Clone(p.state.Sites)}
	for name, m := range out.Sites {
		if m.Changed != nil && *m.Changed == c.Round && !now.Before(p.moved[name].Add(c.Step)) {
			m.Changed = nil
			out.Sites[name] = m
		}
	}
	return out
}

// all is every open site, when no plan could be made.
func all(c planner.Config, sites []planner.Site, now time.Time, because error) (planner.State, planner.Plan) {
	state := planner.State{Sites: map[string]planner.Memory{}}
	plan := planner.Plan{NextChange: now.Add(c.Step)}
	for _, s := range sites {
		state.Sites[s.Name] = planner.Memory{Chosen: s.Open}
		k := planner.Choice{Site: s.Name, Chosen: s.Open, Reason: v1alpha1.ReasonWindowNotOpen, Message: "its window is not open"}
		if s.Open {
			k.Reason, k.Message = v1alpha1.ReasonChosen, "as every open site, since there is no plan: "+because.Error()
		}
		plan.Choices = append(plan.Choices, k)
	}
	return state, plan
}

// budgets fills in what is left.
func (p *plans) budgets(c *planner.Config) {
	if p.d.config.Spent == nil {
		return
	}
	grams, kWh := p.d.config.Spent()
	if b := p.d.config.BudgetGrams; b != nil {
		left := *b - grams
		c.BudgetGrams = &left
	}
	if b := p.d.config.BudgetKWh; b != nil {
		left := *b - kWh
		c.BudgetKWh = &left
	}
}

// reserve takes the step of a site that is in whatever it costs from the budgets.
func reserve(c *planner.Config, f facts, grams *float64) {
	kWh := f.watts * f.pue * c.Step.Hours() / 1000
	if c.BudgetKWh != nil {
		left := *c.BudgetKWh - kWh
		c.BudgetKWh = &left
	}
	if c.BudgetGrams != nil && grams != nil {
		left := *c.BudgetGrams - kWh**grams
		c.BudgetGrams = &left
	}
}

// move notes who came in and who went out, and plans anew when they may change
// again.
func (p *plans) move(c planner.Config, state planner.State, plan *planner.Plan, now time.Time) {
	sooner := func(t time.Time) {
		if t.After(now) && t.Before(plan.NextChange) {
			plan.NextChange = t
		}
	}
	for name, m := range state.Sites {
		if m.Chosen != p.state.Sites[name].Chosen {
			p.moved[name] = now.Round(0).UTC()
		}
		if m.Changed != nil && *m.Changed == c.Round {
			sooner(p.moved[name].Add(c.Step))
		}
	}
	if p.d.config.Round == nil {
		sooner(time.Unix(0, int64((c.Round+1)*uint64(c.Step)))) // as number counts them
	}
}

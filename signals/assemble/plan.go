package assemble

import (
	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/signals/director"
	"girassol.dev/signals/openadr"
	"girassol.dev/signals/planner"
	"girassol.dev/signals/webhook"
)

// Plan gives a director what spec.energy says of all sites together: the budgets,
// and a planner if there is anything to choose by. Most is the most sites at a
// time besides spec.energy.targetSites; 0: all. Trained are the tokens so far. f has its defaults.
func Plan(c *director.Config, f v1alpha1.FederationSpec, most int, speed float64, trained func() float64) {
	b := f.Energy.Budget
	if b != nil {
		c.BudgetGrams, c.BudgetKWh = float(b.CarbonGrams), float(b.EnergyKWh)
	}
	wanted := int(f.Energy.TargetSites)
	if most > 0 && (wanted == 0 || most < wanted) {
		wanted = most
	}
	if wanted == 0 && b == nil {
		return
	}
	step := Stretch(seconds(f.Rounds.TrainSeconds+f.Rounds.CollectSeconds), speed)
	c.Planner = &planner.Config{Wanted: wanted, Step: max(planner.DefaultStep, step)}
	if b != nil && b.Tokens != nil {
		total := float64(*b.Tokens)
		c.Planner.Tokens, c.Planner.Deadline = total, b.Deadline.Time
		c.Remaining = func() float64 { return max(0, total-trained()) }
	}
}

func float(v *int64) *float64 {
	if v == nil {
		return nil
	}
	f := float64(*v)
	return &f
}

// Sender is a source of pushed messages without its keys.
func Sender(s v1alpha1.WebhookSource) webhook.Sender {
	out := webhook.Sender{Name: s.Name, Sites: s.Sites, Regions: s.Regions}
	if s.Format != v1alpha1.WebhookOpenADR3 {
		return out
	}
	var n openadr.Notifications
	for _, site := range s.Sites {
		n.Targets = append(n.Targets, webhook.Target{Site: site})
	}
	for _, region := range s.Regions {
		n.Targets = append(n.Targets, webhook.Target{Region: region})
	}
	out.Decoder = n
	return out
}

// Defaults fills in what a spec leaves open.
func Defaults(s *v1alpha1.FederationSpec) {
	def := func(v *int32, d int32) {
		if *v == 0 {
			*v = d
		}
	}
	if s.Model.Source == "" {
		s.Model.Source = v1alpha1.ModelFromSite
	}
	if s.State == "" {
		s.State = v1alpha1.StateRunning
	}
	if s.Energy.Policy == "" {
		s.Energy.Policy = v1alpha1.EnergyRequired
	}
	def(&s.Rounds.MinSites, 1)
	def(&s.Rounds.TrainSeconds, 600)
	def(&s.Rounds.CollectSeconds, 120)
	def(&s.Rounds.JoinSeconds, 300)
	def(&s.Drain.GraceSeconds, 60)
}

// Package planner chooses sites when more are open than are wanted, or when the
// work fits into cleaner hours before a deadline: those with the least emissions
// for a useful token. It is pure: a configuration, the memory of before, the
// sites and the time go in; the new memory and a plan come out. It is asked
// again for every round, so that it always plans with the newest forecast.
//
// It owns the choice among open sites. It must not know how a window opens, how
// a site is admitted, what a round does or where the figures come from. It never
// chooses a site whose window is not open.
package planner

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"girassol.dev/api/federation/v1alpha1"
)

const joulesPerKWh = 3.6e6

// Defaults of a Config.
const (
	DefaultHysteresis = 0.1
	DefaultStep       = 10 * time.Minute
)

// Config of a plan. The zero value takes all open sites.
type Config struct {
	// Round that is planned. A site changes at most once in a round.
	Round uint64
	// Wanted is the most sites at a time; 0: all.
	Wanted int
	// Step is how long the plan holds: a round. Default DefaultStep.
	Step time.Duration
	// Tokens are the work left; with Deadline the plan waits for cleaner hours
	// that the forecasts know, as long as the work still gets done. 0: no end.
	Tokens   float64
	Deadline time.Time
	// Margin is the share by which more work is planned than is left, for what
	// goes wrong. Default 0.
	Margin float64
	// Budget that is left; nil is unlimited.
	BudgetGrams, BudgetKWh *float64
	// Hysteresis is the share by which another site must be better before the
	// sites are changed. Default DefaultHysteresis; negative: none.
	Hysteresis float64
}

// Site is what is known of one site now.
type Site struct {
	Name string
	// Open: the window admits it. Running: it is in now.
	Open, Running bool
	// TokensPerSecond of useful work while it trains; 0 if not known yet.
	TokensPerSecond float64
	// TrainingWatts and IdleWatts of IT power, at this PUE (1 if 0).
	TrainingWatts, IdleWatts, PUE float64
	// Provisioning is how long a start takes, at idle power.
	Provisioning time.Duration
	// Grams is the intensity now in gCO2/kWh; nil if not known.
	Grams *float64
	// Forecast of the intensity by time; what lies before now is ignored.
	Forecast []Slot
	// OpenBelow is the intensity from which on a forecast slot is no window; nil:
	// all are.
	OpenBelow *float64
}

// Slot is the intensity forecast for [From, Until); nil is none.
type Slot struct {
	From, Until time.Time
	Grams       *float64
}

// State is what a plan remembers. Its JSON round trip continues identically.
type State struct {
	// Sites by name, of those in the last plan only.
	Sites map[string]Memory `json:"sites,omitempty"`
}

// Memory of one site.
type Memory struct {
	Chosen bool `json:"chosen"`
	// Changed is the round of the last change; nil for never.
	Changed *uint64 `json:"changed,omitempty"`
}

// Plan is the choice.
type Plan struct {
	// Choices by name.
	Choices []Choice
	// LimitGrams is the most grams for a token at which the work gets done before
	// the deadline; nil without a deadline, or if every open hour is needed.
	LimitGrams *float64
	// AtRisk says that the open hours which are forecast do not suffice.
	AtRisk bool
	// NextChange is when the plan is to be made anew at the latest.
	NextChange time.Time
}

// Choice of one site.
type Choice struct {
	Site   string
	Chosen bool
	// GramsPerToken and KWhPerToken while it trains; nil if not known. Zero
	// grams are legal and best.
	GramsPerToken, KWhPerToken *float64
	Reason                     v1alpha1.Reason
	Message                    string
}

// Chosen are the names of the chosen sites.
func (p Plan) Chosen() []string {
	var out []string
	for _, c := range p.Choices {
		if c.Chosen {
			out = append(out, c.Site)
		}
	}
	return out
}

// Validate refuses figures without meaning, naming the site.
func Validate(c Config, sites []Site) error {
	seen := map[string]bool{}
	for _, n := range []*float64{&c.Tokens, &c.Margin, c.BudgetGrams, c.BudgetKWh} {
		if n != nil && (math.IsNaN(*n) || math.IsInf(*n, 0)) {
			return fmt.Errorf("planner: %v is no amount", *n)
		}
	}
	if math.IsNaN(c.Hysteresis) || c.Hysteresis >= 1 {
		return fmt.Errorf("planner: a hysteresis of %v, below 1", c.Hysteresis)
	}
	for _, s := range sites {
		switch {
		case s.Name == "" || seen[s.Name]:
			return fmt.Errorf("planner: site %q has no name or is there twice", s.Name)
		case s.Provisioning < 0:
			return fmt.Errorf("planner: site %s: provisioning takes %s", s.Name, s.Provisioning)
		case s.PUE != 0 && s.PUE < 1:
			return fmt.Errorf("planner: site %s: a PUE of %v, at least 1", s.Name, s.PUE)
		}
		seen[s.Name] = true
		for _, v := range []float64{s.TokensPerSecond, s.TrainingWatts, s.IdleWatts, s.PUE, value(s.Grams), value(s.OpenBelow)} {
			if !(v >= 0) || math.IsInf(v, 0) {
				return fmt.Errorf("planner: site %s: %v is no speed, power or intensity", s.Name, v)
			}
		}
		for _, f := range s.Forecast {
			if v := value(f.Grams); !(v >= 0) || math.IsInf(v, 0) {
				return fmt.Errorf("planner: site %s: a forecast of %v", s.Name, v)
			}
		}
	}
	return nil
}

// Choose plans one round. It returns an error for figures that Validate refuses.
// The order of the sites makes no difference, and nothing that it is given is
// changed.
func Choose(c Config, s State, sites []Site, now time.Time) (State, Plan, error) {
	if err := Validate(c, sites); err != nil {
		return s, Plan{}, err
	}
	if c.Step <= 0 {
		c.Step = DefaultStep
	}
	switch {
	case c.Hysteresis == 0:
		c.Hysteresis = DefaultHysteresis
	case c.Hysteresis < 0:
		c.Hysteresis = 0
	}
	candidates := make([]*candidate, len(sites))
	for i, site := range sites {
		candidates[i] = newCandidate(c, s.Sites[site.Name], site, now)
	}
	slices.SortFunc(candidates, func(a, b *candidate) int { return cmp.Compare(a.Name, b.Name) })
	plan := Plan{NextChange: now.Add(c.Step)}
	if c.Tokens > 0 && c.Deadline.After(now) {
		schedule(c, candidates, now, &plan)
	}
	pick(c, candidates, plan)
	next := State{Sites: make(map[string]Memory, len(candidates))}
	for _, k := range candidates {
		m := Memory{Chosen: k.choice.Chosen, Changed: s.Sites[k.Name].Changed}
		if k.choice.Chosen != k.Running {
			round := c.Round
			m.Changed = &round
		}
		next.Sites[k.Name] = m
		plan.Choices = append(plan.Choices, k.choice)
	}
	return next, plan, nil
}

// candidate is a site with its costs.
type candidate struct {
	Site
	// grams and kWh for a token; known if grams is.
	grams, kWh float64
	known      bool
	// start is the grams of a start, extra its part of a token over the window.
	start, extra float64
	// fixed: it has changed in this round and stays as it is.
	fixed bool
	// later: cleaner hours suffice.
	later  bool
	choice Choice
}

func newCandidate(c Config, m Memory, s Site, now time.Time) *candidate {
	if s.PUE == 0 {
		s.PUE = 1
	}
	k := &candidate{Site: s, choice: Choice{Site: s.Name}}
	k.fixed = m.Changed != nil && *m.Changed == c.Round
	if s.TokensPerSecond == 0 || s.TrainingWatts == 0 {
		return k
	}
	k.kWh = s.TrainingWatts * s.PUE / joulesPerKWh / s.TokensPerSecond
	k.choice.KWhPerToken = &k.kWh
	if s.Grams == nil {
		return k
	}
	k.known = true
	k.grams = k.kWh * *s.Grams
	k.choice.GramsPerToken = &k.grams
	if !s.Running {
		k.start = k.startGrams()
		if useful := k.lasts(c, now) - s.Provisioning; useful > 0 {
			k.extra = k.start / (s.TokensPerSecond * useful.Seconds())
		} else { // it closes before it has started
			k.extra = math.Inf(1)
		}
	}
	return k
}

// startKWh is the energy of a start.
func (k *candidate) startKWh() float64 {
	return k.IdleWatts * k.PUE * k.Provisioning.Seconds() / joulesPerKWh
}

func (k *candidate) startGrams() float64 { return k.startKWh() * value(k.Grams) }

// amortise is how long a start is taken to serve at least, and at most.
const (
	leastAmortised = time.Hour
	mostAmortised  = 6 * time.Hour
)

// lasts is for how long the forecast sees the window open; leastAmortised if it
// does not say.
func (k *candidate) lasts(c Config, now time.Time) time.Duration {
	end := now
	for _, f := range k.Forecast {
		switch {
		case !f.Until.After(end):
			continue
		case f.From.After(end) || f.Grams == nil:
		case k.OpenBelow != nil && *f.Grams >= *k.OpenBelow:
			return max(end.Sub(now), c.Step)
		default:
			end = f.Until
			if end.Sub(now) < mostAmortised {
				continue
			}
		}
		break
	}
	return min(max(end.Sub(now), leastAmortised), mostAmortised)
}

func value(v *float64) float64 {
	if v == nil {
		return 0
	}
	return *v
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }

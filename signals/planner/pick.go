package planner

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"

	"girassol.dev/api/federation/v1alpha1"
)

// pick gives the seats, the best candidates first.
func pick(c Config, candidates []*candidate, plan Plan) {
	var order []*candidate
	for _, k := range candidates {
		switch {
		case !k.Open:
			k.settle(false, v1alpha1.ReasonWindowNotOpen, "its window is not open")
		case k.fixed && !k.Running:
			k.settle(false, v1alpha1.ReasonOneChangePerRound, "it has changed in this round already")
		case k.later && !k.fixed:
			k.settle(false, v1alpha1.ReasonCleanerLater, fmt.Sprintf("%s; the work gets done before %s at %s or less",
				k.cost(), stamp(c.Deadline), perMillion(value(plan.LimitGrams))))
		default:
			order = append(order, k)
		}
	}
	slices.SortFunc(order, c.compare)
	seats := c.Wanted
	if seats <= 0 {
		seats = len(order)
	}
	left := budget{c.BudgetGrams != nil, c.BudgetKWh != nil, value(c.BudgetGrams), value(c.BudgetKWh)}
	var worst *candidate // of the chosen, by cost alone
	for _, k := range order {
		if seats == 0 {
			k.refuse(worst)
			continue
		}
		if problem := left.take(c, k); problem != "" {
			k.settle(false, v1alpha1.ReasonBudgetExhausted, problem)
			continue
		}
		seats--
		if worst == nil || plain(worst, k) < 0 {
			worst = k
		}
		if plan.AtRisk {
			k.settle(true, v1alpha1.ReasonDeadlineAtRisk, k.cost()+"; every open hour before "+stamp(c.Deadline)+" is needed")
			continue
		}
		k.settle(true, v1alpha1.ReasonChosen, k.cost())
	}
}

func (k *candidate) settle(chosen bool, reason v1alpha1.Reason, message string) {
	k.choice.Chosen, k.choice.Reason, k.choice.Message = chosen, reason, message
}

// refuse says why there was no seat.
func (k *candidate) refuse(worst *candidate) {
	if plain(k, worst) < 0 {
		k.settle(false, v1alpha1.ReasonSmallGain, fmt.Sprintf("%s, which is too little better than %s with %s for a change",
			k.cost(), worst.Name, worst.cost()))
		return
	}
	k.settle(false, v1alpha1.ReasonCleanerSite, fmt.Sprintf("%s; the last seat has %s with %s", k.cost(), worst.Name, worst.cost()))
}

// compare orders candidates: those that may not change now, those of known cost
// by grams for a token (with the start of a site that is not in, and a running
// one better by the hysteresis), the others by intensity; then running before
// starting, by energy and by name.
func (c Config) compare(a, b *candidate) int {
	score := func(k *candidate) float64 {
		if k.Running {
			return k.grams * (1 - c.Hysteresis)
		}
		return k.grams + k.extra
	}
	return cmp.Or(
		first(a.fixed, b.fixed), first(a.known, b.known), cmp.Compare(score(a), score(b)), unknown(a, b),
		first(a.Running, b.Running), cmp.Compare(a.kWh, b.kWh), cmp.Compare(a.Name, b.Name))
}

// plain orders by grams for a token alone.
func plain(a, b *candidate) int {
	return cmp.Or(first(a.known, b.known), cmp.Compare(a.grams, b.grams), unknown(a, b))
}

// unknown orders two candidates without a known cost by their intensity.
func unknown(a, b *candidate) int {
	if a.known || b.known {
		return 0
	}
	return cmp.Or(first(a.Grams != nil, b.Grams != nil), cmp.Compare(value(a.Grams), value(b.Grams)))
}

func first(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	}
	return 1
}

// budget is what is left for this step.
type budget struct {
	hasGrams, hasKWh bool
	grams, kWh       float64
}

// take reserves what k needs for a step, or says why it cannot.
func (b *budget) take(c Config, k *candidate) (problem string) {
	kWh := k.TrainingWatts * k.PUE * c.Step.Seconds() / joulesPerKWh
	if !k.Running {
		kWh += k.startKWh()
	}
	grams := kWh * value(k.Grams)
	switch {
	case b.hasKWh && kWh > b.kWh:
		return fmt.Sprintf("%s kWh for a step of %s, %s left", num(kWh), c.Step, num(max(b.kWh, 0)))
	case b.hasGrams && k.Grams == nil:
		return "its intensity is not known and emissions are limited"
	case b.hasGrams && grams > b.grams:
		return fmt.Sprintf("%s gCO2 for a step of %s, %s left", num(grams), c.Step, num(max(b.grams, 0)))
	}
	b.kWh -= kWh
	b.grams -= grams
	return ""
}

// cost in words.
func (k *candidate) cost() string {
	switch {
	case k.TokensPerSecond == 0 || k.TrainingWatts == 0:
		return "speed or power not known yet"
	case !k.known:
		return "intensity not known"
	}
	text := fmt.Sprintf("%s (%s W at PUE %s, %s gCO2/kWh, %s tokens/s)", perMillion(k.grams),
		num(k.TrainingWatts), num(k.PUE), num(*k.Grams), num(k.TokensPerSecond))
	if !k.Running && k.start > 0 {
		text += fmt.Sprintf(" and %s g for the start", num(k.start))
	}
	return text
}

func perMillion(grams float64) string { return num(grams*1e6) + " g per million tokens" }

// num shows four significant digits.
func num(v float64) string { return strconv.FormatFloat(v, 'g', 4, 64) }

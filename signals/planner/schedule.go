package planner

import (
	"cmp"
	"math"
	"slices"
	"sort"
	"time"
)

// maxSteps bounds the grid of a schedule; longer horizons have longer steps.
const maxSteps = 2016

// hour is one site in one step of the grid.
type hour struct {
	site, step int
	grams      float64 // for a token
	tokens     float64
}

// schedule takes the cheapest steps of the sites before the deadline until the
// work is done, at most Wanted at a time, and marks the sites that need not run
// now. What the forecasts do not reach is taken to be like what they do, at half
// its hours. Without any forecast it does nothing: every open hour is taken.
func schedule(c Config, candidates []*candidate, now time.Time, plan *Plan) {
	end := horizon(candidates, now)
	if end.After(c.Deadline) {
		end = c.Deadline
	}
	if !end.After(now.Add(c.Step)) {
		return
	}
	width := c.Step
	if n := end.Sub(now) / width; n > maxSteps {
		width = (end.Sub(now) + maxSteps - 1) / maxSteps
	}
	hours, grid := offers(c, candidates, now, end, width)
	need := c.Tokens * (1 + c.Margin)
	if reach := end.Sub(now).Seconds() / c.Deadline.Sub(now).Seconds(); reach < 1 {
		need *= math.Min(1, 2*reach)
	}
	seats := make([]int, len(grid))
	taken := make([]bool, len(candidates)*len(grid))
	var last hour
	for _, h := range hours {
		if need <= 0 {
			break
		}
		if c.Wanted > 0 && seats[h.step] >= c.Wanted {
			continue
		}
		seats[h.step]++
		taken[h.site*len(grid)+h.step] = true
		need -= h.tokens
		last = h
	}
	if need > 0 {
		plan.AtRisk = true
		return
	}
	limit := last.grams
	plan.LimitGrams = &limit
	for i, k := range candidates {
		if k.Open && k.known {
			k.later = !worth(c, k, grid.row(i), taken[i*len(grid):(i+1)*len(grid)], limit)
		}
	}
}

// offer is a site's step; tokens is 0 where it is closed or unknown.
type offer struct{ grams, tokens float64 }

// offerGrid has a column of all candidates for every step.
type offerGrid [][]offer

func (g offerGrid) row(site int) []offer {
	out := make([]offer, len(g))
	for step := range g {
		out[step] = g[step][site]
	}
	return out
}

// offers are all open steps, cheapest first, then earliest, then by name.
func offers(c Config, candidates []*candidate, now, end time.Time, width time.Duration) ([]hour, offerGrid) {
	steps := int((end.Sub(now) + width - 1) / width)
	grid := make(offerGrid, steps)
	var hours []hour
	for step := range grid {
		grid[step] = make([]offer, len(candidates))
		from := now.Add(time.Duration(step) * width)
		length := min(width, end.Sub(from))
		for i, k := range candidates {
			if k.kWh == 0 {
				continue
			}
			grams, ok := k.at(from, step == 0)
			if !ok {
				continue
			}
			o := offer{grams: grams * k.kWh, tokens: k.TokensPerSecond * length.Seconds()}
			grid[step][i] = o
			hours = append(hours, hour{i, step, o.grams, o.tokens})
		}
	}
	slices.SortFunc(hours, func(a, b hour) int {
		return cmp.Or(cmp.Compare(a.grams, b.grams), cmp.Compare(a.step, b.step), cmp.Compare(a.site, b.site))
	})
	return hours, grid
}

// at is the intensity of an open window at t; the present one is known.
func (k *candidate) at(t time.Time, present bool) (grams float64, ok bool) {
	if present {
		return value(k.Grams), k.Open && k.Grams != nil
	}
	i := sort.Search(len(k.Forecast), func(i int) bool { return k.Forecast[i].Until.After(t) })
	if i == len(k.Forecast) || k.Forecast[i].From.After(t) || k.Forecast[i].Grams == nil {
		return 0, false
	}
	grams = *k.Forecast[i].Grams
	return grams, k.OpenBelow == nil || grams < *k.OpenBelow
}

// worth says whether a site runs now. A start counts to the row of steps that it
// begins, which together must be within the limit; a running site stays
// over steps above the limit if stopping and starting again costs more.
func worth(c Config, k *candidate, row []offer, taken []bool, limit float64) bool {
	margin := limit * (1 + c.Hysteresis)
	if k.Running {
		if taken[0] || row[0].grams <= margin {
			return true
		}
		var loss float64
		for step, o := range row {
			switch {
			case o.tokens == 0:
				return false // the window closes first
			case taken[step]:
				return loss < k.startGrams()
			}
			loss += (o.grams - limit) * o.tokens
		}
		return false
	}
	if !taken[0] {
		return false
	}
	lost := k.Provisioning.Seconds() * k.TokensPerSecond
	grams := k.start
	var tokens float64
	for _, o := range row {
		if o.tokens == 0 || o.grams > margin {
			break
		}
		useful := math.Max(0, o.tokens-lost)
		lost = math.Max(0, lost-o.tokens)
		tokens += useful
		grams += o.grams * useful
		if grams <= tokens*limit*(1+math.Max(c.Hysteresis, leastGain)) && tokens > 0 {
			return true
		}
	}
	return false
}

// leastGain keeps a start that costs next to nothing from waiting until the last
// possible moment where all hours are alike.
const leastGain = 0.05

// horizon is the end of the last forecast.
func horizon(candidates []*candidate, now time.Time) time.Time {
	end := now
	for _, k := range candidates {
		for i := len(k.Forecast) - 1; i >= 0; i-- {
			if f := k.Forecast[i]; f.Grams != nil {
				if f.Until.After(end) {
					end = f.Until
				}
				break
			}
		}
	}
	return end
}

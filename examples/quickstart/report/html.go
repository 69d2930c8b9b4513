package report

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"slices"
	"strings"
)

//go:embed report.tmpl.html
var pageSource string

//go:embed report.css
var style string

// The two widths that every picture is drawn at; the page shows the one that
// fits, so that lettering stays readable on a phone.
const (
	wide   = 720.0
	narrow = 350.0
)

var page = template.Must(template.New("report").Funcs(template.FuncMap{
	"fixed": fixed, "kg": kilograms, "percent": percent, "times": times, "hours": hours, "short": short,
	"size":   func(n uint64) string { return ByteSize(float64(n)) },
	"sizeI":  func(n int64) string { return ByteSize(float64(n)) },
	"sizeF":  byteSize,
	"count":  func(n uint64) string { return Count(float64(n)) },
	"number": sig,
	"share":  func(x float64) string { return percent(&x) },
	"kwh":    sig,
}).Parse(pageSource))

// figure is one picture in both widths; empty when there is nothing to draw.
type figure struct{ Wide, Narrow template.HTML }

// Any says that there is a picture.
func (f figure) Any() bool { return f.Wide != "" }

func draw(f func(Summary, float64) string, s Summary, w, n float64) figure {
	// The pictures escape what they write; see canvas.
	return figure{template.HTML(f(s, w)), template.HTML(f(s, n))}
}

type view struct {
	S                                                    Summary
	Style                                                template.CSS
	Loss, Windows, Bytes, Emissions, EnergyBars, Compare figure
	Headline                                             string
	Tiles                                                []tile
	Thresholds, Power, Verdict, WireNote, BaselineNote   string
}

type tile struct{ Value, Name, Note string }

// HTML writes the page: one file, no scripts, nothing loaded from elsewhere.
func HTML(w io.Writer, s Summary) error {
	v := view{
		S: s, Style: template.CSS(style),
		Loss:       draw(lossChart, s, wide, narrow),
		Windows:    draw(windowsChart, s, wide, narrow),
		Bytes:      draw(bytesChart, s, wide, narrow),
		Emissions:  draw(emissionsChart, s, 440, narrow),
		EnergyBars: draw(energyChart, s, 440, narrow),
		Compare:    draw(comparisonChart, s, wide, narrow),
		Headline:   headline(s), Tiles: tiles(s), Thresholds: thresholdText(s), Power: powerText(s), Verdict: verdict(s),
		WireNote: wireNote(s), BaselineNote: baselineNote(s),
	}
	if err := page.Execute(w, v); err != nil {
		return fmt.Errorf("report: %w", err)
	}
	return nil
}

func headline(s Summary) string {
	n := plural(len(s.Sites), "site", "sites")
	if len(s.Rounds) == 0 {
		return fmt.Sprintf("%s took part and no round was committed: there is no trained model to judge.", upper(n))
	}
	text := fmt.Sprintf("%s trained one model of %s parameters through %s virtual hours", upper(n), Count(float64(s.Parameters)), hours(max(0, since(s.Start, s.RanUntil))))
	if s.Energy.UsefulHours > 0 {
		text += ", each while its own electricity was clean"
	}
	text += "."
	if s.HeldOut.Untrained != nil && s.HeldOut.Final != nil {
		word := "fell"
		if *s.HeldOut.Final >= *s.HeldOut.Untrained {
			word = "did not fall: it went"
		}
		text += fmt.Sprintf(" The loss on text that no site has seen %s from %s to %s nats per byte.", word, fixed(s.HeldOut.Untrained, 2), fixed(s.HeldOut.Final, 2))
	}
	return text
}

func upper(s string) string {
	words := map[string]string{"1 site": "One site", "2 sites": "Two sites", "3 sites": "Three sites", "4 sites": "Four sites", "5 sites": "Five sites"}
	if w, ok := words[s]; ok {
		return w
	}
	return s
}

func tiles(s Summary) []tile {
	out := []tile{
		{fixed(s.HeldOut.Final, 2), "held-out loss", "nats per byte, untrained " + fixed(s.HeldOut.Untrained, 2)},
		{fmt.Sprint(len(s.Rounds)), "rounds merged", plural(s.VoidRounds, "other was void", "others were void") + ", " + Count(float64(s.Tokens)) + " tokens"},
		{times(s.Wire.Fewer), "fewer bytes than dense", "per member and round, both ways"},
	}
	co2 := tile{kilograms(s.Energy.MarginalKg), "CO2, marginal", sig(s.Energy.KWh) + " kWh"}
	if lo, hi, ok := ratioRange(s); ok {
		co2.Note += ", " + rangeText(lo, hi) + " of one always-on site"
	}
	return append(out, co2)
}

func rangeText(lo, hi Baseline) string {
	a, b := percent(lo.MarginalRatio), percent(hi.MarginalRatio)
	if a == b {
		return a
	}
	return strings.TrimSuffix(a, " %") + " to " + b
}

// ratioRange returns the baselines against which the run looks best and worst.
func ratioRange(s Summary) (lo, hi Baseline, ok bool) {
	known := slices.DeleteFunc(slices.Clone(s.Energy.Baselines), func(b Baseline) bool { return b.MarginalRatio == nil })
	if len(known) == 0 {
		return Baseline{}, Baseline{}, false
	}
	by := func(a, b Baseline) int {
		switch {
		case *a.MarginalRatio < *b.MarginalRatio:
			return -1
		case *a.MarginalRatio > *b.MarginalRatio:
			return 1
		}
		return 0
	}
	return slices.MinFunc(known, by), slices.MaxFunc(known, by), true
}

func thresholdText(s Summary) string {
	var parts []string
	for _, site := range s.Sites {
		if site.EnterBelow == nil || site.LeaveAbove == nil {
			continue
		}
		p := fmt.Sprintf("open below %g, close above %g gCO2/kWh", *site.EnterBelow, *site.LeaveAbove)
		if !slices.Contains(parts, p) {
			parts = append(parts, p)
		}
	}
	return strings.Join(parts, "; ")
}

func powerText(s Summary) string {
	var parts []string
	for _, site := range s.Sites {
		p := fmt.Sprintf("%s W training, %s W idle, PUE %s", sig(site.Power.TrainingWatts), sig(site.Power.IdleWatts), sig(site.Power.PUE))
		if !slices.Contains(parts, p) {
			parts = append(parts, p)
		}
	}
	return strings.Join(parts, "; ")
}

// verdict says where the federation landed, without flattering it.
func verdict(s Summary) string {
	c := s.Comparison
	if c == nil {
		return ""
	}
	if s.HeldOut.Final == nil || c.Central == nil || c.Central.Loss == nil {
		return "The comparison is incomplete: a loss is missing, so no place can be given."
	}
	f, z := *s.HeldOut.Final, *c.Central.Loss
	best, worst := bestAlone(c)
	switch {
	case best == nil:
		return fmt.Sprintf("No site's own run could be measured. Central %.3f, federation %.3f.", z, f)
	case z >= *best:
		return fmt.Sprintf("The central run (%.3f) is no better than the best site alone (%.3f) here, so there was nothing for a federation (%.3f) to gain; train longer to tell them apart.", z, *best, f)
	case f <= z:
		return fmt.Sprintf("The federation (%.3f) is level with or ahead of the central run (%.3f) on this text; the best site alone reached %.3f. One seed: a lead this small may be luck.", f, z, *best)
	case f >= *best:
		return fmt.Sprintf("The federation (%.3f) did not beat the best site alone (%.3f); the central run reached %.3f. What the others gave did not make up for what merging cost; more rounds may.", f, *best, z)
	}
	share := *c.Shares(s.HeldOut.Final)
	near := "nearer the central run"
	if share < 0.5 {
		near = "nearer the best site alone"
	}
	return fmt.Sprintf("The federation (%.3f) lies between the best site alone (%.3f; the worst %.3f) and one central run (%.3f): it closed %.0f %% of that gap, %s.",
		f, *best, *worst, z, share*100, near)
}

func bestAlone(c *Comparison) (best, worst *float64) {
	for _, a := range c.Alone {
		if a.Loss == nil || !finite(*a.Loss) {
			continue
		}
		if best == nil || *a.Loss < *best {
			best = a.Loss
		}
		if worst == nil || *a.Loss > *worst {
			worst = a.Loss
		}
	}
	return best, worst
}

func wireNote(s Summary) string {
	if s.Wire.MedianUp == nil {
		return ""
	}
	return fmt.Sprintf("Median per member and round: %s up and %s down; the model dense in fp32 would be %s each way. Counting every byte of the run, first weights, joins and heartbeats included: %s up, %s down, %s than dense.",
		byteSize(s.Wire.MedianUp), byteSize(s.Wire.MedianDown), ByteSize(float64(s.Wire.DenseBytes)),
		ByteSize(float64(s.Wire.BytesUp)), ByteSize(float64(s.Wire.BytesDown)), fewer(s.Wire.FewerWithJoins))
}

func baselineNote(s Summary) string {
	if s.Energy.UsefulHours <= 0 {
		return ""
	}
	text := fmt.Sprintf("Each baseline is one site that starts at the same instant and trains without pause for the %s hours that all sites trained here together, at the same power, on the same trace.", hours(s.Energy.UsefulHours))
	if span := since(s.Start, s.End); s.Energy.UsefulHours > span {
		text += fmt.Sprintf(" That is longer than the %s hours of the trace, which is then taken again from its start.", hours(span))
	}
	return text
}

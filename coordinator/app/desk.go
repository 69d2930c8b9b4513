package app

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	"girassol.dev/signals"
	"girassol.dev/signals/director"
	"girassol.dev/signals/replay"
)

// energyDesk answers the Admin service's questions about energy decisions.
type energyDesk struct {
	federation string
	director   *director.Director
	books      *accountant
	traces     map[string]*replay.Series
	clock      signals.Clock
}

// Report implements server.Energy.
func (d energyDesk) Report() (*coordinatorv1.ReportResponse, error) {
	r, err := d.books.report(d.federation, d.traces)
	if err != nil {
		return nil, err
	}
	var asCSV, asJSON strings.Builder
	if err := errors.Join(r.WriteCSV(&asCSV), r.WriteJSON(&asJSON)); err != nil {
		return nil, err
	}
	return &coordinatorv1.ReportResponse{Csv: asCSV.String(), Json: asJSON.String()}, nil
}

// Explain implements server.Energy.
func (d energyDesk) Explain(site string) (*coordinatorv1.ExplainResponse, error) {
	e, err := d.director.Explain(site)
	if err != nil {
		return nil, err
	}
	b, err := json.Marshal(e)
	if err != nil {
		return nil, err
	}
	return &coordinatorv1.ExplainResponse{Facts: facts(e), Json: string(b)}, nil
}

// Override implements server.Energy.
func (d energyDesk) Override(site string, admit bool, span time.Duration, reason string) (time.Time, error) {
	until := d.clock.Now().Add(span)
	return until, d.director.Override(site, admit, until, reason)
}

// ClearOverride implements server.Energy.
func (d energyDesk) ClearOverride(site string) error { return d.director.ClearOverride(site) }

// facts is an explanation in the order in which a person asks.
func facts(e director.Explanation) []*coordinatorv1.Fact {
	var out []*coordinatorv1.Fact
	say := func(name, format string, args ...any) {
		out = append(out, &coordinatorv1.Fact{Name: name, Value: fmt.Sprintf(format, args...)})
	}
	word := "stays out"
	if e.Admit {
		word = "takes part"
	}
	say("site", "%s %s: %s", e.Site, word, e.Reason)
	say("because", "%s", e.Message)
	if !e.Decided.IsZero() {
		say("decided", "%s", moment(e.Decided))
	}
	if !e.NextChange.IsZero() {
		say("can change", "not before %s", moment(e.NextChange))
	}
	if e.Signal != nil {
		say("reading", "%s", reading(e.Signal))
	}
	if e.Verdict != nil {
		say("verdict", "%s (%s): %s", e.Verdict.Class, e.Verdict.Reason, e.Verdict.Message)
	}
	if e.Second != nil {
		say("second source", "%s", reading(e.Second))
	}
	window := string(e.Window.State)
	if !e.Window.Since.IsZero() {
		window += " since " + moment(e.Window.Since)
	}
	say("window", "%s", window)
	if t := e.Thresholds; t.Mode != "" {
		say("thresholds", "opens below %g (%d of %d points), closes above %g (%d of %d), in %s", t.EnterBelow, t.EnterCount, t.EnterConfirmations,
			t.LeaveAbove, t.LeaveCount, t.LeaveConfirmations, t.Mode)
	}
	if f := e.Forecast; f != nil {
		say("forecast", "%s", forecast(f))
	}
	if o := e.Override; o != nil {
		say("override", "admit %t until %s, by %s: %s", o.Admit, moment(o.Until), o.By, o.Why)
	}
	if c := e.Curtailment; c != nil {
		say("curtailment", "%s", c)
	}
	if b := e.Budget; b != nil && (b.Grams != nil || b.KWh != nil) {
		say("budget", "%s", budget(b))
	}
	if p := e.Plan; p != nil {
		say("plan", "round %d, chosen %t: %s", p.Round, p.Chosen, p.Message)
		if p.GramsPerToken != nil {
			say("grams per token", "%.3g", *p.GramsPerToken)
		}
	}
	for name, problem := range map[string]string{"source fails": e.SourceError, "store fails": e.StoreError, "coordinator fails": e.MembershipError} {
		if problem != "" {
			say(name, "%s", problem)
		}
	}
	return out
}

func moment(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05 UTC") }

func reading(r *director.ReadingView) string {
	value := "no value"
	if r.Value != nil {
		value = fmt.Sprintf("%g %s", *r.Value, r.Unit)
	}
	parts := []string{value}
	if r.Kind != "" {
		parts = append(parts, fmt.Sprintf("%s in %s from %s", r.Kind, r.Region, r.Source))
	}
	if !r.PointTime.IsZero() {
		parts = append(parts, fmt.Sprintf("of %s, %s old", moment(r.PointTime), (time.Duration(r.AgeSeconds)*time.Second).String()))
	}
	if r.Stale {
		parts = append(parts, "stale")
	}
	if r.Error != "" {
		parts = append(parts, r.Error)
	}
	return strings.Join(parts, ", ")
}

func forecast(f *director.ForecastView) string {
	if f.Points == 0 {
		if f.Error != "" {
			return "none: " + f.Error
		}
		return "none"
	}
	s := fmt.Sprintf("%d points from %s to %s", f.Points, moment(f.GeneratedAt), moment(f.Until))
	if !f.NextOpen.IsZero() {
		s += ", opens " + moment(f.NextOpen)
	}
	if !f.NextClose.IsZero() {
		s += ", closes " + moment(f.NextClose)
	}
	return s
}

func budget(b *director.BudgetView) string {
	s := fmt.Sprintf("%.0f g and %.1f kWh spent", b.SpentGrams, b.SpentKWh)
	if b.Grams != nil {
		s += fmt.Sprintf(", %.0f g allowed", *b.Grams)
	}
	if b.KWh != nil {
		s += fmt.Sprintf(", %.1f kWh allowed", *b.KWh)
	}
	if b.Exhausted != "" {
		s += "; no " + b.Exhausted + " left"
	}
	return s
}

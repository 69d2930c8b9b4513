package director

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"girassol.dev/api/signalpush"
	"girassol.dev/signals"
	"girassol.dev/signals/webhook"
	"girassol.dev/signals/window"
)

// Curtailed is a demand that holds a site out.
type Curtailed struct {
	// Cause is Emergency for an alert or a demand of the highest priority.
	Cause  window.Cause `json:"cause"`
	Source string       `json:"source,omitempty"`
	ID     string       `json:"id,omitempty"`
	Start  time.Time    `json:"start"`
	Until  time.Time    `json:"until"`
	// LimitWatts is the most that the site may draw, which is less than it does;
	// nil means nothing at all.
	LimitWatts *float64 `json:"limitWatts,omitempty"`
	Reason     string   `json:"reason,omitempty"`
}

// book holds the demands that came through Sink.
type book struct {
	mu      sync.Mutex
	demands map[string]webhook.Curtailment // by target, source and id
}

func newBook() *book { return &book{demands: map[string]webhook.Curtailment{}} }

func (b *book) put(c webhook.Curtailment) {
	key := c.Target.String() + "\n" + c.Source + "\n" + c.ID
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(c.Demands) == 0 {
		delete(b.demands, key)
		return
	}
	b.demands[key] = c
}

// of are the demands on a site; those that are over are forgotten.
func (b *book) of(s *site, now time.Time) []webhook.Curtailment {
	b.mu.Lock()
	defer b.mu.Unlock()
	var out []webhook.Curtailment
	for _, key := range slices.Sorted(maps.Keys(b.demands)) {
		c := b.demands[key]
		if !slices.ContainsFunc(c.Demands, func(d webhook.Demand) bool { return now.Before(d.Until) }) {
			delete(b.demands, key)
			continue
		}
		if s.meant(c.Target) {
			out = append(out, c)
		}
	}
	return out
}

// meant says that a target is the site or its region.
func (s *site) meant(t webhook.Target) bool {
	return t.Site == s.Name || t.Site == "" && t.Region != "" && t.Region == s.Region
}

// blocks is what forbids the site to be in now, the demand among it that is
// told, and when the next demand begins, zero if none is known.
func (s *site) blocks(now time.Time) (blocks []window.Block, told *Curtailed, begins time.Time) {
	all := s.director.book.of(s, now)
	if s.Curtailments != nil {
		all = append(all, s.Curtailments.Curtailments()...)
	}
	var holding []Curtailed
	for _, c := range all {
		for _, d := range c.Demands {
			if d.Start.After(now) && (begins.IsZero() || d.Start.Before(begins)) {
				begins = d.Start
			}
		}
		d, ok := c.At(now)
		if !ok || s.fits(d.LimitWatts) {
			continue
		}
		holds := Curtailed{Cause: window.Curtailment, Source: c.Source, ID: c.ID, Start: d.Start, Until: d.Until,
			LimitWatts: d.LimitWatts, Reason: cmp.Or(d.Reason, c.Reason)}
		if strings.HasPrefix(d.Reason, "ALERT_") || c.Priority != nil && *c.Priority == 0 {
			holds.Cause = window.Emergency
		}
		holding = append(holding, holds)
		blocks = append(blocks, window.Block{Cause: holds.Cause, Until: holds.Until, Message: holds.String()})
	}
	if len(holding) > 0 { // as package window tells them
		h := slices.MaxFunc(holding, func(a, b Curtailed) int {
			return cmp.Or(-cmp.Compare(rank(a.Cause), rank(b.Cause)), a.Until.Compare(b.Until))
		})
		told = &h
	}
	if spent := s.director.exhausted(); spent != "" {
		blocks = append(blocks, window.Block{Cause: window.Budget, Message: spent})
	}
	return blocks, told, begins
}

func rank(c window.Cause) int {
	if c == window.Emergency {
		return 0
	}
	return 1
}

// String is for people.
func (c Curtailed) String() string {
	limit := "nothing may be drawn"
	if c.LimitWatts != nil {
		limit = "at most " + figure(*c.LimitWatts) + " W may be drawn"
	}
	if c.Reason != "" {
		limit = c.Reason + ", " + limit
	}
	if c.Source != "" {
		limit += ", says " + c.Source
	}
	return limit
}

// fits says that a site is known to draw no more than a limit while it trains.
func (s *site) fits(limit *float64) bool {
	facts, ok := s.facts()
	return limit != nil && ok && facts.watts > 0 && facts.watts*facts.pue <= *limit
}

// exhausted says which budget is gone, "" if none is.
func (d *Director) exhausted() string {
	c := d.config
	if c.Spent == nil {
		return ""
	}
	grams, kWh := c.Spent()
	switch {
	case c.BudgetGrams != nil && grams >= *c.BudgetGrams:
		return fmt.Sprintf("%s of %s gCO2 emitted", figure(grams), figure(*c.BudgetGrams))
	case c.BudgetKWh != nil && kWh >= *c.BudgetKWh:
		return fmt.Sprintf("%s of %s kWh drawn", figure(kWh), figure(*c.BudgetKWh))
	}
	return ""
}

// watchSpan is how often the round and the budgets are looked at between
// decisions.
const watchSpan = 30 * time.Second

// watch notices a new round and a budget that is gone.
func (d *Director) watch(ctx context.Context) {
	spent := d.exhausted()
	for {
		timer := d.config.Clock.NewTimer(watchSpan)
		floor := time.NewTimer(100 * time.Millisecond)
		for _, c := range []<-chan time.Time{timer.C(), floor.C} {
			select {
			case <-c:
			case <-ctx.Done():
			}
		}
		timer.Stop()
		floor.Stop()
		if ctx.Err() != nil {
			return
		}
		if now := d.exhausted(); (now == "") != (spent == "") {
			spent = now
			for _, s := range d.order {
				s.look()
			}
		}
		d.plans.watch()
	}
}

// Look makes the director look again at what it asks for: after a change of a
// site's Curtailments, at a new round, when a budget was changed.
func (d *Director) Look() {
	for _, s := range d.order {
		s.look()
	}
	d.plans.wake()
}

// Sink takes what is pushed: demands and overrides count at once, readings and
// forecasts make their sites ask their sources, which are to be those of the
// same handler.
func (d *Director) Sink() webhook.Sink { return sink{d} }

type sink struct{ d *Director }

func (k sink) each(t webhook.Target, do func(s *site)) {
	for _, s := range k.d.order {
		if s.meant(t) {
			do(s)
		}
	}
}

func (s *site) hasten() {
	select {
	case s.hurry <- struct{}{}:
	default:
	}
}

// Reading implements webhook.Sink.
func (k sink) Reading(t webhook.Target, _ signals.Reading) { k.each(t, (*site).hasten) }

// Forecast implements webhook.Sink.
func (k sink) Forecast(t webhook.Target, _ string, _ signals.Forecast) { k.each(t, (*site).hasten) }

// Curtailment implements webhook.Sink.
func (k sink) Curtailment(c webhook.Curtailment) {
	k.d.book.put(c)
	k.each(c.Target, (*site).look)
}

// Override implements webhook.Sink.
func (k sink) Override(o webhook.Override) {
	k.each(o.Target, func(s *site) {
		var err error
		if o.Action == signalpush.ActionAuto {
			err = k.d.ClearOverride(s.Name)
		} else {
			err = k.d.SetOverride(s.Name, window.Override{
				Admit: o.Action == signalpush.ActionOn, Until: o.Until, By: o.Source, Why: o.Reason})
		}
		if err != nil {
			s.log.Error("a pushed override does not count", "source", o.Source, "action", o.Action, "error", err)
		}
	})
}

// figure shows at most two decimals.
func figure(v float64) string {
	s := strconv.FormatFloat(v, 'f', 2, 64)
	return strings.TrimSuffix(strings.TrimRight(s, "0"), ".")
}

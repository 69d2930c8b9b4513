package app

import (
	"log/slog"
	"testing"
	"time"

	"girassol.dev/coordinator/engine"
	"girassol.dev/signals"
	"girassol.dev/signals/ledger"
)

// flat is one intensity for ever.
type flat float64

func (f flat) At(t time.Time) signals.Step { return signals.Step{From: t, Value: new(float64(f))} }

// hands is a clock that a test moves.
type hands struct {
	signals.Clock
	now time.Time
}

func (h *hands) Now() time.Time { return h.now }

func TestBaselinesAreTheSameEnergyAtEverySitesMeanIntensityAlsoAfterARestart(t *testing.T) {
	dir := t.TempDir()
	clock := &hands{now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}
	grids := map[string]ledger.Grid{"quebec": {Marginal: flat(20)}, "atlanta": {Marginal: flat(400)}, "dark": {}}
	power := map[string]ledger.Power{"quebec": {TrainingWatts: 1000, PUE: 1}}
	open := func() *accountant {
		old, err := readBooks(dir)
		if err != nil {
			t.Fatal(err)
		}
		a, err := newAccountant(dir, clock, 1, grids, power, old, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	a := open()
	if got := a.baselines(); len(got) != 0 {
		t.Errorf("before anything was seen: %v", got)
	}
	for range 2 {
		clock.now = clock.now.Add(time.Hour)
		a.add(engine.Activities{Sites: []engine.Activity{{Site: "quebec", Admitted: true, Members: 1, Training: 1}}})
		a.keep()
		a = open()
	}
	got := a.baselines()
	if len(got) != 2 || got["quebec"] != 40 || got["atlanta"] != 800 {
		t.Errorf("%v: 2 kWh are 40 g at 20 g/kWh and 800 g at 400; nothing is known of the dark site", got)
	}
}

package director

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"girassol.dev/signals"
	"girassol.dev/signals/planner"
	"girassol.dev/signals/sanity"
	"girassol.dev/signals/webhook"
)

func TestMetricsTellVerdictsPlansAndDemandsUnderBoundedLabels(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clock := atSpeed(t, 60)
		registry := prometheus.NewRegistry()
		broken := sourceFunc(func(context.Context) (signals.Reading, error) { return signals.Reading{}, errBroken })
		d, stop := run(t, Config{Federation: "f", Membership: &recorder{clock: clock}, Clock: clock, Facts: alike, Registerer: registry,
			Planner: &planner.Config{},
			Sites: []Site{{Name: "a", Policy: below100(1, 1), Sanity: &sanity.Policy{}, Second: broken, Forecast: foresees(clock, 50, 60),
				Source: &scripted{clock: clock, values: v(50, 50, 0, 0, -1, 50, 50)}}}})
		until(clock, 31)
		if err := d.Override("a", false, t0.Add(time.Hour), ""); err != nil {
			t.Fatal(err)
		}
		d.Sink().Curtailment(webhook.Curtailment{Target: webhook.Target{Site: "a"}, Source: "dso",
			Demands: []webhook.Demand{{Start: t0, Until: t0.Add(time.Hour)}}})
		until(clock, 32)
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]float64{}
		for _, f := range families {
			for _, m := range f.GetMetric() {
				name := f.GetName()
				for _, l := range m.GetLabel() {
					if l.GetName() == "class" || l.GetName() == "source" {
						name += " " + l.GetValue()
					}
				}
				got[name] = m.GetGauge().GetValue() + m.GetCounter().GetValue()
			}
		}
		if got["girassol_signal_evidence_errors_total second"] == 0 {
			t.Errorf("no failure of the second source counted: %v", got)
		}
		for name, want := range map[string]float64{
			"girassol_signal_verdicts_total Good": 5, "girassol_signal_verdicts_total Held": 1, "girassol_signal_verdicts_total Missing": 1,
			"girassol_signal_verdicts_total Suspect": 0, "girassol_signal_verdicts_total Stale": 0,
			"girassol_signal_override": 0, "girassol_signal_curtailed": 1, "girassol_signal_chosen": 0, "girassol_signal_admitted": 0,
			"girassol_signal_evidence_errors_total forecast": 0,
		} {
			if v, there := got[name]; !there || v != want {
				t.Errorf("%s is %v (%v), want %v", name, v, there, want)
			}
		}
		if age := got["girassol_signal_forecast_age_seconds"]; age < 1900 || age > 1940 {
			t.Errorf("the forecast is %v s old", age)
		}
		stop()
	})
}

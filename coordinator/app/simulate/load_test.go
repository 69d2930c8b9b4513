package simulate

import (
	"strings"
	"testing"
	"time"

	"girassol.dev/signals"
)

const week = `
apiVersion: girassol.dev/v1alpha1
kind: Federation
metadata: {name: f}
spec:
  sites: [{name: a}, {name: b}]
  rounds: {trainSeconds: 300}
  energy:
    enterBelowGrams: 100
    provisioningSeconds: 60
    cooldownSeconds: 120
    targetSites: 1
    budget: {carbonGrams: 500, energyKWh: 7, tokens: 5000, deadline: "2026-03-02T03:00:00Z"}
  drain: {graceSeconds: 30}
---
apiVersion: girassol.dev/v1alpha1
kind: Site
metadata: {name: a}
spec:
  grid: {provider: Replay, region: A, tracePath: not-read.csv}
  power: {trainingWatts: 700, idleWatts: 70, pue: "1.5"}
---
apiVersion: girassol.dev/v1alpha1
kind: Site
metadata: {name: b}
spec:
  grid: {provider: Replay, region: B, tracePath: not-read.csv}
  energy: {provisioningSeconds: 90, zero: Trust, forecast: Ignore}
`

func TestFieldsOfTheSpecGoBeforeTheModelAndFlagsBeforeGoals(t *testing.T) {
	o := Options{
		Files:  []string{file(t, "f.yaml", week)},
		Traces: []string{file(t, "t.csv", "time,A,B,C\n2026-03-02T00:00Z,1,,3\n2026-03-02T00:05Z,1,2,3\n")},
		Made:   Made{Every: time.Hour, Horizon: time.Hour},
		Models: map[string]Model{"": {TrainingWatts: 1000, IdleWatts: 100, Provisioning: time.Hour, Step: time.Second, TokensPerSecond: 5},
			"b": {TrainingWatts: 2000, IdleWatts: 200, Step: time.Second, TokensPerSecond: 7}},
	}
	c, err := Load(o)
	if err != nil {
		t.Fatal(err)
	}
	a, b := c.Sites[0], c.Sites[1]
	if a.Power.TrainingWatts != 700 || a.Power.PUE != 1.5 || b.Power.TrainingWatts != 2000 || b.Power.PUE != 1 {
		t.Errorf("power %+v and %+v", a.Power, b.Power)
	}
	if a.Provisioning != time.Minute || b.Provisioning != 90*time.Second || a.Policy.Cooldown != 2*time.Minute {
		t.Errorf("starts in %s and %s", a.Provisioning, b.Provisioning)
	}
	if a.Policy.TrustZero || !b.Policy.TrustZero || !b.Sanity.TrustZero {
		t.Error("zeros are trusted at the wrong site")
	}
	if len(a.Forecasts) != 1 || len(b.Forecasts) != 0 || a.Policy.MinWindow != 6*time.Minute || a.Policy.LeaveLead != 30*time.Second || b.Policy.MinWindow != 0 {
		t.Errorf("%d and %d forecasts, policy %+v", len(a.Forecasts), len(b.Forecasts), a.Policy)
	}
	if c.Plan.Wanted != 1 || *c.Plan.BudgetGrams != 500 || *c.Plan.BudgetKWh != 7 || c.Plan.Deadline != 3*time.Hour || c.Work != (Work{5000, Tokens}) {
		t.Errorf("plan %+v, work %+v", c.Plan, c.Work)
	}
	if len(c.Regions) != 3 || c.Regions[2].Name != "C" || c.Regions[0].Trace.Unit != signals.GramsPerKWh {
		t.Errorf("regions %v", c.Regions)
	}
	o.Work, o.Plan = Work{1, KWh}, Plan{Wanted: 2, Deadline: time.Hour}
	if c, err = Load(o); err != nil || c.Work != o.Work || c.Plan.Wanted != 2 || c.Plan.Deadline != time.Hour {
		t.Errorf("%v: plan %+v, work %+v", err, c.Plan, c.Work)
	}
}

func TestABudgetThatIsSpentEndsTheTraining(t *testing.T) {
	s := series(t, "a", signals.Marginal, repeat(50, 48)...)
	c := config(place("a", s))
	kWh := 1.0
	c.Plan.BudgetKWh = &kWh
	r := simulated(t, c)
	if r.KWh > kWh || r.KWh < 0.8 {
		t.Errorf("%.3f kWh of a budget of %v", r.KWh, kWh)
	}
	if hours := r.Sites["a"].OutHours["BudgetExhausted"]; hours < 2 {
		t.Errorf("out for %v", r.Sites["a"].OutHours)
	}
}

func TestARegionThatNoTraceHasIsNamedWithThoseThereAre(t *testing.T) {
	o := Options{Files: []string{file(t, "f.yaml", week)}, Traces: []string{file(t, "t.csv", "time,A,C\n2026-03-02T00:00Z,1,3\n")},
		Models: map[string]Model{"": {Step: time.Second}}}
	if _, err := Load(o); err == nil || !strings.Contains(err.Error(), `site b: spec.grid.region: no trace has a column "B"; there are A, C`) {
		t.Errorf("error is %v", err)
	}
}

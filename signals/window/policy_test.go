package window

import (
	"errors"
	"strings"
	"testing"
	"time"

	"girassol.dev/api/federation/v1alpha1"
)

func p32(v int32) *int32 { return &v }

func TestDefaultsOfASpec(t *testing.T) {
	p, err := FromSpec(v1alpha1.EnergySpec{EnterBelowGrams: p32(120)}, nil)
	if err != nil {
		t.Fatal(err)
	}
	want := Policy{Mode: Grams, Enter: 120, Leave: 120, EnterConfirmations: 2, LeaveConfirmations: 2,
		MaxStale: 30 * time.Minute, OnStale: v1alpha1.StaleHold, Trailing: 7 * 24 * time.Hour}
	if p != want {
		t.Errorf("%+v, want %+v", p, want)
	}
}

func TestASiteOverridesFieldByField(t *testing.T) {
	federation := v1alpha1.EnergySpec{EnterBelowGrams: p32(100), LeaveAboveGrams: p32(150), EnterConfirmations: 3,
		MinimumOnSeconds: 600, MinimumOffSeconds: 300, MaxStaleSeconds: 60, OnStale: v1alpha1.StaleDrain}
	p, err := FromSpec(federation, &v1alpha1.EnergySpec{EnterBelowGrams: p32(80), LeaveConfirmations: 4,
		MinimumOnSeconds: 900, OnStale: v1alpha1.StaleAdmit, Policy: v1alpha1.EnergyIgnore})
	if err != nil {
		t.Fatal(err)
	}
	want := Policy{Ignore: true, Mode: Grams, Enter: 80, Leave: 150, EnterConfirmations: 3, LeaveConfirmations: 4,
		MinimumOn: 15 * time.Minute, MinimumOff: 5 * time.Minute, MaxStale: time.Minute,
		OnStale: v1alpha1.StaleAdmit, Trailing: DefaultTrailing}
	if p != want {
		t.Errorf("%+v, want %+v", p, want)
	}
	if *federation.EnterBelowGrams != 100 {
		t.Error("the federation's spec was changed")
	}
}

func TestASiteMayChangeTheUnit(t *testing.T) {
	p, err := FromSpec(v1alpha1.EnergySpec{EnterBelowGrams: p32(100), LeaveAboveGrams: p32(150)},
		&v1alpha1.EnergySpec{EnterBelowPercentile: p32(30)})
	if err != nil {
		t.Fatal(err)
	}
	if p.Mode != Percentile || p.Enter != 30 || p.Leave != 30 {
		t.Errorf("%+v", p)
	}
}

func TestIgnoreNeedsNoThresholds(t *testing.T) {
	p, err := FromSpec(v1alpha1.EnergySpec{Policy: v1alpha1.EnergyIgnore}, nil)
	if err != nil || !p.Ignore || p.Mode != None {
		t.Errorf("%+v, %v", p, err)
	}
}

func TestErrorsNameTheObjectAndTheField(t *testing.T) {
	grams := v1alpha1.EnergySpec{EnterBelowGrams: p32(100), LeaveAboveGrams: p32(150)}
	for _, c := range []struct {
		name       string
		federation v1alpha1.EnergySpec
		site       *v1alpha1.EnergySpec
		kind, path string
	}{
		{"no threshold", v1alpha1.EnergySpec{}, nil, "Federation", "spec.energy.enterBelowGrams"},
		{"both units", v1alpha1.EnergySpec{EnterBelowGrams: p32(1), EnterBelowPercentile: p32(1)}, nil,
			"Federation", "spec.energy.enterBelowPercentile"},
		{"both units at the site", grams, &v1alpha1.EnergySpec{EnterBelowGrams: p32(1), LeaveAbovePercentile: p32(1)},
			"Site", "spec.energy.enterBelowPercentile"},
		{"both units, though the site drops one", v1alpha1.EnergySpec{EnterBelowGrams: p32(1), EnterBelowPercentile: p32(1)},
			&v1alpha1.EnergySpec{EnterBelowGrams: p32(5)}, "Federation", "spec.energy.enterBelowPercentile"},
		{"leave below enter", v1alpha1.EnergySpec{EnterBelowGrams: p32(100), LeaveAboveGrams: p32(99)}, nil,
			"Federation", "spec.energy.leaveAboveGrams"},
		{"site enters above the federation's leave", grams, &v1alpha1.EnergySpec{EnterBelowGrams: p32(200)},
			"Site", "spec.energy.enterBelowGrams"},
		{"site leaves below the federation's enter", grams, &v1alpha1.EnergySpec{LeaveAboveGrams: p32(50)},
			"Site", "spec.energy.leaveAboveGrams"},
		{"leave without enter", v1alpha1.EnergySpec{LeaveAboveGrams: p32(100)}, nil, "Federation", "spec.energy.enterBelowGrams"},
		{"zero grams never opens", v1alpha1.EnergySpec{EnterBelowGrams: p32(0)}, nil, "Federation", "spec.energy.enterBelowGrams"},
		{"percentile above 100", v1alpha1.EnergySpec{EnterBelowPercentile: p32(101)}, nil,
			"Federation", "spec.energy.enterBelowPercentile"},
		{"negative time", grams, &v1alpha1.EnergySpec{MinimumOnSeconds: -1}, "Site", "spec.energy.minimumOnSeconds"},
		{"negative confirmations", grams, &v1alpha1.EnergySpec{LeaveConfirmations: -1}, "Site", "spec.energy.leaveConfirmations"},
		{"policy", v1alpha1.EnergySpec{Policy: "Sometimes"}, nil, "Federation", "spec.energy.policy"},
		{"stale policy", grams, &v1alpha1.EnergySpec{OnStale: "Hope"}, "Site", "spec.energy.onStale"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := FromSpec(c.federation, c.site)
			var field *FieldError
			if !errors.As(err, &field) || field.Kind != c.kind || field.Path != c.path {
				t.Fatalf("%v, want %s %s", err, c.kind, c.path)
			}
			if !strings.Contains(err.Error(), c.path) {
				t.Errorf("the message hides the field: %v", err)
			}
		})
	}
}

func TestChangedThresholdsBeginTheCountAnew(t *testing.T) {
	p := Policy{Mode: Grams, Enter: 100, Leave: 100, EnterConfirmations: 2, LeaveConfirmations: 2,
		MaxStale: time.Hour, OnStale: v1alpha1.StaleHold}
	v := 60.0
	s, _ := Decide(p, State{}, reading(t0, &v), t0)
	if s.EnterCount != 1 {
		t.Fatalf("%d points", s.EnterCount)
	}
	p.Enter, p.Leave = 50, 50
	s, d := Decide(p, s, reading(t0, &v), t0.Add(time.Minute))
	if s.EnterCount != 0 || d.Window != v1alpha1.WindowClosed {
		t.Errorf("the point at 60 g still counts below 50: %+v %+v", s, d)
	}
}

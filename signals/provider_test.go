package signals

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"girassol.dev/api/federation/v1alpha1"
)

func forecast(issued time.Time, values ...float64) Forecast {
	f := Forecast{Kind: Marginal, Unit: PoundsPerMWh, Region: "ca", GeneratedAt: issued, Source: "test"}
	for i, v := range values {
		f.Points = append(f.Points, ForecastPoint{Start: t0.Add(time.Duration(i) * time.Hour), Duration: time.Hour, Value: value(v)})
	}
	return f
}

func TestAForecastSaysWhatCoversATime(t *testing.T) {
	f := forecast(t0, 1, 2, 3)
	f.Points = append(f.Points[:1], f.Points[2]) // a gap
	for at, want := range map[time.Duration]float64{0: 1, 59 * time.Minute: 1, 2 * time.Hour: 3, 179 * time.Minute: 3} {
		if p, ok := f.At(t0.Add(at)); !ok || *p.Value != want {
			t.Errorf("at %s %v, %v", at, p, ok)
		}
	}
	for _, at := range []time.Duration{-1, time.Hour, 119 * time.Minute, 3 * time.Hour} {
		if p, ok := f.At(t0.Add(at)); ok {
			t.Errorf("at %s %v, where nothing is known", at, p)
		}
	}
	if !f.End().Equal(t0.Add(3*time.Hour)) || !(Forecast{}).End().IsZero() {
		t.Errorf("ends %s", f.End())
	}
	if _, ok := (Forecast{}).At(t0); ok {
		t.Error("nothing covers something")
	}
}

func TestANormalizedForecastSharesNothing(t *testing.T) {
	f := forecast(t0, 1000, 0)
	f.Points = append(f.Points, ForecastPoint{Start: t0.Add(2 * time.Hour), Duration: time.Hour})
	n := f.Normalized()
	if n.Unit != GramsPerKWh || *n.Points[0].Value != GramsFromPounds(1000) || *n.Points[1].Value != 0 || n.Points[2].Value != nil {
		t.Errorf("%+v", n)
	}
	if *f.Points[0].Value != 1000 || f.Unit != PoundsPerMWh {
		t.Errorf("the original changed: %+v", f)
	}
	if err := n.Validate(); err != nil {
		t.Error(err)
	}
}

func TestForecastsThatCannotBeRightAreRefused(t *testing.T) {
	for name, change := range map[string]func(*Forecast){
		"unit":       func(f *Forecast) { f.Unit = Percent },
		"overlap":    func(f *Forecast) { f.Points[1].Start = t0.Add(30 * time.Minute) },
		"order":      func(f *Forecast) { f.Points[0], f.Points[1] = f.Points[1], f.Points[0] },
		"duration":   func(f *Forecast) { f.Points[0].Duration = 0 },
		"start":      func(f *Forecast) { f.Points[0].Start = time.Time{} },
		"impossible": func(f *Forecast) { *f.Points[0].Value = -1 },
	} {
		f := forecast(t0, 1, 2)
		change(&f)
		if err := f.Validate(); err == nil || !strings.Contains(err.Error(), `"ca"`) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestTheLastForecastIsKeptUntilItsEnd(t *testing.T) {
	var l LastForecast
	gone := errors.New("gone")
	if f, err := l.Keep(Forecast{}, gone, t0); !errors.Is(err, gone) || len(f.Points) != 0 {
		t.Errorf("%v, %v", f, err)
	}
	if f, err := l.Keep(forecast(t0, 1, 2), nil, t0); err != nil || len(f.Points) != 2 {
		t.Errorf("%v, %v", f, err)
	}
	if f, err := l.Keep(forecast(t0.Add(-time.Hour), 9), nil, t0); err != nil || *f.Points[0].Value != 1 {
		t.Errorf("an older issue replaced a newer: %v, %v", f, err)
	}
	if f, err := l.Keep(Forecast{}, gone, t0.Add(119*time.Minute)); !errors.Is(err, gone) || len(f.Points) != 2 {
		t.Errorf("%v, %v", f, err)
	}
	if f, err := l.Keep(Forecast{}, gone, t0.Add(2*time.Hour)); !errors.Is(err, gone) || len(f.Points) != 0 {
		t.Errorf("kept beyond its end: %v, %v", f, err)
	}
	other := forecast(t0.Add(-time.Hour), 9)
	other.Region = "nl"
	if f, err := l.Keep(other, nil, t0); err != nil || f.Region != "nl" {
		t.Errorf("%v, %v", f, err)
	}
}

func TestAProvidersErrorNamesProviderRegionAndReason(t *testing.T) {
	cause := errors.New("cause")
	e := &ProviderError{Provider: "watttime", Region: "PJM_NJ", Endpoint: "v3/forecast", Reason: v1alpha1.ReasonSignalNotCovered,
		Detail: "the plan does not cover it", Err: cause}
	want := "watttime: region PJM_NJ: v3/forecast: SignalNotCovered: the plan does not cover it: cause"
	if e.Error() != want || !errors.Is(e, cause) {
		t.Errorf("%s", e)
	}
}

func TestATrafficLightIsOneOfFourLevels(t *testing.T) {
	for v, ok := range map[float64]bool{-1: true, 0: true, 1: true, 2: true, 3: false, 0.5: false, -2: false} {
		if err := CheckValue(TrafficLight, v); (err == nil) != ok {
			t.Errorf("%v: %v", v, err)
		}
	}
	if CheckUnit(TrafficLight, Level) != nil || CheckUnit(TrafficLight, Percent) == nil {
		t.Error("the unit of a traffic light")
	}
}

func TestTheModelSurvivesARoundTrip(t *testing.T) {
	r := point(value(1))
	r.Model = "2025-06-01"
	b, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	var back Reading
	if err := json.Unmarshal(b, &back); err != nil || back.Model != r.Model {
		t.Errorf("%s became %+v, %v", b, back, err)
	}
}

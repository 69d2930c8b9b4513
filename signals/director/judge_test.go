package director

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"girassol.dev/api/federation/v1alpha1"
	"girassol.dev/signals"
	"girassol.dev/signals/sanity"
	"girassol.dev/signals/window"
)

// atSpeed starts a virtual clock at t0.
func atSpeed(t *testing.T, speed float64) *signals.Virtual {
	t.Helper()
	c, err := signals.NewVirtual(t0, speed, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// of makes a source speak for another region, late by a real time.
func of(region string, late time.Duration, s Source) Source {
	return sourceFunc(func(ctx context.Context) (signals.Reading, error) {
		r, err := s.Latest(ctx)
		r.Region = region
		time.Sleep(late)
		return r, err
	})
}

func hang(ctx context.Context) (signals.Reading, error) {
	<-ctx.Done()
	return signals.Reading{}, ctx.Err()
}

// foresees is a forecaster of hourly values from t0 on.
func foresees(clock signals.Clock, values ...float64) forecastFunc {
	return func(context.Context) (signals.Forecast, error) {
		f := signals.Forecast{Kind: signals.Marginal, Unit: signals.GramsPerKWh, Region: "r", Source: "seer",
			GeneratedAt: clock.Now().Truncate(time.Hour)}
		for i, v := range values {
			f.Points = append(f.Points, signals.ForecastPoint{Start: t0.Add(time.Duration(i) * time.Hour), Duration: time.Hour, Value: &v})
		}
		return f, nil
	}
}

type forecastFunc func(context.Context) (signals.Forecast, error)

func (f forecastFunc) Forecast(ctx context.Context) (signals.Forecast, error) { return f(ctx) }

func TestABrokenSecondSourceCostsAMomentOnce(t *testing.T) {
	broken := func(context.Context) (signals.Reading, error) { return signals.Reading{}, errors.New("503") }
	for name, second := range map[string]sourceFunc{"fails": broken, "hangs": hang} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				clock := atSpeed(t, 1)
				values := v(append(repeat(50, 6), repeat(500, 6)...)...)
				members := &recorder{clock: clock}
				registry := prometheus.NewRegistry()
				d, stop := run(t, Config{Federation: "f", Membership: members, Clock: clock, Registerer: registry, Sites: []Site{
					{Name: "a", Policy: below100(1, 1), Source: &scripted{clock: clock, values: values}, Sanity: &sanity.Policy{},
						Second: second, Price: second, Share: second,
						Forecast: forecastFunc(func(ctx context.Context) (signals.Forecast, error) {
							_, err := second(ctx)
							return signals.Forecast{}, err
						})},
					{Name: "sound", Policy: below100(1, 1), Source: &scripted{clock: clock, values: values}},
				}})
				until(clock, 59)
				e, err := d.Explain("a")
				if err != nil || e.Second.Error == "" || e.Second.Value != nil || e.Second.Compared || e.Forecast.Error == "" ||
					e.Verdict.Class != sanity.Good || e.SourceError != "" {
					t.Errorf("%+v, %v", e, err)
				}
				families, err := registry.Gather()
				if err != nil {
					t.Fatal(err)
				}
				failed := 0
				for _, f := range families {
					if f.GetName() == "girassol_signal_evidence_errors_total" {
						for _, m := range f.GetMetric() {
							if m.GetCounter().GetValue() > 0 {
								failed++
							}
						}
					}
				}
				if failed != 4 {
					t.Errorf("%d sources counted as failing, want 4", failed)
				}
				stop()
				for _, site := range []string{"a", "sound"} {
					sameMinutes(t, site, members.changes(site), []float64{0, 30})
					wishes := members.of(site)
					if len(wishes) != 12 {
						t.Errorf("%s: told %d times of 12 points", site, len(wishes))
					}
					for i, w := range wishes {
						late := w.at.Sub(t0.Add(time.Duration(i) * 5 * time.Minute))
						if late > 10*time.Millisecond && (site == "sound" || i > 0 || late > evidenceWait+10*time.Millisecond) {
							t.Errorf("%s: point %d came %s late", site, i, late)
						}
					}
				}
			})
		})
	}
}

func TestASecondSourceThatDisagreesKeepsTheWindowAsItIs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clock := atSpeed(t, 60)
		members := &recorder{clock: clock}
		d, stop := run(t, Config{Federation: "f", Membership: members, Clock: clock, Sites: []Site{{Name: "a", Policy: below100(1, 1),
			Sanity: &sanity.Policy{Tolerance: sanity.Tolerance{Absolute: 30}},
			Source: &scripted{clock: clock, values: v(append(append(repeat(500, 3), repeat(50, 9)...), 500)...)},
			Second: of("other name", 50*time.Millisecond, &scripted{clock: clock, values: v(append(append(repeat(490, 6), repeat(60, 3)...), repeat(20, 9)...)...)})}}})
		until(clock, 22)
		w := members.last(t, "a")
		if w.Admit || w.Reason != v1alpha1.ReasonSignalDisagrees || !strings.Contains(w.Message, "490") || !strings.Contains(w.Message, "50 gCO2/kWh") {
			t.Errorf("%+v", w)
		}
		if e, _ := d.Explain("a"); e.Verdict.Class != sanity.Suspect || !e.Second.Compared || *e.Second.Value != 490 || *e.Signal.Value != 50 {
			t.Errorf("%+v", e)
		}
		until(clock, 58)
		if w := members.last(t, "a"); !w.Admit || w.Reason != v1alpha1.ReasonEnergyFavourable {
			t.Errorf("%+v", w)
		}
		until(clock, 63) // 500 against 20: not believed
		if w := members.last(t, "a"); !w.Admit || !strings.Contains(w.Message, "more than 30") {
			t.Errorf("%+v", w)
		}
		stop()
		sameMinutes(t, "a", members.changes("a"), []float64{30})
	})
}

// Zeros were believed an hour before, so only the other regions tell that these
// are none; they come later than the first one's.
func TestAnOutageOfZerosInAllRegionsOpensNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clock := atSpeed(t, 60)
		true0 := v(300, 0, 0, 0, 300, 300, 300, 0, 0, 0, 0, 300, 0, 0, 0)
		other := v(300, 300, 300, 300, 300, 300, 300, 0, 0, 0, 0, 300, 280, 290, 300)
		members := &recorder{clock: clock}
		var sites []Site
		for i, region := range []string{"a", "b", "c"} {
			values := other
			if i == 0 {
				values = true0
			}
			sites = append(sites, Site{Name: region, Policy: below100(1, 1), Sanity: &sanity.Policy{TrustZero: true},
				Source: of(region, time.Duration(i)*700*time.Millisecond, &scripted{clock: clock, values: values})})
		}
		d, stop := run(t, Config{Federation: "f", Membership: members, Clock: clock, Sites: sites})
		until(clock, 37)
		for _, site := range sites {
			if w := members.last(t, site.Name); w.Admit || w.Reason != v1alpha1.ReasonSignalOutage {
				t.Errorf("%s: %+v", site.Name, w)
			}
		}
		if e, _ := d.Explain("a"); e.Verdict.Reason != v1alpha1.ReasonSignalOutage || *e.Signal.Value != 0 {
			t.Errorf("%+v", e)
		}
		until(clock, 74)
		stop()
		// In again by the zero that the others show to be none of the feed's, the
		// moment after they reported.
		got := members.changes("a")
		if len(got) != 3 || got[0] < 5 || got[0] > 6.5 || got[1] < 20 || got[1] > 20.2 || got[2] < 60 || got[2] > 62 {
			t.Errorf("a changed at %v", got)
		}
		sameMinutes(t, "b", members.changes("b"), nil)
		sameMinutes(t, "c", members.changes("c"), nil)
	})
}

func TestAForecastTwoHoursEarlyOpensNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clock := fast(t)
		members := &recorder{clock: clock}
		d, stop := run(t, Config{Federation: "f", Membership: members, Clock: clock, Sites: []Site{{Name: "a", Policy: below100(2, 1),
			Sanity: &sanity.Policy{}, Provisioning: 5 * time.Minute, Round: 10 * time.Minute, Drain: 10 * time.Minute,
			Source:   &scripted{clock: clock, values: v(append(repeat(500, 36), repeat(50, 60)...)...)},
			Forecast: foresees(clock, 500, 50, 50, 50, 50, 50, 50, 500, 500)}}})
		until(clock, 32)
		e, _ := d.Explain("a")
		if f := e.Forecast; f == nil || f.Points != 9 || !f.NextOpen.Equal(t0.Add(time.Hour)) || f.Source != "seer" || !f.GeneratedAt.Equal(t0) ||
			f.Verdict.Class != sanity.Good {
			t.Errorf("%+v", f)
		}
		if e.Thresholds.MinWindowSeconds != 900 || e.Thresholds.LeaveLeadSeconds != 600 {
			t.Errorf("%+v", e.Thresholds)
		}
		until(clock, 175)
		if w := members.last(t, "a"); w.Admit || w.Reason != v1alpha1.ReasonWaitingForEnergy {
			t.Errorf("%+v", w)
		}
		until(clock, 400)
		e, _ = d.Explain("a")
		if !e.Window.ForecastClose.Equal(t0.Add(7 * time.Hour)) {
			t.Errorf("%+v", e.Window)
		}
		until(clock, 415)
		stop()
		// Left for the end that is forecast, by the time that draining takes.
		sameMinutes(t, "a", members.changes("a"), []float64{185, 410})
		if w := members.last(t, "a"); w.Reason != v1alpha1.ReasonWindowClosing {
			t.Errorf("%+v", w)
		}
	})
}

func TestAWindowThatEndsBeforeAStartPaysIsNotOpened(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clock := fast(t)
		members := &recorder{clock: clock}
		_, stop := run(t, Config{Federation: "f", Membership: members, Clock: clock, Sites: []Site{{Name: "a", Policy: below100(1, 1),
			Sanity: &sanity.Policy{}, Provisioning: 10 * time.Minute, Round: 20 * time.Minute,
			Source:   &scripted{clock: clock, values: v(append(repeat(500, 7), repeat(50, 30)...)...)},
			Forecast: foresees(clock, 50, 500, 500)}}})
		until(clock, 50)
		stop()
		if w := members.last(t, "a"); w.Admit || w.Reason != v1alpha1.ReasonWindowTooShort {
			t.Errorf("%+v", w)
		}
	})
}

func TestWithoutASanityPolicyReadingsAreTakenAsBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clock := fast(t)
		members := &recorder{clock: clock}
		d, stop := run(t, Config{Federation: "f", Membership: members, Clock: clock, Sites: []Site{{Name: "a", Policy: below100(1, 1),
			Source: &scripted{clock: clock, values: v(500, 500, 50)}}}})
		until(clock, 11)
		e, err := d.Explain("a")
		stop()
		if err != nil || e.Verdict != nil || e.Plan != nil || e.Forecast != nil || e.Budget != nil || e.Second != nil || !e.Admit ||
			e.Window.State != v1alpha1.WindowOpen || e.Policy.Mode != window.Grams {
			t.Errorf("%+v, %v", e, err)
		}
		sameMinutes(t, "a", members.changes("a"), []float64{10})
	})
}

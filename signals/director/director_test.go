package director

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"girassol.dev/api/federation/v1alpha1"
	"girassol.dev/signals"
	"girassol.dev/signals/replay"
	"girassol.dev/signals/store"
	"girassol.dev/signals/synthetic"
	"girassol.dev/signals/window"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestSitesAreAdmittedInTheWindowsOfTheirTrace(t *testing.T) {
	longBubble(t)
	synctest.Test(t, func(t *testing.T) {
		clock := fast(t)
		twin := synthetic.Twin(1)
		var sites []Site
		for _, region := range twin.Marginal.Regions() {
			s, err := twin.Marginal.Column(region)
			if err != nil {
				t.Fatal(err)
			}
			sites = append(sites, Site{Name: region, Policy: below100(1, 1), Source: replay.NewSource(s, clock, "twin")})
		}
		members := &recorder{clock: clock}
		_, stop := run(t, Config{Federation: "f", Sites: sites, Membership: members, Clock: clock})
		began := time.Now()
		until(clock, 18*60+4)
		if took := time.Since(began); took > 121*time.Second {
			t.Errorf("18 hours took %s", took)
		}
		stop()
		for _, region := range twin.Sites {
			var want []float64
			for _, w := range region.Windows {
				want = append(want, w.From.Minutes(), (w.From + w.Length).Minutes())
			}
			sameMinutes(t, region.Name, members.changes(region.Name), want)
		}
		sameMinutes(t, "de", members.changes("de"), nil)
		for _, site := range sites {
			wishes := members.of(site.Name)
			if len(wishes) != synthetic.Points {
				t.Errorf("%s: told %d times of %d points", site.Name, len(wishes), synthetic.Points)
			}
			for i, w := range wishes {
				if !w.Signal.PointTime.Equal(t0.Add(time.Duration(i)*synthetic.Step)) || w.Signal.Value == nil {
					t.Fatalf("%s: wish %d shows %+v", site.Name, i, w.Signal)
				}
			}
		}
	})
}

func TestARestartKeepsTheMinimumOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clock := fast(t)
		states, err := store.OpenFiles(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		policy := below100(1, 1)
		policy.MinimumOn = time.Hour
		members := &recorder{clock: clock}
		c := Config{Federation: "f", Membership: members, Clock: clock, Store: states,
			Sites: []Site{{Name: "a", Policy: policy, Source: &scripted{clock: clock,
				values: v(append(repeat(50, 3), repeat(500, 40)...)...)}}}}
		_, stop := run(t, c)
		until(clock, 22)
		stop()
		if w := members.last(t, "a"); !w.Admit || w.Reason != v1alpha1.ReasonMinimumOn {
			t.Fatalf("before the restart: %+v", w)
		}
		before := len(members.of("a"))
		until(clock, 31)
		_, stop = run(t, c)
		until(clock, 59)
		if w := members.last(t, "a"); !w.Admit || w.Reason != v1alpha1.ReasonMinimumOn || len(members.of("a")) == before {
			t.Errorf("after the restart: %+v", w)
		}
		until(clock, 80)
		stop()
		sameMinutes(t, "a", members.changes("a"), []float64{0, 60})
	})
}

func TestABrokenSourceTouchesNoOtherSite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clock := fast(t)
		values := v(append(repeat(500, 3), repeat(50, 100)...)...)
		errSource := errors.New("403: region outside the plan")
		broken := &scripted{clock: clock, values: values, fail: func(context.Context, float64) error { return errSource }}
		hanging := &scripted{clock: clock, values: values, fail: func(ctx context.Context, minute float64) error {
			if minute < 29 {
				return nil
			}
			<-ctx.Done()
			return ctx.Err()
		}}
		var logged bytes.Buffer
		members := &recorder{clock: clock}
		d, stop := run(t, Config{Federation: "f", Membership: members, Clock: clock,
			Log: slog.New(slog.NewTextHandler(&logged, nil)),
			Sites: []Site{
				{Name: "broken", Policy: below100(1, 1), Source: broken},
				{Name: "hanging", Policy: below100(1, 1), Source: hanging},
				{Name: "sound", Policy: below100(1, 1), Source: &scripted{clock: clock, values: values}},
			}})
		until(clock, 240)
		e, err := d.Explain("broken")
		if err != nil || e.SourceError != errSource.Error() || e.Reading != nil {
			t.Errorf("%+v, %v", e, err)
		}
		stop()
		sameMinutes(t, "sound", members.changes("sound"), []float64{15})
		if n := len(members.of("sound")); n != 49 {
			t.Errorf("sound: told %d times of 49 points", n)
		}
		if w := members.last(t, "broken"); w.Admit || w.Reason != v1alpha1.ReasonSignalMissing || w.Signal.Value != nil {
			t.Errorf("broken: %+v", w)
		}
		// The last point was at 25: stale at 40, held until 70.
		sameMinutes(t, "hanging", members.changes("hanging"), []float64{15, 70})
		if w := members.last(t, "hanging"); w.Reason != v1alpha1.ReasonSignalStale || w.Signal.Value != nil || w.Signal.PointTime.IsZero() {
			t.Errorf("hanging: %+v", w)
		}
		// Backoff: not more than a call per period after the first few.
		if broken.calls < 20 || broken.calls > 70 {
			t.Errorf("a broken source was asked %d times in 4 hours of 48 points", broken.calls)
		}
		if n := strings.Count(logged.String(), "region outside the plan"); n != 1 {
			t.Errorf("the same failure was logged %d times", n)
		}
	})
}

// The trace's end is an error that names the time, which a fast clock changes at
// each try.
func TestTheEndOfATraceIsLoggedOnceAndAskedForAtABearablePace(t *testing.T) {
	longBubble(t)
	for _, speed := range []float64{540, 36000} {
		synctest.Test(t, func(t *testing.T) {
			clock, err := signals.NewVirtual(t0, speed, time.Now())
			if err != nil {
				t.Fatal(err)
			}
			series, err := synthetic.Twin(1).Marginal.Column("ca-north")
			if err != nil {
				t.Fatal(err)
			}
			trace := replay.NewSource(series, clock, "twin")
			var calls atomic.Int64
			source := sourceFunc(func(ctx context.Context) (signals.Reading, error) {
				calls.Add(1)
				return trace.Latest(ctx)
			})
			var logged bytes.Buffer
			_, stop := run(t, Config{Federation: "f", Membership: &recorder{clock: clock}, Clock: clock,
				Log: slog.New(slog.NewTextHandler(&logged, nil)), Sites: []Site{{Name: "a", Policy: below100(1, 1), Source: source}}})
			until(clock, 18*60+5)
			during := calls.Load()
			time.Sleep(time.Minute)
			stop()
			if n := calls.Load() - during; n < 30 || n > 90 {
				t.Errorf("speed %v: asked %d times in a minute after the end", speed, n)
			}
			if n := strings.Count(logged.String(), "outside the trace"); n != 1 {
				t.Errorf("speed %v: the end was logged %d times:\n%s", speed, n, logged.String())
			}
		})
	}
}

func TestEachErrorIsLoggedOnceAndCountedUntilItIsOver(t *testing.T) {
	var logged bytes.Buffer
	s := &site{log: slog.New(slog.NewTextHandler(&logged, nil))}
	for _, text := range []string{"timeout after 10 s", "timeout after 11 s", "refused", "timeout after 12 s", "refused", "", "refused", "", ""} {
		s.failure(&s.sourceFailure, func(e *Explanation) *string { return &e.SourceError }, text, "source failed")
	}
	var got []string
	for line := range strings.Lines(logged.String()) {
		_, line, _ = strings.Cut(strings.TrimSpace(line), "msg=")
		got = append(got, line)
	}
	want := []string{
		`"source failed" error="timeout after 10 s" failures=1`, `"source failed" error=refused failures=3`, `recovered from="source failed" failures=5`,
		`"source failed" error=refused failures=1`, `recovered from="source failed" failures=1`,
	}
	if !slices.Equal(got, want) {
		t.Errorf("logged\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	for i := range 100 { // each time another text
		s.failure(&s.storeFailure, func(e *Explanation) *string { return &e.StoreError }, strings.Repeat("x", i+1), "store failed")
	}
	if n := strings.Count(logged.String(), "store failed"); n != mostErrors || s.storeFailure.count != 100 {
		t.Errorf("%d of 100 errors logged, %d counted", n, s.storeFailure.count)
	}
}

func TestASlowClockDoesNotPutRetriesOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clock, err := signals.NewVirtual(t0, 0.001, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		source := &scripted{clock: clock, values: v(50), fail: func(context.Context, float64) error { return errors.New("503") }}
		_, stop := run(t, Config{Federation: "f", Membership: &recorder{clock: clock}, Clock: clock,
			Sites: []Site{{Name: "a", Policy: below100(1, 1), Source: source}}})
		time.Sleep(time.Hour)
		stop()
		if source.calls < 15 || source.calls > 40 {
			t.Errorf("a failing source was asked %d times in an hour of points every 5 minutes", source.calls)
		}
	})
}

func TestASourceThatRecoversIsReadAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clock := fast(t)
		source := &scripted{clock: clock, values: v(repeat(50, 100)...), fail: func(_ context.Context, minute float64) error {
			if minute < 60 {
				return errors.New("503")
			}
			return nil
		}}
		members := &recorder{clock: clock}
		d, stop := run(t, Config{Federation: "f", Membership: members, Clock: clock,
			Sites: []Site{{Name: "a", Policy: below100(2, 2), Source: source}}})
		until(clock, 90)
		stop()
		e, _ := d.Explain("a")
		if w := members.last(t, "a"); !w.Admit || e.SourceError != "" || !e.Delivered {
			t.Errorf("%+v, %+v", w, e)
		}
	})
}

func TestMembershipIsToldUntilItHasArrived(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clock := fast(t)
		down := time.Now().Add(20 * time.Second) // 3 virtual hours
		members := &recorder{clock: clock, fail: func(_ context.Context, site string) error {
			if site == "a" && time.Now().Before(down) {
				return errors.New("coordinator is restarting")
			}
			return nil
		}}
		values := v(append(repeat(50, 10), repeat(500, 200)...)...)
		source := func() Source { return &scripted{clock: clock, values: values} }
		d, stop := run(t, Config{Federation: "f", Membership: members, Clock: clock, Sites: []Site{
			{Name: "a", Policy: below100(1, 1), Source: source()},
			{Name: "b", Policy: below100(1, 1), Source: source()},
		}})
		until(clock, 120)
		if e, _ := d.Explain("a"); e.Delivered || e.MembershipError != "coordinator is restarting" {
			t.Errorf("while it fails: %+v", e)
		}
		until(clock, 300)
		if e, _ := d.Explain("a"); !e.Delivered || e.MembershipError != "" {
			t.Errorf("afterwards: %+v", e)
		}
		stop()
		sameMinutes(t, "b", members.changes("b"), []float64{0, 50})
		// The window had opened and closed meanwhile: only the present counts.
		wishes := members.of("a")
		if len(wishes) == 0 || wishes[0].Admit || wishes[0].at.Sub(t0) < 180*time.Minute {
			t.Errorf("a: first told %+v", wishes[0])
		}
		if w := members.last(t, "a"); !w.Signal.PointTime.Equal(t0.Add(300 * time.Minute)) {
			t.Errorf("a: last told of %s", w.Signal.PointTime)
		}
	})
}

func TestAHangingMembershipCallIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		members := &recorder{clock: signals.Real{}}
		first := true
		members.fail = func(ctx context.Context, _ string) error {
			if !first {
				return nil
			}
			first = false
			<-ctx.Done()
			return ctx.Err()
		}
		base := time.Now()
		source := sourceFunc(func(context.Context) (signals.Reading, error) {
			x := 50.0
			return signals.Reading{Kind: signals.Marginal, Unit: signals.GramsPerKWh, Value: &x, PointTime: base, Period: time.Hour}, nil
		})
		_, stop := run(t, Config{Federation: "f", Membership: members, CallTimeout: 3 * time.Second,
			Sites: []Site{{Name: "a", Policy: below100(1, 1), Source: source}}})
		time.Sleep(5 * time.Second)
		synctest.Wait()
		stop()
		if w := members.last(t, "a"); !w.Admit || w.at.Sub(base) > 4*time.Second {
			t.Errorf("%+v", w)
		}
	})
}

// brokenStore fails to load one site and to save any.
type brokenStore struct{}

func (brokenStore) Load() (map[string]window.State, error) {
	return nil, errors.New("damaged")
}
func (brokenStore) Save(string, window.State) error { return errors.New("disk full") }

func TestABrokenStoreStopsNoDecision(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clock := fast(t)
		members := &recorder{clock: clock}
		d, stop := run(t, Config{Federation: "f", Membership: members, Clock: clock, Store: brokenStore{},
			Sites: []Site{{Name: "a", Policy: below100(1, 1), Source: &scripted{clock: clock, values: v(repeat(50, 9)...)}}}})
		until(clock, 11)
		e, _ := d.Explain("a")
		stop()
		sameMinutes(t, "a", members.changes("a"), []float64{0})
		if e.StoreError != "disk full" {
			t.Errorf("%+v", e)
		}
	})
}

func TestEmptyPointsAreNeverZero(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clock := fast(t)
		members := &recorder{clock: clock}
		registry := prometheus.NewRegistry()
		_, stop := run(t, Config{Federation: "f", Membership: members, Clock: clock, Registerer: registry,
			Sites: []Site{{Name: "a", Policy: below100(1, 1), Source: &scripted{clock: clock, values: v(500, -1, -1, -1, -1, -1)}}}})
		until(clock, 14)
		if got := gauges(t, registry); got["girassol_signal_value"] != 500 || got["girassol_signal_window"] != 0 ||
			got["girassol_signal_admitted"] != 0 || got["girassol_signal_age_seconds"] < 14*60 || got["girassol_signal_age_seconds"] > 14*60+1 {
			t.Errorf("within the grace: %v", got)
		}
		until(clock, 16)
		if got := gauges(t, registry); got["girassol_signal_window"] != -1 {
			t.Errorf("stale: %v", got)
		} else if _, there := got["girassol_signal_value"]; there {
			t.Errorf("an unknown value is shown: %v", got)
		}
		for _, w := range members.of("a") {
			if w.Admit || w.Signal.Value != nil && *w.Signal.Value == 0 {
				t.Errorf("%+v", w)
			}
		}
		stop()
		if got := gauges(t, registry); len(got) != 0 {
			t.Errorf("metrics outlive the director: %v", got)
		}
	})
}

func TestConfigurationsThatCannotWorkAreRefused(t *testing.T) {
	source := sourceFunc(func(context.Context) (signals.Reading, error) { return signals.Reading{}, nil })
	members := &recorder{}
	registry := prometheus.NewRegistry()
	if _, err := New(Config{Federation: "f", Membership: members, Registerer: registry}); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]Config{
		"no membership": {},
		"no name":       {Membership: members, Sites: []Site{{Source: source}}},
		"no source":     {Membership: members, Sites: []Site{{Name: "a"}}},
		"twice":         {Membership: members, Sites: []Site{{Name: "a", Source: source}, {Name: "a", Source: source}}},
		"metrics twice": {Federation: "f", Membership: members, Registerer: registry},
	} {
		if _, err := New(c); err == nil {
			t.Errorf("%s was accepted", name)
		}
	}
	d, err := New(Config{Federation: "g", Membership: members, Registerer: registry, Sites: []Site{{Name: "a", Source: source}}})
	if err != nil {
		t.Errorf("a second federation in one process: %v", err)
	}
	if _, err := d.Explain("b"); err == nil {
		t.Error("an unknown site was explained")
	}
}

package director

import (
	"context"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"girassol.dev/api/federation/v1alpha1"
	"girassol.dev/signals"
	"girassol.dev/signals/synthetic"
	"girassol.dev/signals/window"
)

var t0 = synthetic.Start

// told is a wish that arrived.
type told struct {
	at time.Time // virtual
	Wish
}

// recorder is a membership that notes wishes; fail may refuse a call.
type recorder struct {
	clock signals.Clock
	fail  func(ctx context.Context, site string) error

	mu     sync.Mutex
	wishes map[string][]told
	calls  int
}

func (r *recorder) SetMembership(ctx context.Context, site string, w Wish) error {
	r.mu.Lock()
	r.calls++
	r.mu.Unlock()
	if r.fail != nil {
		if err := r.fail(ctx, site); err != nil {
			return err
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.wishes == nil {
		r.wishes = map[string][]told{}
	}
	r.wishes[site] = append(r.wishes[site], told{r.clock.Now(), w})
	return nil
}

func (r *recorder) of(site string) []told {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]told(nil), r.wishes[site]...)
}

func (r *recorder) last(t *testing.T, site string) told {
	t.Helper()
	w := r.of(site)
	if len(w) == 0 {
		t.Fatalf("nothing was told of %s", site)
	}
	return w[len(w)-1]
}

// changes are the minutes after t0 at which admission changed.
func (r *recorder) changes(site string) []float64 {
	var out []float64
	admitted := false
	for _, w := range r.of(site) {
		if w.Admit != admitted {
			admitted = w.Admit
			out = append(out, w.at.Sub(t0).Minutes())
		}
	}
	return out
}

func sameMinutes(t *testing.T, what string, got, want []float64) {
	t.Helper()
	ok := len(got) == len(want)
	for i := 0; ok && i < len(got); i++ {
		ok = got[i] >= want[i] && got[i] < want[i]+0.1 // a virtual timer is never early
	}
	if !ok {
		t.Errorf("%s: admission changed at minutes %v, want %v", what, got, want)
	}
}

// scripted is a source of values at 5-minute points; nil is an empty point.
type scripted struct {
	clock  signals.Clock
	values []*float64
	fail   func(ctx context.Context, minute float64) error

	mu    sync.Mutex
	calls int
}

func v(values ...float64) []*float64 {
	var out []*float64
	for _, x := range values {
		if x < 0 {
			out = append(out, nil)
			continue
		}
		out = append(out, &x)
	}
	return out
}

func (s *scripted) Latest(ctx context.Context) (signals.Reading, error) {
	s.mu.Lock()
	s.calls++
	s.mu.Unlock()
	now := s.clock.Now()
	if s.fail != nil {
		if err := s.fail(ctx, now.Sub(t0).Minutes()); err != nil {
			return signals.Reading{}, err
		}
	}
	return s.at(now), nil
}

func (s *scripted) at(now time.Time) signals.Reading {
	i := min(int(now.Sub(t0)/(5*time.Minute)), len(s.values)-1)
	return signals.Reading{Kind: signals.Marginal, Unit: signals.GramsPerKWh, Region: "r", Source: "script",
		Value: s.values[i], PointTime: t0.Add(time.Duration(i) * 5 * time.Minute), ReceivedTime: now, Period: 5 * time.Minute}
}

func below100(in, out int) window.Policy {
	return window.Policy{Mode: window.Grams, Enter: 100, Leave: 100, EnterConfirmations: in, LeaveConfirmations: out,
		MaxStale: 30 * time.Minute, OnStale: v1alpha1.StaleHold, Trailing: window.DefaultTrailing}
}

// fast starts a virtual clock at t0, 540 times as fast as the bubble's.
func fast(t *testing.T) *signals.Virtual {
	t.Helper()
	c, err := signals.NewVirtual(t0, 540, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// run starts a director and returns what stops it and waits for its end.
func run(t *testing.T, c Config) (*Director, func()) {
	t.Helper()
	d, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- d.Run(ctx) }()
	return d, func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	}
}

// until sleeps to a virtual minute after t0.
func until(c *signals.Virtual, minute float64) {
	time.Sleep(c.Real(t0.Add(time.Duration(minute * float64(time.Minute))).Sub(c.Now())))
	synctest.Wait()
}

func repeat(x float64, n int) []float64 {
	out := make([]float64, n)
	for i := range out {
		out[i] = x
	}
	return out
}

type sourceFunc func(context.Context) (signals.Reading, error)

func (f sourceFunc) Latest(ctx context.Context) (signals.Reading, error) { return f(ctx) }

// gauges are the gathered gauges by name; every metric must have the two labels.
func gauges(t *testing.T, g prometheus.Gatherer) map[string]float64 {
	t.Helper()
	families, err := g.Gather()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, l.GetName())
			}
			if strings.Join(labels, ",") != "federation,site" {
				t.Errorf("%s has labels %v", f.GetName(), labels)
			}
			if m.GetGauge() != nil {
				out[f.GetName()] = m.GetGauge().GetValue()
			}
		}
	}
	return out
}

package app

import (
	"context"
	"io"
	"log/slog"
	"math"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/prometheus/client_golang/prometheus"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	"girassol.dev/coordinator/checkpoint"
	"girassol.dev/internal/redislink"
	"girassol.dev/internal/wire"
	"girassol.dev/signals/ledger"
)

// testWait bounds every wait of a test; it is never reached when all is well.
const testWait = 30 * time.Second

const processConfig = `apiVersion: girassol.dev/v1alpha1
kind: Federation
metadata: {name: lm}
spec:
  sites: [{name: quebec}, {name: lab}]
  algorithm: {strategy: DiLoCo}
  energy: {enterBelowGrams: 100, leaveAboveGrams: 150}
---
apiVersion: girassol.dev/v1alpha1
kind: Site
metadata: {name: quebec}
spec:
  grid: {provider: Replay, region: ca, tracePath: TRACE}
  power: {trainingWatts: 2000, idleWatts: 400}
---
apiVersion: girassol.dev/v1alpha1
kind: Site
metadata: {name: lab}
spec: {energy: {policy: Ignore}}
`

// running is a coordinator process within the test.
type running struct {
	p    *process
	stop func() error
}

func runProcess(t *testing.T, dir string) *running { return runChanged(t, dir, nil) }

// runChanged changes options and configuration before the start; change may be nil.
func runChanged(t *testing.T, dir string, change func(*Options, string) string) *running {
	t.Helper()
	redis := miniredis.RunT(t)
	trace := filepath.Join(t.TempDir(), "trace.csv")
	if err := os.WriteFile(trace, []byte("time,ca\n2026-03-02T00:00:00Z,20\n2026-03-02T00:05:00Z,20\n2026-03-02T00:10:00Z,20\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	o := Options{
		DataDir: dir, Listen: "127.0.0.1:0", MetricsListen: "127.0.0.1:0", Redis: redislink.Options{URL: "redis://" + redis.Addr()}, Link: wire.Options{Counter: &wire.Counter{}},
		Heartbeat: time.Second, SnapshotEvery: 4, ClockStart: time.Date(2026, 3, 2, 0, 1, 0, 0, time.UTC), ClockSpeed: 10, Log: log,
	}
	text := strings.ReplaceAll(processConfig, "TRACE", trace)
	if change != nil {
		text = change(&o, text)
	}
	d, err := parse([]byte(text), o.ExternalSignals)
	if err != nil {
		t.Fatal(err)
	}
	store, err := checkpoint.Open(dir, log)
	if err != nil {
		t.Fatal(err)
	}
	p, err := newProcess(d, store, o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- p.serve(ctx) }()
	over := false
	r := &running{p: p, stop: func() error {
		if over {
			return nil
		}
		over = true
		cancel()
		defer func() { _ = store.Close() }()
		select {
		case err := <-done:
			return err
		case <-time.After(testWait):
			t.Fatal("the coordinator does not end")
			return nil
		}
	}}
	t.Cleanup(func() {
		if err := r.stop(); err != nil {
			t.Error(err)
		}
	})
	return r
}

func (r *running) get(t *testing.T, path string) (int, string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testWait)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+r.p.metrics.Addr().String()+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

func TestEveryMetricIsServedOnceAndNamesNothingUnbounded(t *testing.T) {
	r := runProcess(t, t.TempDir())
	if code, body := r.get(t, "/healthz"); code != http.StatusOK {
		t.Fatal(code, body)
	}
	if code, body := r.get(t, "/readyz"); code != http.StatusOK || !strings.Contains(body, "WaitingForModel") {
		t.Fatal(code, body)
	}
	// The energy side has read a point, so that each part has all its metrics.
	for deadline := time.After(testWait); ; {
		changed := r.p.engine.Changed()
		st, err := r.p.engine.Status(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if sig := st.GetSites()[1].GetSignal(); sig != nil && sig.Value != nil {
			break
		}
		select {
		case <-changed:
		case <-deadline:
			t.Fatalf("no signal: %v", st)
		}
	}
	families, err := r.p.registry.Gather()
	if err != nil {
		t.Fatalf("scrape: %v", err)
	}
	seen := map[string]bool{}
	for _, f := range families {
		seen[f.GetName()] = true
		if !strings.HasPrefix(f.GetName(), "girassol_") {
			continue
		}
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				switch l.GetName() {
				case "federation", "site", "phase", "reason", "direction", "source", "accounting", "kind", "unit", "window", "state", "outcome", "part", "decision", "class", "code", "provider":
				default:
					t.Errorf("%s has label %s=%q", f.GetName(), l.GetName(), l.GetValue())
				}
			}
		}
	}
	for _, want := range []string{"girassol_federation_phase", "girassol_site_phase", "girassol_socket_bytes_total", "girassol_events_pending", "girassol_signal_value", "girassol_site_signal_value", "go_goroutines"} {
		if !seen[want] {
			t.Errorf("%s is missing", want)
		}
	}
}

// Sites, phases and values as a status may have them, odd ones too.
func TestCollectorTakesOddValuesAndForgetsSitesThatAreGone(t *testing.T) {
	st := &coordinatorv1.FederationStatus{}
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(newCollector("lm", func(context.Context) (*coordinatorv1.FederationStatus, error) { return st, nil },
		func() (uint64, uint64) { return 0, 0 }, func() map[string]float64 { return nil }, func() map[string]ledger.Account { return nil }))
	count := func() int {
		t.Helper()
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for _, f := range families {
			n += len(f.GetMetric())
		}
		return n
	}
	baseline := count()
	nan := math.NaN()
	for i := range 500 {
		st.Sites = append(st.Sites, &coordinatorv1.SiteStatus{
			Name: "s" + strings.Repeat("x", i%60) + string(rune('a'+i/60)), Phase: "", Reason: "", TrainingSeconds: nan,
			Ledger: &coordinatorv1.LedgerStatus{EnergyKwh: -1}, Signal: &coordinatorv1.Signal{Value: &nan},
		})
	}
	if n := count(); n <= baseline {
		t.Fatalf("%d metrics with 500 sites", n)
	}
	st.Sites = nil
	if n := count(); n != baseline {
		t.Errorf("%d metrics after the sites are gone, %d before", n, baseline)
	}
}

// slowEnd is longer than the parts of an orderly end together, and shorter than
// gRPC's own patience with a handshake.
const slowEnd = 15 * time.Second

func TestHangingClientsDoNotHoldUpTheEnd(t *testing.T) {
	r := runProcess(t, t.TempDir())
	addr := r.p.listener.Addr().String()
	half, err := net.Dial("tcp", addr) // never says anything
	if err != nil {
		t.Fatal(err)
	}
	defer half.Close()
	scrape, err := net.Dial("tcp", r.p.metrics.Addr().String()) // never finishes its request
	if err != nil {
		t.Fatal(err)
	}
	defer scrape.Close()
	if _, err := scrape.Write([]byte("GET /metrics HTTP/1.1\r\n")); err != nil {
		t.Fatal(err)
	}
	conn, err := wire.Dial(addr, wire.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(context.Background(), testWait)
	defer cancel()
	session, err := coordinatorv1.NewFleetClient(conn).Session(ctx) // reads nothing
	if err != nil {
		t.Fatal(err)
	}
	if err := session.Send(&coordinatorv1.SessionRequest{Message: &coordinatorv1.SessionRequest_Hello{
		Hello: &coordinatorv1.Hello{Federation: "lm", Site: "lab", Node: "n"},
	}}); err != nil {
		t.Fatal(err)
	}
	if _, err := session.Recv(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- r.stop() }()
	select {
	case err := <-ended:
		if err != nil {
			t.Fatal(err)
		}
	case <-time.After(slowEnd):
		t.Fatal("hanging clients hold up the end")
	}
}

func TestReplayGoesOnWhereItStopped(t *testing.T) {
	dir := t.TempDir()
	r := runProcess(t, dir)
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	old, err := readBooks(dir)
	if err != nil || old.Now.IsZero() {
		t.Fatal(old, err)
	}
	again := runProcess(t, dir)
	if now := again.p.books.clock.Now(); now.Before(old.Now) {
		t.Errorf("the clock is at %s, it stopped at %s", now, old.Now)
	}
}

func TestFailedStartLeavesNothingBehind(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	d, err := parse([]byte(`apiVersion: girassol.dev/v1alpha1
kind: Federation
metadata: {name: lm}
spec: {sites: [{name: lab}], energy: {policy: Ignore}, algorithm: {strategy: DiLoCo}}
---
apiVersion: girassol.dev/v1alpha1
kind: Site
metadata: {name: lab}
`), false)
	if err != nil {
		t.Fatal(err)
	}
	store, err := checkpoint.Open(t.TempDir(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	redis := miniredis.RunT(t)
	_, err = newProcess(d, store, Options{DataDir: t.TempDir(), Listen: "127.0.0.1:0", MetricsListen: taken.Addr().String(),
		Redis: redislink.Options{URL: "redis://" + redis.Addr()}, Link: wire.Options{Counter: &wire.Counter{}}, ClockSpeed: 1, Log: slog.New(slog.DiscardHandler)})
	if err == nil || !strings.Contains(err.Error(), "metrics") {
		t.Fatalf("start on a taken port: %v", err)
	}
}

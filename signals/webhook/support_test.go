package webhook_test

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"girassol.dev/api/signalpush"
	"girassol.dev/internal/webhooksig"
	"girassol.dev/signals"
	"girassol.dev/signals/store"
	"girassol.dev/signals/webhook"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var t0 = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// clock is set by hand.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

func (*clock) NewTimer(d time.Duration) signals.Timer { return signals.Real{}.NewTimer(d) }

// sink writes down what it is given, a line each.
type sink struct {
	mu    sync.Mutex
	lines []string
}

func (s *sink) note(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lines = append(s.lines, fmt.Sprintf(format, args...))
}

func (s *sink) take() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := s.lines
	s.lines = nil
	return out
}

func number(v *float64) string {
	if v == nil {
		return "none"
	}
	return fmt.Sprint(*v)
}

func (s *sink) Reading(t webhook.Target, r signals.Reading) {
	omitted := ""
	if r.Omitted {
		omitted = " omitted"
	}
	s.note("%s: %s %s%s %s at %s for %s, %s from %s", t, r.Kind, number(r.Value), omitted, r.Unit, r.PointTime.Format("15:04"), r.Period, r.Quality, r.Source)
}

func (s *sink) Forecast(t webhook.Target, series string, f signals.Forecast) {
	text := ""
	for _, p := range f.Points {
		text += fmt.Sprintf(" %s=%s", p.Start.Format("15:04"), number(p.Value))
	}
	s.note("%s: forecast %s %s%s from %s %s", t, f.Kind, f.Unit, text, f.Source, series)
}

func (s *sink) Curtailment(c webhook.Curtailment) {
	if len(c.Demands) == 0 {
		s.note("%s: curtailment %q ended", c.Target, c.ID)
		return
	}
	for _, d := range c.Demands {
		s.note("%s: curtailment %q from %s to %s limit %s", c.Target, c.ID, d.Start.Format("15:04"), d.Until.Format("02T15:04"), number(d.LimitWatts))
	}
}

func (s *sink) Override(o webhook.Override) {
	s.note("%s: override %s until %s (%s)", o.Target, o.Action, o.Until.Format("02T15:04"), o.Reason)
}

// rig is a handler with one source "meter" for the sites lisboa and porto and the
// region pt, and its store in files.
type rig struct {
	t        *testing.T
	dir      string
	clock    *clock
	sink     *sink
	registry *prometheus.Registry
	change   func(*webhook.Config)
	files    *store.PushedFiles
	h        *webhook.Handler
	ids      int
}

func key(fill byte) string {
	return "whsec_" + base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{fill}, 32))
}

func parsed(t testing.TB, text string) webhooksig.Secret {
	t.Helper()
	s, err := webhooksig.ParseSecret(text)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func write(t *testing.T, path, text string) string {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func newRig(t *testing.T, change func(*webhook.Config)) *rig {
	t.Helper()
	r := &rig{t: t, dir: t.TempDir(), clock: &clock{now: t0}, sink: &sink{}, change: change}
	write(t, filepath.Join(r.dir, "meter.key"), key('m'))
	r.start()
	t.Cleanup(func() { r.files.Close() })
	return r
}

func (r *rig) config() webhook.Config {
	r.registry = prometheus.NewRegistry()
	c := webhook.Config{Federation: "demo", Sink: r.sink, Store: r.files, Clock: r.clock, Registerer: r.registry,
		Senders: []webhook.Sender{{Name: "meter", SecretFiles: []string{filepath.Join(r.dir, "meter.key")},
			Sites: []string{"lisboa", "porto"}, Regions: []string{"pt"}}}}
	if r.change != nil {
		r.change(&c)
	}
	return c
}

// start is a process that begins with what the last one stored.
func (r *rig) start() {
	r.t.Helper()
	if r.files != nil {
		r.h.Close()
		if err := r.files.Close(); err != nil {
			r.t.Fatal(err)
		}
	}
	var err error
	if r.files, err = store.OpenPushedFiles(filepath.Join(r.dir, "pushed"), 0); err != nil {
		r.t.Fatal(err)
	}
	if r.h, err = webhook.New(r.t.Context(), r.config()); err != nil {
		r.t.Fatal(err)
	}
}

// request is signed by meter at the clock's time under a new id; change comes
// after that.
func (r *rig) request(body string, change ...func(*http.Request)) *http.Request {
	req := httptest.NewRequest(http.MethodPost, webhook.Path, strings.NewReader(body))
	req.Header.Set("Content-Type", signalpush.ContentJSON)
	r.ids++
	r.sign(req, key('m'), fmt.Sprintf("msg_%d", r.ids), body)
	for _, c := range change {
		c(req)
	}
	return req
}

func (r *rig) sign(req *http.Request, secret, id, body string) {
	webhooksig.Set(req.Header, []webhooksig.Secret{parsed(r.t, secret)}, id, r.clock.Now(), []byte(body))
}

// id signs again under a chosen id.
func (r *rig) id(id, body string) func(*http.Request) {
	return func(req *http.Request) { r.sign(req, key('m'), id, body) }
}

func header(name, value string) func(*http.Request) {
	return func(req *http.Request) { req.Header.Set(name, value) }
}

type reply struct {
	status int
	header http.Header
	signalpush.Answer
}

func (r *rig) do(req *http.Request) reply {
	r.t.Helper()
	w := httptest.NewRecorder()
	r.h.ServeHTTP(w, req)
	out := reply{status: w.Code, header: w.Header()}
	if err := json.Unmarshal(w.Body.Bytes(), &out.Answer); err != nil && req.Method == http.MethodPost {
		r.t.Errorf("answer %q: %v", w.Body, err)
	}
	return out
}

// want posts and checks status and result.
func (r *rig) want(status int, result signalpush.Result, body string, change ...func(*http.Request)) reply {
	r.t.Helper()
	got := r.do(r.request(body, change...))
	if got.status != status || got.Result != result {
		r.t.Errorf("%d %+v, want %d %s\n%s", got.status, got.Answer, status, result, body)
	}
	return got
}

func (r *rig) shows(want ...string) {
	r.t.Helper()
	if got := r.sink.take(); strings.Join(got, "\n") != strings.Join(want, "\n") {
		r.t.Errorf("the sink got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func stamp(after time.Duration) string { return t0.Add(after).Format(time.RFC3339) }

// observed is a body with one value of lisboa at t0, generated after t0.
func observed(value string, generated time.Duration) string {
	return fmt.Sprintf(`{"type":"energy.signal.observed","data":{"site":"lisboa","kind":"marginal","unit":"gCO2/kWh",`+
		`"points":[{"start":%q,"duration_s":300,"value":%s}],"generated_at":%q}}`, stamp(0), value, stamp(generated))
}

// body is an envelope with data of the given type.
func body(kind signalpush.Type, data string) string {
	return fmt.Sprintf(`{"type":%q,"timestamp":%q,"data":%s}`, kind, stamp(0), data)
}

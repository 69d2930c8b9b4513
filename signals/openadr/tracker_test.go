package openadr

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"girassol.dev/api/signalpush"
	"girassol.dev/signals"
	"girassol.dev/signals/webhook"
)

const shed = `{"type":"SIMPLE","values":[3]}`

func named(id, event string) string { return strings.Replace(event, `"id":"e1"`, `"id":"`+id+`"`, 1) }

func list(events ...string) []byte { return []byte("[" + strings.Join(events, ",") + "]") }

func TestATrackerTellsWhatIsNewChangedAndGone(t *testing.T) {
	tracker := NewTracker(options())
	a, b := event(hourly, shed), named("e2", event(hourly, `{"type":"GHG","values":[80]}`))
	step := func(after time.Duration, answer []byte, want ...string) {
		t.Helper()
		got, err := tracker.Update(answer, t0.Add(after))
		if err != nil || lines(got) != strings.Join(want, "\n") {
			t.Errorf("after %s: %v\n%s\nwant\n%s", after, err, lines(got), strings.Join(want, "\n"))
		}
	}
	step(0, list())
	step(time.Minute, list(a, b),
		`curtailment of site lisboa at 01T12:01:00: e1 "OpenADR event e1" [01T12:00:00-01T13:00:00 none SIMPLE 3]`,
		`forecast of site lisboa at 01T12:01:00: e2 marginal gCO2/kWh [01T12:00:00+1h0m0s 80]`)
	step(2*time.Minute, list(b, a)) // nothing new
	step(3*time.Minute, list(a), `forecast of site lisboa at 01T12:03:00: e2 marginal gCO2/kWh`)
	// One that comes back is as good as new, whenever it was made.
	step(4*time.Minute, list(a, b), `forecast of site lisboa at 01T12:04:00: e2 marginal gCO2/kWh [01T12:00:00+1h0m0s 80]`)
	// Another payload: what it said before is withdrawn.
	step(5*time.Minute, list(event(hourly, `{"type":"GHG","values":[1]}`), b),
		`curtailment of site lisboa at 01T12:05:00: e1 "cancelled: OpenADR event e1"`,
		`forecast of site lisboa at 01T12:05:00: e1 marginal gCO2/kWh [01T12:00:00+1h0m0s 1]`)
	step(6*time.Minute, list(), `forecast of site lisboa at 01T12:06:00: e1 marginal gCO2/kWh`, `forecast of site lisboa at 01T12:06:00: e2 marginal gCO2/kWh`)
}

func TestADemandWithoutAnEndIsRenewedWhileItIsThere(t *testing.T) {
	tracker := NewTracker(options())
	open := event(dated+`,"intervalPeriod":{"start":"0001-01-01","duration":"P9999Y"}`, shed)
	want := func(after time.Duration, until string) {
		t.Helper()
		got, err := tracker.Update(list(open), t0.Add(after))
		switch {
		case err != nil || until == "" && len(got) != 0:
			t.Errorf("after %s: %s %v", after, lines(got), err)
		case until != "" && (len(got) != 1 || clock(got[0].Curtailment.Demands[0].Until) != until):
			t.Errorf("after %s: %s, want until %s", after, lines(got), until)
		}
	}
	want(0, "01T16:00:00")
	want(time.Hour, "")
	want(2*time.Hour, "01T18:00:00")
	want(3*time.Hour, "")
	want(100*time.Hour, "05T20:00:00")
}

func TestOneBadEventDoesNotHideTheOthers(t *testing.T) {
	tracker := NewTracker(options())
	a := event(hourly, shed)
	bad := named("e2", event(hourly, `{"type":"SIMPLE","values":[9]}`))
	got, err := tracker.Update(list(bad, a), t0)
	if err == nil || !strings.Contains(err.Error(), "event e2") || len(got) != 1 {
		t.Errorf("%s %v", lines(got), err)
	}
	// What became bad keeps what it said; one that cannot be read at all keeps all.
	got, err = tracker.Update(list(event(hourly, `{"type":"SIMPLE","values":[9]}`)), t0)
	if err == nil || len(got) != 0 {
		t.Errorf("%s %v", lines(got), err)
	}
	got, err = tracker.Update(list(`{"id":""}`), t0)
	if err == nil || len(got) != 0 {
		t.Errorf("%s %v", lines(got), err)
	}
	if got, err = tracker.Update(list(a, a), t0); err == nil || len(got) != 0 {
		t.Errorf("twice: %s %v", lines(got), err)
	}
	for _, answer := range []string{"", "{}", "null", `{"title":"Unauthorized"}`, "<html>"} {
		if got, err := tracker.Update([]byte(answer), t0); err == nil || len(got) != 0 {
			t.Errorf("%q: %s %v", answer, lines(got), err)
		}
	}
	if got, err = tracker.Update(list(), t0); err != nil || len(got) != 1 {
		t.Errorf("%s %v", lines(got), err)
	}
}

func notification(operation, event string) string {
	return fmt.Sprintf(`{"objectType":"EVENT","operation":%q,"object":%s,"targets":[]}`, operation, event)
}

func TestNotificationsAreForEveryTarget(t *testing.T) {
	n := Notifications{Targets: []webhook.Target{lisboa, {Region: "pt"}}, Options: options()}
	got, err := n.Decode([]byte(notification("CREATE", event(hourly, shed))), t0)
	want := `curtailment of site lisboa at 01T11:00:00: e1 "OpenADR event e1" [01T12:00:00-01T13:00:00 none SIMPLE 3]
curtailment of region pt at 01T11:00:00: e1 "OpenADR event e1" [01T12:00:00-01T13:00:00 none SIMPLE 3]`
	if err != nil || lines(got) != want {
		t.Errorf("%s %v", lines(got), err)
	}
	if got[0].ID == got[1].ID || !strings.HasPrefix(got[0].ID, "e1\n") {
		t.Errorf("ids %q and %q", got[0].ID, got[1].ID)
	}
	got, err = n.Decode([]byte(notification("DELETE", event(hourly, shed))), t0)
	if err != nil || !strings.Contains(lines(got), `at 01T12:00:00: e1 "cancelled: OpenADR event e1"`) {
		t.Errorf("%s %v", lines(got), err)
	}
	for _, other := range []string{`{"objectType":"PROGRAM","operation":"UPDATE","object":{}}`, `{"objectType":"VEN","operation":"LATER"}`} {
		if got, err := n.Decode([]byte(other), t0); err != nil || len(got) != 0 {
			t.Errorf("%s: %s %v", other, lines(got), err)
		}
	}
	for _, bad := range []string{"", "[]", "{}", `{"operation":"CREATE"}`, notification("GET", "{}"), notification("CREATE", "{}"), notification("CREATE", "[]"),
		notification("CREATE", event(hourly, `{"type":"SIMPLE","values":[9]}`)), notification("DELETE", event(hourly, `{"type":"SIMPLE","values":[9]}`))} {
		if got, err := n.Decode([]byte(bad), t0); err == nil {
			t.Errorf("%q: %s", bad, lines(got))
		}
	}
}

// fixed is a clock that stands still.
type fixed struct{ now time.Time }

func (f *fixed) Now() time.Time                       { return f.now }
func (*fixed) NewTimer(d time.Duration) signals.Timer { return signals.Real{}.NewTimer(d) }

// shown keeps the newest curtailment.
type shown struct {
	webhook.Sink
	last webhook.Curtailment
}

func (s *shown) Curtailment(c webhook.Curtailment) { s.last = c }

func TestAServersNotificationsAndPollsMeetInOneReceiver(t *testing.T) {
	tokens := filepath.Join(t.TempDir(), "tokens")
	if err := os.WriteFile(tokens, []byte(base64.StdEncoding.EncodeToString([]byte("a token of a VTN"))), 0o600); err != nil {
		t.Fatal(err)
	}
	clock, sink := &fixed{t0}, &shown{}
	h, err := webhook.New(t.Context(), webhook.Config{Clock: clock, Sink: sink, Senders: []webhook.Sender{{
		Name: "vtn", BearerFiles: []string{tokens}, Sites: []string{"lisboa"},
		Decoder: Notifications{Targets: []webhook.Target{lisboa}, Options: options()}}}})
	if err != nil {
		t.Fatal(err)
	}
	post := func(body string, status int, result signalpush.Result) {
		t.Helper()
		req := httptest.NewRequest(http.MethodPost, webhook.Path, strings.NewReader(body))
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Authorization", "Bearer YSB0b2tlbiBvZiBhIFZUTg==")
		w := httptest.NewRecorder()
		h.ServeHTTP(w, req)
		var answer signalpush.Answer
		if err := json.Unmarshal(w.Body.Bytes(), &answer); err != nil || w.Code != status || answer.Result != result {
			t.Errorf("%d %s %v, want %d %s", w.Code, w.Body, err, status, result)
		}
	}
	tracker := NewTracker(options())
	poll := func(answer []byte) {
		t.Helper()
		messages, err := tracker.Update(answer, clock.now)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := h.Push(t.Context(), "vtn", messages); err != nil {
			t.Fatal(err)
		}
	}
	active := func(want bool) {
		t.Helper()
		if _, got := sink.last.At(clock.now); got != want {
			t.Errorf("active %v: %+v", got, sink.last)
		}
	}
	create := notification("CREATE", event(hourly, shed))
	post(create, 202, signalpush.Stored)
	active(true)
	post(create, 200, signalpush.Duplicate)
	poll(list(event(hourly, shed)))
	active(true)
	clock.now = clock.now.Add(time.Minute)
	poll(list())
	active(false)
	// A notification that comes late does not bring the cancelled event back.
	post(strings.Replace(create, "CREATE", "UPDATE", 1), 200, signalpush.Superseded)
	active(false)
	clock.now = clock.now.Add(time.Minute)
	poll(list(event(hourly, shed)))
	active(true)
	post(notification("DELETE", event(hourly, shed)), 202, signalpush.Stored)
	active(false)
	post(notification("CREATE", event(hourly, `{"type":"SIMPLE","values":[9]}`)), 422, signalpush.Refused)
	post(`{"objectType":"PROGRAM","operation":"CREATE","object":{}}`, 202, signalpush.Stored)
}

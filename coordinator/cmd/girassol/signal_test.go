package main

import (
	"encoding/json"
	"encoding/pem"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"girassol.dev/api/signalpush"
	"girassol.dev/internal/webhooksig"
)

const (
	oldSecret = "whsec_b2xkb2xkb2xkb2xkb2xkb2xkb2xkb2xk"
	newSecret = "whsec_bmV3bmV3bmV3bmV3bmV3bmV3bmV3bmV3"
)

// receiver checks what is posted as the real one does, and answers as it is told.
type receiver struct {
	t      *testing.T
	status int
	answer string

	mu  sync.Mutex
	got []message
}

type message struct {
	path, id, source, body string
	signal                 signalpush.Signal
}

func (r *receiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	body, err := io.ReadAll(req.Body)
	if err != nil {
		r.t.Error(err)
	}
	secrets, err := webhooksig.ParseSecrets([]byte(newSecret))
	if err != nil {
		r.t.Error(err)
	}
	signed, err := webhooksig.Verify(req.Header, secrets, body, time.Now())
	if err != nil || req.Header.Get("Content-Type") != signalpush.ContentJSON {
		r.t.Errorf("%v %v", err, req.Header)
	}
	var e signalpush.Envelope
	m := message{path: req.URL.Path, id: signed.ID, source: req.Header.Get(signalpush.HeaderSource), body: string(body)}
	if err := json.Unmarshal(body, &e); err != nil || e.Type != signalpush.Observed {
		r.t.Errorf("%s: %v", body, err)
	}
	if err := json.Unmarshal(e.Data, &m.signal); err != nil {
		r.t.Error(err)
	}
	r.mu.Lock()
	r.got = append(r.got, m)
	r.mu.Unlock()
	if r.status == http.StatusFound {
		w.Header().Set("Location", "http://127.0.0.1:1/")
	}
	w.WriteHeader(r.status)
	_, _ = io.WriteString(w, r.answer)
}

func (r *receiver) serve(t *testing.T) string {
	t.Helper()
	r.t = t
	s := httptest.NewServer(r)
	t.Cleanup(s.Close)
	return s.URL
}

func secretFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// send is girassol signal send with what every message needs; more may override.
func send(t *testing.T, url string, more ...string) result {
	t.Helper()
	args := append([]string{"signal", "send", "--url", url, "--secret-file", secretFile(t, newSecret+"\n"+oldSecret+"\n"), "--source", "meter", "--tries", "1"}, more...)
	return girassol(t.Context(), nil, args...)
}

func fields(s string) []string { return strings.Fields(s) }

func TestSendSignsAndPostsOneValue(t *testing.T) {
	for name, c := range map[string]struct {
		args  string
		value string // in the body
		check func(s signalpush.Signal) bool
	}{
		"a value of a site": {"--site lisboa --kind marginal --unit gCO2/kWh --value 87.5 --start 2026-03-01T13:00:00+01:00 --period 5m", `"value":87.5`,
			func(s signalpush.Signal) bool {
				return s.Site == "lisboa" && s.Region == "" && s.Kind == "marginal" && s.Unit == "gCO2/kWh" && s.Points[0].DurationSeconds == 300 &&
					s.Points[0].Start.Equal(time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)) && time.Since(s.GeneratedAt.Time) < time.Hour
			}},
		"zero":                 {"--site lisboa --kind marginal --unit gCO2/kWh --value 0 --start now --period 5m", `"value":0`, nil},
		"a negative price":     {"--region pt --kind price --unit EUR/MWh --value -12.5 --start now --period 1h", `"value":-12.5`, func(s signalpush.Signal) bool { return s.Region == "pt" && s.Site == "" }},
		"null":                 {"--site lisboa --kind marginal --unit gCO2/kWh --null --start now --period 5m", `"value":null`, nil},
		"a time of generation": {"--site lisboa --kind marginal --unit % --value 1 --start now --period 5m --generated-at 2026-03-01T12:00:00Z", `"generated_at":"2026-03-01T12:00:00Z"`, nil},
	} {
		t.Run(name, func(t *testing.T) {
			r := &receiver{status: 202, answer: `{"result":"stored","message":"taken"}`}
			send(t, r.serve(t), append(fields(c.args), "--id", "msg_7")...).want(t, 0, "stored: taken (message msg_7)\n", "")
			if len(r.got) != 1 || r.got[0].id != "msg_7" || r.got[0].source != "meter" || r.got[0].path != signalpush.Path ||
				!strings.Contains(r.got[0].body, c.value) || c.check != nil && !c.check(r.got[0].signal) {
				t.Errorf("%+v", r.got)
			}
		})
	}
}

const good = "--site lisboa --kind marginal --unit gCO2/kWh --value 87 --start now --period 5m"

func TestEachMessageHasAnIDOfItsOwn(t *testing.T) {
	r := &receiver{status: 200, answer: `{"result":"duplicate","message":"taken before"}`}
	url := r.serve(t)
	for range 2 {
		send(t, url+"/", fields(good)...).want(t, 0, "duplicate: taken before", "")
	}
	if len(r.got) != 2 || r.got[0].id == r.got[1].id || !strings.HasPrefix(r.got[0].id, "msg_") {
		t.Errorf("%+v", r.got)
	}
}

func TestTheAnswerIsPutIntoWords(t *testing.T) {
	for name, c := range map[string]struct {
		status int
		answer string
		code   int
		stdout string
		stderr string
	}{
		"superseded":  {200, `{"result":"superseded","message":"ignored: something generated later is known"}`, 0, "superseded: ignored: something generated later is known", ""},
		"signature":   {401, `{"result":"refused","reason":"BadSignature","message":"no secret fits"}`, 1, "", "refused with 401 BadSignature: no secret fits (check --source, --secret-file and this machine's clock)"},
		"forbidden":   {403, `{"result":"refused","reason":"TargetNotAllowed","message":"not yours"}`, 1, "", "list of sites"},
		"conflict":    {409, `{"result":"refused","reason":"IDReused","message":"x"}`, 1, "", "leave --id out"},
		"invalid":     {422, `{"result":"refused","reason":"Invalid","message":"marginal is not given in \"%\""}`, 1, "", `refused with 422 Invalid: marginal is not given in "%"`},
		"busy":        {429, `{"result":"refused","reason":"TooManyRequests","message":"x"}`, 1, "", "refused with 429"},
		"a web page":  {200, "<html>", 1, "", "is no receiver of signals: check --url"},
		"not found":   {404, "404 page not found\n", 1, "", "answered 404 Not Found"},
		"redirection": {302, "", 1, "", "answered 302 Found"},
	} {
		t.Run(name, func(t *testing.T) {
			r := &receiver{status: c.status, answer: c.answer}
			send(t, r.serve(t), fields(good)...).want(t, c.code, c.stdout, c.stderr)
		})
	}
}

func TestTheAnswerAsJSON(t *testing.T) {
	for _, c := range []struct {
		status, code int
		answer       string
	}{{202, 0, `{"result":"stored","message":"taken"}`}, {422, 1, `{"result":"refused","reason":"Invalid","message":"x"}`}} {
		r := &receiver{status: c.status, answer: c.answer}
		got := send(t, r.serve(t), append(fields(good), "-o", "json", "--id", "a")...)
		var s sent
		if err := json.Unmarshal([]byte(got.stdout), &s); err != nil || got.code != c.code || s.Status != c.status || s.Tries != 1 || s.ID != "a" || s.Result == "" {
			t.Errorf("%+v: %v", got, err)
		}
	}
}

func TestSendAnswersWhenNobodyIsThere(t *testing.T) {
	s := httptest.NewServer(http.NotFoundHandler())
	url := s.URL
	s.Close()
	send(t, url, fields(good)...).want(t, 1, "", "nobody takes signals at "+url+"/v1/signals")
}

func TestSendOverTLSNeedsTheAuthority(t *testing.T) {
	r := &receiver{t: t, status: 202, answer: `{"result":"stored","message":"taken"}`}
	s := httptest.NewUnstartedServer(r)
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.StartTLS()
	t.Cleanup(s.Close)
	ca := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	send(t, s.URL, append(fields(good), "--tls-ca", ca)...).want(t, 0, "stored", "")
	send(t, s.URL, fields(good)...).want(t, 1, "", "certificate")
}

func TestSendRefusesWhatCannotBeMeant(t *testing.T) {
	empty := secretFile(t, "# none\n")
	broken := secretFile(t, "password\n")
	for name, c := range map[string]struct {
		args string
		code int
		want string
	}{
		"no target":      {"--kind marginal --unit gCO2/kWh --value 1 --start now --period 5m", 2, "--site or --region"},
		"two targets":    {good + " --region pt", 2, "--site or --region"},
		"no unit":        {"--site a --kind marginal --value 1 --start now --period 5m", 2, "--unit"},
		"no kind":        {"--site a --unit % --value 1 --start now --period 5m", 2, "--kind"},
		"no value":       {"--site a --kind price --unit % --start now --period 5m", 2, "--value or --null"},
		"both":           {good + " --null", 2, "--value or --null"},
		"NaN":            {"--site a --kind price --unit % --value NaN --start now --period 5m", 2, "--value NaN is no number; for none there is --null"},
		"infinity":       {"--site a --kind price --unit % --value 1e999 --start now --period 5m", 2, "is no number"},
		"no start":       {"--site a --kind price --unit % --value 1 --period 5m", 2, "--start"},
		"naive start":    {"--site a --kind price --unit % --value 1 --start 2026-03-01T12:00:00 --period 5m", 2, "with an offset"},
		"naive time":     {good + " --generated-at 2026-03-01", 2, "--generated-at 2026-03-01: want a time with an offset"},
		"no period":      {"--site a --kind price --unit % --value 1 --start now", 2, "--period"},
		"no tries":       {good + " --tries 0", 2, "--tries 0"},
		"no source":      {good + " --source=", 2, "--source"},
		"bad id":         {good + " --id ü", 2, "--id"},
		"bad address":    {good + " --url coordinator:8443", 2, "https://coordinator:8443"},
		"far plaintext":  {good + " --url http://192.0.2.1", 2, "plaintext off loopback needs --insecure"},
		"no such file":   {good + " --secret-file /none", 1, "--secret-file"},
		"empty file":     {good + " --secret-file " + empty, 1, "holds no secret"},
		"not a secret":   {good + " --secret-file " + broken, 1, "line 1"},
		"no CA":          {good + " --tls-ca /none", 1, "--tls-ca"},
		"half a pair":    {good + " --tls-cert /none", 1, "--tls-cert and --tls-key"},
		"not an address": {good + " extra", 2, `unexpected argument "extra"`},
	} {
		t.Run(name, func(t *testing.T) {
			send(t, "http://127.0.0.1:1", fields(c.args)...).want(t, c.code, "", c.want)
		})
	}
	girassol(t.Context(), nil, "signal", "sent").want(t, 2, "", `unknown command "signal sent"`)
	girassol(t.Context(), nil, "signal").want(t, 0, "send", "")
}

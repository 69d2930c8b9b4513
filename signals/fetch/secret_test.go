package fetch_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"girassol.dev/api/federation/v1alpha1"
	"girassol.dev/signals/fetch"
	"girassol.dev/signals/fetch/fetchtest"
)

func TestASecretShowsNowhere(t *testing.T) {
	s := fetch.Value(fetchtest.Secret)
	holder := struct{ Token *fetch.Secret }{s}
	b, err := json.Marshal(holder)
	if err != nil {
		t.Fatal(err)
	}
	var log fetchtest.Log
	slog.New(slog.NewTextHandler(&log, nil)).Info("x", "secret", s, "holder", holder)
	slog.New(slog.NewJSONHandler(&log, nil)).Info("x", "secret", s, "holder", holder)
	all := string(b) + log.String() + fmt.Sprintf("%v %+v %#v %s %q %x %d %v", s, s, s, s, s, s, s, holder)
	fetchtest.Hidden(t, all)
	if n := strings.Count(all, "[redacted]"); n < 8 {
		t.Errorf("only %d times redacted: %s", n, all)
	}
	if got, err := s.Reveal(); got != fetchtest.Secret || err != nil {
		t.Errorf("%q, %v", got, err)
	}
}

func TestACredentialFileIsReadAgainWhenItChanges(t *testing.T) {
	path := filepath.Join(t.TempDir(), "token")
	s := fetch.File(path)
	if _, err := s.Reveal(); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("no error that names the missing file: %v", err)
	}
	write := func(text string, at time.Time) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(path, at, at); err != nil {
			t.Fatal(err)
		}
	}
	write("one\n", t0)
	if v, err := s.Reveal(); v != "one" || err != nil {
		t.Errorf("%q, %v", v, err)
	}
	write("two\n", t0.Add(time.Second))
	if v, err := s.Reveal(); v != "two" || err != nil {
		t.Errorf("%q, %v", v, err)
	}
	write(" \n", t0.Add(2*time.Second))
	if _, err := s.Reveal(); err == nil {
		t.Error("an empty credential is one")
	}
	write(strings.Repeat("x", 1<<20), t0.Add(3*time.Second))
	if _, err := s.Reveal(); err == nil {
		t.Error("a megabyte is a credential")
	}
}

func TestANewCredentialIsTriedAtOnceAfterTheOldWasRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(path, []byte(fetchtest.Secret), 0o600); err != nil {
		t.Fatal(err)
	}
	var calls atomic.Int64
	url := fetchtest.Serve(t, func(w http.ResponseWriter, r *http.Request) {
		calls.Add(1)
		if r.Header.Get("auth-token") != "right one" {
			fetchtest.JSON(w, 401, `{"message":"bad token `+r.Header.Get("auth-token")+`"}`)
			return
		}
		fetchtest.JSON(w, 200, "1")
	})
	c, log := fetchtest.Client(t, fetchtest.NewClock(t0))
	r := question("a")
	r.URL, r.Auth = url, fetch.HeaderAuth("auth-token", "", fetch.File(path))
	for range 5 {
		_, err := fetch.Get(t.Context(), c, r, text(time.Hour))
		e := reason(t, err)
		if e.Reason != v1alpha1.ReasonSignalUnauthorized || !e.Permanent {
			t.Fatalf("%+v", e)
		}
		fetchtest.Hidden(t, err.Error()+log.String())
	}
	other := r
	other.URL, other.Region = url+"/other", "b"
	_, err := fetch.Get(t.Context(), c, other, text(time.Hour))
	if e := reason(t, err); e.Region != "b" || calls.Load() != 1 {
		t.Errorf("%d calls with wrong credentials, error %v", calls.Load(), e)
	}
	if err := os.WriteFile(path, []byte("right one"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := fetch.Get(t.Context(), c, r, text(time.Hour)); err != nil {
		t.Error(err)
	}
}

func TestAUserNameThatBasicCannotCarryIsRefused(t *testing.T) {
	if _, err := fetch.BasicAuth(fetch.Value("a:b"), fetch.Value("c")).Identity(); err == nil || strings.Contains(err.Error(), "a:b") {
		t.Errorf("%v", err)
	}
}

func TestAMissingCredentialMakesNoCall(t *testing.T) {
	c, log := client(t, func(*http.Request) (int, http.Header, string) { t.Error("called"); return 200, nil, "1" })
	r := question("a")
	r.Auth = fetch.HeaderAuth("auth-token", "", fetch.File(filepath.Join(t.TempDir(), "absent")))
	for range 3 {
		_, err := fetch.Get(t.Context(), c, r, text(time.Hour))
		if e := reason(t, err); e.Reason != v1alpha1.ReasonSignalUnauthorized || e.Permanent || !strings.Contains(e.Error(), "absent") {
			t.Errorf("%v", e)
		}
	}
	if log.Count("failed") != 1 {
		t.Errorf("%s", log)
	}
}

func TestCredentialsGoNeitherToOtherHostsNorOverPlainLinks(t *testing.T) {
	var got atomic.Value
	elsewhere := fetchtest.Serve(t, func(w http.ResponseWriter, r *http.Request) {
		got.Store(fmt.Sprint(r.Header))
		fetchtest.JSON(w, 200, "1")
	})
	url := fetchtest.Serve(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/away":
			http.Redirect(w, r, elsewhere+"/", http.StatusFound)
		case "/near":
			http.Redirect(w, r, "/here", http.StatusFound)
		case "/circle":
			http.Redirect(w, r, "/circle", http.StatusFound)
		default:
			fetchtest.JSON(w, 200, "1")
		}
	})
	c, _ := fetchtest.Client(t, fetchtest.NewClock(t0))
	ask := func(url string) error {
		r := question(url)
		r.URL, r.Auth = url, fetch.HeaderAuth("auth-token", "", fetch.Value(fetchtest.Secret))
		_, err := fetch.Get(t.Context(), c, r, text(time.Hour))
		return err
	}
	if e := reason(t, ask(url+"/away")); e.Reason != v1alpha1.ReasonSignalBadAnswer {
		t.Errorf("%v", e)
	}
	if v := got.Load(); v != nil {
		t.Errorf("the other host saw %s", v)
	}
	if err := ask(url + "/near"); err != nil {
		t.Error(err)
	}
	if err := ask(url + "/circle"); err == nil || strings.Contains(err.Error(), "127.0.0.1") && strings.Contains(err.Error(), "Get") {
		t.Errorf("%v", err)
	}
	if e := reason(t, ask("http://provider.test/")); e.Reason != v1alpha1.ReasonSignalUnauthorized || !e.Permanent {
		t.Errorf("%v", e)
	}
}

func TestABaseURLWithCredentialsIsRefusedWithoutShowingThem(t *testing.T) {
	for _, base := range []string{"https://user:" + fetchtest.Secret[:8] + "@host", "ftp://host", "host", "https://h/?a=b", "https://h/#x", "http://[::1"} {
		got, err := fetch.BaseURL(base, "")
		if err == nil {
			t.Errorf("%q was taken as %q", base, got)
			continue
		}
		if strings.Contains(err.Error(), fetchtest.Secret[:8]) {
			t.Errorf("shows the password: %v", err)
		}
	}
	if got, err := fetch.BaseURL("", "https://standard/v1/"); got != "https://standard/v1" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
}

func TestAllKindsOfBrokenAnswersHaveTheirReason(t *testing.T) {
	fetchtest.Survives(t, t0, func(ctx context.Context, c *fetch.Client, base string) error {
		r := question("a")
		r.URL, r.Auth = base, fetch.BasicAuth(fetch.Value(fetchtest.Secret), fetch.Value(fetchtest.Secret))
		_, err := fetch.Get(ctx, c, r, func(a fetch.Answer) (fetch.Result[string], error) {
			var v struct{ Data []any }
			return fetch.Result[string]{}, fetch.JSON(a.Body, &v)
		})
		return err
	})
}

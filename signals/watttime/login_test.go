package watttime_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"girassol.dev/api/federation/v1alpha1"
	"girassol.dev/signals/fetch"
	"girassol.dev/signals/fetch/fetchtest"
	"girassol.dev/signals/watttime"
)

func TestOneLoginServesAllSitesUntilTwentyFiveMinutes(t *testing.T) {
	s := start(t)
	c, log := fetchtest.Client(t, s.clock)
	var sources []*watttime.Source
	for range 20 { // each site with an account of its own of the same user
		sources = append(sources, s.source(t, c, watttime.Config{}))
	}
	all := func() {
		var wg sync.WaitGroup
		for _, source := range sources {
			wg.Go(func() {
				if _, err := source.Latest(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
	}
	all()
	if s.logins != 1 || s.calls["/v3/forecast"] != 1 {
		t.Errorf("%d logins and %d calls for 20 sites", s.logins, s.calls["/v3/forecast"])
	}
	s.clock.Advance(24 * time.Minute)
	all()
	if s.logins != 1 {
		t.Errorf("%d logins before the token's time", s.logins)
	}
	s.clock.Advance(6 * time.Minute)
	all()
	if s.logins != 2 || s.refused != 0 {
		t.Errorf("%d logins after it, %d calls with a dead token", s.logins, s.refused)
	}
	fetchtest.Hidden(t, log.String())
}

func TestATokenThatIsRefusedIsRenewedOnceForAll(t *testing.T) {
	s := start(t)
	s.covered["SPP_TX"], s.covered["PJM_NJ"] = true, true
	c, log := fetchtest.Client(t, s.clock)
	var sources []*watttime.Source
	for _, region := range []string{"CAISO_NORTH", "SPP_TX", "PJM_NJ"} {
		sources = append(sources, s.source(t, c, watttime.Config{Region: region}))
	}
	if _, err := sources[0].Latest(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.mu.Lock()
	clear(s.tokens) // revoked
	s.mu.Unlock()
	s.clock.Advance(6 * time.Minute)
	var wg sync.WaitGroup
	for _, source := range sources {
		wg.Go(func() {
			if _, err := source.Latest(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if s.logins != 2 {
		t.Errorf("%d logins", s.logins)
	}
	if log.Count("failed") != 0 {
		t.Errorf("%s", log)
	}
}

func TestATokenThatIsRefusedAgainEndsInBackoffAndNotInALoginLoop(t *testing.T) {
	s := start(t)
	var refused atomic.Int64
	s.answer = func(w http.ResponseWriter, _ *http.Request) bool {
		refused.Add(1)
		w.WriteHeader(http.StatusUnauthorized)
		fmt.Fprint(w, "Jwt is expired")
		return true
	}
	c, _ := fetchtest.Client(t, s.clock)
	source := s.source(t, c, watttime.Config{})
	for range 360 {
		_, err := source.Latest(t.Context())
		e := reason(t, err)
		if e.Permanent || e.Reason != v1alpha1.ReasonSignalUnauthorized && e.Reason != v1alpha1.ReasonSignalRateLimited {
			t.Fatalf("%+v", e)
		}
		s.clock.Advance(10 * time.Second)
	}
	if s.logins > 40 || refused.Load() > 80 {
		t.Errorf("%d logins and %d refusals in an hour", s.logins, refused.Load())
	}
}

func TestARefusedLoginIsPermanentAndStopsAllCalls(t *testing.T) {
	for name, answer := range map[string]func(w http.ResponseWriter){
		"plain": func(w http.ResponseWriter) { w.WriteHeader(http.StatusForbidden); fmt.Fprint(w, "Forbidden") },
		"page": func(w http.ResponseWriter) {
			w.Header().Set("Content-Type", "text/html")
			w.WriteHeader(http.StatusForbidden)
			fmt.Fprint(w, "<html>CloudFront</html>")
		},
		"JSON": func(w http.ResponseWriter) {
			fetchtest.JSON(w, 401, `{"error":"bad password of `+fetchtest.Secret+`"}`)
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := start(t)
			s.badLogin = answer
			c, log := fetchtest.Client(t, s.clock)
			for _, region := range []string{"CAISO_NORTH", "SPP_TX", "CAISO_NORTH"} {
				_, err := s.source(t, c, watttime.Config{Region: region}).Latest(t.Context())
				e := reason(t, err)
				if e.Reason != v1alpha1.ReasonSignalUnauthorized || !e.Permanent || e.Region != region || e.Endpoint != "login" {
					t.Errorf("%+v", e)
				}
				fetchtest.Hidden(t, err.Error())
			}
			if s.logins != 1 {
				t.Errorf("%d logins", s.logins)
			}
			if log.Count("failed") != 1 {
				t.Errorf("%s", log)
			}
			fetchtest.Hidden(t, log.String())
		})
	}
}

// Case B2.
func TestARegionOutsideThePlanIsNamedAndLeavesTheOthersAlone(t *testing.T) {
	s := start(t)
	c, log := fetchtest.Client(t, s.clock)
	account := s.account(t, c)
	pjm := s.source(t, c, watttime.Config{Account: account, Region: "PJM_NJ"})
	caiso := s.source(t, c, watttime.Config{Account: account, Region: "CAISO_NORTH"})
	for range 100 {
		_, err := pjm.Latest(t.Context())
		e := reason(t, err)
		if e.Reason != v1alpha1.ReasonSignalNotCovered || !e.Permanent || !strings.Contains(err.Error(), "region PJM_NJ") ||
			!strings.Contains(err.Error(), "plan") || !strings.Contains(err.Error(), "CAISO_NORTH") {
			t.Fatalf("%v", err)
		}
		if _, err := caiso.Latest(t.Context()); err != nil {
			t.Fatal(err)
		}
		s.clock.Advance(10 * time.Second)
	}
	refused := 0
	for _, q := range s.queries {
		if q.Get("region") == "PJM_NJ" {
			refused++
		}
	}
	if refused != 1 || s.logins != 1 {
		t.Errorf("%d calls for the refused region, %d logins", refused, s.logins)
	}
	if log.Count("failed") != 1 {
		t.Errorf("%s", log)
	}
	// The refusal is this signal's and this endpoint's only.
	s.answer = func(w http.ResponseWriter, r *http.Request) bool {
		if r.URL.Query().Get("signal_type") == "co2_moer" {
			return false
		}
		fetchtest.JSON(w, 200, `{"data":[{"point_time":"2026-03-01T12:00:00Z","value":1}],"meta":{"units":"lbs_co2_per_mwh"}}`)
		return true
	}
	if _, err := s.source(t, c, watttime.Config{Account: account, Region: "PJM_NJ", Settled: true}).Latest(t.Context()); err == nil {
		t.Error("the history of the marginal intensity is covered")
	}
	if _, err := s.source(t, c, watttime.Config{Account: account, Region: "PJM_NJ", Signal: watttime.Average}).Latest(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := s.source(t, c, watttime.Config{Account: account, Region: "PJM_NJ", Signal: watttime.Index}).Latest(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := watttime.New(watttime.Config{Account: account}); err == nil {
		t.Error("there is a default region")
	}
}

func TestTheRegionOfAPlaceIsAskedMonthly(t *testing.T) {
	s := start(t)
	c, _ := fetchtest.Client(t, s.clock)
	lat, lon, zero := 38.5, -121.5, 0.0
	source := s.source(t, c, watttime.Config{Latitude: &lat, Longitude: &lon})
	for range 35 {
		r, err := source.Latest(t.Context())
		if err != nil || r.Region != "CAISO_NORTH" {
			t.Fatalf("%+v, %v", r, err)
		}
		s.clock.Advance(24 * time.Hour)
	}
	if n := s.calls["/v3/region-from-loc"]; n != 2 {
		t.Errorf("asked %d times in 35 days", n)
	}
	_, err := s.source(t, c, watttime.Config{Latitude: &zero, Longitude: &zero}).Latest(t.Context())
	if e := reason(t, err); e.Reason != v1alpha1.ReasonSignalNotCovered || !e.Permanent || !strings.Contains(e.Error(), "0,0") {
		t.Errorf("%v", e)
	}
}

func TestALimitOfDataCallsLeavesTheLoginAlone(t *testing.T) {
	s := start(t)
	s.answer = func(w http.ResponseWriter, _ *http.Request) bool {
		fetchtest.JSON(w, 429, `{"error":"Rate limit exceeded","msg":"3000 per 5 minutes"}`)
		return true
	}
	c, log := fetchtest.Client(t, s.clock)
	source := s.source(t, c, watttime.Config{})
	begin := s.clock.Now()
	for s.clock.Now().Sub(begin) < time.Hour {
		_, err := source.Latest(t.Context())
		if e := reason(t, err); e.Reason != v1alpha1.ReasonSignalRateLimited || e.Permanent {
			t.Fatalf("%v", e)
		}
		s.clock.Advance(10 * time.Second)
	}
	if n := s.calls["/v3/forecast"]; n > 12 {
		t.Errorf("%d calls in an hour of 429", n)
	}
	if log.Count("failed") != 1 {
		t.Errorf("%s", log)
	}
}

func TestBrokenServersOfDataAreSurvived(t *testing.T) {
	fetchtest.Survives(t, t0, func(ctx context.Context, c *fetch.Client, base string) error {
		login := fetchtest.Serve(t, func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/login" {
				fetchtest.JSON(w, 200, `{"token":"`+fetchtest.Secret+`"}`)
				return
			}
			// One host for both, so the broken one is passed through.
			proxy(w, r, base)
		})
		return ask(ctx, c, login)
	}, "connection cut", "slow body", "huge body", "redirect to another host")
}

func TestBrokenServersOfLoginsAreSurvived(t *testing.T) {
	fetchtest.Survives(t, t0, ask, "page with 403")
}

func TestALateRefusalOfAnOldTokenLeavesTheNewOne(t *testing.T) {
	s := start(t)
	c, _ := fetchtest.Client(t, s.clock)
	a := s.account(t, c)
	h := http.Header{}
	if _, err := a.Authorize(t.Context(), h); err != nil {
		t.Fatal(err)
	}
	if err := a.Renew(t.Context(), []string{"an older token"}); err != nil {
		t.Fatal(err)
	}
	secrets, err := a.Authorize(t.Context(), h)
	if err != nil || s.logins != 1 {
		t.Errorf("%d logins, %v", s.logins, err)
	}
	if err := a.Renew(t.Context(), secrets); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Authorize(t.Context(), h); err != nil || s.logins != 2 {
		t.Errorf("%d logins, %v", s.logins, err)
	}
}

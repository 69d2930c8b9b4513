package provisioning

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	api "girassol.dev/api/provisioning"
	"girassol.dev/internal/webhooksig"
)

const (
	whsec      = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	otherWhsec = "whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"
)

// newResultRig has a site with a provisioner that was asked with key k1.
func newResultRig(t *testing.T) *rig {
	r := newRig(t)
	r.put(wished("team", "quebec", "k1"))
	r.secrets[types.NamespacedName{Namespace: "team", Name: "p"}] = otherWhsec + "\n" + whsec
	return r
}

type posted struct {
	site, secret, id string
	at               time.Duration
	body             string
	header           func(http.Header)
}

// post sends a result; what is not given is right.
func (r *rig) post(p posted) (status int, reason string) {
	r.Helper()
	if p.site == "" {
		p.site = "team/quebec"
	}
	if p.secret == "" {
		p.secret = whsec
	}
	secret, err := webhooksig.ParseSecret(p.secret)
	if err != nil {
		r.Fatal(err)
	}
	req, err := http.NewRequestWithContext(r.Context(), http.MethodPost, r.server.URL+"/v1/provisioning/"+p.site+"/result", strings.NewReader(p.body))
	if err != nil {
		r.Fatal(err)
	}
	webhooksig.Set(req.Header, []webhooksig.Secret{secret}, p.id, r.now.Add(p.at), []byte(p.body))
	if p.header != nil {
		p.header(req.Header)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		r.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		r.Fatal(err)
	}
	var answer struct{ Result, Reason string }
	if err := json.Unmarshal(raw, &answer); err != nil {
		r.Fatalf("%s: %v", raw, err)
	}
	return resp.StatusCode, answer.Result + answer.Reason
}

func (r *rig) expect(p posted, status int, reason string) {
	r.Helper()
	if s, got := r.post(p); s != status || got != reason {
		r.Errorf("%d %s, want %d %s", s, got, status, reason)
	}
}

const done = `{"key":"k1","state":"Done"}`

func TestAResultOfThePresentWishIsReportedOnce(t *testing.T) {
	r := newResultRig(t)
	r.expect(posted{id: "a", body: `{"key":"k1","state":"Pending","message":"ordering","more":1}`}, 200, "Stored")
	r.expect(posted{id: "b", body: done, at: time.Second}, 200, "Stored")
	r.expect(posted{id: "b", body: done, at: 2 * time.Second}, 200, "Duplicate")
	r.expect(posted{id: "a", body: `{"key":"k1","state":"Pending","message":"ordering","more":1}`}, 200, "Duplicate")
	if len(r.reported) != 2 || r.reported[0].Message != "ordering" || r.reported[1].State != api.Done {
		t.Errorf("reported %+v", r.reported)
	}
}

func TestReplaysAndLateResultsChangeNothing(t *testing.T) {
	r := newResultRig(t)
	r.expect(posted{id: "b", body: done, at: time.Minute}, 200, "Stored")
	r.expect(posted{id: "b", body: `{"key":"k1","state":"Failed"}`, at: time.Minute}, 409, "IDReused")
	r.expect(posted{id: "a", body: `{"key":"k1","state":"Failed"}`, at: 30 * time.Second}, 409, "Superseded")
	r.now = r.now.Add(time.Hour)
	r.expect(posted{id: "b", body: done, at: time.Minute - time.Hour}, 401, "Unauthorized")
	if len(r.reported) != 1 {
		t.Errorf("reported %+v", r.reported)
	}
}

func TestResultsThatAreNotBelieved(t *testing.T) {
	for name, tc := range map[string]struct {
		p      posted
		status int
		reason string
	}{
		"wrong secret":       {posted{secret: "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSx"}, 401, "Unauthorized"},
		"unknown site":       {posted{site: "team/atlantis"}, 401, "Unauthorized"},
		"other namespace":    {posted{site: "other/quebec"}, 401, "Unauthorized"},
		"no provisioner":     {posted{site: "team/scaled"}, 401, "Unauthorized"},
		"from the past":      {posted{at: -webhooksig.Tolerance - time.Minute}, 401, "Unauthorized"},
		"from the future":    {posted{at: webhooksig.Tolerance + time.Minute}, 401, "Unauthorized"},
		"no signature":       {posted{header: func(h http.Header) { h.Del(webhooksig.HeaderSignature) }}, 400, "Malformed"},
		"no id":              {posted{header: func(h http.Header) { h.Del(webhooksig.HeaderID) }}, 400, "Malformed"},
		"other body":         {posted{header: func(h http.Header) { h.Set(webhooksig.HeaderID, "other") }}, 401, "Unauthorized"},
		"other wish":         {posted{body: `{"key":"k0","state":"Done"}`}, 409, "WishChanged"},
		"no wish":            {posted{site: "team/idle"}, 409, "WishChanged"},
		"no key":             {posted{body: `{"state":"Done"}`}, 422, "Malformed"},
		"no state":           {posted{body: `{"key":"k1"}`}, 422, "Malformed"},
		"unknown state":      {posted{body: `{"key":"k1","state":"Maybe"}`}, 422, "Malformed"},
		"no JSON":            {posted{body: `done`}, 422, "Malformed"},
		"two results":        {posted{body: done + done}, 422, "Malformed"},
		"a book":             {posted{body: strings.Repeat(" ", maxResult) + done}, 413, "TooLarge"},
		"withdrawn provider": {posted{site: "team/withdrawn"}, 401, "Unauthorized"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newResultRig(t)
			scaled := wished("team", "scaled", "k1")
			scaled.Spec.Capacity.Mode = v1alpha1.CapacityScale
			r.put(scaled)
			idle := wished("team", "idle", "")
			idle.Status.Provisioning = nil
			r.put(idle)
			withdrawn := wished("team", "withdrawn", "k1")
			withdrawn.Spec.Capacity.Webhook.Secret.Name = "gone"
			r.put(withdrawn)
			if tc.p.body == "" {
				tc.p.body = done
			}
			if tc.p.id == "" {
				tc.p.id = "a"
			}
			r.expect(tc.p, tc.status, tc.reason)
			if len(r.reported) != 0 {
				t.Errorf("reported %+v", r.reported)
			}
		})
	}
}

func TestWhileTheOperatorCannotReadResultsAreAskedForAgain(t *testing.T) {
	r := newResultRig(t)
	r.err = errors.New("etcd is gone")
	r.expect(posted{id: "a", body: done}, 503, "Unavailable")
	r.err = nil
	r.expect(posted{id: "a", body: done}, 200, "Stored")
}

func TestAFloodOfResultsDoesNotBecomeAFloodOfReads(t *testing.T) {
	r := newResultRig(t)
	r.api.limiter = never{}
	r.expect(posted{id: "a", body: done}, 429, "TooManyRequests")
	if r.reads != 0 {
		t.Errorf("%d Secrets read", r.reads)
	}
}

type never struct{}

func (never) TryAccept() bool { return false }
func (never) Stop()           {}
func (never) QPS() float32    { return 0 }

func TestWhatIsRememberedOfASiteIsBounded(t *testing.T) {
	r := newResultRig(t)
	secret, err := webhooksig.ParseSecret(whsec)
	if err != nil {
		t.Fatal(err)
	}
	key := types.NamespacedName{Namespace: "team", Name: "quebec"}
	for i := range 2 * maxIDs {
		h := http.Header{}
		webhooksig.Set(h, []webhooksig.Secret{secret}, fmt.Sprint(i), r.now, nil)
		signed, err := webhooksig.Read(h)
		if err != nil {
			t.Fatal(err)
		}
		if v := r.api.heard.see(key, signed, nil, r.now); v != fresh {
			t.Fatalf("message %d: %v", i, v)
		}
	}
	if n := len(r.api.heard.sites[key].ids); n != maxIDs {
		t.Errorf("%d ids", n)
	}
	r.api.OnDelete(wished("team", "quebec", ""))
	if n := len(r.api.heard.sites); n != 0 {
		t.Errorf("%d sites", n)
	}
}

func FuzzAResultIsWholeOrNothing(f *testing.F) {
	for _, seed := range []string{done, `{"key":"","state":"Done"}`, `{"key":"k","state":"done"}`, `[]`, `null`, `{"key":"k","state":"Failed","message":"x"} `} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		r, err := parseResult(raw)
		if err != nil {
			if r != (api.Result{}) {
				t.Errorf("%+v with %v", r, err)
			}
			return
		}
		if r.Key == "" || r.State != api.Pending && r.State != api.Done && r.State != api.Failed {
			t.Errorf("%+v", r)
		}
		again, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		if back, err := parseResult(again); err != nil || back != r {
			t.Errorf("%+v became %+v: %v", r, back, err)
		}
	})
}

package webhook_test

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"girassol.dev/api/signalpush"
	"girassol.dev/internal/webhooksig"
	"girassol.dev/signals/webhook"
)

// serve puts the handler on a real listener of loopback.
func (r *rig) serve() string {
	r.t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		r.t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle(webhook.Path, r.h)
	server := &http.Server{Handler: mux}
	done := make(chan error, 1)
	go func() { done <- server.Serve(l) }()
	r.t.Cleanup(func() {
		_ = server.Close()
		if err := <-done; !errors.Is(err, http.ErrServerClosed) {
			r.t.Error(err)
		}
	})
	return l.Addr().String()
}

func TestASlowBodyTimesOut(t *testing.T) {
	r := newRig(t, func(c *webhook.Config) { c.BodyTimeout = 50 * time.Millisecond })
	address := r.serve()
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	b := observed("1", 0)
	head := r.request(b).Header
	head.Set("Content-Length", fmt.Sprint(len(b)))
	var text strings.Builder
	if err := head.Write(&text); err != nil {
		t.Fatal(err)
	}
	// All but the last byte, which never comes.
	fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: %s\r\n%s\r\n%s", webhook.Path, address, text.String(), b[:len(b)-1])
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusRequestTimeout || !resp.Close {
		t.Errorf("%d, close %v", resp.StatusCode, resp.Close)
	}
	r.shows()
}

func TestWhatIsPostedAsTheCommandDoesIsTaken(t *testing.T) {
	r := newRig(t, func(c *webhook.Config) { c.Clock = nil })
	client := &http.Client{Transport: &http.Transport{}}
	t.Cleanup(client.CloseIdleConnections)
	url := "http://" + r.serve() + webhook.Path
	now := time.Now()
	raw, err := json.Marshal(signalpush.Signal{Site: "lisboa", Kind: "marginal", Unit: "gCO2/kWh", GeneratedAt: signalpush.At(now),
		Points: []signalpush.Point{{Start: signalpush.At(t0), DurationSeconds: 300, Value: signalpush.Null()}}})
	if err != nil {
		t.Fatal(err)
	}
	b, err := json.Marshal(signalpush.Envelope{Type: signalpush.Observed, Timestamp: signalpush.At(now), Data: raw})
	if err != nil {
		t.Fatal(err)
	}
	post := webhooksig.Post{Client: client, URL: url, Secrets: []webhooksig.Secret{parsed(t, key('x')), parsed(t, key('m'))}, ID: "a",
		ContentType: signalpush.ContentJSON, Body: b, Header: http.Header{http.CanonicalHeaderKey(signalpush.HeaderSource): {"meter"}}, Tries: 1}
	for _, want := range []int{202, 200} {
		got, err := post.Do(t.Context())
		if err != nil || got.Status != want {
			t.Errorf("%d %s %v, want %d", got.Status, got.Body, err, want)
		}
	}
	post.Body = []byte(string(b) + " ")
	if got, err := post.Do(t.Context()); err != nil || got.Status != 409 {
		t.Errorf("%d %s %v", got.Status, got.Body, err)
	}
	post.Secrets = post.Secrets[:1]
	if got, err := post.Do(t.Context()); err != nil || got.Status != 401 {
		t.Errorf("%d %s %v", got.Status, got.Body, err)
	}
	r.shows("site lisboa: marginal none gCO2/kWh at 12:00 for 5m0s, ok from meter")
}

func TestEveryLabelIsKnownBeforehand(t *testing.T) {
	r := newRig(t, nil)
	for i := range 20 {
		evil := fmt.Sprintf("evil%d", i)
		r.do(r.request(observed("1", 0), header(signalpush.HeaderSource, evil)))
		r.do(r.request(strings.Replace(observed("1", 0), "lisboa", evil, 1)))
		r.do(r.request(strings.Replace(observed("1", 0), "observed", evil, 1)))
	}
	families, err := r.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	series := 0
	for _, f := range families {
		for _, m := range f.GetMetric() {
			series++
			for _, l := range m.GetLabel() {
				if strings.Contains(l.GetValue(), "evil") {
					t.Errorf("%s has label %s", f.GetName(), l.GetValue())
				}
			}
		}
	}
	if series > 20 {
		t.Errorf("%d series", series)
	}
}

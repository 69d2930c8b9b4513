package enrolment

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/coordinator/identity"
	"girassol.dev/internal/certs"
	"girassol.dev/internal/enrol"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// testWait bounds every wait of a test.
const testWait = 30 * time.Second

// port is a running server with a real issuer.
type port struct {
	t       *testing.T
	addr    string
	issuer  *identity.Issuer
	roots   *x509.CertPool
	bounded *bounded
	log     *bytes.Buffer
}

func open(t *testing.T) *port {
	t.Helper()
	a, err := certs.NewAuthority("lm", time.Now(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := a.Issue(certs.Coordinator("lm", "127.0.0.1"), time.Now(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(leaf.Certificate, leaf.Key)
	if err != nil {
		t.Fatal(err)
	}
	store, err := identity.OpenStore(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	p := &port{t: t, roots: x509.NewCertPool(), log: &bytes.Buffer{},
		issuer: &identity.Issuer{Federation: "lm", Store: store, Authority: a, Life: time.Hour, Now: time.Now, Random: rand.Reader}}
	p.roots.AppendCertsFromPEM(a.CertificatePEM)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p.addr, p.bounded = l.Addr().String(), Bound(l).(*bounded)
	s := (&Server{Issuer: p.issuer, Log: slog.New(slog.NewTextHandler(p.log, nil)), Certificate: func() (*tls.Certificate, error) { return &pair, nil }}).HTTP()
	done := make(chan error, 1)
	go func() { done <- s.ServeTLS(p.bounded, "", "") }()
	t.Cleanup(func() {
		_ = s.Close()
		if err := <-done; !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	})
	return p
}

// from makes connections from an address of this machine.
func (p *port) from(ip string) *tls.Dialer {
	d := &net.Dialer{Timeout: testWait}
	if ip != "" {
		d.LocalAddr = &net.TCPAddr{IP: net.ParseIP(ip)}
	}
	return &tls.Dialer{NetDialer: d, Config: &tls.Config{RootCAs: p.roots, ServerName: "127.0.0.1"}}
}

func (p *port) client(ip string) *http.Client {
	return &http.Client{Timeout: testWait, Transport: &http.Transport{DisableKeepAlives: true, DialTLSContext: p.from(ip).DialContext}}
}

func (p *port) token(site string, life time.Duration) enrol.Token {
	p.t.Helper()
	k, _, err := p.issuer.CreateToken(site, life)
	if err != nil {
		p.t.Fatal(err)
	}
	return k
}

func csr(t testing.TB) []byte {
	t.Helper()
	k, err := certs.NewKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := certs.NewRequest(k)
	if err != nil {
		t.Fatal(err)
	}
	return der
}

// ask posts a body and gives the answer's code, reason and site.
func (p *port) ask(c *http.Client, body []byte) (code int, reason, site string) {
	p.t.Helper()
	resp, err := c.Post("https://"+p.addr+enrol.Path, "application/json", bytes.NewReader(body))
	if err != nil {
		p.t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		p.t.Fatal(err)
	}
	var both struct{ Reason, Site string }
	if err := json.Unmarshal(b, &both); err != nil {
		p.t.Fatalf("%s: %v", b, err)
	}
	return resp.StatusCode, both.Reason, both.Site
}

func body(t testing.TB, text string, der []byte) []byte {
	t.Helper()
	b, err := json.Marshal(enrol.Request{Token: text, CSR: der})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestATokenIsExchangedForACertificateOfItsSite(t *testing.T) {
	p := open(t)
	c := p.client("")
	k := p.token("quebec", time.Hour)
	mine := csr(t)
	revoked := p.token("quebec", time.Hour)
	if err := p.issuer.Store.Do(func(r *identity.Registry) error { _, err := r.RevokeToken(revoked.ID, "", time.Now()); return err }); err != nil {
		t.Fatal(err)
	}
	stranger := k
	stranger.Secret = p.token("quebec", time.Hour).Secret
	for _, step := range []struct {
		what   string
		body   []byte
		code   int
		reason v1alpha1.Reason
	}{
		{"a good token", body(t, k.Text(), mine), http.StatusOK, ""},
		{"its second use by another key", body(t, k.Text(), csr(t)), http.StatusForbidden, v1alpha1.ReasonTokenUsed},
		{"the same key again", body(t, k.Text(), mine), http.StatusOK, ""},
		{"a guessed secret", body(t, stranger.Text(), csr(t)), http.StatusForbidden, v1alpha1.ReasonTokenUnknown},
		{"a revoked token", body(t, revoked.Text(), csr(t)), http.StatusForbidden, v1alpha1.ReasonIdentityRevoked},
		{"no CSR", body(t, p.token("quebec", time.Hour).Text(), nil), http.StatusBadRequest, v1alpha1.ReasonMalformed},
		{"no token", body(t, "hello", csr(t)), http.StatusBadRequest, v1alpha1.ReasonMalformed},
		{"no JSON", []byte("hello"), http.StatusBadRequest, v1alpha1.ReasonMalformed},
		{"too large", bytes.Repeat([]byte(" "), enrol.MaxBody+1), http.StatusBadRequest, v1alpha1.ReasonMalformed},
		{"deep JSON", bytes.Repeat([]byte("["), 20<<10), http.StatusBadRequest, v1alpha1.ReasonMalformed},
	} {
		code, reason, site := p.ask(c, step.body)
		if code != step.code || reason != string(step.reason) || (code == http.StatusOK && site != "quebec") {
			t.Errorf("%s: %d %s %s, want %d %s", step.what, code, reason, site, step.code, step.reason)
		}
	}
	if log := p.log.String(); strings.Contains(log, k.Secret) || !strings.Contains(log, k.ID) || !strings.Contains(log, "TokenUsed") {
		t.Errorf("the log: %s", log)
	}
}

func TestNothingButTheOneCallOverTLS13IsServed(t *testing.T) {
	p := open(t)
	c := p.client("")
	for _, try := range []struct {
		method, path string
		code         int
	}{{"GET", enrol.Path, http.StatusMethodNotAllowed}, {"POST", "/", http.StatusNotFound}, {"GET", "/metrics", http.StatusNotFound}, {"POST", "/v1/enrol/x", http.StatusNotFound}} {
		req, err := http.NewRequestWithContext(t.Context(), try.method, "https://"+p.addr+try.path, nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := c.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != try.code || resp.ProtoMajor != 1 {
			t.Errorf("%s %s: %s %s", try.method, try.path, resp.Proto, resp.Status)
		}
	}
	if _, err := tls.Dial("tcp", p.addr, &tls.Config{RootCAs: p.roots, ServerName: "127.0.0.1", MaxVersion: tls.VersionTLS12}); err == nil {
		t.Error("TLS 1.2 is taken")
	}
	conn, err := tls.Dial("tcp", p.addr, &tls.Config{RootCAs: p.roots, ServerName: "127.0.0.1", NextProtos: []string{"h2", "http/1.1"}})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if got := conn.ConnectionState().NegotiatedProtocol; got != "http/1.1" {
		t.Errorf("it speaks %q", got)
	}
	plain, err := http.Post("http://"+p.addr+enrol.Path, "application/json", strings.NewReader("{}"))
	if err == nil {
		defer plain.Body.Close()
		if plain.StatusCode != http.StatusBadRequest {
			t.Errorf("plaintext: %s", plain.Status)
		}
	}
	http.DefaultClient.CloseIdleConnections()
}

func TestOneAddressCannotEnrolWithoutEnd(t *testing.T) {
	p := open(t)
	bad := body(t, p.token("quebec", time.Hour).Text(), nil)
	c := p.client("127.0.0.1")
	limited := 0
	for range burstAddress + 5 {
		if code, _, _ := p.ask(c, bad); code == http.StatusTooManyRequests {
			limited++
		}
	}
	if limited == 0 {
		t.Error("it is never told to wait")
	}
	if code, _, site := p.ask(p.client("127.0.0.2"), body(t, p.token("porto", time.Hour).Text(), csr(t))); code != http.StatusOK || site != "porto" {
		t.Errorf("another address: %d", code)
	}
}

// A thousand connections that say nothing, and some that say it slowly, hold few
// places for a short time; who comes from elsewhere is served meanwhile.
func TestIdleAndSlowConnectionsKeepNobodyOut(t *testing.T) {
	p := open(t)
	var idle []net.Conn
	defer func() {
		for _, c := range idle {
			_ = c.Close()
		}
	}()
	for range 1000 {
		c, err := net.Dial("tcp", p.addr)
		if err != nil {
			t.Fatal(err)
		}
		idle = append(idle, c)
	}
	slow, err := p.from("127.0.0.3").DialContext(t.Context(), "tcp", p.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer slow.Close()
	begun := time.Now()
	if _, err := io.WriteString(slow, "POST "+enrol.Path+" HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n{"); err != nil {
		t.Fatal(err)
	}
	header, err := p.from("127.0.0.3").DialContext(t.Context(), "tcp", p.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer header.Close()
	if _, err := io.WriteString(header, "POST "+enrol.Path+" HTTP/1.1\r\nHost: x\r\nX-Slow: "); err != nil {
		t.Fatal(err)
	}
	if code, _, site := p.ask(p.client("127.0.0.2"), body(t, p.token("porto", time.Hour).Text(), csr(t))); code != http.StatusOK || site != "porto" {
		t.Errorf("a site meanwhile: %d", code)
	}
	p.bounded.mu.Lock()
	held := p.bounded.all
	p.bounded.mu.Unlock()
	if held > maxConnectionsAddress+8 {
		t.Errorf("%d connections are held", held)
	}
	// Both slow ones end in time, whatever they were at.
	for what, c := range map[string]net.Conn{"slow body": slow, "slow header": header} {
		_ = c.SetReadDeadline(time.Now().Add(testWait))
		if _, err := io.Copy(io.Discard, bufio.NewReader(c)); err != nil && errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: %v", what, err)
		}
		if took := time.Since(begun); took > testWait {
			t.Errorf("%s is held for %s", what, took)
		}
	}
	// So do those that never began TLS: their places are free again.
	for _, c := range idle {
		_ = c.SetReadDeadline(time.Now().Add(testWait))
		if _, err := c.Read(make([]byte, 64)); err == nil {
			continue
		} else if errors.Is(err, context.DeadlineExceeded) {
			t.Fatal("an idle connection is held for ever")
		}
	}
}

func TestBucketsFillWithTimeAndAddressesAreForgotten(t *testing.T) {
	l, at := &limits{}, time.Unix(1e9, 0)
	for range burstAddress {
		if !l.allow("a", at) {
			t.Fatal("within the burst")
		}
	}
	if l.allow("a", at) {
		t.Error("beyond the burst")
	}
	if !l.allow("a", at.Add(3*time.Second)) {
		t.Error("after a pause")
	}
	if l.allow("a", at.Add(-time.Hour)) {
		t.Error("a clock set back fills it")
	}
	for i := range 3 * maxAddresses {
		at = at.Add(100 * time.Millisecond)
		l.allow(fmt.Sprint(i), at)
	}
	if len(l.address) > maxAddresses {
		t.Errorf("%d addresses are remembered", len(l.address))
	}
	for remote, want := range map[string]string{"10.0.0.1:5": "10.0.0.1", "[2001:db8::1:2]:5": "2001:db8::", "[2001:db8::9]:7": "2001:db8::", "?": "?"} {
		if got := clientKey(remote); got != want {
			t.Errorf("%s counts as %s", remote, got)
		}
	}
}

func FuzzEnrolment(f *testing.F) {
	s := &Server{Issuer: refusing{}, Log: slog.New(slog.DiscardHandler), Now: func() time.Time { return time.Unix(1e9, 0) }}
	f.Add([]byte(`{"token":"gst1.a.b.c","csr":"MA=="}`))
	f.Add([]byte(`{"token":null,"csr":null,"wireguardPublicKey":"AA=="}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		s.limits = limits{}
		r, err := http.NewRequestWithContext(context.Background(), http.MethodPost, enrol.Path, bytes.NewReader(b))
		if err != nil {
			t.Fatal(err)
		}
		r.RemoteAddr = "192.0.2.1:1"
		w := &answer{header: http.Header{}}
		s.enrol(w, r)
		if w.code == http.StatusOK || w.code == 0 || w.code >= 500 {
			t.Errorf("%q: %d %s", b, w.code, w.body.Bytes())
		}
	})
}

type refusing struct{}

func (refusing) Enrol(enrol.Token, []byte, []byte) (enrol.Answer, error) {
	return enrol.Answer{}, &identity.Error{Reason: v1alpha1.ReasonTokenUnknown, Message: "no"}
}

type answer struct {
	header http.Header
	code   int
	body   bytes.Buffer
}

func (a *answer) Header() http.Header         { return a.header }
func (a *answer) WriteHeader(code int)        { a.code = code }
func (a *answer) Write(b []byte) (int, error) { return a.body.Write(b) }

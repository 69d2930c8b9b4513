package identity

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	"girassol.dev/internal/certs"
	"girassol.dev/internal/enrol"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// hub is a coordinator's enrolment port as far as an agent sees it.
type hub struct {
	t         *testing.T
	authority *certs.Authority
	addr      string
	// skew of its clock, and answer instead of a certificate.
	skew   time.Duration
	answer http.HandlerFunc

	mu     sync.Mutex
	bodies [][]byte
}

func newHub(t *testing.T, hosts ...string) *hub {
	t.Helper()
	return newHubAt(t, time.Now(), hosts...)
}

// newHubAt has its certificates made at a time of its own.
func newHubAt(t *testing.T, now time.Time, hosts ...string) *hub {
	t.Helper()
	a, err := certs.NewAuthority("lm", now, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	if len(hosts) == 0 {
		hosts = []string{"127.0.0.1"}
	}
	leaf, err := a.Issue(certs.Coordinator("lm", hosts...), now, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(leaf.Certificate, leaf.Key)
	if err != nil {
		t.Fatal(err)
	}
	ca, err := certs.ParseCertificate(a.CertificatePEM)
	if err != nil {
		t.Fatal(err)
	}
	pair.Certificate = append(pair.Certificate, ca.Raw)
	h := &hub{t: t, authority: a, skew: time.Until(now)}
	s := httptest.NewUnstartedServer(h)
	s.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS13}
	s.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	s.StartTLS()
	t.Cleanup(s.Close)
	h.addr = s.Listener.Addr().String()
	return h
}

func (h *hub) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	b, err := io.ReadAll(r.Body)
	if err != nil {
		h.t.Error(err)
	}
	h.mu.Lock()
	h.bodies = append(h.bodies, b)
	h.mu.Unlock()
	w.Header().Set("Date", time.Now().Add(h.skew).UTC().Format(http.TimeFormat))
	if h.answer != nil {
		h.answer(w, r)
		return
	}
	q, err := enrol.ReadRequest(bytes.NewReader(b))
	if err != nil {
		h.t.Error(err)
		return
	}
	req, err := certs.ParseRequest(q.CSR)
	if err != nil {
		h.t.Error(err)
		return
	}
	c, _, err := h.authority.Grant(req, certs.Site("lm", "quebec"), time.Hour, time.Now().Add(h.skew), rand.Reader)
	if err != nil {
		h.t.Error(err)
		return
	}
	answer := enrol.Answer{Federation: "lm", Site: "quebec", Certificate: c, CA: h.authority.CertificatePEM}
	if len(q.WireGuardPublicKey) > 0 {
		answer.WireGuard = &enrol.WireGuard{Endpoint: "hub.example:51820", Port: 7465}
	}
	if err := json.NewEncoder(w).Encode(answer); err != nil {
		h.t.Error(err)
	}
}

func (h *hub) enrolment() Enrolment {
	h.t.Helper()
	k, err := enrol.NewToken(h.authority.Fingerprint(), rand.Reader)
	if err != nil {
		h.t.Fatal(err)
	}
	return Enrolment{Address: h.addr, Federation: "lm", Site: "quebec", Token: k, Now: time.Now, Random: rand.Reader,
		Log: slog.New(slog.DiscardHandler), NewPause: func() time.Duration { return time.Millisecond }}
}

func folder(t *testing.T) *Files {
	t.Helper()
	f, err := Open(filepath.Join(t.TempDir(), "identity"))
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func refuse(code int, reason, message string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(code)
		_ = json.NewEncoder(w).Encode(enrol.Refusal{Reason: reason, Message: message})
	}
}

func TestThePrivateKeyStaysOnTheMachine(t *testing.T) {
	h, f := newHub(t), folder(t)
	e := h.enrolment()
	if err := f.Enrol(t.Context(), e); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(f.path(agentFile))
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(b, b)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := pair.PrivateKey.(interface{ Bytes() ([]byte, error) }).Bytes()
	if err != nil {
		t.Fatal(err)
	}
	for _, body := range h.bodies {
		q, err := enrol.ReadRequest(bytes.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		for _, sent := range [][]byte{body, q.CSR} {
			if bytes.Contains(sent, secret) || bytes.Contains(sent, []byte(base64.StdEncoding.EncodeToString(secret)[:40])) || bytes.Contains(sent, []byte("PRIVATE")) {
				t.Error("the key was sent")
			}
		}
	}
	for name, mode := range map[string]os.FileMode{agentFile: 0o600, caFile: 0o644} {
		if info, err := os.Stat(f.path(name)); err != nil || info.Mode().Perm() != mode {
			t.Errorf("%s: %v, %v", name, info.Mode(), err)
		}
	}
	left, err := os.ReadDir(f.folder)
	if err != nil || len(left) != 2 {
		t.Errorf("left are %v, %v", left, err)
	}
	// Started again with the same token, it asks nobody.
	asked := len(h.bodies)
	if err := f.Enrol(t.Context(), e); err != nil || len(h.bodies) != asked {
		t.Errorf("it enrols again: %v", err)
	}
	// With another token it does.
	if err := f.Enrol(t.Context(), h.enrolment()); err != nil || len(h.bodies) != asked+1 {
		t.Errorf("a new token is not used: %v", err)
	}
}

func TestALostAnswerIsAskedForAgainWithTheSameKey(t *testing.T) {
	h, f := newHub(t), folder(t)
	lost := 0
	h.answer = func(w http.ResponseWriter, _ *http.Request) {
		if lost++; lost == 3 {
			h.answer = nil
		}
		c, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		_ = c.Close()
	}
	if err := f.Enrol(t.Context(), h.enrolment()); err != nil {
		t.Fatal(err)
	}
	keys := map[string]bool{}
	for _, b := range h.bodies {
		q, err := enrol.ReadRequest(bytes.NewReader(b))
		if err != nil {
			t.Fatal(err)
		}
		r, err := certs.ParseRequest(q.CSR)
		if err != nil {
			t.Fatal(err)
		}
		keys[r.KeyHash] = true
	}
	if len(h.bodies) != 4 || len(keys) != 1 {
		t.Errorf("%d attempts with %d keys", len(h.bodies), len(keys))
	}
}

// So does an agent that was killed before it had the answer.
func TestAKeyUnderWaySurvivesAKill(t *testing.T) {
	h, f := newHub(t), folder(t)
	e := h.enrolment()
	h.answer = refuse(http.StatusForbidden, "TokenUnknown", "no")
	if err := f.Enrol(t.Context(), e); err == nil {
		t.Fatal("it was refused")
	}
	h.answer = nil
	again, err := Open(f.folder)
	if err != nil {
		t.Fatal(err)
	}
	if err := again.Enrol(t.Context(), e); err != nil {
		t.Fatal(err)
	}
	var hashes []string
	for _, b := range h.bodies {
		q, _ := enrol.ReadRequest(bytes.NewReader(b))
		r, err := certs.ParseRequest(q.CSR)
		if err != nil {
			t.Fatal(err)
		}
		hashes = append(hashes, r.KeyHash)
	}
	if len(hashes) != 2 || hashes[0] != hashes[1] {
		t.Errorf("keys %v", hashes)
	}
}

// A kill between the two, or a full disk, must not leave an agent that has a
// certificate and does not know where the tunnel is.
func TestTheTunnelIsKnownBeforeTheCertificateIsInForce(t *testing.T) {
	h, f := newHub(t), folder(t)
	e := h.enrolment()
	e.WireGuardPublicKey = make([]byte, 32)
	full := errors.New("no space left on device")
	var told *enrol.WireGuard
	e.WireGuard = func(*enrol.WireGuard) error { return full }
	if err := f.Enrol(t.Context(), e); !errors.Is(err, full) {
		t.Fatalf("enrolled with %v", err)
	}
	if c, err := f.Certificate(); c != nil || err != nil {
		t.Fatalf("a certificate without the tunnel: %v, %v", c, err)
	}
	e.WireGuard = func(w *enrol.WireGuard) error { told = w; return nil }
	if err := f.Enrol(t.Context(), e); err != nil {
		t.Fatal(err)
	}
	if c, err := f.Certificate(); c == nil || err != nil || told.Endpoint != "hub.example:51820" {
		t.Errorf("%v, %v, told %v", c, err, told)
	}
}

func TestAnAnswerThatIsNotForThisAgentIsNotInstalled(t *testing.T) {
	h := newHub(t)
	stranger, err := certs.NewAuthority("lm", time.Now(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := h.authority.Issue(certs.Site("lm", "quebec"), time.Now(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	send := func(a enrol.Answer) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { _ = json.NewEncoder(w).Encode(a) }
	}
	good := enrol.Answer{Federation: "lm", Site: "quebec", Certificate: leaf.Certificate, CA: leaf.CA}
	edited := func(edit func(*enrol.Answer)) enrol.Answer { a := good; edit(&a); return a }
	for name, tc := range map[string]struct {
		answer http.HandlerFunc
		says   string
	}{
		"another key":        {send(good), "for another key"},
		"another site":       {send(edited(func(a *enrol.Answer) { a.Site = "porto" })), "IdentityMismatch: the token is for site porto"},
		"another federation": {send(edited(func(a *enrol.Answer) { a.Federation = "x" })), "of federation x"},
		"garbage":            {send(edited(func(a *enrol.Answer) { a.Certificate = []byte("x") })), "holds no PEM"},
		"another authority":  {send(edited(func(a *enrol.Answer) { a.CA = stranger.CertificatePEM })), "another key"},
		"a used token":       {refuse(http.StatusForbidden, "TokenUsed", "used"), "TokenUsed: used"},
		"another server":     {func(w http.ResponseWriter, _ *http.Request) { http.NotFound(w, nil) }, "is it the coordinator's --enrol-listen"},
		"a redirect": {func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "https://example.org/", http.StatusFound)
		}, "302"},
	} {
		t.Run(name, func(t *testing.T) {
			f := folder(t)
			h.answer = tc.answer
			err := f.Enrol(t.Context(), h.enrolment())
			if err == nil || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("%v, want %q", err, tc.says)
			}
			if c, err := f.Certificate(); c != nil || err != nil {
				t.Errorf("installed: %v, %v", c, err)
			}
		})
	}
}

func TestWhoIsNotTheTokensCoordinatorGetsNothing(t *testing.T) {
	h, f := newHub(t), folder(t)
	elsewhere := newHub(t, "coordinator.example.org")
	stranger := newHub(t)
	plain := httptest.NewServer(http.NotFoundHandler())
	defer plain.Close()
	for name, tc := range map[string]struct {
		to   *hub
		edit func(*Enrolment)
		says string
	}{
		"another authority": {stranger, func(e *Enrolment) { e.Token.Authority = h.authority.Fingerprint() }, "the token was not sent"},
		"another name":      {elsewhere, nil, "is for coordinator.example.org, not for 127.0.0.1"},
		"plaintext":         {h, func(e *Enrolment) { e.Address = plain.Listener.Addr().String() }, "does not speak TLS"},
	} {
		e := tc.to.enrolment()
		if tc.edit != nil {
			tc.edit(&e)
		}
		ctx, cancel := context.WithCancel(t.Context())
		e.NewPause = func() time.Duration { cancel(); return time.Hour } // one attempt
		err := f.Enrol(ctx, e)
		if err == nil || !strings.Contains(err.Error(), tc.says) {
			t.Errorf("%s: %v, want %q", name, err, tc.says)
		}
		cancel()
		if n := len(tc.to.bodies); n != 0 {
			t.Errorf("%s: it heard %d requests", name, n)
		}
	}
	e := elsewhere.enrolment()
	e.ServerName = "coordinator.example.org"
	if err := f.Enrol(t.Context(), e); err != nil {
		t.Errorf("with the server's name: %v", err)
	}
}

func TestClocksThatDifferTooMuchAreNamedWithTheDifference(t *testing.T) {
	// The coordinator is two hours ahead: its certificates are of the future.
	h := newHubAt(t, time.Now().Add(2*time.Hour))
	e := h.enrolment()
	ctx, cancel := context.WithCancel(t.Context())
	e.NewPause = func() time.Duration { cancel(); return time.Hour }
	if err := folder(t).Enrol(ctx, e); err == nil || !strings.Contains(err.Error(), "clocks differ") || !strings.Contains(err.Error(), "1h5") {
		t.Errorf("%v", err)
	}
	cancel()
	// Within ninety seconds nobody minds, either way; the answer's Date measures more.
	for _, skew := range []time.Duration{-88 * time.Second, 88 * time.Second} {
		h := newHubAt(t, time.Now().Add(skew))
		if err := folder(t).Enrol(t.Context(), h.enrolment()); err != nil {
			t.Errorf("%s: %v", skew, err)
		}
	}
	late := newHub(t)
	late.skew = -10 * time.Minute
	late.answer = refuse(http.StatusForbidden, "TokenExpired", "expired")
	if err := folder(t).Enrol(t.Context(), late.enrolment()); err == nil || !strings.Contains(err.Error(), "ClockSkew: this machine's clock is 10m") {
		t.Errorf("%v", err)
	}
}

// issuer is the Fleet service's Renew.
type issuer struct {
	coordinatorv1.UnimplementedFleetServer
	authority *certs.Authority
	life      time.Duration
	mu        sync.Mutex
	fail      int
	keys      []string
	at        []time.Time
}

func (i *issuer) Renew(_ context.Context, req *coordinatorv1.RenewRequest) (*coordinatorv1.RenewResponse, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	r, err := certs.ParseRequest(req.GetCsrDer())
	if err != nil {
		return nil, err
	}
	i.keys, i.at = append(i.keys, r.KeyHash), append(i.at, time.Now())
	if i.fail > 0 {
		i.fail--
		return nil, status.Error(codes.Unavailable, "away")
	}
	c, _, err := i.authority.Grant(r, certs.Site("lm", "quebec"), i.life, time.Now(), rand.Reader)
	if err != nil {
		return nil, err
	}
	return &coordinatorv1.RenewResponse{Certificate: c, Ca: i.authority.CertificatePEM}, nil
}

// On a virtual clock: renewed at two thirds of each life and a bit, with a new key
// each time and the same key for what failed in between, for months.
func TestCertificatesAreRenewedAtTwoThirdsOfTheirLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, err := certs.NewAuthority("lm", time.Now(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		const life = 7 * 24 * time.Hour
		i := &issuer{authority: a, life: life}
		l := bufconn.Listen(1 << 16)
		s := grpc.NewServer()
		coordinatorv1.RegisterFleetServer(s, i)
		go func() { _ = s.Serve(l) }()
		defer s.Stop()

		f := folder(t)
		key, err := f.nextKey(func() ([]byte, error) { return certs.NewKey(rand.Reader) })
		if err != nil {
			t.Fatal(err)
		}
		der, err := certs.NewRequest(key)
		if err != nil {
			t.Fatal(err)
		}
		first, err := i.Renew(t.Context(), &coordinatorv1.RenewRequest{CsrDer: der})
		if err != nil {
			t.Fatal(err)
		}
		if err := f.install(first.GetCertificate(), key, first.GetCa(), "token1"); err != nil {
			t.Fatal(err)
		}
		begun := time.Now()
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		r := &Renewal{Files: f, Random: rand.Reader, Log: slog.New(slog.DiscardHandler), Jitter: func() float64 { return 0.5 },
			Dial: func() (*grpc.ClientConn, error) {
				return grpc.NewClient("passthrough:///x", grpc.WithTransportCredentials(insecure.NewCredentials()),
					grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }))
			}}
		go func() { done <- r.Run(ctx) }()
		time.Sleep(4*24*time.Hour + 12*time.Hour)
		if n := len(i.at); n != 1 {
			t.Errorf("renewed after %s", i.at[1].Sub(begun))
		}
		i.mu.Lock()
		i.fail = 3
		i.mu.Unlock()
		time.Sleep(24 * time.Hour)
		i.mu.Lock()
		if len(i.at) != 5 || i.keys[1] != i.keys[4] || i.keys[0] == i.keys[1] {
			t.Errorf("%d attempts, keys %v", len(i.at), i.keys)
		}
		i.mu.Unlock()
		for range 90 {
			time.Sleep(24 * time.Hour)
			c, err := f.Certificate()
			if err != nil || time.Until(c.NotAfter) < life/5 {
				t.Fatalf("after %s it is good until %s: %v", time.Since(begun), c.NotAfter, err)
			}
		}
		if f.usedToken() != "token1" {
			t.Error("it has forgotten its token")
		}
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func TestACoordinatorThatRenewsNothingIsNotAskedAllTheTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := folder(t)
		asked := 0
		r := &Renewal{Files: f, Random: rand.Reader, Log: slog.New(slog.DiscardHandler), Dial: func() (*grpc.ClientConn, error) {
			asked++
			return nil, status.Error(codes.Unimplemented, "no")
		}}
		a, err := certs.NewAuthority("lm", time.Now(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		key, _ := f.nextKey(func() ([]byte, error) { return certs.NewKey(rand.Reader) })
		der, _ := certs.NewRequest(key)
		req, err := certs.ParseRequest(der)
		if err != nil {
			t.Fatal(err)
		}
		c, _, err := a.Grant(req, certs.Site("lm", "quebec"), time.Minute, time.Now(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		if err := f.install(c, key, a.CertificatePEM, ""); err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithTimeout(t.Context(), 10*time.Hour)
		defer stop()
		if err := r.Run(ctx); err != nil || asked > 12 || asked < 5 {
			t.Errorf("asked %d times in ten hours: %v", asked, err)
		}
	})
}

func TestADamagedFileSaysWhatToDo(t *testing.T) {
	f := folder(t)
	if c, err := f.Certificate(); c != nil || err != nil {
		t.Errorf("never enrolled: %v, %v", c, err)
	}
	if err := os.WriteFile(f.path(agentFile), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Certificate(); err == nil || !strings.Contains(err.Error(), "enrol again") {
		t.Error(err)
	}
	if err := f.install([]byte("x"), nil, nil, ""); err == nil {
		t.Error("garbage is installed")
	}
}

package identity

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/internal/certs"
	"girassol.dev/internal/enrol"
)

var now = time.Date(2026, 3, 2, 12, 0, 0, 0, time.UTC)

func newToken(t testing.TB) enrol.Token {
	t.Helper()
	sum := sha256.Sum256(nil)
	k, err := enrol.NewToken(base64.RawURLEncoding.EncodeToString(sum[:]), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func add(t testing.TB, r *Registry, site string) enrol.Token {
	t.Helper()
	k := newToken(t)
	if _, err := r.AddToken(k, site, time.Hour, now); err != nil {
		t.Fatal(err)
	}
	return k
}

// refused says by which reason, "" for none.
func refused(err error) v1alpha1.Reason {
	var e *Error
	if errors.As(err, &e) {
		return e.Reason
	}
	if err != nil {
		return v1alpha1.Reason(err.Error())
	}
	return ""
}

func TestATokenIsGoodOnceAndForItsSiteOnly(t *testing.T) {
	r := &Registry{}
	k := add(t, r, "quebec")
	forged, stranger, revoked, old := k, newToken(t), add(t, r, "quebec"), newToken(t)
	forged.Secret = newToken(t).Secret
	if _, err := r.RevokeToken(revoked.ID, "lost", now); err != nil {
		t.Fatal(err)
	}
	if _, err := r.AddToken(old, "quebec", time.Minute, now); err != nil {
		t.Fatal(err)
	}
	later := now.Add(2 * time.Minute)
	for _, step := range []struct {
		what  string
		token enrol.Token
		key   string
		at    time.Time
		want  v1alpha1.Reason
	}{
		{"a token that nobody made", stranger, "k1", now, v1alpha1.ReasonTokenUnknown},
		{"the id with another secret", forged, "k1", now, v1alpha1.ReasonTokenUnknown},
		{"a revoked one", revoked, "k1", now, v1alpha1.ReasonIdentityRevoked},
		{"one that has expired", old, "k1", later, v1alpha1.ReasonTokenExpired},
		{"the first use", k, "k1", now, ""},
		{"the same key again, whose answer was lost", k, "k1", later, ""},
		{"another key", k, "k2", later, v1alpha1.ReasonTokenUsed},
		{"the same key after the token's end", k, "k1", now.Add(time.Hour), v1alpha1.ReasonTokenExpired},
		{"another key after the token's end", k, "k2", now.Add(time.Hour), v1alpha1.ReasonTokenUsed},
	} {
		site, err := r.Redeem(step.token, step.key, step.at)
		if refused(err) != step.want || (err == nil && site != "quebec") {
			t.Errorf("%s: %q, %v; want %q", step.what, site, err, step.want)
		}
		if err != nil && strings.Contains(err.Error(), step.token.Secret) {
			t.Errorf("%s: the secret is in the error", step.what)
		}
	}
}

func TestRevocationIsOfASiteACertificateOrAToken(t *testing.T) {
	r := &Registry{}
	k := add(t, r, "quebec")
	open := add(t, r, "quebec")
	from := now.Add(-certs.Skew)
	for serial, c := range map[string]Certificate{
		"01": {Site: "quebec", Token: k.ID}, "02": {Site: "quebec", Token: k.ID}, "03": {Site: "quebec", Token: open.ID}, "04": {Site: "porto"},
	} {
		c.Serial, c.NotBefore, c.NotAfter = serial, from, now.Add(time.Hour)
		if err := r.AddCertificate(c, now); err != nil {
			t.Fatal(err)
		}
	}
	check := func(when, serial, site string, begins time.Time, revoked bool) {
		t.Helper()
		err := r.Check(serial, site, begins)
		if (refused(err) == v1alpha1.ReasonCertificateRevoked) != revoked || (revoked && !strings.Contains(err.Error(), "certificate revoked")) {
			t.Errorf("%s: certificate %s of %s: %v, want revoked %v", when, serial, site, err, revoked)
		}
	}
	if got, err := r.RevokeSerial("01", "", now); err != nil || got.Certificates != 1 {
		t.Fatal(got, err)
	}
	check("by serial", "01", "quebec", from, true)
	check("by serial", "02", "quebec", from, false)
	if got, err := r.RevokeToken(k.ID, "stolen", now); err != nil || got != (Revoked{Certificates: 1, Tokens: 1}) {
		t.Fatal(got, err)
	}
	check("by token", "02", "quebec", from, true)
	check("by token", "03", "quebec", from, false)
	if got := r.RevokeSite("quebec", "left", now); got != (Revoked{Certificates: 1, Tokens: 1}) {
		t.Error(got)
	}
	check("by site", "03", "quebec", from, true)
	if err := r.CheckSite("quebec", now); refused(err) != v1alpha1.ReasonIdentityRevoked {
		t.Errorf("by site, through a tunnel: %v", err)
	}
	if err := r.CheckSite("porto", now); err != nil {
		t.Errorf("another site, through a tunnel: %v", err)
	}
	check("by site", "04", "porto", from, false)
	check("by site, issued elsewhere before", "99", "quebec", from, true)
	check("by site, issued elsewhere after", "98", "quebec", now.Add(time.Second), false)
	// It may come back by a new token, though its certificate is backdated.
	if err := r.AddCertificate(Certificate{Serial: "05", Site: "quebec", NotBefore: from, NotAfter: now.Add(time.Hour)}, now); err != nil {
		t.Fatal(err)
	}
	check("enrolled again", "05", "quebec", from, false)
	if err := r.CheckSite("quebec", now); err != nil {
		t.Errorf("enrolled again, through a tunnel: %v", err)
	}
	// One that was never seen here, an administrator's.
	if got, err := r.RevokeSerial("77", "", now); err != nil || got.Certificates != 1 {
		t.Error(got, err)
	}
	check("an administrator's", "77", "", from, true)
	if _, err := r.RevokeToken("nobody", "", now); refused(err) != v1alpha1.ReasonTokenUnknown {
		t.Error(err)
	}
	// Again changes nothing, and a revocation is for ever.
	if got := r.RevokeSite("quebec", "", now.Add(time.Minute)); got.Tokens != 0 || got.Certificates != 1 {
		t.Error(got)
	}
	if got, _ := r.RevokeSerial("01", "", now.Add(time.Minute)); got.Certificates != 0 {
		t.Error(got)
	}
}

func TestWhatEndedIsForgottenAndWhatIsRevokedElsewhereIsNot(t *testing.T) {
	r := &Registry{}
	k := add(t, r, "quebec")
	if err := r.AddCertificate(Certificate{Serial: "01", Site: "quebec", NotAfter: now.Add(time.Hour)}, now); err != nil {
		t.Fatal(err)
	}
	if _, err := r.RevokeSerial("77", "", now); err != nil {
		t.Fatal(err)
	}
	much := now.Add(remember + 2*time.Hour)
	if _, err := r.AddToken(newToken(t), "porto", time.Hour, much); err != nil {
		t.Fatal(err)
	}
	if _, kept := r.Tokens[k.ID]; kept || len(r.Certificates) != 1 || r.Check("77", "", now) == nil {
		t.Errorf("%d tokens, %v", len(r.Tokens), r.Certificates)
	}
}

func TestASiteCannotFillTheRegistry(t *testing.T) {
	r := &Registry{}
	var err error
	n := 0
	for ; err == nil && n < 2*maxCertificates; n++ {
		err = r.AddCertificate(Certificate{Serial: fmt.Sprint(n), Site: "quebec", NotAfter: now.Add(time.Hour)}, now)
	}
	if !errors.Is(err, ErrFull) || n != maxCertificates+1 {
		t.Errorf("%d certificates, %v", n, err)
	}
	if err := r.AddCertificate(Certificate{Serial: "x", Site: "porto", NotAfter: now.Add(time.Hour)}, now); err != nil {
		t.Error("another site:", err)
	}
}

func TestTheLifeOfATokenIsBounded(t *testing.T) {
	for _, life := range []time.Duration{-1, 0, MaxTokenLife + 1} {
		if _, err := (&Registry{}).AddToken(newToken(t), "a", life, now); err == nil {
			t.Errorf("%s is taken", life)
		}
	}
}

func issuer(t testing.TB, dir string) *Issuer {
	t.Helper()
	s, err := OpenStore(dir)
	if err != nil {
		t.Fatal(err)
	}
	a, err := certs.NewAuthority("lm", now.Add(-time.Hour), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return &Issuer{Federation: "lm", Store: s, Authority: a, Life: DefaultLife, Now: func() time.Time { return now }, Random: rand.Reader}
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

// Of many who use one token at once, each with a key of its own, one gets in.
func TestOneOfManyConcurrentUsesOfATokenSucceeds(t *testing.T) {
	i := issuer(t, t.TempDir())
	k, _, err := i.CreateToken("quebec", 0)
	if err != nil {
		t.Fatal(err)
	}
	var group sync.WaitGroup
	got := make(chan error, 16)
	for range cap(got) {
		der := csr(t)
		group.Go(func() { _, err := i.Enrol(k, der, nil); got <- err })
	}
	group.Wait()
	close(got)
	in := 0
	for err := range got {
		if err == nil {
			in++
		} else if refused(err) != v1alpha1.ReasonTokenUsed {
			t.Error(err)
		}
	}
	if in != 1 {
		t.Errorf("%d got in", in)
	}
}

func TestEverythingSurvivesARestartAndNoSecretIsKept(t *testing.T) {
	dir := t.TempDir()
	i := issuer(t, dir)
	used, _, err := i.CreateToken("quebec", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	open, _, err := i.CreateToken("porto", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	mine := csr(t)
	a, err := i.Enrol(used, mine, nil)
	if err != nil {
		t.Fatal(err)
	}
	c, err := certs.ParseCertificate(a.Certificate)
	if err != nil {
		t.Fatal(err)
	}
	if err := i.Store.Do(func(r *Registry) error { r.RevokeSite("quebec", "", now); return nil }); err != nil {
		t.Fatal(err)
	}
	again, err := OpenStore(dir)
	if err != nil {
		t.Fatal(err)
	}
	i.Store = again
	if err := again.Check(certs.Serial(c.SerialNumber), "quebec", c.NotBefore); refused(err) != v1alpha1.ReasonCertificateRevoked {
		t.Error(err)
	}
	if _, err := i.Enrol(used, csr(t), nil); refused(err) != v1alpha1.ReasonIdentityRevoked {
		t.Error(err)
	}
	if _, err := i.Enrol(open, csr(t), nil); err != nil {
		t.Error(err)
	}
	b, err := os.ReadFile(filepath.Join(dir, fileName))
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(b), used.Secret) || strings.Contains(string(b), open.Secret) {
		t.Error("a token's secret is on disk")
	}
	if info, err := os.Stat(filepath.Join(dir, fileName)); err != nil || info.Mode().Perm() != 0o600 {
		t.Error(info.Mode(), err)
	}
}

// The use of a token is on disk before the certificate is anybody's: where it
// cannot be written nothing is given, and the token stays good.
func TestATokenIsNotUsedWhereItsUseCannotBeKept(t *testing.T) {
	dir := t.TempDir()
	i := issuer(t, dir)
	k, _, err := i.CreateToken("quebec", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	i.Store.path = filepath.Join(dir, "gone", fileName)
	if a, err := i.Enrol(k, csr(t), nil); err == nil || len(a.Certificate) != 0 {
		t.Fatalf("a certificate whose token may be used again: %v", err)
	}
	i.Store.path = filepath.Join(dir, fileName)
	if _, err := i.Enrol(k, csr(t), nil); err != nil {
		t.Error(err)
	}
}

func TestADamagedStoreIsNotTakenForAnEmptyOne(t *testing.T) {
	for name, text := range map[string]string{"empty": "", "cut": `{"form":1,"regis`, "another form": `{"form":2,"registry":{}}`, "no registry": `{"form":1}`, "more fields": `{"form":1,"registry":{},"x":1}`} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, fileName), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := OpenStore(dir); err == nil || !strings.Contains(err.Error(), "restore it") {
			t.Errorf("%s: %v", name, err)
		}
	}
	// What a kill has left of a write that was not finished does not count.
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, fileName+".new"), []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenStore(dir); err != nil {
		t.Error(err)
	}
}

func TestRenewalKeepsTheSiteAndTheTokenAndEndsWithARevocation(t *testing.T) {
	i := issuer(t, t.TempDir())
	k, _, err := i.CreateToken("quebec", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	first, err := i.Enrol(k, csr(t), nil)
	if err != nil {
		t.Fatal(err)
	}
	present, err := certs.ParseCertificate(first.Certificate)
	if err != nil {
		t.Fatal(err)
	}
	second, err := i.Renew("quebec", present, csr(t), nil)
	if err != nil {
		t.Fatal(err)
	}
	c, err := certs.ParseCertificate(second.Certificate)
	if err != nil {
		t.Fatal(err)
	}
	if c.URIs[0].String() != "spiffe://lm/site/quebec" {
		t.Error(c.URIs)
	}
	// Whatever was got by the token goes with it.
	if err := i.Store.Do(func(r *Registry) error { _, err := r.RevokeToken(k.ID, "", now); return err }); err != nil {
		t.Fatal(err)
	}
	if err := i.Store.Check(certs.Serial(c.SerialNumber), "quebec", c.NotBefore); refused(err) != v1alpha1.ReasonCertificateRevoked {
		t.Error("the renewed one:", err)
	}
	if _, err := i.Renew("quebec", c, csr(t), nil); refused(err) != v1alpha1.ReasonCertificateRevoked {
		t.Error("renewal of a revoked one:", err)
	}
}

func TestWithoutAnAuthorityNothingIsIssued(t *testing.T) {
	i := issuer(t, t.TempDir())
	i.Authority = nil
	if _, _, err := i.CreateToken("quebec", 0); !errors.Is(err, ErrNoAuthority) {
		t.Error(err)
	}
	if _, err := i.Enrol(newToken(t), csr(t), nil); !errors.Is(err, ErrNoAuthority) {
		t.Error(err)
	}
}

// peers remembers whom it was given.
type peers map[string]string

func (p peers) Admit(key []byte, site string) (*enrol.WireGuard, error) {
	p[string(key)] = site
	return &enrol.WireGuard{Endpoint: "hub:1", Port: 7465}, nil
}

func (p peers) Forget(site string) error {
	for k, s := range p {
		if s == site {
			delete(p, k)
		}
	}
	return nil
}

func (p peers) End(keys [][]byte) error {
	for _, k := range keys {
		delete(p, string(k))
	}
	return nil
}

func TestAWireGuardKeyGoesToItsSitesPeers(t *testing.T) {
	i, known := issuer(t, t.TempDir()), peers{}
	i.Peers = known
	k, _, err := i.CreateToken("quebec", 0)
	if err != nil {
		t.Fatal(err)
	}
	a, err := i.Enrol(k, csr(t), []byte("public"))
	if err != nil || a.WireGuard == nil || known["public"] != "quebec" {
		t.Errorf("%v, %v, %v", a.WireGuard, known, err)
	}
}

func FuzzStore(f *testing.F) {
	f.Add([]byte(`{"form":1,"registry":{"tokens":{"a":{"id":"a","site":"s","hash":"h","created":"2026-03-02T12:00:00Z","expires":"2026-03-02T13:00:00Z"}}}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		if r, err := parse(b); err == nil && r == nil {
			t.Error("nothing, without an error")
		}
	})
}

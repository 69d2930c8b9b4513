package wire

import (
	"context"
	"errors"
	"net"
	"os"
	"strings"
	"testing"
)

// inMemory is the same certificate without files.
func inMemory(t *testing.T, o Options) PEM {
	t.Helper()
	read := func(path string) []byte {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	return PEM{Certificate: read(o.CertFile), Key: read(o.KeyFile), CA: read(o.CAFile)}
}

func TestCertificatesInMemoryServeAndAreAskedForEachConnection(t *testing.T) {
	a := newAuthority(t)
	serverOptions := a.issue(t, "coordinator", forHosts("x", net.IPv4(127, 0, 0, 1)))
	seen := make(chan string, 1)
	l := listen(t, serverOptions)
	serve(t, &fleet{session: func(ctx context.Context) error {
		_, site, _ := PeerIdentity(ctx)
		seen <- site
		return nil
	}}, l, ServerOptions(serverOptions)...)

	present := inMemory(t, a.issue(t, "first", forURIs("spiffe://demo/site/lisboa")))
	o := Options{PEM: func() (PEM, error) { return present, nil }}
	if err := hello(t.Context(), dial(t, l.Addr().String(), o)); err != nil || <-seen != "lisboa" {
		t.Fatal(err)
	}
	present = inMemory(t, a.issue(t, "renewed", forURIs("spiffe://demo/site/porto")))
	if err := hello(t.Context(), dial(t, l.Addr().String(), o)); err != nil || <-seen != "porto" {
		t.Fatal(err)
	}
}

func TestCertificatesInMemoryThatCannotWorkAreReportedAtOnce(t *testing.T) {
	a := newAuthority(t)
	files := a.issue(t, "good", nil)
	good, other := inMemory(t, files), inMemory(t, a.issue(t, "other", nil))
	give := func(p PEM) func() (PEM, error) { return func() (PEM, error) { return p, nil } }
	for name, c := range map[string]struct {
		o    Options
		want string
	}{
		"none yet":    {Options{PEM: func() (PEM, error) { return PEM{}, errors.New("not issued yet") }}, "not issued yet"},
		"other's key": {Options{PEM: give(PEM{good.Certificate, other.Key, good.CA})}, "does not match"},
		"no CA":       {Options{PEM: give(PEM{good.Certificate, good.Key, nil})}, "holds no PEM certificate"},
		"files too":   {Options{PEM: give(good), CAFile: files.CAFile}, "not both"},
	} {
		if err := c.o.Check("127.0.0.1:0"); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q in it", name, err, c.want)
		}
	}
}

func TestRefusedCertificatesInMemoryAreExplained(t *testing.T) {
	a, stranger := newAuthority(t), newAuthority(t)
	serverOptions := a.issue(t, "coordinator", forHosts("x", net.IPv4(127, 0, 0, 1)))
	l := listen(t, serverOptions)
	serve(t, &fleet{session: func(context.Context) error { return nil }}, l, ServerOptions(serverOptions)...)
	foreign := inMemory(t, stranger.issue(t, "stranger", nil))
	err := hello(t.Context(), dial(t, l.Addr().String(), Options{PEM: func() (PEM, error) { return foreign, nil }}))
	if err == nil || !strings.Contains(err.Error(), "not in the CA bundle of this end") {
		t.Error(err)
	}
	foreign.CA = inMemory(t, serverOptions).CA
	err = hello(t.Context(), dial(t, l.Addr().String(), Options{PEM: func() (PEM, error) { return foreign, nil }}))
	if err == nil || !strings.Contains(err.Error(), "certificate of this end") {
		t.Error(err)
	}
}

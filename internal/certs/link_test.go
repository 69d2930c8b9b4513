package certs

import (
	"context"
	"crypto/rand"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	"girassol.dev/internal/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fleet tells who called.
type fleet struct {
	coordinatorv1.UnimplementedFleetServer
	callers chan string
}

func (f *fleet) Session(s grpc.BidiStreamingServer[coordinatorv1.SessionRequest, coordinatorv1.SessionResponse]) error {
	federation, site, ok := wire.PeerIdentity(s.Context())
	switch {
	case ok:
		f.callers <- federation + "/" + site
	case wire.Authenticated(s.Context()):
		f.callers <- "no site"
	default:
		f.callers <- "nobody"
	}
	return nil
}

// files writes a leaf as a mounted Secret has it.
func files(t *testing.T, l Leaf) wire.Options {
	t.Helper()
	dir := t.TempDir()
	for name, b := range map[string][]byte{"tls.crt": l.Certificate, "tls.key": l.Key, "ca.crt": l.CA} {
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return wire.Options{CertFile: dir + "/tls.crt", KeyFile: dir + "/tls.key", CAFile: dir + "/ca.crt"}
}

// coordinator serves on loopback with the given certificate.
func coordinator(t *testing.T, o wire.Options) (address string, callers <-chan string) {
	t.Helper()
	l, err := wire.Listen("127.0.0.1:0", o)
	if err != nil {
		t.Fatal(err)
	}
	f := &fleet{callers: make(chan string, 1)}
	s := grpc.NewServer(wire.ServerOptions(o)...)
	coordinatorv1.RegisterFleetServer(s, f)
	done := make(chan struct{})
	go func() { defer close(done); _ = s.Serve(l) }()
	t.Cleanup(func() { s.Stop(); <-done })
	return l.Addr().(*net.TCPAddr).String(), f.callers
}

func call(t *testing.T, address string, o wire.Options) error {
	t.Helper()
	conn, err := wire.Dial(address, o)
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	s, err := coordinatorv1.NewFleetClient(conn).Session(ctx)
	if err != nil {
		return err
	}
	if _, err = s.Recv(); err != nil && err.Error() == "EOF" {
		return nil
	}
	return err
}

func TestIssuedCertificatesMakeALinkThatProvesTheSite(t *testing.T) {
	at := time.Now()
	a, err := NewAuthority("lm", at, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	// As kept and read again.
	if a, err = ParseAuthority(a.CertificatePEM, a.KeyPEM, at); err != nil {
		t.Fatal(err)
	}
	stranger, err := NewAuthority("lm", at, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	leaf := func(from *Authority, id Identity, at time.Time) Leaf {
		l, _ := issue(t, from, id, at)
		return l
	}
	named := func(o wire.Options, name string) wire.Options { o.ServerName = name; return o }
	server := files(t, leaf(a, Coordinator("lm", "lm-coordinator.ns.svc", "127.0.0.1"), at))
	quebec := leaf(a, Site("lm", "quebec"), at)
	strange := leaf(stranger, Site("lm", "quebec"), at)
	strange.CA = a.CertificatePEM // it trusts the coordinator, which does not trust it
	old := leaf(a, Site("lm", "quebec"), at.Add(-LeafValidity-time.Hour))
	for name, tc := range map[string]struct {
		client wire.Options
		caller string // empty: refused
		says   string
	}{
		"a site":                       {files(t, quebec), "lm/quebec", ""},
		"by the Service's name":        {named(files(t, quebec), "lm-coordinator.ns.svc"), "lm/quebec", ""},
		"the operator":                 {files(t, leaf(a, Operator("lm"), at)), "no site", ""},
		"a clock late by four minutes": {files(t, leaf(a, Site("lm", "quebec"), at.Add(4*time.Minute))), "lm/quebec", ""},
		"another name":                 {named(files(t, quebec), "other.ns.svc"), "", "is for lm-coordinator.ns.svc, 127.0.0.1, not for other.ns.svc"},
		"expired":                      {files(t, old), "", "refuses the certificate"},
		"of another authority":         {files(t, strange), "", "refuses the certificate"},
		"the coordinator's as client":  {server, "", "refuses the certificate"},
	} {
		t.Run(name, func(t *testing.T) {
			address, callers := coordinator(t, server)
			err := call(t, address, tc.client)
			if tc.caller == "" {
				if err == nil || !strings.Contains(err.Error(), tc.says) {
					t.Errorf("%v, want %q", err, tc.says)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got := <-callers; got != tc.caller {
				t.Errorf("it is %s, want %s", got, tc.caller)
			}
		})
	}
	t.Run("a site cannot pass for the coordinator", func(t *testing.T) {
		address, _ := coordinator(t, files(t, quebec))
		if err := call(t, address, named(files(t, quebec), "lm-coordinator.ns.svc")); err == nil {
			t.Error("it was believed")
		}
	})
}

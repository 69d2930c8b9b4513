package wire

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
)

// valid from so long ago, until so long from now.
func valid(from, to time.Duration, edits ...func(*x509.Certificate)) func(*x509.Certificate) {
	return func(c *x509.Certificate) {
		for _, e := range edits {
			e(c)
		}
		c.NotBefore, c.NotAfter = time.Now().Add(from), time.Now().Add(to)
	}
}

func only(usage x509.ExtKeyUsage) func(*x509.Certificate) {
	return func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{usage} }
}

func at(o Options, skew time.Duration) Options {
	o.Now = func() time.Time { return time.Now().Add(skew) }
	return o
}

// Each way in which two ends may not fit has words of its own, at both ends, with
// the way out.
func TestBothEndsSayWhyALinkDoesNotComeUp(t *testing.T) {
	a, stranger := newAuthority(t), newAuthority(t)
	host := forHosts("coordinator.example.org", net.IPv4(127, 0, 0, 1))
	server := a.issue(t, "coordinator", host)
	client := a.issue(t, "client", forURIs("spiffe://demo/site/lisboa"))
	strange := stranger.issue(t, "stranger", forURIs("spiffe://demo/site/lisboa"))
	strange.CAFile = a.caFile()
	strangeServer := stranger.issue(t, "strange-server", host)
	strangeServer.CAFile = a.caFile()
	named := client
	named.ServerName = "other.example.org"
	revoking := server
	revoking.Vet = func(*x509.Certificate) error {
		return errors.New("CertificateRevoked: certificate revoked: number 1 at noon")
	}
	hour := time.Hour + 30*time.Second // certificates have whole seconds
	for name, tc := range map[string]struct {
		server, client             Options
		clientSays, serverSays     []string
		serverSaysNothing, succeed bool
	}{
		"all is well": {server: server, client: client, succeed: true},
		"plaintext client, TLS server": {server: server, client: Options{},
			clientSays: []string{"mutual TLS is needed here", "give certificate, key and CA files"},
			serverSays: []string{"does not speak TLS", "certificate, key and CA files"}},
		"TLS client, plaintext server": {server: Options{}, client: client,
			clientSays: []string{"does not speak TLS", "start it with certificate"},
			serverSays: []string{"speaks TLS and this end does not", "certificate, key and CA files"}},
		"client of another CA": {server: server, client: strange,
			clientSays: []string{"refuses the certificate " + strange.CertFile, "from an authority that this server does not trust", "same CA"},
			serverSays: []string{"certificate of client", "from an authority that is not in", a.caFile(), "same CA"}},
		"server of another CA": {server: strangeServer, client: client,
			clientSays: []string{"certificate of server", "authority that is not in", a.caFile(), "same CA"},
			serverSays: []string{"refuses the certificate " + strangeServer.CertFile, "trusts another CA"}},
		"server under another name": {server: server, client: named,
			clientSays: []string{"is for coordinator.example.org, 127.0.0.1, not for other.example.org", "set the server name"},
			serverSays: []string{"the client asks for other.example.org", "is for coordinator.example.org", "set its server name"}},
		"client expired": {server: server, client: a.issue(t, "old", valid(-2*hour, -hour)),
			clientSays: []string{"CertificateExpired", "ended at", "1h0m", "clock", "enrols again"},
			serverSays: []string{"certificate of client", "ended at", "1h0m", "renew it", "clock"}},
		"server expired": {server: a.issue(t, "old-server", valid(-2*hour, -hour, host)), client: client,
			clientSays: []string{"certificate of server", "ended at", "renew it", "clock"},
			serverSays: []string{"refuses the certificate", "ended at", "renew it"}},
		"client from the future": {server: server, client: a.issue(t, "new", valid(hour, 2*hour)),
			clientSays: []string{"ClockSkew", "begins at", "1h0m", "set the one that is wrong"},
			serverSays: []string{"certificate of client", "begins at", "1h0m", "clock"}},
		"server from the future": {server: a.issue(t, "new-server", valid(hour, 2*hour, host)), client: client,
			clientSays: []string{"certificate of server", "begins at", "1h0m", "clock"},
			serverSays: []string{"refuses the certificate", "begins at", "clock"}},
		"client's clock slow by more than it may": {server: a.issue(t, "fresh-server", valid(-30*time.Second, hour, host)), client: at(client, -5*time.Minute),
			clientSays: []string{"begins at", "4m", "clocks differ"},
			serverSays: []string{"its clock is wrong"}},
		"a server's certificate at the client": {server: server, client: a.issue(t, "both-serve", func(c *x509.Certificate) { host(c); only(x509.ExtKeyUsageServerAuth)(c) }),
			clientSays: []string{"it is not for clients"},
			serverSays: []string{"is not for clients", "each end needs its own"}},
		"a client's certificate at the server": {server: a.issue(t, "both-call", func(c *x509.Certificate) { host(c); only(x509.ExtKeyUsageClientAuth)(c) }), client: client,
			clientSays: []string{"is not for servers", "each end needs its own"},
			serverSays: []string{"it is not for servers"}},
		"two identities": {server: server, client: a.issue(t, "two", forURIs("spiffe://demo/site/a", "spiffe://demo/admin")),
			clientSays: []string{"several SPIFFE identities"},
			serverSays: []string{"several SPIFFE identities"}},
		"revoked": {server: revoking, client: client,
			clientSays: []string{"certificate revoked", "number 1"},
			serverSays: []string{"certificate revoked", "number 1"}},
	} {
		t.Run(name, func(t *testing.T) {
			refusals := make(chan error, 16)
			o := tc.server
			o.Refused = func(_ net.Addr, err error) {
				select {
				case refusals <- err:
				default:
				}
			}
			l := listen(t, o)
			serve(t, &fleet{session: func(context.Context) error { return nil }}, l, ServerOptions(o)...)
			err := hello(t.Context(), dial(t, l.Addr().String(), tc.client))
			if tc.succeed {
				if err != nil || len(refusals) > 0 {
					t.Error(err)
				}
				return
			}
			says := func(end string, err error, words []string) {
				t.Helper()
				for _, w := range words {
					if err == nil || !strings.Contains(err.Error(), w) {
						t.Errorf("the %s does not say %q: %v", end, w, err)
					}
				}
			}
			says("client", err, tc.clientSays)
			select {
			case err := <-refusals:
				says("server", err, tc.serverSays)
			case <-time.After(30 * time.Second):
				t.Error("the server says nothing")
			}
		})
	}
}

func TestAClientWithoutACertificateIsToldSo(t *testing.T) {
	a := newAuthority(t)
	o := a.issue(t, "coordinator", forHosts("x", net.IPv4(127, 0, 0, 1)))
	refusals := make(chan error, 16)
	o.Refused = func(_ net.Addr, err error) { refusals <- err }
	l := listen(t, o)
	serve(t, &fleet{session: func(context.Context) error { return nil }}, l, ServerOptions(o)...)
	roots := x509.NewCertPool()
	roots.AddCert(a.cert)
	conn, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{RootCAs: roots})))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	s, err := coordinatorv1.NewFleetClient(conn).Session(t.Context())
	if err == nil {
		_, err = s.Recv()
	}
	if err == nil || !strings.Contains(err.Error(), "certificate required") {
		t.Errorf("the client: %v", err)
	}
	if err := <-refusals; !strings.Contains(err.Error(), "has no certificate") {
		t.Errorf("the server: %v", err)
	}
}

// Clocks that differ by up to 90 s make no difference, whichever is ahead and
// whichever end's certificate is fresh or at its end.
func TestClocksMayDifferByNinetySeconds(t *testing.T) {
	a := newAuthority(t)
	host := forHosts("x", net.IPv4(127, 0, 0, 1))
	fresh, last := valid(-time.Second, time.Hour), valid(-time.Hour, time.Second)
	for _, skew := range []time.Duration{-90 * time.Second, 90 * time.Second} {
		for name, edit := range map[string]func(*x509.Certificate){"fresh": fresh, "at its end": last} {
			server := a.issue(t, "server", func(c *x509.Certificate) { host(c); edit(c) })
			client := a.issue(t, "client", edit)
			// A second for the test itself.
			inside := skew - skew/90*2
			for who, o := range map[string][2]Options{"client": {server, at(client, inside)}, "server": {at(server, inside), client}} {
				l := listen(t, o[0])
				serve(t, &fleet{session: func(context.Context) error { return nil }}, l, ServerOptions(o[0])...)
				if err := hello(t.Context(), dial(t, l.Addr().String(), o[1])); err != nil {
					t.Errorf("certificates %s, clock of the %s off by %s: %v", name, who, skew, err)
				}
			}
		}
	}
}

// The chains that were verified are what identities are read from: a certificate
// that was only shown proves nothing.
func TestOnlyTheVerifiedCertificateProvesWhoSomeoneIs(t *testing.T) {
	a, stranger := newAuthority(t), newAuthority(t)
	o := a.issue(t, "coordinator", forHosts("x", net.IPv4(127, 0, 0, 1)))
	forged := stranger.issue(t, "forged", forURIs("spiffe://demo/admin"))
	forged.CAFile = a.caFile()
	called := make(chan struct{}, 1)
	l := listen(t, o)
	serve(t, &fleet{session: func(context.Context) error { called <- struct{}{}; return nil }}, l, ServerOptions(o)...)
	if err := hello(t.Context(), dial(t, l.Addr().String(), forged)); err == nil || len(called) > 0 {
		t.Errorf("a call with a certificate of another authority: %v", err)
	}
}

func TestARefusalIsHTTP2AndNothingElseIsTakenForOne(t *testing.T) {
	reason := "certificate revoked: number 1"
	frames := refusalFrames(reason)
	f := http2.NewFramer(nil, bytes.NewReader(frames))
	if s, err := f.ReadFrame(); err != nil || s.Header().Type != http2.FrameSettings {
		t.Fatal(s, err)
	}
	g, err := f.ReadFrame()
	if err != nil {
		t.Fatal(err)
	}
	if away, ok := g.(*http2.GoAwayFrame); !ok || away.ErrCode != http2.ErrCodeInadequateSecurity || string(away.DebugData()) != reason {
		t.Errorf("%v", g)
	}
	if got, ok := parseRefusal(frames); !ok || got != reason {
		t.Errorf("%q, %v", got, ok)
	}
	var settings bytes.Buffer
	w := http2.NewFramer(&settings, nil)
	if err := w.WriteSettings(http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: 64}); err != nil {
		t.Fatal(err)
	}
	for name, b := range map[string][]byte{"nothing": nil, "settings": settings.Bytes(), "cut": frames[:20], "text": []byte("HTTP/1.1 400 Bad Request\r\n\r\nxxxxxxxxxxxxx")} {
		if got, ok := parseRefusal(b); ok {
			t.Errorf("%s is read as the refusal %q", name, got)
		}
	}
	if got, _ := parseRefusal(refusalFrames("a\nb\x1b[31m")); strings.ContainsAny(got, "\n\x1b") {
		t.Errorf("control characters reach the log: %q", got)
	}
}

func FuzzRefusal(f *testing.F) {
	f.Add(refusalFrames("reason"))
	huge := refusalFrames("x")
	binary.BigEndian.PutUint32(huge[9:], 0xffffff07)
	f.Add(huge)
	f.Fuzz(func(t *testing.T, b []byte) {
		if reason, ok := parseRefusal(b); ok && len(reason) > 4*maxRefusal {
			t.Errorf("a reason of %d bytes", len(reason))
		}
	})
}

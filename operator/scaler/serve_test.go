package scaler

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"girassol.dev/api/externalscaler"
	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/operator/testenv"
)

// TestStreamsTellWhatTheCacheSees is the whole of it on a real apiserver.
func TestStreamsTellWhatTheCacheSees(t *testing.T) {
	e := testenv.Shared(t)
	ctx, stop := context.WithTimeout(context.Background(), time.Minute)
	defer stop()
	ns := e.Namespace(t)
	f := federation(nil, "quebec")
	f.Namespace = ns
	s := site("quebec", "")
	s.Namespace = ns
	for _, o := range []client.Object{f, s} {
		if err := e.Client.Create(ctx, o); err != nil {
			t.Fatal(err)
		}
	}
	reader, err := cache.New(e.Config, cache.Options{Scheme: testenv.Scheme()})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- reader.Start(ctx) }()
	defer func() { stop(); <-ended }()
	c := dial(t, &Endpoint{Server: New(reader, nil), Informers: reader})
	ref := reference(map[string]string{KeyFederation: ns + "/gpt"})
	active, err := c.StreamIsActive(ctx, ref, grpc.WaitForReady(true))
	if err != nil {
		t.Fatal(err)
	}
	specs, err := c.StreamMetricSpec(ctx, ref)
	if err != nil {
		t.Fatal(err)
	}
	first, err := specs.Recv()
	if err != nil {
		t.Fatal(err)
	}
	pulled, err := c.GetMetricSpec(ctx, ref)
	if err != nil {
		t.Fatal(err)
	}
	if first.String() != pulled.String() {
		t.Errorf("pushed %v, pulled %v", first, pulled)
	}
	hear(t, active, false)
	for _, window := range []metav1.ConditionStatus{open, closed, open} {
		if err := e.Client.Get(ctx, client.ObjectKeyFromObject(s), s); err != nil {
			t.Fatal(err)
		}
		s.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionEnergyFavourable, Status: window, Reason: "Test", LastTransitionTime: metav1.Now()}}
		if err := e.Client.Status().Update(ctx, s); err != nil {
			t.Fatal(err)
		}
		hear(t, active, window == open)
	}
	f.Spec.State = v1alpha1.StateSuspended
	if err := e.Client.Update(ctx, f); err != nil {
		t.Fatal(err)
	}
	hear(t, active, false)
}

func hear(t *testing.T, stream grpc.ServerStreamingClient[externalscaler.IsActiveResponse], want bool) {
	t.Helper()
	got, err := stream.Recv()
	if err != nil {
		t.Fatal(err)
	}
	if got.Result != want {
		t.Fatalf("the stream says %v, want %v", got.Result, want)
	}
}

func TestAStreamSaysNothingTwice(t *testing.T) {
	w := &world{objects: []client.Object{federation(nil, "quebec"), site("quebec", open)}}
	s := New(w, nil)
	c := dial(t, &Endpoint{Server: s})
	ctx, stop := context.WithTimeout(context.Background(), time.Minute)
	defer stop()
	stream, err := c.StreamIsActive(ctx, reference(map[string]string{KeyFederation: "gpt"}))
	if err != nil {
		t.Fatal(err)
	}
	hear(t, stream, true)
	for range 100 {
		s.Changed()
	}
	s.close() // ends the stream after what it had to say
	if _, err := stream.Recv(); status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "open the stream again") {
		t.Errorf("the stream goes on with %v", err)
	}
}

func TestAStreamOfABadTriggerEndsWithTheReason(t *testing.T) {
	c := dial(t, &Endpoint{Server: New(&world{}, nil)})
	for _, open := range []func() error{
		func() error {
			s, err := c.StreamIsActive(context.Background(), reference(nil))
			if err == nil {
				_, err = s.Recv()
			}
			return err
		},
		func() error {
			s, err := c.StreamMetricSpec(context.Background(), reference(nil))
			if err == nil {
				_, err = s.Recv()
			}
			return err
		},
	} {
		if err := open(); status.Code(err) != codes.InvalidArgument {
			t.Errorf("got %v", err)
		}
	}
}

func TestOnlyClientsOfTheAuthorityAreLetIn(t *testing.T) {
	server, other := authority(t), authority(t)
	files := server.issue(t, "localhost")
	w := &world{objects: []client.Object{federation(nil, "quebec"), site("quebec", open)}}
	for name, tc := range map[string]struct {
		clientCA string
		client   *tls.Config
		ok       bool
	}{
		"TLS":                    {"", &tls.Config{RootCAs: server.pool()}, true},
		"TLS, another authority": {"", &tls.Config{RootCAs: other.pool()}, false},
		"mutual":                 {server.file, &tls.Config{RootCAs: server.pool(), Certificates: []tls.Certificate{server.issue(t, "keda").load(t)}}, true},
		"mutual, no certificate": {server.file, &tls.Config{RootCAs: server.pool()}, false},
		"mutual, a stranger's":   {server.file, &tls.Config{RootCAs: server.pool(), Certificates: []tls.Certificate{other.issue(t, "keda").load(t)}}, false},
	} {
		t.Run(name, func(t *testing.T) {
			tc.client.ServerName, tc.client.MinVersion = "localhost", tls.VersionTLS12
			c := dial(t, &Endpoint{Server: New(w, nil), TLS: TLS{CertFile: files.cert, KeyFile: files.key, ClientCAFile: tc.clientCA}},
				grpc.WithTransportCredentials(credentials.NewTLS(tc.client)))
			answer, err := c.IsActive(context.Background(), reference(map[string]string{KeyFederation: "gpt"}))
			if (err == nil) != tc.ok || tc.ok && !answer.Result {
				t.Errorf("got %v, %v", answer, err)
			}
		})
	}
}

func TestARenewedCertificateNeedsNoRestart(t *testing.T) {
	before, after := authority(t), authority(t)
	files := before.issue(t, "localhost")
	e := &Endpoint{Server: New(&world{objects: []client.Object{federation(nil)}}, nil), TLS: TLS{CertFile: files.cert, KeyFile: files.key}}
	dial(t, e)
	renewed := after.issue(t, "localhost")
	for from, to := range map[string]string{renewed.cert: files.cert, renewed.key: files.key} {
		if err := os.Rename(from, to); err != nil {
			t.Fatal(err)
		}
	}
	conn, err := tls.Dial("tcp", e.Listener.Addr().String(), &tls.Config{RootCAs: after.pool(), ServerName: "localhost", MinVersion: tls.VersionTLS12, NextProtos: []string{"h2"}})
	if err != nil {
		t.Fatal(err)
	}
	_ = conn.Close()
}

func TestAnEndpointThatCannotServeSaysWhy(t *testing.T) {
	files := authority(t).issue(t, "localhost")
	empty := filepath.Join(t.TempDir(), "empty.pem")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		endpoint Endpoint
		says     string
	}{
		"no such address":     {Endpoint{Address: "256.0.0.1:1"}, "listen for KEDA"},
		"a key without more":  {Endpoint{TLS: TLS{KeyFile: "a"}}, "give both files"},
		"missing certificate": {Endpoint{TLS: TLS{CertFile: "/none", KeyFile: "/none"}}, "/none"},
		"missing authority":   {Endpoint{TLS: TLS{CertFile: files.cert, KeyFile: files.key, ClientCAFile: "/none"}}, "authority of clients"},
		"empty authority":     {Endpoint{TLS: TLS{CertFile: files.cert, KeyFile: files.key, ClientCAFile: empty}}, "no PEM certificate"},
	} {
		t.Run(name, func(t *testing.T) {
			tc.endpoint.Server = New(&world{}, nil)
			if err := tc.endpoint.Start(t.Context()); err == nil || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("got %v, want %q", err, tc.says)
			}
		})
	}
}

// ca is an authority of the test's own.
type ca struct {
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
	file string
}

type pair struct{ cert, key string }

func authority(t *testing.T) *ca {
	t.Helper()
	a := &ca{key: newKey(t), file: filepath.Join(t.TempDir(), "ca.crt")}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority"}, NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &a.key.PublicKey, a.key)
	if err != nil {
		t.Fatal(err)
	}
	if a.cert, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	writePEM(t, a.file, "CERTIFICATE", der)
	return a
}

func (a *ca) pool() *x509.CertPool {
	p := x509.NewCertPool()
	p.AddCert(a.cert)
	return p
}

func (a *ca) issue(t *testing.T, name string) pair {
	t.Helper()
	key := newKey(t)
	template := &x509.Certificate{SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name}, NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, &key.PublicKey, a.key)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	p := pair{filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")}
	writePEM(t, p.cert, "CERTIFICATE", der)
	writePEM(t, p.key, "EC PRIVATE KEY", keyDER)
	return p
}

func (p pair) load(t *testing.T) tls.Certificate {
	t.Helper()
	c, err := tls.LoadX509KeyPair(p.cert, p.key)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func writePEM(t *testing.T, path, kind string, der []byte) {
	t.Helper()
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
}

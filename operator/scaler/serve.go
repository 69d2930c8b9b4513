package scaler

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
)

// stopTimeout bounds how long calls that are open may delay the end.
const stopTimeout = 5 * time.Second

// maxQuestion bounds one question in bytes: metadata are a few words.
const maxQuestion = 256 << 10

// Informers tell of changes; the manager's cache is one.
type Informers interface {
	GetInformer(context.Context, client.Object, ...cache.InformerGetOption) (cache.Informer, error)
}

// TLS files in PEM. They are read for each connection, so renewed files need no
// restart.
type TLS struct {
	// CertFile and KeyFile, both or none: without them the service is plaintext,
	// for a mesh or NetworkPolicy to protect.
	CertFile, KeyFile string
	// ClientCAFile, if given, lets in only clients with a certificate of it (KEDA's
	// tlsClientCert and tlsClientKey).
	ClientCAFile string
}

// Endpoint serves a Server. It is a manager's Runnable that every replica runs.
type Endpoint struct {
	Server *Server
	// Address to listen at, host:port.
	Address string
	// Listener instead of Address, if given.
	Listener net.Listener
	TLS      TLS
	// Informers whose changes streams are told of; nil: none.
	Informers Informers
}

// NeedLeaderElection is false: KEDA's questions go to all replicas.
func (e *Endpoint) NeedLeaderElection() bool { return false }

// Start serves until the context ends; then it is nil. A listener or certificate
// that cannot be had is an error.
func (e *Endpoint) Start(ctx context.Context) error {
	options := []grpc.ServerOption{grpc.MaxRecvMsgSize(maxQuestion)}
	if e.TLS != (TLS{}) {
		if _, err := e.TLS.load(); err != nil {
			return err
		}
		options = append(options, grpc.Creds(credentials.NewTLS(e.TLS.config())))
	}
	if err := e.listen(ctx); err != nil {
		return err
	}
	lis := e.Listener
	if lis == nil {
		var err error
		if lis, err = (&net.ListenConfig{}).Listen(ctx, "tcp", e.Address); err != nil {
			return fmt.Errorf("scaler: listen for KEDA: %w", err)
		}
	}
	g := grpc.NewServer(options...)
	e.Server.Register(g)
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		<-ctx.Done()
		e.Server.close() // streams would hold a graceful stop up for ever
		late := time.AfterFunc(stopTimeout, g.Stop)
		defer late.Stop()
		g.GracefulStop()
	}()
	if err := g.Serve(lis); err != nil && ctx.Err() == nil {
		return fmt.Errorf("scaler: serve KEDA at %s: %w", lis.Addr(), err)
	}
	<-stopped
	return nil
}

// listen has the informers tell of changes.
func (e *Endpoint) listen(ctx context.Context) error {
	if e.Informers == nil {
		return nil
	}
	tell := toolscache.ResourceEventHandlerFuncs{
		AddFunc:    func(any) { e.Server.Changed() },
		UpdateFunc: func(any, any) { e.Server.Changed() },
		DeleteFunc: func(any) { e.Server.Changed() },
	}
	for _, object := range []client.Object{&v1alpha1.Federation{}, &v1alpha1.Site{}} {
		informer, err := e.Informers.GetInformer(ctx, object, cache.BlockUntilSynced(false))
		if err != nil {
			return fmt.Errorf("scaler: watch %T: %w", object, err)
		}
		registration, err := informer.AddEventHandler(tell)
		if err != nil {
			return fmt.Errorf("scaler: watch %T: %w", object, err)
		}
		context.AfterFunc(ctx, func() { _ = informer.RemoveEventHandler(registration) })
	}
	return nil
}

func (t TLS) config() *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS12, GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return t.load() }}
}

func (t TLS) load() (*tls.Config, error) {
	if t.CertFile == "" || t.KeyFile == "" {
		return nil, errors.New("scaler: TLS needs a certificate and its key: give both files, or neither for plaintext")
	}
	certificate, err := tls.LoadX509KeyPair(t.CertFile, t.KeyFile)
	if err != nil {
		return nil, fmt.Errorf("scaler: certificate %s with key %s: %w", t.CertFile, t.KeyFile, err)
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{certificate}, NextProtos: []string{"h2"}}
	if t.ClientCAFile == "" {
		return config, nil
	}
	pem, err := os.ReadFile(t.ClientCAFile)
	if err != nil {
		return nil, fmt.Errorf("scaler: authority of clients: %w", err)
	}
	config.ClientCAs, config.ClientAuth = x509.NewCertPool(), tls.RequireAndVerifyClientCert
	if !config.ClientCAs.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("scaler: authority of clients: %s holds no PEM certificate", t.ClientCAFile)
	}
	return config, nil
}

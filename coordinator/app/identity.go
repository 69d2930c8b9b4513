package app

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"

	"girassol.dev/coordinator/enrolment"
	"girassol.dev/coordinator/identity"
	"girassol.dev/coordinator/server"
	"girassol.dev/internal/certs"
	"girassol.dev/internal/wire"
)

// IdentityOptions say who makes certificates.
type IdentityOptions struct {
	// CACert and CAKey are files with the authority; empty: somebody else issues.
	CACert, CAKey string
	// EnrolListen is where agents without a certificate ask for one.
	EnrolListen string
	// Life of the sites' certificates.
	Life time.Duration
}

func (o *IdentityOptions) flags(f *pflag.FlagSet) {
	f.StringVar(&o.CACert, "ca-cert", "", "PEM `file` with the authority that issues the sites' certificates (default: they are issued elsewhere)")
	f.StringVar(&o.CAKey, "ca-key", "", "PEM `file` with the authority's key")
	f.StringVar(&o.EnrolListen, "enrol-listen", "", "`address` where agents exchange a token for a certificate, HTTPS (default: none enrols)")
	f.DurationVar(&o.Life, "certificate-life", identity.DefaultLife, "how long a site's certificate is good; agents renew at two thirds")
}

// leastLife of a certificate: below it an agent could not keep up.
const leastLife = 2 * time.Second

// identities are the parts of a process that know who may speak.
type identities struct {
	issuer      *identity.Issuer
	revocations *server.Revocations
	listener    net.Listener // nil without
}

// newIdentities has the link judge certificates; nil where it has none.
func newIdentities(federation string, link *wire.Options, o *Options, r prometheus.Registerer) (*identities, error) {
	id := o.Identity
	if !link.Secure() {
		if id != (IdentityOptions{Life: id.Life}) {
			return nil, errors.New("--ca-cert, --ca-key and --enrol-listen need mutual TLS: --tls-cert, --tls-key and --tls-ca (girassol init makes them)")
		}
		return nil, nil
	}
	if id.Life == 0 {
		id.Life = identity.DefaultLife
	}
	if id.Life < leastLife {
		return nil, fmt.Errorf("--certificate-life: %s is below %s", id.Life, leastLife)
	}
	store, err := identity.OpenStore(o.DataDir)
	if err != nil {
		return nil, err
	}
	i := &identities{revocations: server.NewRevocations(store, time.Now)}
	i.issuer = &identity.Issuer{Federation: federation, Store: store, Life: id.Life, Now: time.Now, Random: rand.Reader}
	if i.issuer.Authority, err = readAuthority(id); err != nil {
		return nil, err
	}
	if id.EnrolListen != "" && i.issuer.Authority == nil {
		return nil, errors.New("--enrol-listen needs --ca-cert and --ca-key, which sign what agents ask for")
	}
	if own := i.own(o); own != nil {
		own.warnOfMode()
		own.renewIfDue() // before the files are read for the first time
	}
	link.Vet = i.revocations.Vet
	link.Refused = refusedClients(federation, r, o)
	if id.EnrolListen != "" {
		if i.listener, err = net.Listen("tcp", id.EnrolListen); err != nil {
			return nil, fmt.Errorf("--enrol-listen: %w", err)
		}
	}
	return i, nil
}

func readAuthority(o IdentityOptions) (*certs.Authority, error) {
	if o.CACert == "" && o.CAKey == "" {
		return nil, nil
	}
	if o.CACert == "" || o.CAKey == "" {
		return nil, errors.New("--ca-cert and --ca-key belong together")
	}
	certificate, err := os.ReadFile(o.CACert)
	if err != nil {
		return nil, fmt.Errorf("--ca-cert: %w", err)
	}
	key, err := os.ReadFile(o.CAKey)
	if err != nil {
		return nil, fmt.Errorf("--ca-key: %w", err)
	}
	if info, err := os.Lstat(o.CAKey); err == nil && info.Mode().IsRegular() && info.Mode().Perm()&0o007 != 0 {
		return nil, fmt.Errorf("--ca-key: %s is open to everybody on this machine (mode %04o), and whoever reads it can be anybody in the federation: chmod 600 it, or make a new authority if somebody else has been here", o.CAKey, info.Mode().Perm())
	}
	a, err := certs.ParseAuthority(certificate, key, time.Now())
	if err != nil {
		return nil, fmt.Errorf("--ca-cert %s, --ca-key %s: %w", o.CACert, o.CAKey, err)
	}
	return a, nil
}

// refusedClients tells of clients that were not let in: of each kind at most one in
// ten seconds.
func refusedClients(federation string, r prometheus.Registerer, o *Options) func(net.Addr, error) {
	refused := prometheus.NewCounter(prometheus.CounterOpts{Name: "girassol_handshakes_refused_total", ConstLabels: prometheus.Labels{"federation": federation},
		Help: "Clients whose TLS or certificate was not good."})
	r.MustRegister(refused)
	var gate wire.Gate
	return func(client net.Addr, err error) {
		refused.Inc()
		if missed, ok := gate.Open(time.Now(), refusedLog); ok {
			o.Log.Warn("client refused", "client", client.String(), "error", err, "moreSinceTheLast", missed)
		}
	}
}

// serve runs the port for enrolments, and keeps the coordinator's own certificate in
// date.
func (i *identities) serve(ctx context.Context, wg *sync.WaitGroup, o *Options, failed chan<- error) *http.Server {
	if i == nil {
		return nil
	}
	if own := i.own(o); own != nil {
		wg.Go(func() { own.run(ctx) })
	}
	if i.listener == nil {
		return nil
	}
	s := (&enrolment.Server{Issuer: i.issuer, Log: o.Log, Certificate: i.enrolmentCertificate(o)}).HTTP()
	o.Log.Info("agents enrol here", "address", i.listener.Addr().String(), "certificateLife", i.issuer.Life)
	wg.Go(func() {
		if err := s.ServeTLS(enrolment.Bound(i.listener), "", ""); !errors.Is(err, http.ErrServerClosed) {
			failed <- fmt.Errorf("enrolment server: %w", err)
		}
	})
	return s
}

// enrolmentCertificate is the coordinator's with its authority behind it, which an
// agent knows by its hash only.
func (i *identities) enrolmentCertificate(o *Options) func() (*tls.Certificate, error) {
	ca, err := certs.ParseCertificate(i.issuer.Authority.CertificatePEM)
	return func() (*tls.Certificate, error) {
		if err != nil {
			return nil, err
		}
		c, err := o.Link.OwnCertificate()
		if err != nil {
			o.Log.Error("enrolment: the coordinator's certificate cannot be read", "error", err)
			return nil, err
		}
		c.Certificate = append(c.Certificate[:len(c.Certificate):len(c.Certificate)], ca.Raw)
		return c, nil
	}
}

func (i *identities) close() {
	if i != nil && i.listener != nil {
		_ = i.listener.Close()
	}
}

// own is the coordinator's certificate, nil where it is not for us to renew.
func (i *identities) own(o *Options) *ownCertificate {
	if o.Link.PEM != nil {
		return nil
	}
	return &ownCertificate{federation: i.issuer.Federation, authority: i.issuer.Authority, certFile: o.Link.CertFile, keyFile: o.Link.KeyFile, now: time.Now, random: rand.Reader, log: o.Log}
}

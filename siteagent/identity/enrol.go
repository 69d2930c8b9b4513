package identity

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"time"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/internal/certs"
	"girassol.dev/internal/enrol"
	"girassol.dev/internal/wire"
)

// Enrolment of an agent.
type Enrolment struct {
	// Address of the coordinator's --enrol-listen, host:port.
	Address string
	// ServerName that the coordinator's certificate must carry; empty: the host of
	// Address.
	ServerName       string
	Federation, Site string
	Token            enrol.Token
	// WireGuardPublicKey goes along; nil without WireGuard.
	WireGuardPublicKey []byte
	// WireGuard keeps what the coordinator tells of its tunnel, before the certificate
	// is in force: after a kill in between, the same token tells it again. May be nil.
	WireGuard func(*enrol.WireGuard) error
	Now       func() time.Time
	Random    io.Reader
	Log       *slog.Logger
	// NewPause gives the pauses between attempts.
	NewPause func() time.Duration
}

// exchangeTime bounds one attempt.
const exchangeTime = 20 * time.Second

// RefusedError is a refusal that trying again does not change.
type RefusedError struct{ Reason, Message string }

func (e *RefusedError) Error() string {
	if e.Reason == "" {
		return e.Message
	}
	return e.Reason + ": " + e.Message
}

// Enrol gets a certificate, if there is none yet that the same token has given and
// that is in date; it tries again until ctx ends or the coordinator refuses.
func (f *Files) Enrol(ctx context.Context, e Enrolment) error {
	if c, err := f.Certificate(); err == nil && c != nil && f.usedToken() == e.Token.ID && e.Now().Before(c.NotAfter) {
		e.Log.Info("enrolled already with this token", "token", e.Token.ID, "ends", c.NotAfter)
		return nil
	}
	key, err := f.nextKey(func() ([]byte, error) { return certs.NewKey(e.Random) })
	if err != nil {
		return err
	}
	csr, err := certs.NewRequest(key)
	if err != nil {
		return fmt.Errorf("identity: %w", err)
	}
	for {
		answer, err := e.exchange(ctx, csr)
		var refused *RefusedError
		switch {
		case err == nil:
			if err := e.check(answer); err != nil {
				return err
			}
			if e.WireGuard != nil && answer.WireGuard != nil {
				if err := e.WireGuard(answer.WireGuard); err != nil {
					return err
				}
			}
			if err := f.install(answer.Certificate, key, answer.CA, e.Token.ID); err != nil {
				return err
			}
			e.Log.Info("enrolled", "federation", answer.Federation, "site", answer.Site, "token", e.Token.ID)
			return nil
		case errors.As(err, &refused):
			return fmt.Errorf("enrolment at %s: %w", e.Address, err)
		case ctx.Err() != nil:
			return fmt.Errorf("enrolment at %s: %w", e.Address, err)
		}
		pause := e.NewPause()
		e.Log.Warn("enrolment failed, trying again", "address", e.Address, "error", err, "wait", pause)
		t := time.NewTimer(pause)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return fmt.Errorf("enrolment at %s: %w", e.Address, err)
		}
	}
}

// check sees that the answer is for whom the agent was started.
func (e Enrolment) check(a enrol.Answer) error {
	if a.Federation != e.Federation || a.Site != e.Site {
		return fmt.Errorf("enrolment at %s: %s: the token is for site %s of federation %s, this agent is started as site %s of %s: give it --site %s, or a token of its own",
			e.Address, v1alpha1.ReasonIdentityMismatch, a.Site, a.Federation, e.Site, e.Federation, a.Site)
	}
	return nil
}

func (e Enrolment) exchange(ctx context.Context, csr []byte) (enrol.Answer, error) {
	ctx, cancel := context.WithTimeout(ctx, exchangeTime)
	defer cancel()
	body, err := json.Marshal(enrol.Request{Token: e.Token.Text(), CSR: csr, WireGuardPublicKey: e.WireGuardPublicKey})
	if err != nil {
		return enrol.Answer{}, err
	}
	u := url.URL{Scheme: "https", Host: e.Address, Path: enrol.Path}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, u.String(), bytes.NewReader(body))
	if err != nil {
		return enrol.Answer{}, &RefusedError{"", fmt.Sprintf("address %q: %v", e.Address, err)}
	}
	req.Header.Set("Content-Type", "application/json")
	transport := &http.Transport{TLSClientConfig: e.pinned(), DisableKeepAlives: true, Proxy: http.ProxyFromEnvironment}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	resp, err := client.Do(req)
	if err != nil {
		var notTLS tls.RecordHeaderError
		var un *url.Error
		if errors.As(err, &un) {
			err = un.Err // its text repeats method and address
		}
		if errors.As(err, &notTLS) || errors.Is(err, http.ErrSchemeMismatch) {
			err = fmt.Errorf("%s does not speak TLS: is it the coordinator's --enrol-listen? %w", e.Address, err)
		}
		return enrol.Answer{}, err
	}
	defer resp.Body.Close()
	skew := e.skew(resp)
	if resp.StatusCode == http.StatusOK {
		if skew.Abs() > wire.ClockTolerance {
			e.Log.Warn("this machine's clock is wrong, or the coordinator's: set it, links will be refused otherwise", "reason", v1alpha1.ReasonClockSkew, "aheadOfCoordinator", skew.Round(time.Second))
		}
		return enrol.ReadAnswer(resp.Body)
	}
	return enrol.Answer{}, refusal(resp, skew)
}

// refusal reads why the coordinator did not grant it.
func refusal(resp *http.Response, skew time.Duration) error {
	var r enrol.Refusal
	b, err := io.ReadAll(io.LimitReader(resp.Body, enrol.MaxBody))
	if err != nil || json.Unmarshal(b, &r) != nil || r.Message == "" {
		r = enrol.Refusal{Message: fmt.Sprintf("it answers %s: is it the coordinator's --enrol-listen?", resp.Status)}
	}
	if skew.Abs() > wire.ClockTolerance {
		r.Message += fmt.Sprintf(" (%s: this machine's clock is %s off the coordinator's)", v1alpha1.ReasonClockSkew, skew.Abs().Round(time.Second))
	}
	switch resp.StatusCode {
	case http.StatusTooManyRequests, http.StatusServiceUnavailable, http.StatusInternalServerError, http.StatusBadGateway, http.StatusGatewayTimeout:
		return errors.New(r.Message) // it may change
	}
	return &RefusedError{r.Reason, r.Message}
}

// skew is by how much this machine's clock is ahead of the coordinator's; 0 when it
// is not known.
func (e Enrolment) skew(resp *http.Response) time.Duration {
	at, err := http.ParseTime(resp.Header.Get("Date"))
	if err != nil {
		return 0
	}
	return e.Now().Sub(at)
}

// pinned trusts the authority that the token names, and nobody else: nothing of the
// token is sent before the other end has proven to be its coordinator.
func (e Enrolment) pinned() *tls.Config {
	name := e.ServerName
	if name == "" {
		name = e.Address
		if host, _, err := net.SplitHostPort(e.Address); err == nil {
			name = host
		}
	}
	return &tls.Config{
		MinVersion:         tls.VersionTLS13,
		NextProtos:         []string{"http/1.1"},
		ServerName:         name,
		InsecureSkipVerify: true, // verified below, against the token's authority
		VerifyConnection: func(s tls.ConnectionState) error {
			roots := x509.NewCertPool()
			found := false
			for _, c := range s.PeerCertificates {
				if certs.Fingerprint(c) == e.Token.Authority && c.IsCA {
					roots.AddCert(c)
					found = true
				}
			}
			if !found {
				return fmt.Errorf("the server at %s does not show the authority that the token names: it is another coordinator, or somebody is in between; the token was not sent", e.Address)
			}
			return wire.VerifyServer(s.PeerCertificates, roots, name, e.Now())
		},
	}
}

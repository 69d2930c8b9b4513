package identity

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/cenkalti/backoff/v4"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/internal/certs"
)

// Renewal keeps an agent's certificate in date.
type Renewal struct {
	Files *Files
	// Dial makes a connection of its own for each renewal.
	Dial func() (*grpc.ClientConn, error)
	// WireGuard gives the public key to hand on, and takes the coordinator's answer;
	// both may be nil.
	WireGuardPublicKey func() []byte
	WireGuard          func(*coordinatorv1.WireGuardPeer)
	Random             io.Reader
	// Jitter is drawn from [0, 1): agents that enrolled together renew apart.
	Jitter func() float64
	Log    *slog.Logger
}

const (
	// callTime bounds one attempt.
	callTime = 30 * time.Second
	// look is how often at least the file is looked at: an enrolment may have
	// replaced it.
	look = time.Hour
	// Pauses between attempts.
	retryFirst, retryMost = time.Second, 10 * time.Minute
)

// Run renews at two thirds of each certificate's life until ctx ends. Connections
// that stand go on with the old one; it stays good until it expires.
func (r *Renewal) Run(ctx context.Context) error {
	retry := backoff.NewExponentialBackOff(backoff.WithInitialInterval(retryFirst), backoff.WithMaxInterval(retryMost), backoff.WithMaxElapsedTime(0))
	for {
		wait, err := r.step(ctx)
		switch {
		case err == nil:
			retry.Reset()
		case status.Code(err) == codes.Unimplemented:
			r.Log.Warn("the coordinator renews no certificates: enrol again before this one ends", "reason", v1alpha1.ReasonCertificateExpiring, "error", err)
			wait = look
		default:
			wait = max(wait, retry.NextBackOff())
			r.Log.Warn("certificate not renewed, trying again", "reason", v1alpha1.ReasonCertificateExpiring, "error", err, "wait", wait)
		}
		t := time.NewTimer(wait)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return nil
		}
	}
}

// step renews if it is time, and says when it is.
func (r *Renewal) step(ctx context.Context) (time.Duration, error) {
	c, err := r.Files.Certificate()
	if err != nil {
		return look, err
	}
	if c == nil {
		return look, errors.New("identity: the certificate's file is gone: enrol again with a new token")
	}
	if wait := time.Until(r.due(c)); wait > 0 {
		return min(wait, look), nil
	}
	return 0, r.renew(ctx)
}

// due is two thirds of the life, and up to a tenth of it later. The jitter is the
// certificate's: looking again moves nothing.
func (r *Renewal) due(c *x509.Certificate) time.Time {
	at := certs.RenewAt(c)
	b := c.SerialNumber.Bytes()
	share := float64(b[len(b)-1]) / 256
	if r.Jitter != nil {
		share = r.Jitter()
	}
	return at.Add(time.Duration(share * float64(c.NotAfter.Sub(at)) * 0.3))
}

func (r *Renewal) renew(ctx context.Context) error {
	key, err := r.Files.nextKey(func() ([]byte, error) { return certs.NewKey(r.Random) })
	if err != nil {
		return err
	}
	csr, err := certs.NewRequest(key)
	if err != nil {
		return fmt.Errorf("identity: %w", err)
	}
	conn, err := r.Dial()
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	req := &coordinatorv1.RenewRequest{CsrDer: csr}
	if r.WireGuardPublicKey != nil {
		req.WireguardPublicKey = r.WireGuardPublicKey()
	}
	resp, err := coordinatorv1.NewFleetClient(conn).Renew(ctx, req)
	if err != nil {
		return err
	}
	if err := r.Files.install(resp.GetCertificate(), key, resp.GetCa(), ""); err != nil {
		return err
	}
	if r.WireGuard != nil && resp.GetWireguard() != nil {
		r.WireGuard(resp.GetWireguard())
	}
	c, err := r.Files.Certificate()
	if err != nil {
		return err
	}
	r.Log.Info("certificate renewed", "reason", v1alpha1.ReasonCertificateRenewed, "serial", certs.Serial(c.SerialNumber), "ends", c.NotAfter)
	return nil
}

package wire

import (
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"time"
)

// ClockTolerance is by how much the clocks of the two ends may differ: a
// certificate counts so long before it begins and after it has ended.
const ClockTolerance = 90 * time.Second

// Expiry is when what stands on a client's certificate ends.
func Expiry(c *x509.Certificate) time.Time { return c.NotAfter.Add(ClockTolerance) }

// expiryGrace is how long a connection stays after the expiry of its client's
// certificate: its calls are told the reason meanwhile. A client with a newer
// certificate dials again with that one.
const expiryGrace = 5 * time.Second

// verifyPeer checks the certificates that a peer has shown as crypto/tls would, but
// with tolerance for clocks; name is empty for clients.
func verifyPeer(shown []*x509.Certificate, roots *x509.CertPool, usage x509.ExtKeyUsage, name string, now time.Time) ([][]*x509.Certificate, error) {
	if len(shown) == 0 {
		return nil, errNoCertificate
	}
	leaf, between := shown[0], x509.NewCertPool()
	for _, c := range shown[1:] {
		between.AddCert(c)
	}
	return leaf.Verify(x509.VerifyOptions{
		Roots: roots, Intermediates: between, DNSName: name, KeyUsages: []x509.ExtKeyUsage{usage}, CurrentTime: tolerant(leaf, now),
	})
}

var errNoCertificate = errors.New("no certificate was shown")

// tolerant is the time to judge a certificate at.
func tolerant(c *x509.Certificate, now time.Time) time.Time {
	switch {
	case now.Before(c.NotBefore) && c.NotBefore.Sub(now) <= ClockTolerance:
		return c.NotBefore
	case now.After(c.NotAfter) && now.Sub(c.NotAfter) <= ClockTolerance:
		return c.NotAfter
	}
	return now
}

// VerifyServer checks a server's certificates against roots and a name, with the
// same tolerance for clocks and the same words as a link.
func VerifyServer(shown []*x509.Certificate, roots *x509.CertPool, name string, now time.Time) error {
	_, err := verifyPeer(shown, roots, x509.ExtKeyUsageServerAuth, name, now)
	if err == nil {
		return nil
	}
	c := linkCredentials{options: Options{PEM: func() (PEM, error) { return PEM{}, nil }, Now: func() time.Time { return now }}}
	return c.explain(err, name)
}

// validity says what is wrong with a certificate's time, with the difference
// between the clocks as far as it shows.
func validity(c *x509.Certificate, now time.Time) string {
	from, to := c.NotBefore.UTC().Format(time.RFC3339), c.NotAfter.UTC().Format(time.RFC3339)
	clock := now.UTC().Format(time.RFC3339)
	if now.Before(c.NotBefore) {
		return fmt.Sprintf("begins at %s, %s ahead of this machine's clock, which shows %s: the clocks differ by that much at least, set the one that is wrong", from, span(c.NotBefore.Sub(now)), clock)
	}
	return fmt.Sprintf("ended at %s, %s before this machine's clock, which shows %s (it began at %s): renew it, or set the clock of the machine that is wrong", to, span(now.Sub(c.NotAfter)), clock, from)
}

func span(d time.Duration) time.Duration { return d.Round(time.Second) }

// diagnose says why a client may refuse this server's certificate; TLS tells the
// server no more than that it did.
func diagnose(c *x509.Certificate, asked string, now time.Time) string {
	switch {
	case c == nil:
		return "see the client's log"
	case now.After(c.NotAfter) || now.Before(c.NotBefore):
		return "it " + validity(c, now)
	case asked != "" && c.VerifyHostname(asked) != nil:
		return fmt.Sprintf("the client asks for %s and the certificate is for %s: let it dial one of these names, or set its server name", asked, names(c))
	case !slices.Contains(c.ExtKeyUsage, x509.ExtKeyUsageServerAuth) && len(c.ExtKeyUsage) > 0:
		return "it is not for servers: give the coordinator its own"
	}
	return fmt.Sprintf("it is for %s, so the client trusts another CA, dials an address that is not among these, or its clock is wrong; its log says which", names(c))
}

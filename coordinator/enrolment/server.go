// Package enrolment serves the port on which agents without a certificate ask for
// one: HTTPS only, TLS 1.3, HTTP/1.1, one call, small bodies, little time, few
// connections. The gRPC port stays mutual TLS for everybody.
//
// It owns what a stranger may cost. It must not know tokens or certificates.
package enrolment

import (
	"crypto/tls"
	"encoding/json"
	"errors"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"time"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/coordinator/identity"
	"girassol.dev/internal/certs"
	"girassol.dev/internal/enrol"
)

// What one exchange may take; an agent needs a second.
const (
	headerTime   = 5 * time.Second
	exchangeTime = 10 * time.Second
	maxHeader    = 8 << 10
)

// Issuer exchanges a token for a certificate.
type Issuer interface {
	Enrol(token enrol.Token, csr, wireguard []byte) (enrol.Answer, error)
}

// Server answers enrolments.
type Server struct {
	Issuer Issuer
	// Certificate is asked for each handshake: the coordinator's, followed by its
	// authority's, which the agent knows by its hash.
	Certificate func() (*tls.Certificate, error)
	Log         *slog.Logger
	// Now is the clock of the limits; nil is the machine's.
	Now func() time.Time

	limits limits
}

// HTTP is the server to run on Bound(listener).
func (s *Server) HTTP() *http.Server {
	if s.Now == nil {
		s.Now = time.Now
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST "+enrol.Path, s.enrol)
	h := &http.Server{
		Handler: mux,
		TLSConfig: &tls.Config{
			MinVersion: tls.VersionTLS13,
			NextProtos: []string{"http/1.1"},
			GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
				return s.Certificate()
			},
		},
		TLSNextProto:      map[string]func(*http.Server, *tls.Conn, http.Handler){}, // no HTTP/2
		ReadHeaderTimeout: headerTime, ReadTimeout: exchangeTime, WriteTimeout: exchangeTime, IdleTimeout: headerTime,
		MaxHeaderBytes: maxHeader,
		ErrorLog:       log.New(io.Discard, "", 0), // strangers' handshakes would fill it
	}
	h.SetKeepAlivesEnabled(false)
	return h
}

func (s *Server) enrol(w http.ResponseWriter, r *http.Request) {
	if !s.limits.allow(clientKey(r.RemoteAddr), s.Now()) {
		w.Header().Set("Retry-After", "10")
		s.refuse(w, r, http.StatusTooManyRequests, v1alpha1.ReasonCallsQuota, "too many enrolments from this address or in all: try again in ten seconds")
		return
	}
	q, err := enrol.ReadRequest(http.MaxBytesReader(w, r.Body, enrol.MaxBody+1))
	if err != nil {
		s.refuse(w, r, http.StatusBadRequest, v1alpha1.ReasonMalformed, err.Error())
		return
	}
	token, err := enrol.ParseToken(q.Token)
	if err != nil {
		s.refuse(w, r, http.StatusBadRequest, v1alpha1.ReasonMalformed, err.Error())
		return
	}
	answer, err := s.Issuer.Enrol(token, q.CSR, q.WireGuardPublicKey)
	var known *identity.Error
	switch {
	case errors.As(err, &known):
		s.refuse(w, r, http.StatusForbidden, known.Reason, known.Message)
	case errors.Is(err, identity.ErrFull), errors.Is(err, identity.ErrNoAuthority):
		s.refuse(w, r, http.StatusServiceUnavailable, "", err.Error())
	case errors.Is(err, certs.ErrRequest):
		s.refuse(w, r, http.StatusBadRequest, v1alpha1.ReasonMalformed, err.Error())
	case err != nil:
		s.refuse(w, r, http.StatusInternalServerError, "", err.Error())
	default:
		s.Log.Info("site enrolled", "site", answer.Site, "token", token.ID, "client", r.RemoteAddr)
		s.write(w, http.StatusOK, answer)
	}
}

// refuse logs the token's id at most; what a stranger sends is not repeated.
func (s *Server) refuse(w http.ResponseWriter, r *http.Request, code int, reason v1alpha1.Reason, message string) {
	if s.limits.mayLog(s.Now()) {
		s.Log.Warn("enrolment refused", "client", r.RemoteAddr, "reason", reason, "message", message)
	}
	s.write(w, code, enrol.Refusal{Reason: string(reason), Message: message})
}

func (s *Server) write(w http.ResponseWriter, code int, body any) {
	b, err := json.Marshal(body)
	if err != nil {
		http.Error(w, "", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_, _ = w.Write(b)
}

// clientKey counts an IPv6 client by its network of 64 bits, which one host has.
func clientKey(remote string) string {
	host, _, err := net.SplitHostPort(remote)
	if err != nil {
		return remote
	}
	ip := net.ParseIP(host)
	if ip == nil || ip.To4() != nil {
		return host
	}
	return ip.Mask(net.CIDRMask(64, 128)).String()
}

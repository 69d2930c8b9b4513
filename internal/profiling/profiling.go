// Package profiling serves Go's profiles to people on the same machine and to
// nobody else: they show memory, and with it what is secret, and taking one costs
// processor time. It listens on loopback only, whatever it is asked for, and does
// not answer a browser that was sent to it under another name.
//
// It must not know what the process does.
package profiling

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"net/netip"
	"strings"
	"time"
)

// Usage is the help text of a flag with the address to Listen on.
const Usage = "loopback `address` for Go profiles, for example 127.0.0.1:6065: /debug/pprof/ for people on this machine (default none)"

// Server of profiles.
type Server struct {
	http *http.Server
	l    net.Listener
}

// Listen opens an address of this machine's loopback, such as 127.0.0.1:6065.
func Listen(addr string, log *slog.Logger) (*Server, error) {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, fmt.Errorf("profiling: %w", err)
	}
	if !loopback(host) {
		return nil, fmt.Errorf("profiling: %q is no loopback address: profiles show memory, so they are for this machine only; use 127.0.0.1:6065 and a forwarded port (ssh -L, kubectl port-forward)", addr)
	}
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("profiling: %w", err)
	}
	// A name is resolved by this machine's own files, which may say anything.
	if got, _, err := net.SplitHostPort(l.Addr().String()); err != nil || !loopback(got) {
		_ = l.Close()
		return nil, fmt.Errorf("profiling: %q is %s here, which is no loopback address; use 127.0.0.1:6065", addr, l.Addr())
	}
	log.Info("profiles are served", "address", l.Addr().String())
	return &Server{
		http: &http.Server{
			Handler: handler(), ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second, WriteTimeout: 5 * time.Minute,
			IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelWarn),
		},
		l: l,
	}, nil
}

// Addr that is listened on.
func (s *Server) Addr() net.Addr { return s.l.Addr() }

// Run answers until ctx ends, and then ends what it is at.
func (s *Server) Run(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { _ = s.http.Close() })
	defer stop()
	if err := s.http.Serve(s.l); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("profiling: %w", err)
	}
	return nil
}

// Close is for a Server that does not Run.
func (s *Server) Close() error { return s.l.Close() }

func handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	// Not /debug/pprof/cmdline: arguments are for who may read /proc.
	mux.HandleFunc("/debug/pprof/cmdline", http.NotFound)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host := r.Host
		if h, _, err := net.SplitHostPort(host); err == nil {
			host = h
		}
		if !loopback(host) {
			http.Error(w, "profiles are served under a loopback address only", http.StatusForbidden)
			return
		}
		mux.ServeHTTP(w, r)
	})
}

func loopback(host string) bool {
	if strings.EqualFold(host, "localhost") {
		return true
	}
	ip, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return err == nil && ip.Unmap().IsLoopback()
}

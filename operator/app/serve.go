package app

import (
	"errors"
	"fmt"
	"net/http"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/manager"

	"girassol.dev/operator/scaler"
)

const (
	// callTimeout bounds single calls at start and end.
	callTimeout = 5 * time.Second
	// headerTimeout for whoever connects to say what is wanted.
	headerTimeout = 10 * time.Second
	maxHeader     = 64 << 10
)

// serve adds the servers: those of the leader, and KEDA's scaler of all.
func serve(m manager.Manager, o Options, webhook http.Handler) error {
	var errs []error
	if o.WebhookListen != "" {
		errs = append(errs, m.Add(leaderServer("webhook", o.WebhookListen, webhook, time.Minute)))
	}
	if o.ScalerListen != "" {
		errs = append(errs, m.Add(&scaler.Endpoint{
			Server:  scaler.New(m.GetClient(), o.Log.With("component", "scaler")),
			Address: o.ScalerListen, TLS: o.ScalerTLS, Informers: m.GetCache(),
		}))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("operator: servers: %w", err)
	}
	return nil
}

// leaderServer serves while this operator leads. A timeout of zero lets answers
// stream for as long as they like.
func leaderServer(name, address string, h http.Handler, timeout time.Duration) *manager.Server {
	end := callTimeout
	return &manager.Server{
		Name: name, OnlyServeWhenLeader: true, ShutdownTimeout: &end,
		Server: &http.Server{Addr: address, Handler: h, ReadHeaderTimeout: headerTimeout, ReadTimeout: timeout, WriteTimeout: timeout, MaxHeaderBytes: maxHeader},
	}
}

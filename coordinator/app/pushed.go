package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/internal/wire"
	"girassol.dev/signals"
	"girassol.dev/signals/assemble"
	"girassol.dev/signals/director"
	"girassol.dev/signals/store"
	"girassol.dev/signals/webhook"
)

// defaultSignalsListen is where pushed signals are taken without a flag.
const defaultSignalsListen = "127.0.0.1:7466"

// pushed is the webhook of spec.energy.webhook: its handler, its store and its
// listener. Sources can be made before open, they answer after it: the director
// needs them to be made, and the handler needs the director's sink.
type pushed struct {
	handler  *webhook.Handler
	files    *store.PushedFiles
	listener net.Listener
	log      *slog.Logger
}

// open starts to take messages for the sink, which first hears what was kept.
func (p *pushed) open(ctx context.Context, d *declaration, sink webhook.Sink, clock signals.Clock, o Options, registry prometheus.Registerer) (err error) {
	p.log = o.Log
	if p.files, err = store.OpenPushedFiles(filepath.Join(o.DataDir, "pushed"), 0); err != nil {
		return err
	}
	c := webhook.Config{Federation: d.federation.Name, Sink: sink, Store: p.files, Clock: clock, Log: o.Log, Registerer: registry}
	for _, s := range d.federation.Spec.Energy.Webhook.Sources {
		c.Senders = append(c.Senders, sender(s))
	}
	if p.handler, err = webhook.New(ctx, c); err != nil {
		return fmt.Errorf("spec.energy.webhook: %w", err)
	}
	addr := o.SignalsListen
	if addr == "" {
		addr = defaultSignalsListen
	}
	// Messages are signed; what they say is not secret on this machine.
	if p.listener, err = wire.Listen(addr, wire.Options{AllowInsecure: o.Link.AllowInsecure}); err != nil {
		return fmt.Errorf("--signals-listen: %w", err)
	}
	return nil
}

func sender(s v1alpha1.WebhookSource) webhook.Sender {
	out := assemble.Sender(s)
	out.SecretFiles, out.BearerFiles = s.SecretFiles, s.BearerFiles
	return out
}

// close may be called after an open that failed.
func (p *pushed) close() {
	if p.handler != nil {
		p.handler.Close()
	}
	if p.files != nil {
		if err := p.files.Close(); err != nil {
			p.log.Error("pushed signals cannot be kept", "error", err)
		}
	}
}

// server serves POST /v1/signals.
func (p *pushed) server() *http.Server {
	mux := http.NewServeMux()
	mux.Handle("/v1/signals", p.handler)
	return &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 30 * time.Second, WriteTimeout: 30 * time.Second, IdleTimeout: time.Minute, MaxHeaderBytes: 32 << 10}
}

// source serves what is pushed for a site or region.
func (p *pushed) source(name string, t webhook.Target, kind signals.Kind) director.Source {
	return &pushedSource{p: p, name: name, target: t, kind: kind}
}

type pushedSource struct {
	p      *pushed
	name   string
	target webhook.Target
	kind   signals.Kind
}

var errNotOpen = errors.New("pushed signals are not taken yet")

// Latest implements director.Source.
func (s *pushedSource) Latest(ctx context.Context) (signals.Reading, error) {
	if s.p.handler == nil {
		return signals.Reading{}, errNotOpen
	}
	return s.p.handler.Source(s.name, s.target, s.kind).Latest(ctx)
}

// Forecast implements signals.Forecaster.
func (s *pushedSource) Forecast(ctx context.Context) (signals.Forecast, error) {
	if s.p.handler == nil {
		return signals.Forecast{}, errNotOpen
	}
	return s.p.handler.Source(s.name, s.target, s.kind).Forecast(ctx)
}

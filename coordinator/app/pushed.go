package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/api/signalpush"
	"girassol.dev/internal/wire"
	"girassol.dev/signals"
	"girassol.dev/signals/store"
	"girassol.dev/signals/webhook"
)

// defaultSignalsListen is where pushed signals are taken without a flag.
const defaultSignalsListen = "127.0.0.1:7466"

// maxOverrides that wait for the director.
const maxOverrides = 256

// pushed is the webhook: its handler, its store, and what senders demand of
// sites beside readings.
type pushed struct {
	handler  *webhook.Handler
	files    *store.PushedFiles
	listener net.Listener
	log      *slog.Logger

	mu           sync.Mutex
	regions      map[string][]string // grid region -> sites
	curtailments map[string]map[string]webhook.Curtailment
	overrides    chan webhook.Override
}

// newPushed makes the webhook of spec.energy.webhook; nil without one.
func newPushed(ctx context.Context, d *declaration, clock signals.Clock, o Options, registry prometheus.Registerer) (_ *pushed, err error) {
	spec := d.federation.Spec.Energy.Webhook
	if spec == nil {
		return nil, nil //nolint:nilnil // no webhook is a valid configuration
	}
	p := &pushed{log: o.Log, regions: map[string][]string{}, curtailments: map[string]map[string]webhook.Curtailment{},
		overrides: make(chan webhook.Override, maxOverrides)}
	for _, s := range d.sites {
		if r := s.Spec.Grid.Region; r != "" {
			p.regions[r] = append(p.regions[r], s.Name)
		}
	}
	if p.files, err = store.OpenPushedFiles(filepath.Join(o.DataDir, "pushed"), 0); err != nil {
		return nil, err
	}
	c := webhook.Config{Federation: d.federation.Name, Sink: p, Store: p.files, Clock: clock, Log: o.Log, Registerer: registry}
	for _, s := range spec.Sources {
		c.Senders = append(c.Senders, sender(s))
	}
	if p.handler, err = webhook.New(ctx, c); err != nil {
		return nil, errors.Join(fmt.Errorf("spec.energy.webhook: %w", err), p.files.Close())
	}
	addr := o.SignalsListen
	if addr == "" {
		addr = defaultSignalsListen
	}
	// Messages are signed; what they say is not secret on this machine.
	if p.listener, err = wire.Listen(addr, wire.Options{AllowInsecure: o.Link.AllowInsecure}); err != nil {
		p.close()
		return nil, fmt.Errorf("--signals-listen: %w", err)
	}
	return p, nil
}

func sender(s v1alpha1.WebhookSource) webhook.Sender {
	return webhook.Sender{Name: s.Name, SecretFiles: s.SecretFiles, Sites: s.Sites, Regions: s.Regions}
}

func (p *pushed) close() {
	p.handler.Close()
	if err := p.files.Close(); err != nil {
		p.log.Error("pushed signals cannot be kept", "error", err)
	}
}

// server serves POST /v1/signals.
func (p *pushed) server() *http.Server {
	mux := http.NewServeMux()
	mux.Handle("/v1/signals", p.handler)
	return &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 30 * time.Second, WriteTimeout: 30 * time.Second, IdleTimeout: time.Minute, MaxHeaderBytes: 32 << 10}
}

// Reading implements webhook.Sink: sources read from the handler itself.
func (p *pushed) Reading(webhook.Target, signals.Reading) {}

// Forecast implements webhook.Sink: see Reading.
func (p *pushed) Forecast(webhook.Target, string, signals.Forecast) {}

// sitesOf are the sites that a target means.
func (p *pushed) sitesOf(t webhook.Target) []string {
	if t.Site != "" {
		return []string{t.Site}
	}
	return p.regions[t.Region]
}

// Curtailment implements webhook.Sink.
func (p *pushed) Curtailment(c webhook.Curtailment) {
	p.mu.Lock()
	defer p.mu.Unlock()
	key := c.Source + "\x00" + c.ID
	for _, site := range p.sitesOf(c.Target) {
		if p.curtailments[site] == nil {
			p.curtailments[site] = map[string]webhook.Curtailment{}
		}
		if len(c.Demands) == 0 {
			delete(p.curtailments[site], key)
		} else {
			p.curtailments[site][key] = c
		}
	}
}

// Override implements webhook.Sink. It must be quick: run tells the director.
func (p *pushed) Override(o webhook.Override) {
	select {
	case p.overrides <- o:
	default:
		p.log.Error("pushed override dropped: too many at once", "source", o.Source, "target", o.Target.String())
	}
}

// overrider takes overrides of sites.
type overrider interface {
	Override(site string, admit bool, until time.Time, reason string) error
	ClearOverride(site string) error
}

// run hands overrides on until ctx ends.
func (p *pushed) run(ctx context.Context, to overrider) {
	for {
		select {
		case <-ctx.Done():
			return
		case o := <-p.overrides:
			p.tell(o, to)
		}
	}
}

func (p *pushed) tell(o webhook.Override, to overrider) {
	for _, site := range p.sitesOf(o.Target) {
		var err error
		if o.Action == signalpush.ActionAuto {
			err = to.ClearOverride(site)
		} else {
			err = to.Override(site, o.Action == signalpush.ActionOn, o.Until, o.Source+": "+o.Reason)
		}
		if err != nil {
			p.log.Warn("pushed override not taken", "site", site, "source", o.Source, "error", err)
		}
	}
}

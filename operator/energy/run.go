package energy

import (
	"context"
	"errors"
	"path/filepath"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/operator/membership"
	"girassol.dev/signals"
	"girassol.dev/signals/assemble"
	"girassol.dev/signals/director"
	"girassol.dev/signals/ledger"
	"girassol.dev/signals/webhook"
)

// run is a director at work, with its webhook.
type run struct {
	f        *federation
	state    *state
	director *director.Director
	webhook  *webhook.Handler // nil without senders
	grids    map[string]ledger.Grid
	power    map[string]ledger.Power

	cancel context.CancelFunc
	done   chan struct{}
}

func (r *run) stop() {
	r.cancel()
	<-r.done
	if r.webhook != nil {
		r.webhook.Close()
	}
}

// launch replaces the run by one of these inputs; changing is held. What the old
// one remembered is in the state, so the windows go on.
func (f *federation) launch(ctx, base context.Context, in *inputs) error {
	f.sourceFaults = nil
	if len(in.directed) == 0 {
		f.halt()
		f.launched = in.fingerprint
		return nil
	}
	if err := f.openState(ctx, base); err != nil {
		return err
	}
	r := &run{f: f, state: f.state, grids: map[string]ledger.Grid{}, power: map[string]ledger.Power{}, done: make(chan struct{})}
	c := f.config(r, in)
	f.halt()
	f.state.keep(in.named(), in.senderNames())
	if err := f.keepOverrides(in); err != nil {
		return err
	}
	var err error
	if r.director, err = director.New(c); err != nil {
		return &Fault{faultOf(err)}
	}
	running, cancel := context.WithCancel(f.alive)
	r.cancel = cancel
	if len(in.senders) > 0 {
		r.webhook, err = webhook.New(ctx, webhook.Config{
			Federation: f.key.Name, Senders: in.senders, Sink: r.director.Sink(), Store: pushedStore{f.state}, Clock: f.engine.clock,
			StoreTimeout: storeTimeout, Log: f.log, Registerer: c.Registerer,
		})
	}
	if err != nil {
		cancel()
	} else {
		f.mu.Lock()
		f.run = r
		f.mu.Unlock()
		f.launched = in.fingerprint
		f.await(in, awaitsReading)
		f.log.Info("signals are read", "sites", len(c.Sites), "senders", len(in.senders))
	}
	go func() { // also to take the metrics back
		defer close(r.done)
		_ = r.director.Run(running) // ends with its context only
	}()
	if err != nil {
		<-r.done
		return &Fault{faultOf(err)}
	}
	return nil
}

// storeTimeout lets a pushed message wait for its turn to be written.
const storeTimeout = 20 * time.Second

// config makes the sources of all sites whose can be made.
func (f *federation) config(r *run, in *inputs) director.Config {
	sources := f.sources(r)
	f.sourceFaults = map[string]membership.Fault{}
	c := director.Config{
		Federation: f.key.Name, Membership: members{f, r}, Store: f.state, Clock: f.engine.clock, Log: f.log,
		Registerer: f.engine.registerer(f.key.Namespace), Facts: r.facts, Round: f.round, Spent: f.spent, Unavailable: f.isUnavailable,
	}
	assemble.Plan(&c, in.spec, 0, f.engine.speed, f.trained)
	for _, s := range in.directed {
		made, site, err := f.site(sources, in.spec, s)
		if err != nil {
			f.sourceFaults[s.Name] = faultOf(err)
			continue
		}
		r.grids[s.Name], r.power[s.Name] = made.Grid, made.Power
		c.Sites = append(c.Sites, site)
	}
	return c
}

func (f *federation) site(sources *assemble.Sources, spec v1alpha1.FederationSpec, s v1alpha1.Site) (*assemble.Site, director.Site, error) {
	made, err := sources.Site(s)
	if err != nil {
		return nil, director.Site{}, err
	}
	site, err := made.Directed(spec, s, f.engine.speed)
	return made, site, err
}

func (f *federation) sources(r *run) *assemble.Sources {
	return &assemble.Sources{
		Client: f.engine.fetch, Clock: f.engine.clock, Credentials: f.secrets, Traces: f.engine.trace,
		Pushed: func(sender string, t webhook.Target, kind signals.Kind) director.Source {
			return &pushedSource{r, sender, t, kind}
		},
	}
}

// mended says that a source can be made now that could not before; changing is
// held.
func (f *federation) mended() bool {
	for _, s := range f.wanted.directed {
		if _, faulty := f.sourceFaults[s.Name]; !faulty {
			continue
		}
		_, _, err := f.site(f.sources(&run{f: f}), f.wanted.spec, s)
		if err == nil {
			return true
		}
		f.sourceFaults[s.Name] = faultOf(err)
	}
	return false
}

// trace finds a file in the operator's folder.
func (e *Engine) trace(name string) (string, error) {
	switch {
	case e.options.Traces == "":
		return "", errors.New("this operator has no folder of traces; start it with one, or take another provider")
	case !assemble.PlainName(name):
		return "", errors.New("a trace is a plain file name in the operator's folder")
	}
	return filepath.Join(e.options.Traces, name), nil
}

func (e *Engine) registerer(namespace string) prometheus.Registerer {
	if e.options.Registerer == nil {
		return nil
	}
	return prometheus.WrapRegistererWith(prometheus.Labels{"namespace": namespace}, e.options.Registerer)
}

// pushedSource reads what was pushed, once the run has its webhook.
type pushedSource struct {
	r      *run
	sender string
	target webhook.Target
	kind   signals.Kind
}

var errNotOpen = errors.New("pushed signals are not taken yet")

func (s *pushedSource) open() (*webhook.Source, error) {
	s.r.f.mu.Lock()
	defer s.r.f.mu.Unlock()
	if s.r.f.run != s.r || s.r.webhook == nil {
		return nil, errNotOpen
	}
	return s.r.webhook.Source(s.sender, s.target, s.kind), nil
}

// Latest implements director.Source.
func (s *pushedSource) Latest(ctx context.Context) (signals.Reading, error) {
	from, err := s.open()
	if err != nil {
		return signals.Reading{}, err
	}
	return from.Latest(ctx)
}

// Forecast implements signals.Forecaster.
func (s *pushedSource) Forecast(ctx context.Context) (signals.Forecast, error) {
	from, err := s.open()
	if err != nil {
		return signals.Forecast{}, err
	}
	return from.Forecast(ctx)
}

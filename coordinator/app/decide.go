package app

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	"girassol.dev/coordinator/server"
	"girassol.dev/signals"
	"girassol.dev/signals/assemble"
	"girassol.dev/signals/replay"
)

// sites makes the sites' sources, or takes what will be told for them.
func (p *process) sites(clock signals.Clock) (map[string]*assemble.Site, error) {
	if p.d.external {
		return p.d.told()
	}
	sources := &assemble.Sources{Client: p.fetch, Clock: clock, Credentials: credentials{}}
	if p.pushed != nil {
		sources.Pushed = p.pushed.source
	}
	return p.d.signals(sources)
}

// decide starts who decides by energy, and gives who answers for it and who is to
// hear the signals that are told.
func (p *process) decide(sites map[string]*assemble.Site, traces map[string]*replay.Series, clock signals.Clock) (server.Energy, func(string, *coordinatorv1.Signal), error) {
	reports := reporter{p.d.federation.Name, p.books, traces}
	if p.d.external {
		p.d.awaitOperator(p.engine)
		return externalDesk{reports}, hear(sites), nil
	}
	var err error
	if p.director, err = p.d.director(sites, p.books, clock, p.o, p.registry, p.engine); err != nil {
		return nil, nil, err
	}
	if p.pushed != nil {
		if err = p.pushed.open(context.Background(), p.d, p.director.Sink(), clock, p.o, p.registry); err != nil {
			return nil, nil, err
		}
	}
	return energyDesk{reports, p.director, clock}, nil, nil
}

func (p *process) direct(ctx context.Context, failed chan<- error) {
	if err := p.director.Run(ctx); err != nil && ctx.Err() == nil {
		failed <- fmt.Errorf("signals: %w", err)
	}
}

func (p *process) stopSignals() {
	if p.pushed != nil {
		p.pushed.close()
	}
	if p.fetch != nil {
		p.fetch.Close()
	}
}

// servePushed takes pushed signals.
func (p *process) servePushed(wg *sync.WaitGroup, failed chan<- error) *http.Server {
	if p.pushed == nil {
		return nil
	}
	s := p.pushed.server()
	p.log.Info("pushed signals are taken", "url", "http://"+p.pushed.listener.Addr().String()+"/v1/signals")
	wg.Go(func() {
		if err := s.Serve(p.pushed.listener); !errors.Is(err, http.ErrServerClosed) {
			failed <- fmt.Errorf("server of pushed signals: %w", err)
		}
	})
	return s
}

package energy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/operator/membership"
	"girassol.dev/signals/director"
)

// federation is one federation's side of the engine.
type federation struct {
	engine *Engine
	key    types.NamespacedName
	uid    types.UID
	log    *slog.Logger

	// changing is held while its director is changed: by Ensure, refresh, Start and
	// Forget.
	changing sync.Mutex
	// These are changing's. wanted is nil before the first Ensure, launched the
	// fingerprint of what runs, ends when an override of a site without a signal
	// does.
	object    *v1alpha1.Federation
	siteSpecs []v1alpha1.Site
	secrets   *secrets
	wanted    *inputs
	launched  string
	refreshed time.Time
	ends      time.Time
	forgotten bool
	// sourceFaults are of sites whose sources could not be made at the launch.
	sourceFaults map[string]membership.Fault
	// state is what is remembered, alive while it is this engine's: the run and the
	// writes end with it.
	state     *state
	alive     context.Context
	stopState context.CancelCauseFunc
	writes    sync.WaitGroup
	// claimed is when the state was, losses how often in a row another's claim was
	// found, again when it may be claimed anew.
	claimed time.Time
	losses  int
	again   time.Time

	// serving is held for reading by requests, so that what they push is not lost
	// between two runs.
	serving sync.RWMutex

	mu          sync.Mutex
	run         *run // nil: none
	wishes      map[string]wish
	faults      map[string]*membership.Fault
	unavailable map[string]bool
	seen        *observed
}

func newFederation(e *Engine, key types.NamespacedName, uid types.UID) *federation {
	return &federation{
		engine: e, key: key, uid: uid, log: e.log.With("namespace", key.Namespace, "federation", key.Name),
		secrets: &secrets{reader: e.options.Reader, namespace: key.Namespace},
		wishes:  map[string]wish{}, faults: map[string]*membership.Fault{},
	}
}

// ensure takes a spec and lets it run.
func (f *federation) ensure(ctx context.Context, object *v1alpha1.Federation, sites []v1alpha1.Site) error {
	f.changing.Lock()
	defer f.changing.Unlock()
	if f.forgotten {
		return fmt.Errorf("energy: federation %s is not run any more", f.key)
	}
	maxAge := f.engine.options.RefreshEvery
	if f.object == nil || changed(f.object, f.siteSpecs, object, sites) {
		maxAge = 0
	}
	f.object, f.siteSpecs = object, sites
	return f.settle(ctx, maxAge)
}

// changed says that somebody has changed a spec, and perhaps a Secret with it.
func changed(old *v1alpha1.Federation, oldSites []v1alpha1.Site, now *v1alpha1.Federation, sites []v1alpha1.Site) bool {
	return old.Generation != now.Generation || !slices.EqualFunc(oldSites, sites, func(a, b v1alpha1.Site) bool {
		return a.UID == b.UID && a.Generation == b.Generation
	})
}

// refresh looks again at Secrets, at what could not be had and at what ended.
func (f *federation) refresh(ctx context.Context) error {
	f.changing.Lock()
	defer f.changing.Unlock()
	if f.forgotten || f.object == nil {
		return nil
	}
	f.refreshed = time.Now()
	if f.wanted != nil && f.mended() {
		f.launched = ""
	}
	return f.settle(ctx, f.engine.options.RefreshEvery)
}

// faultySpan is how soon a federation with faults is looked at again.
const faultySpan = 30 * time.Second

// due says whether refresh has something to do. It waits for nothing.
func (f *federation) due() bool {
	if !f.changing.TryLock() {
		return false
	}
	defer f.changing.Unlock()
	if f.object == nil || f.forgotten {
		return false
	}
	every := f.engine.options.RefreshEvery
	f.mu.Lock()
	if len(f.faults) > 0 || f.wanted != nil && f.wanted.fault != nil {
		every = min(every, faultySpan)
	}
	f.mu.Unlock()
	return f.wanted == nil || f.superseded() || f.launched != f.wanted.fingerprint || time.Since(f.refreshed) >= every ||
		!f.ends.IsZero() && !f.engine.clock.Now().Before(f.ends)
}

// settle lets run what is wanted; changing is held.
func (f *federation) settle(ctx context.Context, maxAge time.Duration) error {
	f.giveWay()
	in, err := f.prepare(ctx, maxAge)
	if err != nil {
		return err
	}
	f.wanted = in
	base := f.engine.running()
	switch {
	case base == nil: // Start does it
	case time.Now().Before(f.again):
		f.hold(in)
	case in.budgeted && f.observed() == nil:
		// What is spent is not known, and a spent budget keeps every site out.
		f.await(in, "the budget waits for the coordinator's ledger")
	case f.launched != in.fingerprint:
		err = f.launch(ctx, base, in)
	}
	f.showFaults(in)
	f.showPolicies(in)
	if err == nil {
		err = f.override(in)
	}
	if in.fault != nil {
		return errors.Join(&Fault{*in.fault}, err)
	}
	return err
}

// end ends the director; write keeps what it remembers.
func (f *federation) end(write bool) {
	f.changing.Lock()
	defer f.changing.Unlock()
	f.forgotten = true
	f.halt()
	f.closeState(write)
}

// lastWrite bounds what the end waits for the API server.
const lastWrite = 5 * time.Second

func (f *federation) closeState(write bool) {
	if f.state == nil {
		return
	}
	f.stopState(nil)
	f.writes.Wait()
	if write {
		ctx, cancel := context.WithTimeout(context.Background(), lastWrite)
		defer cancel()
		if err := f.state.close(ctx); err != nil {
			f.log.Error("the last changes of the signals' state are lost", "error", err)
		}
	}
	f.state = nil
}

// openState reads what was kept, once; changing is held.
func (f *federation) openState(ctx, base context.Context) error {
	if f.state != nil {
		return nil
	}
	e := f.engine
	alive, stop := context.WithCancelCause(base)
	lost := func(err error) {
		stop(err)
		e.hurry() // to give way
	}
	s, err := loadState(ctx, newCabinet(e.options.Client, e.options.Reader, f.object, e.writer, f.log), e.options.SaveEvery, f.log, lost)
	if err != nil {
		stop(nil)
		return err
	}
	f.state, f.alive, f.stopState, f.claimed = s, alive, stop, time.Now()
	f.writes.Go(func() { s.run(alive) })
	return nil
}

// halt ends the present run; changing is held.
func (f *federation) halt() {
	f.serving.Lock()
	f.mu.Lock()
	r := f.run
	f.run = nil
	f.mu.Unlock()
	f.serving.Unlock()
	f.launched = ""
	if r != nil {
		r.stop()
	}
}

func (f *federation) wish(site string) (wish, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	w, ok := f.wishes[site]
	return w, ok
}

// tell takes over a wish, and says so if it is another.
func (f *federation) tell(site string, w wish) {
	f.mu.Lock()
	old, had := f.wishes[site]
	f.wishes[site] = w
	f.mu.Unlock()
	if !had || !old.same(w) {
		f.engine.changes.note(f.key.Namespace, site)
	}
}

// await lets sites with a signal be unknown that nothing was decided of yet.
func (f *federation) await(in *inputs, message string) {
	for _, s := range in.directed {
		if had, ok := f.wish(s.Name); !ok || !had.energy.Known {
			f.tell(s.Name, unknown(message))
		}
	}
}

// showFaults shows the sites that cannot be decided, and forgets others.
func (f *federation) showFaults(in *inputs) {
	now := maps.Clone(in.faults)
	for site, fault := range f.sourceFaults {
		if now[site] == nil && in.sites[site] {
			now[site] = &fault
		}
	}
	f.mu.Lock()
	old := f.faults
	f.faults = now
	for site := range f.wishes {
		if !in.sites[site] {
			delete(f.wishes, site)
		}
	}
	f.mu.Unlock()
	for site := range in.sites {
		is, was := now[site], old[site]
		switch {
		case is != nil && (was == nil || *is != *was):
			f.tell(site, out(*is))
			f.engine.changes.note(f.key.Namespace, site)
		case is == nil && was != nil:
			if had, ok := f.wish(site); !ok || had.same(out(*was)) {
				f.tell(site, unknown(awaitsReading))
			}
			f.engine.changes.note(f.key.Namespace, site)
		}
	}
}

const awaitsReading = "the first reading is awaited"

// fault of a site; nil if there is none.
func (f *federation) fault(site string) *membership.Fault {
	f.mu.Lock()
	defer f.mu.Unlock()
	if one := f.faults[site]; one != nil {
		c := *one
		return &c
	}
	return nil
}

func (f *federation) setUnavailable(sites map[string]bool) {
	f.mu.Lock()
	same := maps.Equal(f.unavailable, sites)
	f.unavailable = maps.Clone(sites)
	r := f.run
	f.mu.Unlock()
	if !same && r != nil {
		r.director.Look()
	}
}

func (f *federation) isUnavailable(site string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.unavailable[site]
}

// serve hands a request to the webhook of the present run.
func (f *federation) serve(w http.ResponseWriter, r *http.Request) bool {
	f.serving.RLock()
	defer f.serving.RUnlock()
	f.mu.Lock()
	now := f.run
	f.mu.Unlock()
	if now == nil || now.webhook == nil {
		return false
	}
	now.webhook.ServeHTTP(w, r)
	return true
}

// explain tells what is behind a site's decision.
func (f *federation) explain(site string) (director.Explanation, error) {
	f.mu.Lock()
	r := f.run
	f.mu.Unlock()
	if r == nil {
		return director.Explanation{}, fmt.Errorf("no site of federation %s is decided by a signal", f.key)
	}
	return r.director.Explain(site)
}

// observe takes a status of the coordinator.
func (f *federation) observe(s *coordinatorv1.FederationStatus) {
	o := observe(s)
	f.mu.Lock()
	first := f.seen == nil
	f.seen = o
	f.mu.Unlock()
	if first {
		f.engine.hurry()
	}
}

func (f *federation) observed() *observed {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.seen
}

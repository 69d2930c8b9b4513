package app

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"girassol.dev/coordinator/checkpoint"
	"girassol.dev/coordinator/engine"
	"girassol.dev/internal/tensor"
	"girassol.dev/signals"
	"girassol.dev/signals/ledger"
	"girassol.dev/signals/replay"
)

const (
	// keptRounds is how many rounds have entries of their own.
	keptRounds = 256
	// accountEvery is how often power is sampled, in real time.
	accountEvery = 100 * time.Millisecond
	// keepEvery is how often the books are written to disk.
	keepEvery = 2 * time.Second
)

// accountant turns what the sites do into energy and emissions, on the signals'
// clock: by the counters of their members, and by their stated power model where
// nothing is measured. On a replay's clock joules of this world mean nothing, and
// the model tells all.
type accountant struct {
	path  string
	clock signals.Clock
	power map[string]ledger.Power
	grids map[string]ledger.Grid
	log   *slog.Logger
	// speed is signals' seconds per real second.
	speed float64
	// virtual: the clock goes on from the books at the next start.
	virtual bool

	mu     sync.Mutex
	ledger *ledger.Ledger
	meters *metering // nil on a replay's clock
	// told is what the energy of a site rests on.
	told map[string]sources
	// means of the marginal intensity by site, at all hours since begun.
	means   map[string]ledger.Mean
	seen    engine.Activities
	begun   time.Time
	last    time.Time
	unsaved bool
}

// books is what survives a restart. Now lets a virtual clock go on where it was.
type books struct {
	Now time.Time `json:"now"`
	// Begun is when the first of them were opened, on the signals' clock.
	Begun    time.Time                 `json:"begun"`
	Accounts map[string]ledger.Account `json:"accounts"`
	Rounds   []ledger.Entry            `json:"rounds,omitempty"`
	Means    map[string]ledger.Mean    `json:"means,omitempty"`
	// Counters by member, as they were when the accounts were written: what they
	// have told is in these, and nothing else.
	Counters map[string]counter `json:"counters,omitempty"`
	// Sources by site, joined by "+".
	Sources map[string]string `json:"sources,omitempty"`
}

func readBooks(dataDir string) (books, error) {
	path := filepath.Join(dataDir, "accounting.json")
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return books{}, nil
	}
	if err != nil {
		return books{}, err
	}
	var out books
	if err := json.Unmarshal(b, &out); err != nil {
		return books{}, fmt.Errorf("%s: %w; remove the file to begin new books", path, err)
	}
	return out, nil
}

func newAccountant(dataDir string, clock signals.Clock, speed float64, grids map[string]ledger.Grid, power map[string]ledger.Power, old books, log *slog.Logger) (*accountant, error) {
	a := &accountant{
		path: filepath.Join(dataDir, "accounting.json"), clock: clock, speed: speed, power: power, log: log,
		grids: grids, ledger: ledger.New(grids), last: clock.Now(), means: map[string]ledger.Mean{}, told: map[string]sources{},
	}
	maps.Copy(a.means, old.Means)
	a.begun = a.last
	if !old.Begun.IsZero() {
		a.begun = old.Begun
	}
	a.ledger.KeepRounds(keptRounds)
	_, real := clock.(signals.Real)
	a.virtual = !real
	a.unsaved = a.virtual
	if real {
		a.meters = &metering{refused: a.refuse}
		a.meters.restore(old.Counters, power, a.last)
	}
	for site, joined := range old.Sources {
		a.rests(site, joined)
	}
	if len(old.Accounts) > 0 {
		if err := a.ledger.Restore(old.Accounts); err != nil {
			return nil, fmt.Errorf("%s: %w", a.path, err)
		}
	}
	if err := a.ledger.RestoreRounds(old.Rounds); err != nil {
		return nil, fmt.Errorf("%s: %w", a.path, err)
	}
	return a, nil
}

// run samples activities until ctx ends, then keeps the books a last time.
func (a *accountant) run(ctx context.Context, activities func(context.Context) (engine.Activities, error)) {
	sample := time.NewTicker(accountEvery)
	defer sample.Stop()
	kept := time.Now()
	for {
		select {
		case <-ctx.Done():
			a.keep()
			return
		case <-sample.C:
		}
		act, err := activities(ctx)
		if err != nil {
			continue // the engine stops; ctx ends next
		}
		a.add(act)
		if time.Since(kept) >= keepEvery {
			a.keep()
			kept = time.Now()
		}
	}
}

// add books the span since the last call. Where nothing is measured a member that
// trains takes its site's training watts and one that is kept ready its idle watts.
// A site that is not admitted has handed its capacity back and takes none.
func (a *accountant) add(now engine.Activities) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.seen = now
	from, to := a.last, a.clock.Now()
	if !to.After(from) {
		return
	}
	a.last = to
	if a.virtual {
		a.unsaved = true // the clock itself goes on from the books
	}
	for site, g := range a.grids {
		if g.Marginal != nil {
			a.means[site] = a.means[site].Over(g.Marginal, from, to)
		}
	}
	for _, act := range now.Sites {
		a.addSite(act, now.Round, from, to)
	}
}

// addSite books the span for one site. Members whose counter tells their energy are
// booked when it does.
func (a *accountant) addSite(act engine.Activity, number uint64, from, to time.Time) {
	p := a.power[act.Site]
	var round *uint64
	if act.Training > 0 {
		round = &number
	}
	var spans []booked
	members, training := act.Members, act.Training
	if a.meters != nil {
		spans, members, training = a.meters.observe(act, round, from, to, p)
		a.unsaved = a.unsaved || a.meters.changed
		a.meters.changed = false
	}
	watts := float64(training) * p.TrainingWatts
	if act.Admitted {
		watts += float64(members-training) * p.IdleWatts
	}
	if watts > 0 {
		spans = append(spans, modelled(act.Site, round, from, to, watts, p.PUE))
	}
	for _, s := range spans {
		a.unsaved = true
		if err := a.ledger.Book(s.Span); err != nil {
			a.log.Error("energy not booked", "site", act.Site, "error", err)
			continue
		}
		a.rests(act.Site, s.source)
	}
}

// rests notes what the energy of a site rests on.
func (a *accountant) rests(site, joined string) {
	if a.told[site] == nil {
		a.told[site] = sources{}
	}
	a.told[site].add(joined)
}

// refuse tells of a counter that is not believed.
func (a *accountant) refuse(member string, joules, seconds float64) {
	a.log.Warn("a member's energy counter is not believed; the stated power model stands in until it makes sense again",
		"member", member, "joules", joules, "seconds", seconds)
}

// report is the ledgers by federation, site and round, with what one site that
// is always on would have taken for the same training time, for each site whose
// trace is known.
func (a *accountant) report(federation string, traces map[string]*replay.Series) (ledger.Report, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	r := ledger.NewReport(federation, a.begun, a.last, a.ledger.Snapshot(), a.ledger.Rounds())
	var training float64
	var places []ledger.Place
	for _, act := range a.seen.Sites {
		training += act.TrainingSeconds * a.speed
	}
	for _, site := range slices.Sorted(maps.Keys(traces)) {
		p := a.power[site]
		if training == 0 || p.TrainingWatts == 0 {
			continue
		}
		b, err := ledger.AlwaysOn(site, traces[site], a.begun, time.Duration(training*float64(time.Second)), p.TrainingWatts, p.PUE)
		if err != nil {
			return r, fmt.Errorf("baseline of %s: %w", site, err)
		}
		r.AddBaseline(b)
		places = append(places, ledger.Place{Site: site, Trace: traces[site], Watts: p.TrainingWatts, PUE: p.PUE})
	}
	if len(places) > 0 && a.last.After(a.begun) {
		// The least that so much training could have emitted in the same time.
		bound, err := ledger.Clairvoyant(places, a.begun, a.last, time.Duration(training*float64(time.Second)))
		if err != nil {
			return r, fmt.Errorf("clairvoyant bound: %w", err)
		}
		r.AddBound(bound)
	}
	return r, nil
}

// facts are a site's speed, as its committed updates show it, and power: what
// the planner compares sites by. Times are those of the signals' clock.
func (a *accountant) facts(site string) (tokensPerSecond, watts, idleWatts, pue float64, ok bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, act := range a.seen.Sites {
		if act.Site == site && act.Samples > 0 && act.TrainingSeconds > 0 {
			p := a.power[site]
			return float64(act.Samples) / act.TrainingSeconds / a.speed, p.TrainingWatts, p.IdleWatts, p.PUE, p.TrainingWatts > 0
		}
	}
	return 0, 0, 0, 0, false
}

// trained are the tokens behind all committed updates.
func (a *accountant) trained() float64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	var tokens float64
	for _, act := range a.seen.Sites {
		tokens += float64(act.Samples)
	}
	return tokens
}

// round is the newest round as of the last sample.
func (a *accountant) round() uint64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.seen.Round
}

// spent is what all sites have emitted, by the marginal ledger, and drawn.
func (a *accountant) spent() (grams, kWh float64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, acc := range a.ledger.Snapshot() {
		kWh += acc.KWh()
		if acc.MarginalGrams != nil {
			grams += *acc.MarginalGrams
		}
	}
	return grams, kWh
}

// baselines are what the energy drawn so far would have emitted by site, in grams
// by the marginal ledger, had all of it been drawn there at all hours alike: at
// the site's mean intensity so far. Sites of which nothing is known are left out.
func (a *accountant) baselines() map[string]float64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	var kWh float64
	for _, acc := range a.ledger.Snapshot() {
		kWh += acc.KWh()
	}
	out := map[string]float64{}
	for site, m := range a.means {
		if grams, ok := m.GramsPerKWh(); ok {
			out[site] = kWh * grams
		}
	}
	return out
}

// accounts are the ledgers by site.
func (a *accountant) accounts() map[string]ledger.Account {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.ledger.Snapshot()
}

// entries is the ledger as manifests and status carry it.
func (a *accountant) entries() map[string]checkpoint.LedgerEntry {
	a.mu.Lock()
	defer a.mu.Unlock()
	out := map[string]checkpoint.LedgerEntry{}
	for site, acc := range a.ledger.Snapshot() {
		out[site] = checkpoint.LedgerEntry{
			EnergyJoules: acc.Joules, MarginalGrams: acc.MarginalGrams, AverageGrams: acc.AverageGrams, CoveredJoules: acc.MarginalJoules,
			MeteredJoules: acc.MeasuredJoules, UncertaintyJoules: acc.UncertaintyJoules, Source: a.told[site].String(),
		}
	}
	return out
}

// keep writes the books if there is anything new in them.
func (a *accountant) keep() {
	a.mu.Lock()
	if !a.unsaved {
		a.mu.Unlock()
		return
	}
	a.unsaved = false
	b := books{Now: a.last, Begun: a.begun, Accounts: a.ledger.Snapshot(), Rounds: a.ledger.Rounds(), Means: maps.Clone(a.means), Sources: map[string]string{}}
	for site, from := range a.told {
		b.Sources[site] = from.String()
	}
	if a.meters != nil {
		b.Counters = a.meters.snapshot()
	}
	a.mu.Unlock()
	err := tensor.WriteFileAtomic(a.path, func(w io.Writer) error { return json.NewEncoder(w).Encode(b) })
	if err != nil {
		a.log.Error("the books cannot be kept; the next attempt follows", "error", err)
		a.mu.Lock()
		a.unsaved = true
		a.mu.Unlock()
	}
}

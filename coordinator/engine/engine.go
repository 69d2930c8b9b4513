// Package engine runs one federation: it feeds the pure round machine with what
// sessions, uploads, people and time say, carries out its actions, merges
// accepted updates into the commit log and tells everyone.
//
// One goroutine (Run) owns all state; other goroutines post closures to it. What
// takes long runs beside it: a merge, during which the model belongs to the
// merging goroutine, also for putting it back after a failure; a snapshot, during
// which the model does not change; and reading offered first weights.
//
// It must not know gRPC, Redis, flags or where energy decisions come from.
package engine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	"girassol.dev/api/events"
	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/coordinator/admission"
	"girassol.dev/coordinator/checkpoint"
	"girassol.dev/coordinator/corpus"
	"girassol.dev/coordinator/gate"
	"girassol.dev/coordinator/round"
	"girassol.dev/coordinator/session"
	"girassol.dev/coordinator/spool"
	"girassol.dev/internal/algorithm"
	"girassol.dev/internal/codec"
	"girassol.dev/internal/tensor"
)

// Config of an engine.
type Config struct {
	Federation string
	Round      round.Config
	Algorithm  algorithm.Plan
	// TrainerConfig goes to every trainer with its task.
	TrainerConfig map[string]string
	// DataDir holds the commit log and what else must survive.
	DataDir string
	// SnapshotEvery so many commits, or earlier once the deltas since the last
	// snapshot outgrow it.
	SnapshotEvery uint64
	// ArchiveUpdates keeps every accepted update in its commit, not only where the
	// downlink residual needs it for recovery.
	ArchiveUpdates bool
	// MaxModelBytes bounds an offered first model.
	MaxModelBytes int64
	Heartbeat     time.Duration
	// LossAfter is the silence after which a session is given up.
	LossAfter time.Duration
	// InitialModel is a safetensors file with the first weights; empty: a site's
	// trainer offers them.
	InitialModel string
	// Gate takes the model back after a bad evaluation; nil without one.
	Gate *gate.Config
	// Suspended grants no rounds, whatever people say.
	Suspended bool
	// Data is the corpus that all sites share; nil: each trains on its own.
	Data *corpus.Config
	// Admission bounds what a site may send.
	Admission admission.Config
}

// Announcer takes events and numbers them; it must not block.
type Announcer interface {
	Publish(events.Event)
}

// Hooks are what the application adds. All may be nil.
type Hooks struct {
	Announce Announcer
	// Events tells how the announcer is doing, for status.
	Events func() *coordinatorv1.EventsStatus
	// EventsKey is the public key of what Announce sends; nil without events.
	EventsKey []byte
	// Bytes are a member's bytes on the socket.
	Bytes func(member string) (up, down uint64)
	// SignalsNow is the clock of the energy signals, which a replay runs faster.
	SignalsNow func() time.Time
	// Ledger is the emission ledger by site, for manifests and status.
	Ledger func() map[string]checkpoint.LedgerEntry
	// Observe counts updates and rounds.
	Observe Observer
}

// Engine runs one federation.
type Engine struct {
	cfg   Config
	store *checkpoint.Store
	hooks Hooks
	log   *slog.Logger

	posts    chan func()
	stopped  chan struct{}
	changed  *broadcast
	machine  *round.Machine
	sessions *session.Table
	wishes   *wishes
	starts   map[string]*start // by site

	model     *model // nil before the first weights
	uploads   map[string]*Upload
	memory    *spool.Memory     // that uploads share
	counted   map[string]uint64 // update id -> version, of recent commits
	stats     map[string]checkpoint.SiteStats
	samples   uint64 // committed by all sites
	agreement *float64
	evaluation
	data      *corpus.Ledger // nil without Config.Data
	admitting admitting
	lastVoid  *coordinatorv1.VoidRound
	noted     uint64              // the highest round number on disk
	keepRound func(uint64) error  // puts one there
	manifest  checkpoint.Manifest // of the newest version

	snapshot   chan struct{} // closed when no snapshot is being written
	modelBusy  chan struct{} // closed when none is being written from memory
	fromMemory bool          // the next one must be: the log is no base for it
	hurry      chan struct{} // closed when the last one is due
	deltaBytes int64         // since the last snapshot
	snapshotAt uint64        // version of the last snapshot

	still     *standstill   // for want of disk space, nil without
	roomEvery time.Duration // between two looks at the disk then

	// seeding holds one place: for whoever reads and keeps offered weights.
	seeding chan struct{}
	// background is the work beside the engine's goroutine, which starts it.
	background sync.WaitGroup
	rollbacks  rollbacks
	links      linkTests
	fatal      error
}

// model is what a commit changes, and what it needs to do so.
type model struct {
	state    *tensor.State
	residual []float32
	domain   *codec.Domain
	version  uint64
	digest   [32]byte
	layout   [32]byte
}

// digestCopy is the digest for a message, which is written when the model may
// have gone on.
func (m *model) digestCopy() []byte { return bytes.Clone(m.digest[:]) }

// New recovers the federation's state from its commit log.
func New(cfg Config, store *checkpoint.Store, hooks Hooks, log *slog.Logger) (*Engine, error) {
	e := &Engine{
		cfg: cfg, store: store, hooks: hooks, log: log.With("federation", cfg.Federation),
		posts: make(chan func()), stopped: make(chan struct{}), changed: newBroadcast(),
		sessions: session.NewTable(store.Term(), newToken),
		uploads:  map[string]*Upload{}, memory: spool.NewMemory(smallUploads), counted: map[string]uint64{}, stats: map[string]checkpoint.SiteStats{},
		starts:   map[string]*start{},
		snapshot: closedChan(), modelBusy: closedChan(), hurry: make(chan struct{}), seeding: make(chan struct{}, 1), roomEvery: roomEvery,
	}
	e.links.turn = make(chan struct{}, 1)
	e.keepRound = e.writeRound
	if err := e.recover(); err != nil {
		return nil, err
	}
	if e.model == nil && cfg.InitialModel != "" {
		if err := e.loadInitial(cfg.InitialModel); err != nil {
			return nil, err
		}
	}
	return e, nil
}

func closedChan() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}

// ErrStopped answers calls to an engine that no longer runs.
var ErrStopped = errors.New("the coordinator is stopping")

// Stopped is closed when Run is about to return.
func (e *Engine) Stopped() <-chan struct{} { return e.stopped }

// do runs f on the engine's goroutine and waits for it.
func (e *Engine) do(ctx context.Context, f func()) error {
	done := make(chan struct{})
	post := func() { f(); close(done) }
	select {
	case e.posts <- post:
	case <-e.stopped:
		return ErrStopped
	case <-ctx.Done():
		return ctx.Err()
	}
	<-done // the loop never blocks, so this is short
	return nil
}

// post runs f on the engine's goroutine, for work that ends beside it.
func (e *Engine) post(f func()) {
	select {
	case e.posts <- f:
	case <-e.stopped:
	}
}

// Run serves until ctx ends or the commit log can take no more. On the way out
// it finishes a merge at work, tells the members and writes a last snapshot;
// when it returns nothing of the engine runs any more.
func (e *Engine) Run(ctx context.Context) error {
	err := e.serve(ctx)
	close(e.stopped)
	e.background.Wait()
	e.dropUploads()
	e.memory.Close()
	if e.model != nil {
		e.model.close()
	}
	if err != nil {
		return fmt.Errorf("federation %s: %w", e.cfg.Federation, err)
	}
	return nil
}

func (e *Engine) serve(ctx context.Context) error {
	now := time.Now()
	if e.model != nil {
		e.act(now, e.machine.SetModel(now))
	}
	e.act(now, e.machine.Tick(now))
	timer := time.NewTimer(0)
	defer timer.Stop()
	due := now // when the next tick is due, however busy it is until then
	for e.fatal == nil {
		timer.Reset(time.Until(due))
		select {
		case <-ctx.Done():
			return e.shutdown()
		case f := <-e.posts:
			f()
		case <-timer.C:
		}
		if now := time.Now(); !now.Before(due) {
			e.excuse(now.Sub(due))
			e.tick(now)
			due = now.Add(e.cfg.LossAfter / 4)
		}
		if next := e.machine.Next(); !next.IsZero() && next.Before(due) {
			due = next
		}
	}
	return e.giveUp()
}

// excuse counts no silence for which this process is the cause: while it was
// stopped or waited for a slow disk, nobody could be heard.
func (e *Engine) excuse(late time.Duration) {
	if late < e.cfg.LossAfter/4 {
		return
	}
	e.log.Warn("the coordinator was away itself", "for", late.Round(time.Millisecond))
	for _, s := range e.sessions.All() {
		s.Seen = s.Seen.Add(late)
	}
}

func (e *Engine) tick(now time.Time) {
	for _, s := range e.sessions.Silent(now.Add(-e.cfg.LossAfter)) {
		e.log.Warn("session lost", "member", s.Member, "epoch", s.Epoch, "reason", v1alpha1.ReasonHeartbeatMissed, "silence", now.Sub(s.Seen).Round(time.Millisecond))
		e.endSession(now, s, v1alpha1.ReasonHeartbeatMissed)
	}
	e.act(now, e.machine.Tick(now))
}

// shutdown ends a run in order: a merge at work is finished and told before the
// members go. They keep what they have not sent.
func (e *Engine) shutdown() error {
	now := time.Now()
	e.act(now, e.machine.Pause(now)) // no round follows the one at work
	for e.fatal == nil && (e.still == nil && e.machine.Status().State == round.Committing || e.rollbacks.atWork != nil) {
		(<-e.posts)()
	}
	if e.fatal != nil {
		return e.giveUp()
	}
	e.closeSessions(v1alpha1.ReasonCoordinatorStopped, "the coordinator is stopping; reconnect later")
	close(e.hurry)
	for written := false; !written; {
		select {
		case f := <-e.posts:
			f()
		case <-e.snapshot:
			written = true
		}
	}
	if e.fatal != nil {
		return e.fatal
	}
	if e.model == nil || e.snapshotAt == e.model.version {
		return nil
	}
	if err := e.store.WriteSnapshot(e.model.version, e.manifest, e.model.state, e.model.residual); err != nil {
		return fmt.Errorf("last snapshot: %w", err)
	}
	return nil
}

// giveUp ends a run that cannot go on.
func (e *Engine) giveUp() error {
	e.closeSessions(v1alpha1.ReasonCommitLogFailed, e.fatal.Error())
	return e.fatal
}

func (e *Engine) closeSessions(reason v1alpha1.Reason, message string) {
	e.announce(events.Event{Type: events.Shutdown, Reason: string(reason), Message: message})
	for _, s := range e.sessions.All() {
		s.Send(&coordinatorv1.SessionResponse{Message: &coordinatorv1.SessionResponse_Shutdown{
			Shutdown: &coordinatorv1.Shutdown{Reason: string(reason), Message: message},
		}})
		e.sessions.Remove(s)
		s.Close(reason)
	}
}

func (e *Engine) announce(ev events.Event) {
	if e.hooks.Announce != nil {
		ev.UnixMilli = time.Now().UnixMilli()
		e.hooks.Announce.Publish(ev)
	}
}

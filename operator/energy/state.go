package energy

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"girassol.dev/signals/planner"
	"girassol.dev/signals/sanity"
	"girassol.dev/signals/window"
)

// Kinds of what is kept; the keys are KIND.NAME.
const (
	kindWindow   = "window"
	kindSanity   = "sanity"
	kindOverride = "override"
	kindPlan     = "plan"
	kindPushed   = "pushed"
	kindSeen     = "seen"
)

// state is what a federation's director and webhook remember: director.Store,
// director.Memory and webhook.Store over a cabinet. It is held in memory and
// written when it has changed: in the background at most once per span, and at
// once where somebody waits for it (Flush), of which there may be a few in a row.
type state struct {
	cabinet *cabinet
	log     *slog.Logger
	every   time.Duration
	lost    func(error) // another writer has taken over

	// writing is held while values are written.
	writing chan struct{}
	wake    chan struct{}
	// These are of writing's holder.
	tokens     tokens
	superseded error

	mu    sync.Mutex
	items map[string][]byte
	dirty map[string]bool
	seen  map[string]*deliveries // by source
}

// The pace of writes that somebody waits for.
const (
	mostAtOnce = 10
	// backShare of the span brings one of them back.
	backShare = 2
)

// loadState reads and claims what was kept.
func loadState(ctx context.Context, c *cabinet, every time.Duration, log *slog.Logger, lost func(error)) (*state, error) {
	items, err := c.load(ctx)
	if err != nil {
		return nil, err
	}
	s := &state{cabinet: c, log: log, every: every, lost: lost, writing: make(chan struct{}, 1), wake: make(chan struct{}, 1),
		tokens: tokens{most: mostAtOnce, back: every / backShare, has: mostAtOnce}, items: items, dirty: map[string]bool{}}
	s.seen = s.readDeliveries()
	return s, nil
}

// set changes a value in memory; nil removes it.
func (s *state) set(key string, v []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.change(key, v)
}

func (s *state) change(key string, v []byte) {
	old, had := s.items[key]
	if v == nil && !had || had && v != nil && bytes.Equal(old, v) {
		return
	}
	if v == nil {
		delete(s.items, key)
	} else {
		s.items[key] = v
	}
	s.dirty[key] = true
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

func (s *state) save(kind, name string, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("energy: %s of %s: %w", kind, name, err)
	}
	s.set(kind+"."+name, b)
	return nil
}

// load reads all of a kind; what cannot be read is left out and named.
func load[T any](s *state, kind string) (map[string]T, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := map[string]T{}
	var damage []error
	for _, key := range slices.Sorted(maps.Keys(s.items)) {
		name, ok := strings.CutPrefix(key, kind+".")
		if !ok {
			continue
		}
		var v T
		if err := json.Unmarshal(s.items[key], &v); err != nil {
			damage = append(damage, fmt.Errorf("energy: %s of %s: %w", kind, name, err))
			continue
		}
		out[name] = v
	}
	return out, errors.Join(damage...)
}

// Load implements director.Store.
func (s *state) Load() (map[string]window.State, error) { return load[window.State](s, kindWindow) }

// Save implements director.Store.
func (s *state) Save(site string, w window.State) error { return s.save(kindWindow, site, w) }

// LoadSanity implements director.Memory.
func (s *state) LoadSanity() (map[string]sanity.State, error) {
	return load[sanity.State](s, kindSanity)
}

// SaveSanity implements director.Memory.
func (s *state) SaveSanity(site string, v sanity.State) error { return s.save(kindSanity, site, v) }

// LoadOverrides implements director.Memory.
func (s *state) LoadOverrides() (map[string]window.Override, error) {
	return load[window.Override](s, kindOverride)
}

// SaveOverride implements director.Memory.
func (s *state) SaveOverride(site string, o *window.Override) error {
	if o == nil {
		s.set(kindOverride+"."+site, nil)
		return nil
	}
	return s.save(kindOverride, site, *o)
}

// planned is what is kept of plans.
type planned struct {
	Planner planner.State        `json:"planner"`
	Moved   map[string]time.Time `json:"moved,omitempty"`
}

const planName = "all"

// LoadPlan implements director.Memory.
func (s *state) LoadPlan() (planner.State, map[string]time.Time, error) {
	all, err := load[planned](s, kindPlan)
	return all[planName].Planner, all[planName].Moved, err
}

// SavePlan implements director.Memory.
func (s *state) SavePlan(p planner.State, moved map[string]time.Time) error {
	return s.save(kindPlan, planName, planned{p, moved})
}

// keep forgets sites and senders that are not among these.
func (s *state) keep(sites, senders map[string]bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key := range s.items {
		parts := strings.SplitN(key, ".", 3)
		if len(parts) < 2 {
			continue
		}
		switch kind, name := parts[0], parts[1]; kind {
		case kindWindow, kindSanity, kindOverride:
			if !sites[name] {
				s.change(key, nil)
			}
		case kindPushed, kindSeen:
			if !senders[name] {
				s.change(key, nil)
				delete(s.seen, name)
			}
		}
	}
}

func (s *state) pending() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.dirty) > 0
}

// Flush returns when all that was changed before is written. Those who wait
// together are served by one write.
func (s *state) Flush(ctx context.Context) error {
	if !s.pending() {
		return nil
	}
	select {
	case s.writing <- struct{}{}:
		defer func() { <-s.writing }()
	case <-ctx.Done():
		return fmt.Errorf("energy: the signals' state waits to be written: %w", ctx.Err())
	}
	if !s.pending() {
		return nil
	}
	if err := s.tokens.take(ctx); err != nil {
		return fmt.Errorf("energy: the signals' state waits to be written: %w", err)
	}
	return s.write(ctx)
}

// close writes what is left.
func (s *state) close(ctx context.Context) error {
	select {
	case s.writing <- struct{}{}:
		defer func() { <-s.writing }()
	case <-ctx.Done():
		return ctx.Err()
	}
	if !s.pending() {
		return nil
	}
	return s.write(ctx)
}

// longestRetry of a background write.
const longestRetry = time.Minute

// run writes what changed, in the background.
func (s *state) run(ctx context.Context) {
	failures := 0
	for {
		select {
		case <-s.wake:
		case <-ctx.Done():
			return
		}
		for s.pending() {
			timer := time.NewTimer(min(s.every<<min(failures, 6), max(longestRetry, s.every)))
			select {
			case <-timer.C:
			case <-ctx.Done():
				timer.Stop()
				return
			}
			writing, cancel := context.WithTimeout(ctx, writeTimeout)
			err := s.close(writing)
			cancel()
			switch {
			case err == nil:
				failures = 0
			case ctx.Err() == nil:
				failures++
				s.log.Warn("the signals' state could not be written, the next attempt follows", "error", err)
			}
		}
	}
}

// writeTimeout of all ConfigMaps of a federation.
const writeTimeout = 15 * time.Second

// write writes the dirty values; writing is held.
func (s *state) write(ctx context.Context) error {
	if s.superseded != nil {
		return s.superseded
	}
	s.mu.Lock()
	changes, seen := map[string][]byte{}, map[string][]byte{}
	for key := range s.dirty {
		to := changes
		if strings.HasPrefix(key, kindSeen+".") {
			to = seen
		}
		to[key] = s.items[key]
	}
	s.mu.Unlock()
	if len(s.cabinet.shards) <= 1 { // one write is atomic
		maps.Copy(changes, seen)
		seen = nil
	}
	// A delivery must not be known before its message is.
	for _, part := range []map[string][]byte{changes, seen} {
		if err := s.put(ctx, part); err != nil {
			return err
		}
	}
	return nil
}

func (s *state) put(ctx context.Context, changes map[string][]byte) error {
	if len(changes) == 0 {
		return nil
	}
	err := s.cabinet.write(ctx, changes)
	if apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) { // a person's change; it is known now
		err = s.cabinet.write(ctx, changes)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case errors.Is(err, errSuperseded):
		s.superseded = err
		s.lost(err)
		return err
	case errors.Is(err, errGone):
		s.cabinet.shards, s.cabinet.place = nil, map[string]int{}
		for key := range s.items {
			s.dirty[key] = true
		}
		return err
	case err != nil:
		return err
	}
	for key, v := range changes {
		if now, has := s.items[key]; has == (v != nil) && bytes.Equal(now, v) {
			delete(s.dirty, key)
		}
	}
	return nil
}

// tokens bound how often somebody may have his write at once.
type tokens struct {
	most int
	back time.Duration

	has  int
	last time.Time
}

// take waits for a token.
func (t *tokens) take(ctx context.Context) error {
	now := time.Now()
	if n := int(now.Sub(t.last) / t.back); n > 0 || t.last.IsZero() {
		if t.has += n; t.has >= t.most || t.last.IsZero() {
			t.has, t.last = t.most, now
		} else {
			t.last = t.last.Add(time.Duration(n) * t.back)
		}
	}
	if t.has > 0 {
		t.has--
		return nil
	}
	timer := time.NewTimer(t.last.Add(t.back).Sub(now))
	defer timer.Stop()
	select {
	case <-timer.C:
		t.last = t.last.Add(t.back)
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

package agent

import (
	"cmp"
	"crypto/ed25519"
	"errors"
	"strconv"
	"strings"
	"sync"

	"girassol.dev/api/events"
)

// Why an event was not believed, as the counter has it.
const (
	refusedUnsigned  = "unsigned"
	refusedOtherKey  = "other_key"
	refusedForged    = "forged"
	refusedMalformed = "malformed"
	refusedElsewhere = "other_federation"
	refusedRepeated  = "repeated"
)

var refusals = []string{refusedUnsigned, refusedOtherKey, refusedForged, refusedMalformed, refusedElsewhere, refusedRepeated}

// errRepeated: true once, but said before. A coordinator writes an event again when
// it does not know whether Redis has it, and a Redis that has lost its stream is
// read from the start; so may whoever can write to it.
var errRepeated = errors.New("agent: an event of this place or a later one was handled before")

func refusal(err error) string {
	switch {
	case errors.Is(err, events.ErrUnsigned):
		return refusedUnsigned
	case errors.Is(err, events.ErrOtherKey):
		return refusedOtherKey
	case errors.Is(err, events.ErrForged):
		return refusedForged
	case errors.Is(err, events.ErrElsewhere):
		return refusedElsewhere
	case errors.Is(err, errRepeated):
		return refusedRepeated
	}
	return refusedMalformed
}

// eventKey is the key of the events of the coordinator that the newest session is
// with. Without one no event is read.
type eventKey struct {
	mu      sync.Mutex
	key     ed25519.PublicKey
	changed chan struct{} // closed and replaced
}

func newEventKey() *eventKey { return &eventKey{changed: make(chan struct{})} }

// set takes what a Welcome says; anything that is no key means none.
func (k *eventKey) set(key []byte) {
	if len(key) != ed25519.PublicKeySize {
		key = nil
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.key.Equal(ed25519.PublicKey(key)) {
		return
	}
	k.key = key
	close(k.changed)
	k.changed = make(chan struct{})
}

// get returns the key, nil without one, and what is closed when it changes.
func (k *eventKey) get() (ed25519.PublicKey, <-chan struct{}) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.key, k.changed
}

// compareIDs compares stream ids, "<milliseconds>-<sequence>".
func compareIDs(a, b string) int {
	am, as := splitID(a)
	bm, bs := splitID(b)
	return cmp.Or(cmp.Compare(am, bm), cmp.Compare(as, bs))
}

func splitID(id string) (ms, seq uint64) {
	m, s, _ := strings.Cut(id, "-")
	ms, _ = strconv.ParseUint(m, 10, 64)
	seq, _ = strconv.ParseUint(s, 10, 64)
	return ms, seq
}

// Package replica owns a member's copy of the shared model on disk and in
// memory, its residual u and the update that it has made and not yet seen
// merged.
//
// It must not know sessions, grants or trainers: it is told what was downloaded
// and what was trained.
//
// # On disk
//
// Each change is one generation: a folder that is filled, synced and then
// renamed into place, with hard links to the files that did not change. The
// current generation and the one before are kept. A damaged one falls back to
// the one before; with none left the replica is empty and the model is pulled
// in full. The folder takes at most five times the model with its momentum, however
// many versions pass.
//
// The residual on disk, and in memory, is u with the pending update not
// subtracted. Settle subtracts what was sent, once a commit lists the update;
// Drop forgets the update and leaves u as it is. So a stale or refused update is
// restored by doing nothing, bit for bit.
package replica

// Package checkpoint owns the commit log: what a coordinator has promised, on
// disk, before it says so to anyone.
//
//	LOCK, TERM                          who may write
//	commits/VERSION/manifest.json       what a commit is and who made it
//	commits/VERSION/delta.bin           the encoded merge, as it goes to the sites
//	commits/VERSION/updates/NNNN.bin    accepted payloads, where they are archived
//	                                    (a rollback has neither: its snapshot is the state)
//	snapshots/VERSION/manifest.json
//	snapshots/VERSION/state.safetensors, residual.safetensors
//	counted.json                        updates of pruned commits, for Recall versions
//	staging/                            unfinished work; emptied by Open
//	damaged/                            what recovery has set aside
//
// A folder appears under commits or snapshots by one rename, after everything in
// it is on disk; so it is there whole or not at all. VERSION has 12 digits.
//
// The package must not know how a delta is encoded or applied, or when a round
// ends.
package checkpoint

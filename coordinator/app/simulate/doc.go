// Package simulate runs a federation on recorded or generated electricity under
// a virtual clock: the same windows (signals/window), choice of sites
// (signals/planner), rounds (coordinator/round) and ledgers (signals/ledger) as
// a live one, with a model in place of the sites. It is driven by events in
// order of time and starts no goroutines, so the same input gives the same
// result to the last bit.
//
// It owns the model of a site and the figures of a run. It must not know how a
// window is decided, how a round commits or how emissions are counted, and reads
// no clock.
//
// The model of a site, which is one member: it draws nothing while it is out; a
// start takes the provisioning time at idle power; it draws training power for
// the steps of a grant and idle power while it synchronises or waits. After a
// round of two or more sites it synchronises for a share of the time that it
// trained; alone it does not. When it is drained it finishes its step, sends
// what it has and is switched off, at the drain's deadline at the latest. Work
// counts when its round commits; what no commit took is lost.
package simulate

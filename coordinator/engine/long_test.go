package engine

import (
	"runtime"
	"testing"

	"girassol.dev/coordinator/checkpoint"
	"girassol.dev/internal/algorithm"
)

// heap is what is in use after a collection.
func heap() uint64 {
	runtime.GC()
	runtime.GC() // finalizers of the first
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

func TestHeapStaysFlatOverHundredsOfRounds(t *testing.T) {
	if testing.Short() {
		t.Skip("200 rounds with a durable commit each")
	}
	sites := siteNames[:3]
	p := defaults(t, algorithm.DecoupledMomentum)
	cfg := testConfig(t.TempDir(), p, sites...)
	cfg.SnapshotEvery = 16
	r, model := newRig(t, cfg), smallModel(t)
	agents := r.joinAll(sites...)
	agents[0].seed(model)
	for _, a := range agents {
		a.committed()
	}
	rounds := func(n int) uint64 {
		for range n {
			r.round(agents, work(t, model, p))
		}
		return heap()
	}
	before := rounds(100) // beyond the versions whose update ids are remembered
	after := rounds(100)
	if after > before+before/5 {
		t.Errorf("heap grew from %d to %d bytes in 100 rounds", before, after)
	}
	t.Logf("heap %d bytes after 100 rounds, %d after 200", before, after)
	if err := r.engine.do(r.ctx(), func() {
		if n := len(r.engine.counted); n > len(sites)*(checkpoint.Recall+1) {
			t.Errorf("%d update ids are remembered", n)
		}
		if n := len(r.engine.uploads); n != 0 {
			t.Errorf("%d uploads are kept", n)
		}
	}); err != nil {
		t.Fatal(err)
	}
}

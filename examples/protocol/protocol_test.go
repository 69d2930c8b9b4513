package protocol

import (
	"flag"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

var (
	baseSeed  = flag.Uint64("seed", 1, "seed of the first schedule; one that is given is run alone, with its trace")
	schedules = flag.Int("schedules", 0, "number of schedules (default 100000, under -race and -short fewer)")
)

// TestMain: almost all memory is short-lived, and there is little of it.
func TestMain(m *testing.M) {
	debug.SetGCPercent(800)
	os.Exit(m.Run())
}

func seedGiven() (given bool) {
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "seed" })
	return given
}

// fails runs a schedule in a world of the seed.
func fails(seed uint64, fault Fault, steps []Step) (w *World, err error) {
	w = NewWorld(seed, fault, false)
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("panic: %v", r)
		}
	}()
	return w, w.Run(steps)
}

// report is the shortest schedule that was found to fail, and its trace.
func report(seed uint64, fault Fault) string {
	steps := Shrink(Schedule(seed), func(s []Step) bool { _, err := fails(seed, fault, s); return err != nil })
	w := NewWorld(seed, fault, true)
	var err error
	func() {
		defer func() {
			if r := recover(); r != nil {
				err = fmt.Errorf("panic: %v", r)
			}
		}()
		err = w.Run(steps)
	}()
	return fmt.Sprintf("seed %d, %d of %d steps: %v\nsteps: %v\n%s", seed, len(steps), len(Schedule(seed)), err, steps, w.Trace())
}

// TestProtocolHoldsUnderAnySchedule is the simulation. It counts seeds up from its base.
func TestProtocolHoldsUnderAnySchedule(t *testing.T) {
	n := *schedules
	switch {
	case n > 0:
	case raceEnabled:
		n = 1000
	case testing.Short():
		n = 10000
	default:
		n = 100_000
	}
	if seedGiven() && *schedules == 0 {
		t.Log(report(*baseSeed, None))
		n = 1
	}
	var next, commits, voids, crashes, stale atomic.Int64
	var bad atomic.Uint64
	var wg sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for bad.Load() == 0 {
				i := next.Add(1) - 1
				if i >= int64(n) {
					return
				}
				seed := *baseSeed + uint64(i)
				w, err := fails(seed, None, Schedule(seed))
				if err != nil {
					bad.CompareAndSwap(0, seed)
				}
				commits.Add(int64(w.Commits))
				voids.Add(int64(w.Voids))
				crashes.Add(int64(w.Crashes))
				stale.Add(int64(w.Stale))
			}
		})
	}
	wg.Wait()
	if seed := bad.Load(); seed != 0 {
		t.Fatalf("%s\nagain: go test -run Protocol ./examples/protocol -seed %d", report(seed, None), seed)
	}
	t.Logf("seeds %d to %d: %d commits, %d void rounds, %d crashes of the coordinator, %d stale updates",
		*baseSeed, *baseSeed+uint64(n)-1, commits.Load(), voids.Load(), crashes.Load(), stale.Load())
	if n >= 1000 && (commits.Load() < int64(3*n) || voids.Load() == 0 || crashes.Load() == 0 || stale.Load() == 0) {
		t.Error("too little happens in these schedules to prove anything")
	}
}

// TestProtocolFaultsAreFound runs the same schedules against worlds that do one thing wrong.
func TestProtocolFaultsAreFound(t *testing.T) {
	most := uint64(20_000)
	if raceEnabled {
		most = 5000
	}
	for _, fault := range Faults() {
		t.Run(strings.ReplaceAll(fault.String(), " ", "-"), func(t *testing.T) {
			t.Parallel()
			for seed := *baseSeed; seed < *baseSeed+most; seed++ {
				if _, err := fails(seed, fault, Schedule(seed)); err != nil {
					steps := Shrink(Schedule(seed), func(s []Step) bool { _, err := fails(seed, fault, s); return err != nil })
					_, err := fails(seed, fault, steps)
					t.Logf("found after %d schedules, in %d steps %v: %v", seed-*baseSeed+1, len(steps), steps, err)
					return
				}
			}
			t.Errorf("not found in %d schedules", most)
		})
	}
}

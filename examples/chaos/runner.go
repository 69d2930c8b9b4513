//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"time"
)

// runner breaks one thing after the other.
type runner struct {
	f      *federation
	rng    *rand.Rand
	steps  int
	kinds  map[string]int
	kills  map[string]int
	drains int
	begin  usage
}

// usage of one process set, by process name.
type usage map[string]struct{ files, routines int }

// mostOverrun is how long after a stop time a trainer may still tell of the step it
// was in, on a machine with more to do than cores.
const mostOverrun = 2.0 // seconds

func (r *runner) killed(name string) {
	if strings.HasPrefix(name, "agent-") {
		name = "agent"
	}
	r.kills[name]++
}

// chaos is a whole run.
func chaos(ctx context.Context, o options) (err error) {
	dir := o.keep
	if dir == "" {
		if dir, err = os.MkdirTemp("", "chaos-"); err != nil {
			return err
		}
		defer func() {
			if err == nil {
				_ = os.RemoveAll(dir)
			}
		}()
	} else if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	o.sayf("seed %d, for %s, %d sites, logs in %s\n", o.seed, o.span, o.agents, dir)
	f, err := newFederation(o, dir)
	if err != nil {
		return err
	}
	if !f.redis {
		o.sayf("no redis-server on this machine: events are left out\n")
	}
	defer f.killAll()
	r := &runner{f: f, rng: rand.New(rand.NewPCG(o.seed, 1)), kinds: map[string]int{}, kills: map[string]int{}}
	if err = r.run(ctx); err != nil {
		err = fmt.Errorf("%w\nagain: chaos --seed %d --for %s; logs are in %s", err, o.seed, o.span, dir)
		f.tails()
	}
	r.report(err)
	return err
}

func (r *runner) run(ctx context.Context) error {
	if err := r.f.startAll(); err != nil {
		return err
	}
	if err := r.look(); err != nil {
		return fmt.Errorf("before the first fault: %w", err)
	}
	var err error
	if r.begin, err = r.f.usage(); err != nil {
		return err
	}
	end := time.Now().Add(r.f.o.span)
	var bag []fault
	for time.Now().Before(end) && ctx.Err() == nil {
		if len(bag) == 0 {
			bag = r.refill()
		}
		next := bag[0]
		bag = bag[1:]
		if err := r.step(next); err != nil {
			return fmt.Errorf("step %d, %s: %w", r.steps, next.name, err)
		}
	}
	if err := r.leaks(); err != nil {
		return err
	}
	if err := r.f.stopAll(); err != nil {
		return err
	}
	return errors.Join(r.f.book.follow(), r.f.book.replicas(r.f))
}

// refill draws all faults that are possible here in a new order.
func (r *runner) refill() []fault {
	var bag []fault
	for _, x := range faults {
		if (!x.wired || r.f.net != nil) && (!x.redis || r.f.redis) {
			bag = append(bag, x)
		}
	}
	r.rng.Shuffle(len(bag), func(i, j int) { bag[i], bag[j] = bag[j], bag[i] })
	return bag
}

func (r *runner) step(x fault) error {
	r.steps++
	r.kinds[x.name]++
	began := time.Now()
	if err := x.do(r); err != nil {
		return err
	}
	lasted := time.Since(began)
	began = time.Now()
	if err := r.look(); err != nil {
		return err
	}
	r.f.o.sayf("%4d  %-36s %5.1fs, sound after %5.1fs, version %d\n", r.steps, x.name, lasted.Seconds(), time.Since(began).Seconds(), r.f.book.version)
	return nil
}

// look waits until the federation has come to itself and checks what must hold.
func (r *runner) look() error {
	st, err := r.f.sound()
	if err != nil {
		return err
	}
	if err := r.f.book.kept(st.GetVersion()); err != nil {
		return err
	}
	if err := errors.Join(r.f.book.follow(), r.f.book.replicas(r.f)); err != nil {
		return err
	}
	if late, _ := overrun(r.f); late > mostOverrun {
		return fmt.Errorf("a trainer told of a step %.2f s after its stop time", late)
	}
	return nil
}

// usage of descriptors and goroutines, with everything at work.
func (f *federation) usage() (usage, error) {
	out := usage{}
	for name, p := range f.procs {
		u := out[name]
		u.files = open(p.pid())
		host := strings.TrimPrefix(name, "agent-")
		if name != "redis" && name != "source" {
			n, err := metric(f.address(host, portMetrics), "go_goroutines")
			if err != nil {
				return nil, err
			}
			u.routines = int(n)
		}
		out[name] = u
	}
	return out, nil
}

// leaks compares with the begin: some more is chance, twice as much is not.
func (r *runner) leaks() error {
	if _, err := r.f.sound(); err != nil {
		return err
	}
	end, err := r.f.usage()
	if err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(r.begin)) {
		was, is := r.begin[name], end[name]
		r.f.o.sayf("      %-12s descriptors %3d -> %3d, goroutines %3d -> %3d\n", name, was.files, is.files, was.routines, is.routines)
		if is.files > was.files*3/2+10 || is.routines > was.routines*3/2+20 {
			err = errors.Join(err, fmt.Errorf("%s leaks: %d descriptors and %d goroutines at first, %d and %d at last", name, was.files, was.routines, is.files, is.routines))
		}
	}
	return err
}

func (r *runner) report(err error) {
	b := r.f.book
	late, told := overrun(r.f)
	r.f.o.sayf("\nseed %d: %d steps, %d commits, %d updates merged, %d drains in time, %d processes started again\n", r.f.o.seed, r.steps, b.commits, b.merged, r.drains, r.f.revived)
	r.f.o.sayf("lost commits %d, double counts %d, worst step end after a stop time %.2f s of %d progress reports\n", b.lost, b.doubles, late, told)
	for _, m := range []struct {
		what string
		of   map[string]int
	}{{"kills", r.kills}, {"faults", r.kinds}} {
		var parts []string
		for _, name := range slices.Sorted(maps.Keys(m.of)) {
			parts = append(parts, fmt.Sprintf("%s %d", name, m.of[name]))
		}
		r.f.o.sayf("%s: %s\n", m.what, strings.Join(parts, ", "))
	}
	if n := r.f.net; n != nil {
		n.mu.Lock()
		r.f.o.sayf("packets: %d carried, %d lost\n", n.carried, n.dropped)
		n.mu.Unlock()
	}
	if err == nil {
		r.f.o.sayf("leaked sessions 0; everything held\n")
	}
}

// tails shows the ends of all logs.
func (f *federation) tails() {
	for name, p := range f.procs {
		b, _ := os.ReadFile(p.log)
		f.o.sayf("--- %s\n%s\n", name, b[max(0, len(b)-3000):])
	}
}

//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
)

// fault is one kind of trouble. do makes it and ends it; what it returns is what
// went wrong beside that.
type fault struct {
	name string
	// wired: it needs namespaces and disks of our own; redis: a Redis.
	wired, redis bool
	do           func(r *runner) error
}

var faults = []fault{
	{name: "kill coordinator", do: func(r *runner) error { return r.kill("coordinator") }},
	{name: "kill coordinator", do: func(r *runner) error { return r.kill("coordinator") }},
	{name: "kill agent", do: func(r *runner) error { return r.kill("agent-" + r.anySite()) }},
	{name: "kill agent", do: func(r *runner) error { return r.kill("agent-" + r.anySite()) }},
	{name: "kill trainer", do: killTrainer},
	{name: "kill all at once", do: killAll},
	{name: "kill redis", redis: true, do: func(r *runner) error { return r.away("redis", r.between(2, 6)) }},
	{name: "kill signal source", do: func(r *runner) error { return r.away("source", r.between(2, 6)) }},
	{name: "agent leaves and comes back", do: leave},
	{name: "freeze coordinator", do: func(r *runner) error { return r.freeze("coordinator") }},
	{name: "freeze agent", do: func(r *runner) error { return r.freeze("agent-" + r.anySite()) }},
	{name: "freeze trainer", do: freezeTrainer},
	{name: "trainer out of memory", do: swollen},
	{name: "drain by wish", do: drainByWish},
	{name: "drain by energy", do: drainByEnergy},
	{name: "hang a site's connection", do: hang},
	{name: "partition", wired: true, do: func(r *runner) error { return r.lossy(r.anySite(), 1, 1, r.between(2, 8)) }},
	{name: "half-open: a site is not heard", wired: true, do: func(r *runner) error { return r.lossy(r.anySite(), 1, 0, r.between(2, 8)) }},
	{name: "half-open: a site does not hear", wired: true, do: func(r *runner) error { return r.lossy(r.anySite(), 0, 1, r.between(2, 8)) }},
	{name: "partition of the coordinator", wired: true, do: func(r *runner) error { return r.lossy("coordinator", 1, 1, r.between(2, 8)) }},
	{name: "partition of redis", wired: true, redis: true, do: func(r *runner) error { return r.lossy("redis", 1, 1, r.between(2, 8)) }},
	{name: "half of all packets lost", wired: true, do: func(r *runner) error { return r.lossy("coordinator", 0.5, 0.5, r.f.o.loss) }},
	{name: "coordinator's disk full", wired: true, do: func(r *runner) error { return r.fill("coordinator") }},
	{name: "agent's disk full", wired: true, do: func(r *runner) error { return r.fill(r.anySite()) }},
	{name: "coordinator's disk read-only", wired: true, do: func(r *runner) error { return r.readOnly("coordinator") }},
	{name: "agent's disk read-only", wired: true, do: func(r *runner) error { return r.readOnly(r.anySite()) }},
	{name: "coordinator moves to another host", wired: true, do: move},
	{name: "two coordinators, locked", do: second},
	{name: "two coordinators, without a lock", wired: true, do: usurp},
}

func (r *runner) anySite() string { return r.f.sites[r.rng.IntN(len(r.f.sites))] }

// between so many seconds.
func (r *runner) between(least, most int) time.Duration {
	return time.Duration(least*1000+r.rng.IntN((most-least)*1000)) * time.Millisecond
}

// kill -9, and the supervisor starts it again.
func (r *runner) kill(name string) error {
	time.Sleep(time.Duration(r.rng.IntN(1500)) * time.Millisecond) // anywhere in a round
	r.killed(name)
	r.f.procs[name].kill()
	return nil
}

// away is a kill after which nobody starts it for a while.
func (r *runner) away(name string, span time.Duration) error {
	r.f.down[name] = true
	defer delete(r.f.down, name)
	return errors.Join(r.kill(name), r.f.linger(span))
}

func killTrainer(r *runner) error {
	time.Sleep(time.Duration(r.rng.IntN(1500)) * time.Millisecond)
	spies := children(r.f.procs["agent-"+r.anySite()].pid())
	for _, spy := range spies {
		for _, trainer := range children(spy) {
			_ = syscall.Kill(trainer, syscall.SIGKILL)
			r.killed("trainer")
		}
	}
	return nil
}

// killAll is a power cut.
func killAll(r *runner) error {
	names := []string{"coordinator", "source"}
	if r.f.redis {
		names = append(names, "redis")
	}
	for _, s := range r.f.sites {
		names = append(names, "agent-"+s)
	}
	for _, name := range names {
		r.killed(name)
		_ = r.f.procs[name].cmd.Process.Kill()
	}
	for _, name := range names {
		<-r.f.procs[name].done
	}
	return nil
}

func leave(r *runner) error {
	name := "agent-" + r.anySite()
	r.f.down[name] = true
	defer delete(r.f.down, name)
	began := time.Now()
	if code := r.f.procs[name].stop(15 * time.Second); code != 0 {
		return fmt.Errorf("%s ended with code %d after SIGTERM", name, code)
	}
	// Its grace is 5 s, the federation's 3 s.
	if took := time.Since(began); took > 7*time.Second {
		return fmt.Errorf("%s took %s to leave, its grace is 5s", name, took)
	}
	return r.f.linger(r.between(1, 3))
}

func (r *runner) freeze(name string) error {
	p := r.f.procs[name]
	span := r.between(2, 10)
	if err := p.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	err := r.f.lingerOnly(span)
	return errors.Join(err, p.cmd.Process.Signal(syscall.SIGCONT))
}

func freezeTrainer(r *runner) error {
	span := r.between(1, 4)
	var pids []int
	for _, spy := range children(r.f.procs["agent-"+r.anySite()].pid()) {
		pids = append(append(pids, spy), children(spy)...)
	}
	for _, pid := range pids {
		_ = syscall.Kill(pid, syscall.SIGSTOP)
	}
	err := r.f.linger(span)
	for _, pid := range slices.Backward(pids) {
		_ = syscall.Kill(pid, syscall.SIGCONT)
	}
	return err
}

// swollen has a trainer take more memory than it may; the agent must end it.
func swollen(r *runner) error {
	s := r.anySite()
	spies := children(r.f.procs["agent-"+s].pid())
	if len(spies) == 0 {
		return nil // just being started again
	}
	if err := syscall.Kill(spies[0], syscall.SIGUSR1); err != nil {
		return nil //nolint:nilerr // it has ended meanwhile
	}
	r.killed("trainer by memory")
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		if !slices.Contains(children(r.f.procs["agent-"+s].pid()), spies[0]) {
			return nil
		}
		if err := r.f.watch(); err != nil {
			return err
		}
	}
	return fmt.Errorf("within %s the agent of %s did not end a trainer above its memory limit", patience, s)
}

// drained waits until a site has no work, and says how long that took.
func (r *runner) drained(s string, most time.Duration) error {
	member := s + "/n1"
	_, err := r.f.until(fmt.Sprintf("%s drained", s), most, func(st *coordinatorv1.FederationStatus) string {
		if slices.Contains(st.GetRound().GetWaitingFor(), member) || site(st, s).GetPhase() != "Idle" {
			return fmt.Sprintf("site %s is %s because %s", s, site(st, s).GetPhase(), site(st, s).GetReason())
		}
		return ""
	})
	return err
}

// The deadline of a drain, and what asking for the status may take on a busy machine.
const drainFor, statusTakes = 3 * time.Second, 3 * time.Second

func drainByWish(r *runner) error {
	s := r.anySite()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	set := func(m coordinatorv1.Membership) error {
		_, err := r.f.admin.SetMembership(ctx, &coordinatorv1.SetMembershipRequest{Site: s, Membership: m, DeadlineMs: drainFor.Milliseconds(), Reason: "Drained", Message: "chaos"})
		return err
	}
	if err := set(coordinatorv1.Membership_MEMBERSHIP_DRAIN); err != nil {
		return err
	}
	if err := r.drained(s, drainFor+statusTakes); err != nil {
		return err
	}
	r.drains++
	if err := r.f.linger(time.Second); err != nil {
		return err
	}
	return set(coordinatorv1.Membership_MEMBERSHIP_ADMIT)
}

func drainByEnergy(r *runner) error {
	s := r.anySite()
	if err := r.f.carbon(s, 900); err != nil {
		return err
	}
	if err := r.drained(s, patience); err != nil {
		return err
	}
	r.drains++
	return errors.Join(r.f.linger(time.Second), r.f.carbon(s, 50))
}

// hang stops a site's connection: by the wire, or by its proxy.
func hang(r *runner) error {
	s := r.anySite()
	if p := r.f.proxies[s]; p != nil {
		p.hung.Store(true)
		defer p.hung.Store(false)
		return r.f.linger(r.between(1, 6))
	}
	r.f.net.set(r.f.hosts[s], r.f.hosts[r.f.active], 1)
	r.f.net.set(r.f.hosts[r.f.active], r.f.hosts[s], 1)
	defer r.f.net.mend()
	return r.f.linger(r.between(1, 6))
}

// lossy loses a share of what a host sends and gets.
func (r *runner) lossy(name string, out, in float64, span time.Duration) error {
	if name == "coordinator" {
		name = r.f.active
	}
	r.f.net.around(r.f.hosts[name], r.f.me, out, in)
	defer r.f.net.mend()
	return r.f.linger(span)
}

// fill leaves no room on a disk for a while.
func (r *runner) fill(name string) error {
	path := filepath.Join(r.f.data(name), "ballast")
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close(); _ = os.Remove(path) }()
	block := make([]byte, 64<<10)
	for size := len(block); size >= 4096; {
		if _, err := f.Write(block[:size]); err != nil {
			size /= 2
		}
	}
	return r.f.linger(r.between(3, 6))
}

// readOnly takes a disk's writes away, as a kernel does that has found an error on it.
func (r *runner) readOnly(name string) error {
	// Open for writing blocks it: whoever uses the disk is killed for that moment.
	process := "coordinator"
	if name != "coordinator" {
		process = "agent-" + name
	}
	r.f.down[process] = true
	r.killed(process)
	r.f.procs[process].kill()
	set := func(flags uintptr) error {
		var err error
		for range 50 {
			if err = syscall.Mount("tmpfs", r.f.data(name), "tmpfs", syscall.MS_REMOUNT|flags, fmt.Sprintf("size=%dm", diskMiB)); err == nil {
				return nil
			}
			time.Sleep(100 * time.Millisecond) // its trainer has a file open
		}
		return fmt.Errorf("remount of the disk of %s: %w", name, err)
	}
	err := set(syscall.MS_RDONLY)
	delete(r.f.down, process)
	if err == nil {
		err = r.f.linger(r.between(2, 5))
	}
	return errors.Join(err, set(0))
}

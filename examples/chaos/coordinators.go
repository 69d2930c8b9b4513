//go:build linux

package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// move is a coordinator that starts again on another host, on the same store and
// under the same address.
func move(r *runner) error {
	r.f.down["coordinator"] = true
	defer delete(r.f.down, "coordinator")
	r.killed("coordinator")
	r.f.procs["coordinator"].kill()
	r.f.active = map[string]string{"coordinator": "spare", "spare": "coordinator"}[r.f.active]
	r.f.net.move(r.f.hosts[r.f.active])
	return r.f.startCoordinator()
}

// second starts another coordinator on the store, which must refuse at once.
func second(r *runner) error {
	on := map[string]string{"coordinator": "spare", "spare": "coordinator"}[r.f.active]
	p, err := start(r.f.hosts[on], r.f.dir, "second", r.f.self, append(r.f.coordinatorArgs(), "--listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0")...)
	if err != nil {
		return err
	}
	defer func() {
		if p.running() {
			p.kill()
		}
	}()
	if code := p.wait(20 * time.Second); code <= 0 {
		return fmt.Errorf("a second coordinator on the same store ended with code %d, want it refused", code)
	}
	return nil
}

// usurp is a store whose lock does not hold, as on some network file systems: the
// newer coordinator fences the older one, which must end by itself.
func usurp(r *runner) error {
	old := r.f.procs["coordinator"]
	from := old.logSize()
	if err := os.Remove(filepath.Join(r.f.data("coordinator"), "LOCK")); err != nil {
		return err
	}
	r.f.down["coordinator"] = true
	defer delete(r.f.down, "coordinator")
	before := r.f.active
	r.f.active = map[string]string{"coordinator": "spare", "spare": "coordinator"}[before]
	newer, err := start(r.f.hosts[r.f.active], r.f.dir, "coordinator-"+r.f.active, r.f.self, r.f.coordinatorArgs()...)
	if err != nil {
		return err
	}
	// Both are at work, and the sites still reach the older one.
	for end := time.Now().Add(patience); old.running() && time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if err := r.f.book.follow(); err != nil {
			newer.kill()
			return err
		}
	}
	if old.running() {
		newer.kill()
		return fmt.Errorf("within %s a fenced coordinator did not end", patience)
	}
	r.f.net.move(r.f.hosts[r.f.active])
	r.f.procs["coordinator"] = newer
	if !old.said(from, "a newer coordinator has taken over the store") {
		return errors.New("a coordinator that was fenced does not say so")
	}
	return nil
}

package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// lifelineEnv tells a child that its standard input is a pipe which breaks when
// the quickstart is gone.
const lifelineEnv = "GIRASSOL_QUICKSTART_LIFELINE"

// holdLifeline makes sure that a child does not outlive a killed quickstart: it
// asks itself to end, and after a while insists.
func holdLifeline() {
	if os.Getenv(lifelineEnv) == "" {
		return
	}
	_ = os.Unsetenv(lifelineEnv) // not for the children's children
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		_ = syscall.Kill(os.Getpid(), syscall.SIGTERM)
		time.Sleep(10 * time.Second)
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	}()
}

// child is one started process in a process group of its own, so that Ctrl-C in
// the terminal reaches only the quickstart.
type child struct {
	name string
	log  string
	args []string
	cmd  *exec.Cmd
	// restarts so far.
	restarts int
	// err is valid once done is closed.
	err  error
	done chan struct{}
}

// fleet is all children. Its methods may be called from several goroutines.
type fleet struct {
	self string

	mu       sync.Mutex
	children []*child
	ended    chan *child
}

func newFleet() (*fleet, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("own executable: %w", err)
	}
	return &fleet{self: self, ended: make(chan *child, 64)}, nil
}

// start runs the binary in a role; what it writes goes to the log file.
func (f *fleet) start(name, log string, args ...string) (*child, error) {
	c := &child{name: name, log: log, args: args}
	f.mu.Lock()
	f.children = append(f.children, c)
	f.mu.Unlock()
	return c, f.launch(c)
}

// again starts an ended child once more.
func (f *fleet) again(c *child) error {
	c.restarts++
	return f.launch(c)
}

func (f *fleet) launch(c *child) error {
	out, err := os.OpenFile(c.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("%s: %w", c.name, err)
	}
	defer func() { _ = out.Close() }() // the child has its own
	cmd := exec.Command(f.self, c.args...)
	cmd.Stdout, cmd.Stderr = out, out
	cmd.Env = append(os.Environ(), lifelineEnv+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if _, err := cmd.StdinPipe(); err != nil {
		return fmt.Errorf("%s: %w", c.name, err)
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("%s: %w", c.name, err)
	}
	done := make(chan struct{})
	f.mu.Lock()
	c.cmd, c.done, c.err = cmd, done, nil
	f.mu.Unlock()
	go func() {
		err := cmd.Wait()
		f.mu.Lock()
		c.err = err
		f.mu.Unlock()
		close(done)
		f.ended <- c
	}()
	return nil
}

// running lists the children that have not ended, those alone that match.
func (f *fleet) running(match func(*child) bool) []*child {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(f.children), func(c *child) bool {
		if c.done == nil || !match(c) {
			return true
		}
		select {
		case <-c.done:
			return true
		default:
			return false
		}
	})
}

func (f *fleet) signal(children []*child, sig syscall.Signal) {
	for _, c := range children {
		if err := c.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
			f.killGroup(c)
		}
	}
}

func (f *fleet) killGroup(c *child) { _ = syscall.Kill(-c.cmd.Process.Pid, syscall.SIGKILL) }

// kill ends everything at once and returns the names of what was still there.
func (f *fleet) kill() []string {
	var names []string
	for _, c := range f.running(func(*child) bool { return true }) {
		names = append(names, c.name)
		f.killGroup(c)
	}
	return names
}

// how says in a word how a child ended.
func (f *fleet) how(c *child) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	if c.err != nil {
		return c.err.Error()
	}
	return "exit status 0"
}

// reason is how, with the end of the child's log.
func (f *fleet) reason(c *child) string {
	how := f.how(c)
	if tail := lastLines(c.log, 3); tail != "" {
		how += ": " + tail
	}
	return how
}

// lastLines reads the end of a log file.
func lastLines(path string, n int) string {
	file, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer func() { _ = file.Close() }()
	info, err := file.Stat()
	if err != nil {
		return ""
	}
	b := make([]byte, min(info.Size(), 4096))
	if _, err := file.ReadAt(b, info.Size()-int64(len(b))); err != nil {
		return ""
	}
	lines := strings.Split(string(bytes.TrimSpace(b)), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], " | ")
}

func isAgent(c *child) bool       { return strings.HasPrefix(c.name, "agent ") }
func isCoordinator(c *child) bool { return c.name == roleCoordinator }

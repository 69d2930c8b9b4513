//go:build linux

package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// process is one child, on its host.
type process struct {
	name string
	cmd  *exec.Cmd
	log  string
	done chan struct{}
}

// start runs a program on a host (nil: here), its output appended to a log. It ends
// with this process at the latest.
func start(h *host, dir, name, program string, args ...string) (*process, error) {
	p := &process{name: name, log: filepath.Join(dir, name+".log"), done: make(chan struct{})}
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	p.cmd = exec.Command(program, args...)
	p.cmd.Stdout, p.cmd.Stderr = log, log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if h == nil {
		err = p.cmd.Start()
	} else {
		p.cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL // of the host's thread, which lives as long as this process
		err = h.do(p.cmd.Start)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	go func() { _ = p.cmd.Wait(); close(p.done) }()
	return p, nil
}

func (p *process) pid() int { return p.cmd.Process.Pid }

func (p *process) running() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// kill is kill -9, and waits until the process is gone.
func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	<-p.done
}

// wait for the end; the exit code, -1 if it did not come in time.
func (p *process) wait(most time.Duration) int {
	select {
	case <-p.done:
		return p.cmd.ProcessState.ExitCode()
	case <-time.After(most):
		return -1
	}
}

// stop is SIGTERM; it returns the exit code.
func (p *process) stop(most time.Duration) int {
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	return p.wait(most)
}

// said is whether the log has the text after offset from.
func (p *process) said(from int64, text string) bool {
	b, err := os.ReadFile(p.log)
	return err == nil && int64(len(b)) > from && strings.Contains(string(b[from:]), text)
}

func (p *process) logSize() int64 {
	fi, err := os.Stat(p.log)
	if err != nil {
		return 0
	}
	return fi.Size()
}

// children are the live child processes of a process.
func children(parent int) []int {
	var out []int
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, f := range stats {
		b, err := os.ReadFile(f)
		if err != nil {
			continue
		}
		text := string(b) // pid (comm) state ppid ...; the last ')' ends comm
		rest := strings.Fields(text[strings.LastIndexByte(text, ')')+1:])
		if len(rest) > 1 && rest[0] != "Z" && rest[1] == strconv.Itoa(parent) {
			pid, _ := strconv.Atoi(text[:strings.IndexByte(text, ' ')])
			out = append(out, pid)
		}
	}
	return out
}

// open is how many descriptors a process has, 0 if it is gone.
func open(pid int) int {
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		return 0
	}
	return len(entries)
}

package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	coordinatorapp "girassol.dev/coordinator/app"
)

// roleCoordinator is the first argument with which the binary executes itself.
const roleCoordinator = "coordinator"

// runCoordinator is the child: a coordinator that ends when its standard input
// does, so that none outlives a killed benchmark.
func runCoordinator(args []string, stderr io.Writer) int {
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(1)
	}()
	cmd := coordinatorapp.Command()
	cmd.SetArgs(args)
	cmd.SetErr(stderr)
	if err := cmd.ExecuteContext(context.Background()); err != nil {
		fmt.Fprintln(stderr, "coordinator:", err)
		return 1
	}
	return 0
}

// coordinator is a running coordinator process.
type coordinator struct {
	cmd   *exec.Cmd
	stdin io.Closer
	addr  string
	peaks *sampler

	mu   sync.Mutex
	tail []string
	done chan struct{} // closed when the process has ended and its log is read
	err  error         // valid once done is closed
}

// startCoordinator returns once the process takes connections.
func startCoordinator(ctx context.Context, args ...string) (*coordinator, error) {
	return startWatchedCoordinator(ctx, func([]byte) {}, args...)
}

// startWatchedCoordinator shows watch each line of the log.
func startWatchedCoordinator(ctx context.Context, watch func(line []byte), args ...string) (*coordinator, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	args = append([]string{roleCoordinator, "--listen", "127.0.0.1:0", "--log-format", "json"}, args...)
	c := &coordinator{cmd: exec.Command(self, args...), done: make(chan struct{})}
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C is the benchmark's
	if c.stdin, err = c.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	log, err := c.cmd.StderrPipe()
	if err != nil {
		return nil, err
	}
	if err := c.cmd.Start(); err != nil {
		return nil, err
	}
	c.peaks = sample(c.cmd.Process.Pid)
	serves := make(chan string, 1)
	go func() {
		defer close(c.done)
		c.read(log, serves, watch)
		c.peaks.stop()
		c.err = c.cmd.Wait()
	}()
	select {
	case c.addr = <-serves:
		return c, nil
	case <-c.done:
		return nil, fmt.Errorf("the coordinator ended: %w\n%s", c.err, c.log())
	case <-ctx.Done():
		c.kill()
		return nil, context.Cause(ctx)
	}
}

// read keeps the end of the log and finds the address in it.
func (c *coordinator) read(log io.Reader, serves chan<- string, watch func(line []byte)) {
	const keep = 30
	lines := bufio.NewScanner(log)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		watch(lines.Bytes())
		var l struct{ Msg, Address string }
		if json.Unmarshal(lines.Bytes(), &l) == nil && l.Msg == "coordinator serves" {
			serves <- l.Address
		}
		c.mu.Lock()
		c.tail = append(c.tail, lines.Text())
		if len(c.tail) > keep {
			c.tail = slices.Delete(c.tail, 0, 1)
		}
		c.mu.Unlock()
	}
}

func (c *coordinator) log() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return strings.Join(c.tail, "\n")
}

// kill ends the process at once, as a crash would.
func (c *coordinator) kill() {
	_ = c.cmd.Process.Kill()
	<-c.done
	_ = c.stdin.Close()
}

// usage is what a process has taken so far.
type usage struct {
	at  time.Time
	cpu time.Duration
	own time.Duration // of this process, which plays the sites
}

// userHZ is the unit of CPU times in /proc, in 1/s: fixed on Linux.
const userHZ = 100

func (c *coordinator) usage() (usage, error) { return usageOf(c.cmd.Process.Pid) }

func usageOf(pid int) (usage, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return usage{}, fmt.Errorf("CPU time of process %d (needs Linux): %w", pid, err)
	}
	// The command's name, in parentheses, may hold anything.
	f := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	if len(f) < 13 {
		return usage{}, fmt.Errorf("unexpected /proc/PID/stat: %q", b)
	}
	user, err := strconv.ParseInt(f[11], 10, 64)
	system, err2 := strconv.ParseInt(f[12], 10, 64)
	return usage{time.Now(), time.Duration(user+system) * time.Second / userHZ, ownCPU()}, errors.Join(err, err2)
}

// resident is a process's memory in RAM, in bytes.
type resident struct {
	// HighWater is VmHWM, kept by the kernel: exact between the samples too.
	HighWater int64 `json:"highWaterBytes"`
	// RSS and its parts: Anon is heap and model buffers, File mapped files (the
	// binary), Shmem shared memory. The page cache is none of it.
	RSS   int64 `json:"rssBytes"`
	Anon  int64 `json:"anonBytes"`
	File  int64 `json:"fileBytes"`
	Shmem int64 `json:"shmemBytes"`
}

func readResident(pid int) (resident, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return resident{}, fmt.Errorf("memory of the coordinator (needs Linux): %w", err)
	}
	var r resident
	fields := map[string]*int64{"VmHWM": &r.HighWater, "VmRSS": &r.RSS, "RssAnon": &r.Anon, "RssFile": &r.File, "RssShmem": &r.Shmem}
	for line := range strings.Lines(string(b)) {
		key, value, _ := strings.Cut(line, ":")
		if to := fields[key]; to != nil {
			kib, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 64)
			if err != nil {
				return resident{}, fmt.Errorf("/proc/PID/status: %q: %w", line, err)
			}
			*to = kib << 10
		}
	}
	return r, nil
}

// sampler keeps the greatest sample of a process, by RSS.
type sampler struct {
	quit chan struct{}
	done chan struct{}
	once sync.Once

	mu   sync.Mutex
	most resident
}

// sampleEvery so often the split is read; HighWater misses nothing in between.
const sampleEvery = 20 * time.Millisecond

func sample(pid int) *sampler {
	s := &sampler{quit: make(chan struct{}), done: make(chan struct{})}
	go func() {
		defer close(s.done)
		t := time.NewTicker(sampleEvery)
		defer t.Stop()
		for {
			if r, err := readResident(pid); err == nil {
				s.take(r)
			}
			select {
			case <-s.quit:
				return
			case <-t.C:
			}
		}
	}()
	return s
}

func (s *sampler) take(r resident) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.RSS > s.most.RSS {
		s.most.RSS, s.most.Anon, s.most.File, s.most.Shmem = r.RSS, r.Anon, r.File, r.Shmem
	}
	s.most.HighWater = max(s.most.HighWater, r.HighWater)
}

func (s *sampler) stop() {
	s.once.Do(func() { close(s.quit) })
	<-s.done
}

// resident reads the process's peak up to now.
func (c *coordinator) resident() (resident, error) {
	r, err := readResident(c.cmd.Process.Pid)
	if err != nil {
		return resident{}, err
	}
	c.peaks.take(r)
	c.peaks.mu.Lock()
	defer c.peaks.mu.Unlock()
	return c.peaks.most, nil
}

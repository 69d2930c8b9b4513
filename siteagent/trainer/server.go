package trainer

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"

	trainerv1 "girassol.dev/api/trainer/v1"
)

// The limits and defaults of the trainer API.
const (
	// MaxSocketPath is what sockaddr_un holds on Linux, in bytes.
	MaxSocketPath = 107
	// MaxBody of a request, in bytes.
	MaxBody = 1 << 20
	// MaxWait of a long poll.
	MaxWait = 60 * time.Second
	// DefaultGrace after a task's stop time for saving and posting the result.
	DefaultGrace = 30 * time.Second
	// DefaultStallTimeout is generous: a first step may compile kernels.
	DefaultStallTimeout = 5 * time.Minute

	bodyTimeout  = 10 * time.Second
	writeTimeout = 10 * time.Second
	closeTimeout = 2 * time.Second
	// attachGap is the longest pause between two requests of a trainer that
	// still counts as attached.
	attachGap = 5 * time.Second
)

// Options of a Server.
type Options struct {
	// SocketPath is where trainers connect, at most MaxSocketPath bytes. Its
	// folder is made with mode 0700; a wider one is refused.
	SocketPath string
	// WorkDir holds models and results; nothing outside it is ever read on a
	// trainer's word.
	WorkDir string
	Log     *slog.Logger
	// Grace after a task's StopAt until its result counts as lost.
	// 0: DefaultGrace.
	Grace time.Duration
	// StallTimeout is the longest silence of a trainer that holds a task.
	// 0: DefaultStallTimeout.
	StallTimeout time.Duration
	// OnStall is told that a trainer fell silent, overran its stop time, or goes on
	// with a task that it was told to end; a supervisor restarts it then. It must
	// not block. May be nil.
	OnStall func(reason string)
	// LastWords is what the trainer wrote last, for failures that it does not
	// explain itself. May be nil.
	LastWords func() string
}

// Server serves the trainer API to one trainer. All methods are safe for
// concurrent use.
type Server struct {
	opts Options
	work string // WorkDir, absolute, symlinks resolved
	log  *slog.Logger

	mu         sync.Mutex
	changed    chan struct{} // closed and replaced at each change that waiters care about
	current    *run
	ended      endedTasks
	polls      int
	lastSeen   time.Time
	seedWanted bool
	stopping   bool
	seeds      chan trainerv1.Seed
	dropped    *dropped // nil while the trainer is free or at the current task
	offerCheck func(path string) error
}

// New checks the options and makes the work folder (mode 0700). Serve listens.
func New(o Options) (*Server, error) {
	if o.SocketPath == "" || o.WorkDir == "" {
		return nil, errors.New("trainer: both a socket path and a work folder are needed")
	}
	if n := len(o.SocketPath); n > MaxSocketPath {
		return nil, fmt.Errorf("trainer: socket path %q has %d bytes, a Unix socket takes at most %d: choose a shorter folder",
			o.SocketPath, n, MaxSocketPath)
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Grace <= 0 {
		o.Grace = DefaultGrace
	}
	if o.StallTimeout <= 0 {
		o.StallTimeout = DefaultStallTimeout
	}
	if err := os.MkdirAll(o.WorkDir, 0o700); err != nil {
		return nil, fmt.Errorf("trainer: work folder: %w", err)
	}
	work, err := filepath.Abs(o.WorkDir)
	if err == nil {
		work, err = filepath.EvalSymlinks(work)
	}
	if err != nil {
		return nil, fmt.Errorf("trainer: work folder %s: %w", o.WorkDir, err)
	}
	return &Server{
		opts: o, work: work, log: o.Log,
		changed: make(chan struct{}),
		ended:   endedTasks{state: map[string]ending{}},
		seeds:   make(chan trainerv1.Seed, 1),
	}, nil
}

// Serve listens on the socket and answers until ctx ends, then refuses long
// polls, closes and removes the socket. It returns nil when ctx ended it.
func (s *Server) Serve(ctx context.Context) error {
	l, err := listen(s.opts.SocketPath)
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.stopping = false
	s.mu.Unlock()
	hs := &http.Server{
		Handler:           s.Handler(),
		ReadHeaderTimeout: bodyTimeout,
		IdleTimeout:       2 * MaxWait,
		MaxHeaderBytes:    16 << 10,
		ErrorLog:          slog.NewLogLogger(s.log.Handler(), slog.LevelWarn),
		BaseContext:       func(net.Listener) context.Context { return context.WithoutCancel(ctx) },
	}
	type ended struct{ err error }
	done := make(chan ended, 1)
	go func() { done <- ended{hs.Serve(l)} }()
	select {
	case e := <-done:
		return fmt.Errorf("trainer: serve %s: %w", s.opts.SocketPath, e.err)
	case <-ctx.Done():
	}
	s.mu.Lock()
	s.stopping = true
	s.forget()
	s.wake()
	s.mu.Unlock()
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	if err := hs.Shutdown(bounded); err != nil {
		_ = hs.Close()
	}
	<-done // with http.ErrServerClosed
	return nil
}

// listen takes the socket path: folder 0700, socket 0600, a stale socket of a
// dead agent removed, a live one respected.
func listen(path string) (net.Listener, error) {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("trainer: socket folder: %w", err)
	}
	fi, err := os.Stat(dir)
	if err != nil {
		return nil, fmt.Errorf("trainer: socket folder: %w", err)
	}
	if p := fi.Mode().Perm(); p&0o077 != 0 {
		return nil, fmt.Errorf("trainer: socket folder %s has mode %04o, others could reach the socket: use a folder of its own with mode 0700", dir, p)
	}
	switch fi, err := os.Lstat(path); {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, fmt.Errorf("trainer: socket: %w", err)
	case fi.Mode()&fs.ModeSocket == 0:
		return nil, fmt.Errorf("trainer: %s exists and is no socket: remove it or choose another path", path)
	default:
		if c, err := net.DialTimeout("unix", path, time.Second); err == nil {
			_ = c.Close()
			return nil, fmt.Errorf("trainer: another agent serves %s", path)
		}
		if err := os.Remove(path); err != nil {
			return nil, fmt.Errorf("trainer: stale socket: %w", err)
		}
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("trainer: listen: %w", err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		_ = l.Close()
		return nil, fmt.Errorf("trainer: socket mode: %w", err)
	}
	return l, nil
}

// wake tells all waiters to look again. s.mu is held.
func (s *Server) wake() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// Attached says whether a trainer is there: it polls, asked a moment ago, or
// holds a task and is not silent.
func (s *Server) Attached() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.attached(time.Now())
}

func (s *Server) attached(now time.Time) bool {
	if s.polls > 0 {
		return true
	}
	if s.lastSeen.IsZero() {
		return false
	}
	gap := attachGap
	if r := s.current; r != nil && r.takes > 0 && !r.over {
		gap = s.opts.StallTimeout
	}
	return now.Sub(s.lastSeen) < gap
}

// WaitAttached returns when a trainer is attached, or with ctx's cause.
func (s *Server) WaitAttached(ctx context.Context) error {
	for {
		s.mu.Lock()
		ok, changed := s.attached(time.Now()), s.changed
		s.mu.Unlock()
		if ok {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("trainer: no trainer on %s: %w", s.opts.SocketPath, context.Cause(ctx))
		}
	}
}

// SetSeedWanted says whether a trainer may offer first weights. Turning it on
// ends long polls early, so that a waiting trainer offers at once.
func (s *Server) SetSeedWanted(wanted bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.seedWanted == wanted {
		return
	}
	s.seedWanted = wanted
	if wanted {
		select { // an offer that nobody fetched is void
		case <-s.seeds:
		default:
		}
	}
	s.wake()
}

// SetOfferCheck gives a look at the first weights that a trainer offers while none
// are wanted; what it says against them is the trainer's answer. It is called
// without a lock, by any goroutine.
func (s *Server) SetOfferCheck(check func(path string) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.offerCheck = check
}

// Seeds delivers accepted first weights; Path is absolute, a regular file and
// inside WorkDir. After one, no more are wanted until SetSeedWanted(true).
func (s *Server) Seeds() <-chan trainerv1.Seed { return s.seeds }

// WorkDir is the work folder, absolute and without symlinks.
func (s *Server) WorkDir() string { return s.work }

// SocketPath is where the trainer connects.
func (s *Server) SocketPath() string { return s.opts.SocketPath }

//go:build linux

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	trainerv1 "girassol.dev/api/trainer/v1"
)

// spyCommand stands between an agent and its trainer: it passes everything on and
// writes down how long after its stop time a task did another step.
func spyCommand() *cobra.Command {
	var out string
	cmd := &cobra.Command{Use: "spy", Args: cobra.MinimumNArgs(1), RunE: func(cmd *cobra.Command, args []string) error {
		return spyOn(out, args)
	}}
	cmd.Flags().StringVar(&out, "out", "", "file for what was seen")
	return cmd
}

// seen is a line of what a spy writes down.
type seen struct {
	Task  string  `json:"task"`
	Steps uint64  `json:"steps"`
	Late  float64 `json:"late"` // seconds after the stop time, less those in which the process was frozen
}

type spy struct {
	mu     sync.Mutex
	out    *os.File
	tasks  map[string]*watched
	frozen time.Duration // in all, up to
	ticked time.Time
}

type watched struct {
	stop   time.Time
	frozen time.Duration // before the stop time was set
	steps  uint64
}

func spyOn(path string, trainer []string) error {
	out, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	s := &spy{out: out, tasks: map[string]*watched{}}
	dir, err := os.MkdirTemp("", "spy-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	socket := filepath.Join(dir, "trainer.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	upstream := os.Getenv(trainerv1.EnvSocket)
	go func() { _ = (&http.Server{Handler: s.proxy(upstream), ReadHeaderTimeout: time.Minute}).Serve(l) }()
	go s.clock()
	go swell()
	c := exec.Command(trainer[0], trainer[1:]...)
	c.Env = append(os.Environ(), trainerv1.EnvSocket+"="+socket)
	c.Stdout, c.Stderr = os.Stdout, os.Stderr
	terms := make(chan os.Signal, 1)
	signal.Notify(terms, syscall.SIGTERM, syscall.SIGINT)
	if err := c.Start(); err != nil {
		return err
	}
	go func() {
		for sig := range terms {
			_ = c.Process.Signal(sig)
		}
	}()
	return c.Wait()
}

// tick is how often the spy looks whether it was frozen.
const tick = 50 * time.Millisecond

func (s *spy) clock() {
	for {
		s.mu.Lock()
		s.thaw(time.Now())
		s.mu.Unlock()
		time.Sleep(tick)
	}
}

// thaw adds what the process was frozen since the last look. mu is held.
func (s *spy) thaw(now time.Time) {
	if away := now.Sub(s.ticked) - tick; !s.ticked.IsZero() && away > 4*tick {
		s.frozen += away
	}
	s.ticked = now
}

// swell takes much more memory than a trainer may have, when it is told to.
func swell() {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGUSR1)
	<-signals
	var held [][]byte
	for range 40 {
		b := make([]byte, 16<<20)
		for i := 0; i < len(b); i += 4096 {
			b[i] = 1
		}
		held = append(held, b)
		time.Sleep(50 * time.Millisecond)
	}
	time.Sleep(time.Minute)
	runtime.KeepAlive(held)
}

func (s *spy) proxy(upstream string) http.Handler {
	target, _ := url.Parse("http://agent")
	p := httputil.NewSingleHostReverseProxy(target)
	p.Transport = &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", upstream)
	}}
	p.FlushInterval = -1
	p.ModifyResponse = func(r *http.Response) error {
		if r.StatusCode == http.StatusOK && r.Request.URL.Path == "/v1/task" {
			b, err := io.ReadAll(r.Body)
			if err != nil {
				return err
			}
			_ = r.Body.Close()
			r.Body = io.NopCloser(bytes.NewReader(b))
			s.given(b)
		}
		return nil
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if rest, ok := strings.CutPrefix(r.URL.Path, "/v1/tasks/"); ok && r.Method == http.MethodPost {
			b, err := io.ReadAll(io.LimitReader(r.Body, 1<<20))
			if err == nil {
				r.Body = io.NopCloser(bytes.NewReader(b))
				id, kind, _ := strings.Cut(rest, "/")
				if kind == "progress" || kind == "result" {
					s.told(id, b)
				}
			}
		}
		p.ServeHTTP(w, r)
	})
}

func (s *spy) given(b []byte) {
	var t trainerv1.Task
	if json.Unmarshal(b, &t) != nil || t.Kind != trainerv1.Train {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.thaw(time.Now())
	stop := time.Now().Add(time.Duration(t.StopInSeconds * float64(time.Second)))
	if w := s.tasks[t.ID]; w != nil && w.stop.Before(stop) {
		return // handed out again: the first stop time holds
	}
	s.tasks[t.ID] = &watched{stop: stop, frozen: s.frozen}
}

func (s *spy) told(id string, b []byte) {
	var p trainerv1.Progress
	if json.Unmarshal(b, &p) != nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	s.thaw(now)
	w := s.tasks[id]
	if w == nil || p.Steps <= w.steps {
		return
	}
	w.steps = p.Steps
	line, _ := json.Marshal(seen{id, p.Steps, (now.Sub(w.stop) - (s.frozen - w.frozen)).Seconds()})
	_, _ = s.out.Write(append(line, '\n'))
}

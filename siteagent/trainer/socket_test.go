package trainer

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	trainerv1 "girassol.dev/api/trainer/v1"
	"girassol.dev/siteagent/trainer/client"
)

func serve(t *testing.T, s *Server) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx) }()
	eventually(t, "the socket", func() bool {
		select {
		case err := <-done:
			t.Fatal(err)
		default:
		}
		fi, err := os.Stat(s.SocketPath())
		return err == nil && fi.Mode().Perm() == 0o600
	})
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return stop
}

func newServer(t *testing.T) *Server {
	t.Helper()
	dir := t.TempDir()
	s, err := New(Options{SocketPath: filepath.Join(dir, "s", "t.sock"), WorkDir: filepath.Join(dir, "work")})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestSocketIsPrivateReplacesAStaleOneAndGoesAway(t *testing.T) {
	s := newServer(t)
	dir := filepath.Dir(s.SocketPath())
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	stale, err := net.ListenUnix("unix", &net.UnixAddr{Name: s.SocketPath(), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	stale.SetUnlinkOnClose(false) // as if killed
	_ = stale.Close()
	stop := serve(t, s)
	c := client.New(s.SocketPath())
	defer c.Close()
	if task, err := c.NextTask(context.Background(), 0); task != nil || err != nil {
		t.Errorf("%v, %v", task, err)
	}
	if err := s.Serve(context.Background()); err == nil || !strings.Contains(err.Error(), "another agent") {
		t.Errorf("a second server on the socket: %v", err)
	}
	stop()
	if _, err := os.Stat(s.SocketPath()); !os.IsNotExist(err) {
		t.Errorf("the socket is still there: %v", err)
	}
}

func TestStopEndsLongPolls(t *testing.T) {
	s := newServer(t)
	stop := serve(t, s)
	c := client.New(s.SocketPath())
	defer c.Close()
	polled := make(chan error, 1)
	go func() {
		_, err := c.NextTask(context.Background(), time.Minute)
		polled <- err
	}()
	if err := s.WaitAttached(context.Background()); err != nil {
		t.Fatal(err)
	}
	stop()
	if err := <-polled; !client.Refused(err, 503) {
		t.Errorf("the poll ended with %v", err)
	}
}

func TestSocketPathsThatCannotWorkAreExplained(t *testing.T) {
	dir := t.TempDir()
	long := filepath.Join(dir, strings.Repeat("x", 120), "t.sock")
	if _, err := New(Options{SocketPath: long, WorkDir: dir}); err == nil || !strings.Contains(err.Error(), "107") {
		t.Errorf("long path: %v", err)
	}
	if _, err := New(Options{WorkDir: dir}); err == nil {
		t.Error("no socket path was taken")
	}
	open := filepath.Join(dir, "open")
	if err := os.Mkdir(open, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(open, 0o755); err != nil {
		t.Fatal(err)
	}
	s, err := New(Options{SocketPath: filepath.Join(open, "t.sock"), WorkDir: dir})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Serve(context.Background()); err == nil || !strings.Contains(err.Error(), "0700") {
		t.Errorf("open folder: %v", err)
	}
	file := filepath.Join(dir, "p", "file")
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	if s, err = New(Options{SocketPath: file, WorkDir: dir}); err != nil {
		t.Fatal(err)
	}
	if err := s.Serve(context.Background()); err == nil || !strings.Contains(err.Error(), "no socket") {
		t.Errorf("a file in the way: %v", err)
	}
	if b, _ := os.ReadFile(file); string(b) != "precious" {
		t.Error("the file is gone")
	}
}

func TestClientLoopWorksAcrossAnAgentsRestart(t *testing.T) {
	s := newServer(t)
	c := client.New(s.SocketPath())
	defer c.Close()
	ctx, cancel := context.WithCancel(context.Background())
	looped := make(chan error, 1)
	loop := client.Loop{Client: c, Handle: func(_ context.Context, task trainerv1.Task, report client.Report) (trainerv1.Result, error) {
		d := report(trainerv1.Progress{Steps: 1, Samples: 1})
		return trainerv1.Result{Metrics: map[string]float64{"continued": map[trainerv1.Action]float64{trainerv1.Continue: 1}[d.Action]}}, nil
	}}
	go func() { looped <- loop.Run(ctx) }() // before there is an agent
	for range 2 {
		stop := serve(t, s)
		o, err := s.Run(ctx, trainerv1.Task{
			ID: "a", Kind: trainerv1.Evaluate, StopAt: time.Now().Add(time.Minute), ModelPath: "m",
		}, nil)
		if err != nil || o.Result.Metrics["continued"] != 1 {
			t.Errorf("%+v, %v", o, err)
		}
		stop()
	}
	cancel()
	<-looped
}

package nvml

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// client of a double with a behaviour.
func client(t *testing.T, behaviour string, o Options) (c *Client, dir string) {
	t.Helper()
	t.Setenv("GORACE", "atexit_sleep_ms=0") // else each child takes a second to end
	dir = t.TempDir()
	o.Path, o.Library = os.Args[0], behaviour+":"+dir
	c = New(o)
	t.Cleanup(func() { _ = c.Close() })
	return c, dir
}

func code(err error) Code {
	var e *Error
	if errors.As(err, &e) {
		return e.Code
	}
	return ""
}

// until a condition at a process's edge holds.
func until(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !holds(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("after a minute still not: %s", what)
		}
	}
}

func TestRequestsAreAnsweredByOneChild(t *testing.T) {
	c, dir := client(t, "good", Options{})
	inv, err := c.Inventory(t.Context())
	if err != nil || inv.DriverVersion != "550.90.07" || inv.GPUs[0].UUID != "GPU-1" {
		t.Errorf("%+v, %v", inv, err)
	}
	samples, err := c.Sample(t.Context())
	if err != nil || len(samples) != 1 || *samples[0].EnergyMillijoules != 42 {
		t.Errorf("%+v, %v", samples, err)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if n := notes(t, dir); len(n) != 4 || !strings.HasPrefix(n[0], "start=") || n[3] != "end" {
		t.Errorf("the child did %q; want one start, two requests and an end in order", n)
	}
	if _, err := c.Sample(t.Context()); code(err) != Closed {
		t.Errorf("after Close: %v", err)
	}
	if err := c.Close(); err != nil {
		t.Errorf("a second Close: %v", err)
	}
}

func TestAChildThatMisbehavesIsEndedAndSaidWhy(t *testing.T) {
	for name, tc := range map[string]struct {
		behaviour string
		timeout   time.Duration
		want      Code
		says      string
	}{
		"hangs":                  {"hang", 50 * time.Millisecond, Hung, `no answer to "inventory" within 50ms`},
		"crashes":                {"crash", 0, Crashed, "exit status 127: symbol lookup error: nvmlWhatever"},
		"writes garbage":         {"garbage", 0, Garbage, "not an answer"},
		"writes without an end":  {"flood", 0, Garbage, "a line of more than"},
		"answers something else": {"another's answer", 0, Garbage, "answered request 6, asked was 1"},
		"answers nothing asked":  {"empty", 0, Garbage, "gave no inventory"},
		"finds no library":       {"no library", 0, NoLibrary, "libnvidia-ml.so.1 is not there"},
	} {
		t.Run(name, func(t *testing.T) {
			c, dir := client(t, tc.behaviour, Options{Timeout: tc.timeout})
			_, err := c.Inventory(t.Context())
			if code(err) != tc.want || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("%v; want %s: %s", err, tc.want, tc.says)
			}
			if err := c.Close(); err != nil {
				t.Error(err)
			}
			for _, n := range notes(t, dir) {
				if pid, ok := strings.CutPrefix(n, "start="); ok {
					n, _ := strconv.Atoi(pid)
					if err := syscall.Kill(n, 0); !errors.Is(err, syscall.ESRCH) {
						t.Errorf("process %d is still there: %v", n, err)
					}
				}
			}
		})
	}
}

func TestAProgramThatDoesNotStartIsAbsence(t *testing.T) {
	dir := t.TempDir()
	script := filepath.Join(dir, "agent-nvml")
	if err := os.WriteFile(script, []byte("#!/no/such/interpreter\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	plain := filepath.Join(dir, "plain")
	if err := os.WriteFile(plain, []byte("text"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct{ path, says string }{
		"missing":            {filepath.Join(dir, "none"), "is not there"},
		"beside the program": {"", filepath.Join(filepath.Dir(os.Args[0]), Program) + " is not there"},
		"without its linker": {script, "the dynamic linker that it needs is not there"},
		"not a program":      {plain, "permission denied"},
	} {
		t.Run(name, func(t *testing.T) {
			var log bytes.Buffer
			c := New(Options{Path: tc.path, Log: slog.New(slog.NewTextHandler(&log, nil))})
			defer c.Close()
			for range 5 {
				_, err := c.Sample(t.Context())
				if code(err) != NoProgram || !strings.Contains(err.Error(), tc.says) {
					t.Errorf("%v; want %s", err, tc.says)
				}
			}
			if n := strings.Count(log.String(), "level=INFO"); n != 1 || strings.Count(log.String(), "\n") != 1 {
				t.Errorf("said %d times:\n%s", n, log.String())
			}
		})
	}
}

func TestAChildThatCrashedIsReplaced(t *testing.T) {
	var log bytes.Buffer
	c, dir := client(t, "crash once", Options{Log: slog.New(slog.NewTextHandler(&log, nil))})
	if _, err := c.Sample(t.Context()); code(err) != Crashed {
		t.Errorf("the crash: %v", err)
	}
	if s, err := c.Sample(t.Context()); err != nil || len(s) != 1 {
		t.Errorf("after the crash: %+v, %v", s, err)
	}
	if n := notes(t, dir); len(n) != 4 {
		t.Errorf("%q; want two starts with a request each", n)
	}
	if text := log.String(); strings.Count(text, "\n") != 2 || !strings.Contains(text, "can be read again") {
		t.Errorf("log:\n%s", text)
	}
}

func TestStartsThatFailComeEverLessOften(t *testing.T) {
	c, dir := client(t, "no library", Options{})
	now := time.Unix(0, 0)
	c.now = func() time.Time { return now }
	starts := func() (n int) {
		for _, line := range notes(t, dir) {
			if strings.HasPrefix(line, "start=") {
				n++
			}
		}
		return n
	}
	ask := func(want int) {
		t.Helper()
		for range 3 {
			if _, err := c.Sample(t.Context()); code(err) != NoLibrary {
				t.Fatalf("%v", err)
			}
		}
		if n := starts(); n != want {
			t.Errorf("%d starts at %v, want %d", n, now.Sub(time.Unix(0, 0)), want)
		}
	}
	ask(2) // at once again after the first, then not
	for i, pause := range []time.Duration{1, 2, 4, 8, 16, 32, 60, 60} {
		now = now.Add(pause*time.Second - 1)
		ask(2 + i)
		now = now.Add(1)
		ask(3 + i)
	}
}

func TestAChildThatAnswersOnceAndCrashesIsStartedEverLessOften(t *testing.T) {
	var log bytes.Buffer
	c, dir := client(t, "good", Options{Log: slog.New(slog.NewTextHandler(&log, nil))})
	now := time.Unix(1, 0)
	c.now = func() time.Time { return now }
	for range 60 {
		if _, err := c.Sample(t.Context()); err == nil {
			c.child.kill()
			<-c.child.done
		}
		now = now.Add(time.Second)
	}
	starts := 0
	for _, n := range notes(t, dir) {
		if strings.HasPrefix(n, "start=") {
			starts++
		}
	}
	if lines := bytes.Count(log.Bytes(), []byte("\n")); starts < 3 || starts > 9 || lines > 20 {
		t.Errorf("%d starts and %d lines of log within a minute", starts, lines)
	}
}

func TestACallerMayLeaveAndTheNextGetsItsOwnAnswer(t *testing.T) {
	c, dir := client(t, "slow", Options{})
	ctx, leave := context.WithCancel(t.Context())
	done := make(chan error)
	go func() {
		_, err := c.SetPowerLimit(ctx, "GPU-1", 400)
		done <- err
	}()
	until(t, "the child has the request", func() bool { return slices.Contains(notes(t, dir), string(OpSetPowerLimit)) })
	leave()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("who left got %v", err)
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.Sample(gone); !errors.Is(err, context.Canceled) {
		t.Errorf("who comes without time got %v", err)
	}
	if err := os.WriteFile(dir+"/go", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if s, err := c.Sample(t.Context()); err != nil || len(s) != 1 {
		t.Errorf("the next got %+v, %v", s, err)
	}
	if c.originals["GPU-1"].Before != 700 {
		t.Errorf("the limit that was set late is not remembered: %v", c.originals)
	}
}

func TestARequestOwedForTooLongCountsAsHung(t *testing.T) {
	c, dir := client(t, "hang", Options{Timeout: time.Hour})
	var passed atomic.Int64
	c.now = func() time.Time { return time.Unix(0, passed.Load()) }
	ctx, leave := context.WithCancel(t.Context())
	done := make(chan error)
	go func() {
		_, err := c.Sample(ctx)
		done <- err
	}()
	until(t, "the child has the request", func() bool { return slices.Contains(notes(t, dir), string(OpSample)) })
	leave()
	<-done
	passed.Add(int64(time.Hour))
	// The next caller need not wait another hour, and gets a new child.
	ctx, leave = context.WithCancel(t.Context())
	go func() {
		_, err := c.Sample(ctx)
		done <- err
	}()
	until(t, "there is a second child", func() bool {
		return slices.IndexFunc(notes(t, dir)[1:], func(n string) bool { return strings.HasPrefix(n, "start=") }) >= 0
	})
	leave()
	<-done
	if c.last == nil || c.last.Code != Hung {
		t.Errorf("the first child was ended for %v", c.last)
	}
}

func TestCloseEndsARequestAtWork(t *testing.T) {
	c, dir := client(t, "slow", Options{})
	done := make(chan error)
	go func() {
		_, err := c.Sample(context.Background())
		done <- err
	}()
	until(t, "the child has the request", func() bool { return slices.Contains(notes(t, dir), string(OpSample)) })
	if err := os.WriteFile(dir+"/go", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if err := <-done; err != nil && code(err) != Closed {
		t.Errorf("%v; want the answer or %s", err, Closed)
	}
}

func TestAnIdleChildIsEndedAndLetsGo(t *testing.T) {
	for name, tc := range map[string]struct {
		idle time.Duration
		let  func(*Client)
	}{
		"after a while":  {time.Millisecond, func(*Client) {}},
		"when asked for": {0, (*Client).Release},
	} {
		t.Run(name, func(t *testing.T) {
			c, dir := client(t, "good", Options{Idle: tc.idle})
			if _, err := c.Sample(t.Context()); err != nil {
				t.Fatal(err)
			}
			tc.let(c)
			until(t, "the child has ended", func() bool { return slices.Contains(notes(t, dir), "end") })
			if _, err := c.Sample(t.Context()); err != nil {
				t.Errorf("after that: %v", err)
			}
		})
	}
}

func TestARefusalIsOfTheRequestAndNotOfTheLibrary(t *testing.T) {
	var log bytes.Buffer
	c, dir := client(t, "refusing", Options{Log: slog.New(slog.NewTextHandler(&log, nil))})
	for range 2 {
		if _, err := c.SetPowerLimit(t.Context(), "GPU-1", 400); code(err) != NoPermission {
			t.Errorf("%v", err)
		}
	}
	if n := notes(t, dir); len(n) != 3 || log.Len() > 0 {
		t.Errorf("%q, log %q; want one child and nothing in the log", n, log.String())
	}
}

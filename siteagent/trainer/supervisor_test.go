package trainer

import (
	"bufio"
	"bytes"
	"context"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// eventually waits for what another process does; it only bounds how long a
// broken test hangs.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("never: ", what)
		}
	}
}

func alive(pid int) bool {
	if pid == 0 || syscall.Kill(pid, 0) != nil {
		return false
	}
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	return err != nil || !bytes.Contains(b, []byte(") Z ")) // a zombie is dead
}

type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

func supervise(t *testing.T, role string, change func(*SupervisorOptions)) (*Supervisor, <-chan error) {
	t.Helper()
	o := SupervisorOptions{
		Command: []string{os.Args[0]}, Env: []string{"TEST_TRAINER_ROLE=" + role},
		SocketPath: "/run/x.sock", WorkDir: "/run/work",
		InitialBackoff: time.Millisecond, MaxBackoff: 4 * time.Millisecond,
	}
	if change != nil {
		change(&o)
	}
	s, err := NewSupervisor(o)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- s.Run(context.Background()) }()
	t.Cleanup(func() { s.Stop(context.Background()) })
	return s, ended
}

func says(s *Supervisor, line string) func() bool {
	return func() bool {
		for _, l := range s.State().Tail {
			if strings.Contains(l, line) {
				return true
			}
		}
		return false
	}
}

func TestCrashLoopIsNamedWithTheLastWords(t *testing.T) {
	s, _ := supervise(t, "crash", nil)
	eventually(t, "a crash loop", func() bool {
		st := s.State()
		return st.Failures >= 3 && strings.HasPrefix(st.Reason, "crash loop: ended ") &&
			strings.Contains(st.Reason, "exit status 3: cannot find the data")
	})
	if st := s.State(); st.Restarts < 3 {
		t.Errorf("%d restarts", st.Restarts)
	}
}

func TestTrainerGetsItsEnvironmentAndItsLinesAreLogged(t *testing.T) {
	var log syncBuffer
	s, _ := supervise(t, "polite", func(o *SupervisorOptions) { o.Log = slog.New(slog.NewTextHandler(&log, nil)) })
	eventually(t, "the trainer's line", says(s, "socket /run/x.sock work /run/work"))
	eventually(t, "the line in the log", func() bool { return strings.Contains(log.String(), "socket /run/x.sock") })
}

// What is ours may be secret; what is the user's stays.
func TestTrainerSeesNothingOfOursButItsOwnAPI(t *testing.T) {
	ours := []string{"GIRASSOL_REDIS_URL", "GIRASSOL_ENROL_TOKEN", "GIRASSOL_NEW_ONE", "girassol_Lower", "GIRASSOL_TRAINER_SOCKET"}
	for _, name := range ours {
		t.Setenv(name, "planted-"+name)
	}
	users := []string{"CUDA_VISIBLE_DEVICES", "WANDB_API_KEY", "XGIRASSOL_", "GIRASSO"}
	for _, name := range users {
		t.Setenv(name, "kept-"+name)
	}
	var log syncBuffer
	var started atomic.Int64
	s, _ := supervise(t, "environment", func(o *SupervisorOptions) {
		o.Log = slog.New(slog.NewTextHandler(&log, nil))
		o.OnStart = func(pid int) { started.Store(int64(pid)) }
	})
	eventually(t, "all variables", says(s, "ready"))
	if started.Load() != int64(s.State().PID) {
		t.Errorf("OnStart was told %d, it is %d", started.Load(), s.State().PID)
	}
	seen := log.String()
	if strings.Contains(seen, "planted-") {
		t.Errorf("the trainer sees what is the agent's: %s", seen)
	}
	for _, name := range users {
		if !strings.Contains(seen, name+"=kept-"+name) {
			t.Errorf("the user's %s does not reach the trainer", name)
		}
	}
	if !strings.Contains(seen, "GIRASSOL_TRAINER_SOCKET=/run/x.sock") {
		t.Error("the trainer is not told where its socket is")
	}
}

func TestStopIsSIGTERMFirst(t *testing.T) {
	s, ended := supervise(t, "polite", nil)
	eventually(t, "ready", says(s, "ready"))
	pid := s.State().PID
	s.Stop(context.Background())
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if st := s.State(); st.Phase != Stopped || alive(pid) || !says(s, "leaving")() {
		t.Errorf("after Stop: %+v", st)
	}
	s.Stop(context.Background()) // twice is fine
}

func TestTrainerThatIgnoresSIGTERMIsKilled(t *testing.T) {
	s, ended := supervise(t, "stubborn", func(o *SupervisorOptions) { o.StopGrace = time.Millisecond })
	eventually(t, "ready", says(s, "ready"))
	pid := s.State().PID
	s.Stop(context.Background())
	<-ended
	if alive(pid) {
		t.Error("it lives")
	}
}

func TestStopsContextCutsTheGraceShort(t *testing.T) {
	s, ended := supervise(t, "stubborn", func(o *SupervisorOptions) { o.StopGrace = time.Hour })
	eventually(t, "ready", says(s, "ready"))
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	s.Stop(ctx)
	<-ended
}

func TestRestartStartsAnotherProcessAndSaysWhy(t *testing.T) {
	s, _ := supervise(t, "polite", nil)
	eventually(t, "ready", says(s, "ready"))
	first := s.State().PID
	s.Restart("stalled in round 7")
	eventually(t, "another process", func() bool {
		st := s.State()
		return st.Phase == Running && st.PID != first && says(s, "ready")()
	})
	if st := s.State(); st.Restarts != 1 || st.Failures != 0 || !strings.Contains(st.Reason, "stalled in round 7") {
		t.Errorf("%+v", st)
	}
}

func TestGrandchildrenGoWithTheTrainer(t *testing.T) {
	sh, err := exec.LookPath("sh")
	if err != nil {
		t.Skip("no sh to make a grandchild with: ", err)
	}
	s, _ := supervise(t, "", func(o *SupervisorOptions) {
		o.Command = []string{sh, "-c", "sleep 1000 & echo child $!; wait"}
		o.Env = nil
	})
	child := 0
	eventually(t, "a grandchild", func() bool {
		for _, l := range s.State().Tail {
			if n, err := strconv.Atoi(strings.TrimPrefix(l, "child ")); err == nil {
				child = n
			}
		}
		return child != 0
	})
	s.Stop(context.Background())
	eventually(t, "the grandchild's end", func() bool { return !alive(child) })
}

func TestTrainerDiesWithAKilledAgent(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux can tie a child's life to its parent's")
	}
	pidFile := filepath.Join(t.TempDir(), "pid")
	agent := exec.Command(os.Args[0])
	agent.Env = append(os.Environ(), "TEST_TRAINER_ROLE=agent "+pidFile)
	out, err := agent.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := agent.Start(); err != nil {
		t.Fatal(err)
	}
	for lines := bufio.NewScanner(out); lines.Scan() && lines.Text() != "supervising"; {
	}
	b, err := os.ReadFile(pidFile)
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(string(b))
	if err != nil || !alive(pid) {
		t.Fatalf("trainer %q does not live: %v", b, err)
	}
	if err := agent.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = agent.Wait()
	eventually(t, "the trainer's end", func() bool { return !alive(pid) })
}

func TestCommandThatCannotStartIsRetried(t *testing.T) {
	s, _ := supervise(t, "", func(o *SupervisorOptions) { o.Command = []string{"/nonexistent/trainer"} })
	eventually(t, "the reason", func() bool {
		return strings.Contains(s.State().Reason, "cannot start /nonexistent/trainer")
	})
}

func TestSupervisorRunsOnce(t *testing.T) {
	s, _ := supervise(t, "polite", nil)
	eventually(t, "ready", says(s, "ready"))
	if err := s.Run(context.Background()); err == nil {
		t.Error("a second Run was taken")
	}
	if _, err := NewSupervisor(SupervisorOptions{}); err == nil {
		t.Error("no command was taken")
	}
}

func TestLinesAreCutAtNewlinesAndAtTheirLongest(t *testing.T) {
	var got []string
	l := lines{each: func(s string) { got = append(got, s) }}
	for _, part := range []string{"a\nb", "c\r\n\n", strings.Repeat("x", maxLine+3), "\ntail"} {
		if n, err := l.Write([]byte(part)); n != len(part) || err != nil {
			t.Fatal(n, err)
		}
	}
	l.flush()
	want := []string{"a", "bc", strings.Repeat("x", maxLine), "xxx", "tail"}
	if strings.Join(got, "|") != strings.Join(want, "|") {
		t.Errorf("%q", got)
	}
}

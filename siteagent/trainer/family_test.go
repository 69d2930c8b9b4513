package trainer

import (
	"context"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestTrainerAboveItsMemoryLimitIsKilledWithTheCure(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("memory is measured on Linux only")
	}
	s, _ := supervise(t, "glutton", func(o *SupervisorOptions) {
		o.MemoryLimit, o.MemoryEvery = 256<<20, 10*time.Millisecond
		o.MaxBackoff, o.InitialBackoff = time.Hour, time.Hour
	})
	eventually(t, "the kill", func() bool { return s.State().Phase == Backoff })
	st := s.State()
	if !strings.Contains(st.Reason, "allowed are 0.25") || !strings.Contains(st.Reason, "smaller batches") || st.Failures != 1 {
		t.Errorf("%+v", st)
	}
	if words := s.LastWords(); !strings.Contains(words, "allowed are 0.25") || !strings.Contains(words, "eating") {
		t.Errorf("last words %q", words)
	}
}

func TestTrainerBelowItsMemoryLimitLives(t *testing.T) {
	s, _ := supervise(t, "polite", func(o *SupervisorOptions) { o.MemoryLimit, o.MemoryEvery = 4<<30, time.Millisecond })
	eventually(t, "ready", says(s, "ready"))
	if used := memory(s.State().PID, 4<<30); runtime.GOOS == "linux" && used < 1<<20 {
		t.Errorf("it takes %d bytes", used)
	}
	if st := s.State(); st.Phase != Running {
		t.Errorf("%+v", st)
	}
}

func TestPagesOfMappedFilesAreNotATrainersMemory(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("memory is measured on Linux only")
	}
	for _, tc := range []struct {
		name, rollup string
		want         int64
		ok           bool
	}{
		{"a mapped corpus", "5581-7ffd ---p 00000000 00:00 0    [rollup]\nRss:  4096000 kB\nPss:  4000000 kB\nPss_Anon:  2000 kB\nPss_File:  3997000 kB\nPss_Shmem:  1000 kB\n", 3000 << 10, true},
		{"an old kernel", "Rss: 5000 kB\nPss: 4000 kB\nShared_Clean: 1 kB\n", 4000 << 10, true},
		{"nothing", "", 0, false},
	} {
		if got, ok := parseRollup(tc.rollup); got != tc.want || ok != tc.ok {
			t.Errorf("%s: %d, %v", tc.name, got, ok)
		}
	}
	if own := ownBytes(os.Getpid()); own < 1<<20 || own > residentBytes(os.Getpid())*2 {
		t.Errorf("this test takes %d bytes", own)
	}
}

// torchrun puts its workers into sessions of their own.
func TestProcessesThatLeftTheGroupGoWithTheTrainer(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("descendants are found on Linux only")
	}
	s, _ := supervise(t, "parent", func(o *SupervisorOptions) { o.StopGrace = time.Millisecond })
	child := 0
	eventually(t, "a child", func() bool {
		for _, l := range s.State().Tail {
			if n, err := strconv.Atoi(strings.TrimPrefix(l, "child ")); err == nil {
				child = n
			}
		}
		return child != 0
	})
	if ps := family(s.State().PID); len(ps) != 2 || !slices.ContainsFunc(ps, func(p process) bool { return p.pid == child && p.group == child }) {
		t.Errorf("family %+v, child %d", ps, child)
	}
	s.Stop(context.Background())
	eventually(t, "the child's end", func() bool { return !alive(child) })
}

// A torchrun that is killed by others, or with its agent, cannot end its workers.
func TestProcessesOfAKilledTrainerDoNotOutliveIt(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("processes are marked on Linux only")
	}
	work := t.TempDir()
	childOf := func(s *Supervisor) (child int) {
		eventually(t, "a child", func() bool {
			for _, l := range s.State().Tail {
				if n, err := strconv.Atoi(strings.TrimPrefix(l, "child ")); err == nil {
					child = n
				}
			}
			return child != 0
		})
		return child
	}
	s, _ := supervise(t, "parent", func(o *SupervisorOptions) { o.WorkDir, o.StopGrace = work, time.Millisecond })
	child := childOf(s)
	if err := syscall.Kill(s.State().PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the end of the killed trainer's child", func() bool { return !alive(child) })
	s.Stop(context.Background())

	// What a killed agent's trainer left is found by the next agent of that folder.
	orphan := exec.Command(os.Args[0])
	orphan.Env = append(os.Environ(), "TEST_TRAINER_ROLE=stubborn", markOf("/run/x.sock", work))
	other := exec.Command(os.Args[0])
	other.Env = append(os.Environ(), "TEST_TRAINER_ROLE=stubborn", markOf("/run/x.sock", t.TempDir()))
	for _, c := range []*exec.Cmd{orphan, other} {
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Process.Kill(); _ = c.Wait() })
	}
	eventually(t, "both", func() bool {
		return len(marked(markOf("/run/x.sock", work))) == 1 && alive(other.Process.Pid)
	})
	supervise(t, "polite", func(o *SupervisorOptions) { o.WorkDir = work })
	if err := orphan.Wait(); err == nil || !strings.Contains(err.Error(), "killed") {
		t.Errorf("the orphan ended with %v", err)
	}
	if !alive(other.Process.Pid) {
		t.Error("another agent's trainer was killed")
	}
}

func TestKillSparesAnotherProcessOfTheSameNumber(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("processes are told apart on Linux only")
	}
	kill([]process{{pid: os.Getpid(), began: 1}}) // not us: we began later
}

func TestStatOfAProcessWithAnyName(t *testing.T) {
	rest := " S 7 8 9 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 4711 0 0"
	for _, name := range []string{"python", "a b) R 1 (c", ") )", ""} {
		p, err := parseStat([]byte("42 (" + name + ")" + rest))
		if err != nil || p.pid != 42 || p.parent != 7 || p.group != 8 || p.began != 4711 {
			t.Errorf("%q: %+v, %v", name, p, err)
		}
	}
	for _, bad := range []string{"", "42", "42 (x", "42 (x) S 1", "x (y)" + rest, "42 )(" + rest} {
		if p, err := parseStat([]byte(bad)); err == nil {
			t.Errorf("%q became %+v", bad, p)
		}
	}
}

func TestVisibleGPUsByVendor(t *testing.T) {
	for _, tc := range []struct {
		vendor string
		gpus   string
		want   string
		err    string
	}{
		{"nvidia", "", "", ""},
		{"cpu", "", "", ""},
		{"nvidia", "0,2", "CUDA_VISIBLE_DEVICES=0,2 CUDA_DEVICE_ORDER=PCI_BUS_ID", ""},
		{"nvidia", "MIG-4b9f9d0e-1d34-5e0a-9a3f-9f1c2f1f6a11", "CUDA_VISIBLE_DEVICES=MIG-4b9f9d0e-1d34-5e0a-9a3f-9f1c2f1f6a11", ""},
		{"nvidia", "MIG-GPU-8a3b/1/0", "CUDA_VISIBLE_DEVICES=MIG-GPU-8a3b/1/0", ""},
		{"amd", "0,2", "ROCR_VISIBLE_DEVICES=0,2 HIP_VISIBLE_DEVICES=0,1", ""},
		{"amd", "GPU-9c4f0e2b7d81a635", "ROCR_VISIBLE_DEVICES=GPU-9c4f0e2b7d81a635 HIP_VISIBLE_DEVICES=0", ""},
		{"nvidia", "0,0", "", "twice"},
		{"nvidia", "1-3", "", "neither the index nor the UUID"},
		{"amd", "MIG-1234", "", "neither the index nor the UUID"},
		{"cpu", "0", "", "hardware command"},
	} {
		var gpus []string
		if tc.gpus != "" {
			gpus = strings.Split(tc.gpus, ",")
		}
		env, err := Visible(tc.vendor, gpus)
		if got := strings.Join(env, " "); got != tc.want || (err == nil) != (tc.err == "") || err != nil && !strings.Contains(err.Error(), tc.err) {
			t.Errorf("%s %s: %q, %v", tc.vendor, tc.gpus, got, err)
		}
	}
}

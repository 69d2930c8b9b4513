package coredump

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

const roleEnv = "TEST_COREDUMP_ROLE"

// The test binary plays the process when asked to: limits are a whole process's.
func TestMain(m *testing.M) {
	if role := os.Getenv(roleEnv); role != "" {
		play(role)
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// play prints the soft and hard limit of this process, of a child, and of a child
// that got the old limit back.
func play(role string) {
	// The machine's own limit may be anything; the hard one can only go down.
	start := unix.Rlimit{Cur: 1 << 20, Max: 1 << 20}
	if err := unix.Setrlimit(unix.RLIMIT_CORE, &start); err != nil {
		fmt.Println("skip:", err)
		return
	}
	var restore func(int) error
	var err error
	if role == "for good" {
		err = OffForGood()
	} else {
		restore, err = Off()
	}
	if err != nil {
		panic(err)
	}
	fmt.Println(limits("self"))
	child := exec.Command("cat") // lives until its input ends
	in, err := child.StdinPipe()
	if err != nil {
		panic(err)
	}
	if err := child.Start(); err != nil {
		panic(err)
	}
	fmt.Println(limits(fmt.Sprint(child.Process.Pid)))
	if restore != nil {
		if err := restore(child.Process.Pid); err != nil {
			panic(err)
		}
		fmt.Println(limits(fmt.Sprint(child.Process.Pid)))
	}
	_ = in.Close()
	_ = child.Wait()
}

// limits of core dumps by /proc, soft and hard.
func limits(pid string) string {
	f, err := os.Open("/proc/" + pid + "/limits")
	if err != nil {
		panic(err)
	}
	defer f.Close()
	b, err := io.ReadAll(f)
	if err != nil {
		panic(err)
	}
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, "Max core file size"); ok {
			return strings.Join(strings.Fields(rest)[:2], " ")
		}
	}
	return "no limit"
}

func TestNoDumpIsLeftAndAChildCanGetItsLimitBack(t *testing.T) {
	for role, want := range map[string]string{
		"for good": "1 1\n1 1\n",
		"for now":  "1 1048576\n1 1048576\n1048576 1048576\n",
	} {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), roleEnv+"="+role)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v: %s", role, err, out)
		}
		if strings.HasPrefix(string(out), "skip:") {
			t.Skipf("this machine allows no core dumps at all: %s", out)
		}
		if string(out) != want {
			t.Errorf("%s: limits %q, not %q", role, out, want)
		}
	}
}

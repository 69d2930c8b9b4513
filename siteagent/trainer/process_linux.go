package trainer

import (
	"errors"
	"os/exec"
	"syscall"

	"golang.org/x/sys/unix"
)

// groupOf puts the trainer into a process group of its own and has the kernel
// kill it when the agent dies.
func groupOf() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// reap waits for the group's leader and kills what it leaves behind, in its group or
// with its mark. That happens before the leader is reaped, while the group's number is
// still its own.
func reap(cmd *exec.Cmd, mark string) error {
	for errors.Is(unix.Waitid(unix.P_PID, cmd.Process.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil), unix.EINTR) {
	}
	_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	killMarked(mark)
	return cmd.Wait()
}

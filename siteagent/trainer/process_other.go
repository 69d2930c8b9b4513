//go:build unix && !linux

package trainer

import (
	"os/exec"
	"syscall"
)

func groupOf() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

// reap waits for the group's leader and kills what it leaves behind.
func reap(cmd *exec.Cmd, _ string) error {
	err := cmd.Wait()
	_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	return err
}

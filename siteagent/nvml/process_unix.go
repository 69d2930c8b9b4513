//go:build unix

package nvml

import "syscall"

// apart from this process's group: a Ctrl-C in a terminal must not end the child
// before limits are put back. It ends with its standard input, even if this
// process is killed.
func apart() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

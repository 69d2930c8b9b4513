//go:build !unix

package nvml

import "syscall"

func apart() *syscall.SysProcAttr { return nil }

package coredump

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// none is a limit in bytes that no dump fits into. Where core_pattern is a pipe the
// kernel heeds no limit but 1, and hands the whole memory over even with 0.
const none = 1

func off(forGood bool) (func(int) error, error) {
	var was unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_CORE, &was); err != nil {
		return nil, fmt.Errorf("core dumps: cannot read their limit: %w", err)
	}
	now := unix.Rlimit{Cur: min(none, was.Max), Max: was.Max}
	if forGood {
		now.Max = now.Cur
	}
	if err := unix.Setrlimit(unix.RLIMIT_CORE, &now); err != nil {
		return nil, fmt.Errorf("core dumps: cannot limit them: %w", err)
	}
	return func(pid int) error {
		if err := unix.Prlimit(pid, unix.RLIMIT_CORE, &was, nil); err != nil {
			return fmt.Errorf("core dumps: cannot give process %d its limit back: %w", pid, err)
		}
		return nil
	}, nil
}

package checkpoint

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"girassol.dev/internal/tensor"
)

// acquire takes dir/LOCK by flock(2), which ends with the process however it
// ends, and writes into it who holds it.
func acquire(dir string) (*os.File, error) {
	path := filepath.Join(dir, lockFile)
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, fmt.Errorf("checkpoint: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		holder, _ := os.ReadFile(path)
		_ = f.Close()
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("checkpoint: locking %s: %w (does this file system have flock?)", path, err)
		}
		name := strings.TrimSpace(string(holder))
		if name == "" {
			name = "a coordinator that is just starting"
		}
		return nil, &HeldError{Dir: dir, Holder: name}
	}
	host, _ := os.Hostname()
	if err := errors.Join(f.Truncate(0), writeString(f, fmt.Sprintf("pid %d on %s\n", os.Getpid(), host))); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("checkpoint: writing %s: %w", path, err)
	}
	return f, nil
}

// release gives the lock back at once. To close the file is not enough: a child
// that is being started has it too until it runs its own program.
func release(f *os.File) error {
	return errors.Join(unix.Flock(int(f.Fd()), unix.LOCK_UN), f.Close())
}

func writeString(f *os.File, text string) error {
	_, err := f.WriteAt([]byte(text), 0)
	return err
}

func writeTerm(dir string, term uint64) error {
	return tensor.WriteFileAtomic(filepath.Join(dir, termFile), func(w io.Writer) error {
		_, err := fmt.Fprintln(w, term)
		return err
	})
}

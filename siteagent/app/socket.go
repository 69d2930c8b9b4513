package app

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"girassol.dev/siteagent/trainer"
)

// defaultSocket is the trainer API's socket without --socket: below the work
// folder or, where that path is too long for a Unix socket, in a private folder
// for temporary files, which remove removes.
func defaultSocket(work string, log *slog.Logger) (path string, remove func(), err error) {
	work, err = filepath.Abs(work)
	if err != nil {
		return "", nil, fmt.Errorf("--work: %w", err)
	}
	path = filepath.Join(work, "run", "trainer.sock")
	if len(path) <= trainer.MaxSocketPath {
		return path, func() {}, nil
	}
	dir, err := os.MkdirTemp("", "girassol-") // mode 0700
	if err != nil {
		return "", nil, fmt.Errorf("folder for the trainer's socket: %w; name a socket with --socket", err)
	}
	remove = func() { _ = os.RemoveAll(dir) }
	short := filepath.Join(dir, "trainer.sock")
	if len(short) > trainer.MaxSocketPath {
		remove()
		return "", nil, fmt.Errorf("%s and %s are both longer than the %d bytes of a Unix socket's path; name a shorter one with --socket",
			path, short, trainer.MaxSocketPath)
	}
	log.Info("the work folder's path is too long for a Unix socket, the trainer's is elsewhere", "work", work, "socket", short)
	return short, remove, nil
}

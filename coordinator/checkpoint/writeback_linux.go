package checkpoint

import (
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// startWriteback asks the kernel to write a part of a file now. It is advice: an error
// shows up when the file is synced.
func startWriteback(f io.Writer, from, n int64) {
	file, ok := f.(*os.File)
	if !ok {
		return
	}
	c, err := file.SyscallConn()
	if err != nil {
		return
	}
	_ = c.Control(func(fd uintptr) {
		_ = unix.SyncFileRange(int(fd), from, n, unix.SYNC_FILE_RANGE_WRITE)
	})
}

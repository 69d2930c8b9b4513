package vectored

import (
	"errors"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// most pieces that the system takes with one call.
const most = 1024

// WriteAt writes the pieces one behind the other from the file's byte at on. After an
// error some of them may be there.
func WriteAt(f *os.File, pieces [][]byte, at int64) error {
	c, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	if err := c.Write(func(fd uintptr) bool {
		failed = writeAll(int(fd), pieces, at)
		return true
	}); err != nil {
		failed = os.ErrClosed // nothing else keeps it from the descriptor
	}
	if failed != nil {
		return &os.PathError{Op: "pwritev", Path: f.Name(), Err: failed}
	}
	return nil
}

func writeAll(fd int, pieces [][]byte, at int64) error {
	skip := 0 // bytes of the first piece that are written
	for {
		for len(pieces) > 0 && len(pieces[0]) <= skip {
			skip -= len(pieces[0])
			pieces = pieces[1:]
		}
		if len(pieces) == 0 {
			return nil
		}
		var n int
		var err error
		if skip > 0 {
			n, err = unix.Pwrite(fd, pieces[0][skip:], at)
		} else {
			n, err = unix.Pwritev(fd, pieces[:min(len(pieces), most)], at)
		}
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return err
		case n == 0:
			return io.ErrShortWrite
		default:
			at += int64(n)
			skip += n
		}
	}
}

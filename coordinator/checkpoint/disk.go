package checkpoint

import (
	"bufio"
	"errors"
	"hash/crc32"
	"io"
	"os"

	"girassol.dev/internal/tensor"
)

// disk is what changes the store: the seam where tests put failures and
// crashes.
type disk struct {
	create  func(path string) (file, error)
	mkdir   func(path string) error
	rename  func(from, to string) error
	syncDir func(path string) error
	remove  func(path string) error
	// free bytes of the file system that a folder is on.
	free func(dir string) (int64, error)
}

type file interface {
	io.WriteCloser
	io.WriterAt
	Sync() error
}

var realDisk = disk{
	create: func(path string) (file, error) {
		return os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	},
	mkdir:   func(path string) error { return os.Mkdir(path, 0o755) },
	rename:  os.Rename,
	syncDir: tensor.SyncDir,
	remove:  os.RemoveAll,
	free:    freeBytes,
}

// summed writes a file through a buffer and keeps count. The first error stays.
type summed struct {
	f   file
	buf *bufio.Writer
	out writeback
	sum FileSum
	err error
}

func (d disk) createSummed(path string) (*summed, error) {
	f, err := d.create(path)
	if err != nil {
		return nil, err
	}
	return &summed{f: f, buf: bufio.NewWriterSize(f, 256<<10), out: writeback{f: f}}, nil
}

func (s *summed) Write(b []byte) (int, error) {
	if s.err != nil {
		return 0, s.err
	}
	n, err := s.buf.Write(b)
	s.sum.Bytes += int64(n)
	s.sum.CRC32C = crc32.Update(s.sum.CRC32C, castagnoli, b[:n])
	s.err = err
	s.out.reached(s.sum.Bytes - int64(s.buf.Buffered()))
	return n, err
}

// drop closes the file as it is.
func (s *summed) drop() {
	s.out.stop()
	_ = s.f.Close()
}

// finish makes the file durable and closes it.
func (s *summed) finish() (FileSum, error) {
	s.out.stop()
	if s.err == nil {
		s.err = s.buf.Flush()
	}
	if s.err == nil {
		s.err = s.f.Sync()
	}
	return s.sum, errors.Join(s.err, s.f.Close())
}

// writeFile writes a whole file durably.
func (d disk) writeFile(path string, write func(io.Writer) error) (FileSum, error) {
	s, err := d.createSummed(path)
	if err != nil {
		return FileSum{}, err
	}
	if err := write(s); err != nil && s.err == nil {
		s.err = err
	}
	return s.finish()
}

func (d disk) writeManifest(path string, m Manifest) error {
	b, err := m.encode()
	if err != nil {
		return err
	}
	_, err = d.writeFile(path, func(w io.Writer) error {
		_, err := w.Write(b)
		return err
	})
	return err
}

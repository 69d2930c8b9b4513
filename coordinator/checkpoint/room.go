package checkpoint

import (
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
)

// Full says whether an error of any writer means that there is no room on the disk:
// none at all, or none within a quota.
func Full(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}

// roomSlack is left free beside what is asked for, for manifests and folders.
const roomSlack = 1 << 20

// HasRoom says whether so many bytes would fit on the store's disk, by its free
// space and by writing a little; an error for which Full holds says that not.
func (s *Store) HasRoom(bytes int64) error {
	free, err := s.disk.free(s.dir)
	if err == nil && free < bytes+roomSlack {
		err = fmt.Errorf("%d MB are free, %d MB are needed: %w", free/1e6, (bytes+roomSlack)/1e6, syscall.ENOSPC)
	}
	if err == nil {
		err = s.probe()
	}
	if err != nil {
		return fmt.Errorf("checkpoint: %s: %w", s.dir, err)
	}
	return nil
}

// probe writes a little: where a quota counts, free space says nothing.
func (s *Store) probe() error {
	dir, err := os.MkdirTemp(s.path(stagingDir), "room-")
	if err != nil {
		return err
	}
	_, err = s.disk.writeFile(dir+"/probe", func(w io.Writer) error {
		_, err := w.Write(make([]byte, roomSlack/4))
		return err
	})
	return errors.Join(err, s.disk.remove(dir))
}

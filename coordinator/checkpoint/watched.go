package checkpoint

import "log/slog"

// OpenWatched is Open for tests of who uses a store, on full and slow disks: before
// is called ahead of each operation that changes the disk ("create", "write",
// "sync", "mkdir", "rename", "syncDir", "remove"), and an error of it takes the
// operation's place.
func OpenWatched(dir string, log *slog.Logger, before func(op, path string) error) (*Store, error) {
	d := realDisk
	guard := func(op string, do func(string) error) func(string) error {
		return func(path string) error {
			if err := before(op, path); err != nil {
				return err
			}
			return do(path)
		}
	}
	d.mkdir, d.syncDir, d.remove = guard("mkdir", d.mkdir), guard("syncDir", d.syncDir), guard("remove", d.remove)
	d.create = func(path string) (file, error) {
		if err := before("create", path); err != nil {
			return nil, err
		}
		f, err := realDisk.create(path)
		return watchedFile{f, path, before}, err
	}
	d.rename = func(from, to string) error {
		if err := before("rename", to); err != nil {
			return err
		}
		return realDisk.rename(from, to)
	}
	return open(dir, log, d)
}

type watchedFile struct {
	file
	path   string
	before func(op, path string) error
}

func (f watchedFile) Write(b []byte) (int, error) {
	if err := f.before("write", f.path); err != nil {
		return 0, err
	}
	return f.file.Write(b)
}

func (f watchedFile) WriteAt(b []byte, off int64) (int, error) {
	if err := f.before("write", f.path); err != nil {
		return 0, err
	}
	return f.file.WriteAt(b, off)
}

func (f watchedFile) Sync() error {
	if err := f.before("sync", f.path); err != nil {
		return err
	}
	return f.file.Sync()
}

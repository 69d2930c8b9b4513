package checkpoint

import "golang.org/x/sys/unix"

// freeBytes that a user without privileges may still write.
func freeBytes(dir string) (int64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0, err
	}
	return int64(st.Bavail) * st.Bsize, nil
}

//go:build !linux

package vectored

import "os"

// WriteAt writes the pieces one behind the other from the file's byte at on. After an
// error some of them may be there.
func WriteAt(f *os.File, pieces [][]byte, at int64) error {
	for _, p := range pieces {
		if _, err := f.WriteAt(p, at); err != nil {
			return err
		}
		at += int64(len(p))
	}
	return nil
}

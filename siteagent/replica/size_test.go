package replica

import (
	"fmt"
	"io/fs"
	"path/filepath"
	"syscall"
	"testing"

	"girassol.dev/internal/algorithm"
)

// diskBytes is what a folder takes, hard links counted once.
func diskBytes(t *testing.T, dir string) (bytes int64, files int) {
	t.Helper()
	seen := map[uint64]bool{}
	must(t, filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		fi, err := d.Info()
		if err != nil {
			return err
		}
		if st, ok := fi.Sys().(*syscall.Stat_t); ok && seen[st.Ino] {
			return nil
		} else if ok {
			seen[st.Ino] = true
		}
		bytes += fi.Size()
		files++
		return nil
	}))
	return bytes, files
}

func TestTheFolderStaysBoundedOverTwoHundredVersions(t *testing.T) {
	// Dense deltas are as large as the model; a few show what many do.
	for strategy, versions := range map[string]int{algorithm.DecoupledMomentum: 200, algorithm.DiLoCo: 30} {
		t.Run(strategy, func(t *testing.T) {
			b := newBench(t, strategy)
			dir := t.TempDir()
			r := open(t, dir)
			must(t, r.Install(b.man, b.snapshot()))
			model := r.rec.Model.Bytes
			most, mostFiles := int64(0), 0
			note := func() {
				bytes, files := diskBytes(t, dir)
				most, mostFiles = max(most, bytes), max(mostFiles, files)
			}
			for i := range versions {
				u := b.stage(r, fmt.Sprint("u", i))
				note()
				d := b.commit(u.UpdateID)
				must(t, r.Apply(d.man, d.path))
				note()
				if i%25 == 24 { // a return
					if f, err := r.Incoming(); err != nil {
						t.Fatal(err)
					} else {
						_ = f.Close() // of a download that was killed
					}
					r = reopen(t, r)
				}
			}
			b.holdsState(r)
			t.Logf("model %d bytes, folder at most %d in %d files", model, most, mostFiles)
			if most > 5*model || mostFiles > 40 {
				t.Errorf("the folder took %d bytes in %d files, the model has %d", most, mostFiles, model)
			}
		})
	}
}

package checkpoint

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

// What is on its way to the disk early is what was written, also in pieces that do not
// end where a part for the disk does; and a file that is given up leaves nobody at work.
func TestABigFileOnItsWayToTheDiskIsTheOneThatWasWritten(t *testing.T) {
	path := filepath.Join(t.TempDir(), "big")
	want := make([]byte, 2*writebackEvery+12345)
	for i := range want {
		want[i] = byte(i * i >> 7)
	}
	s, err := realDisk.createSummed(path)
	if err != nil {
		t.Fatal(err)
	}
	for rest := want; len(rest) > 0; {
		n := min(len(rest), 3<<20+17)
		if _, err := s.Write(rest[:n]); err != nil {
			t.Fatal(err)
		}
		rest = rest[n:]
	}
	if s.out.told == 0 {
		t.Error("the disk was told of nothing before the end")
	}
	sum, err := s.finish()
	if err != nil || sum.Bytes != int64(len(want)) {
		t.Fatal(sum, err)
	}
	if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, want) {
		t.Fatal("another file", err)
	}
	if s, err = realDisk.createSummed(path + "2"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Write(want); err != nil {
		t.Fatal(err)
	}
	s.drop()
	if _, err := s.f.Write(nil); err == nil {
		t.Error("still open")
	}
}

package vectored

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
)

// More pieces than the system takes at once, empty ones among them, behind and over
// what is there.
func TestPiecesLieBehindOneAnother(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, n := range []int{0, 1, 2, 65, 1024, 1025, 3000} {
		f, err := os.Create(filepath.Join(t.TempDir(), "file"))
		if err != nil {
			t.Fatal(err)
		}
		want := bytes.Repeat([]byte{9}, 1000)
		if _, err := f.Write(want); err != nil {
			t.Fatal(err)
		}
		const at = 700
		want = want[:at]
		var pieces [][]byte
		for i := range n {
			p := bytes.Repeat([]byte{byte(i)}, rng.IntN(40))
			pieces, want = append(pieces, p), append(want, p...)
		}
		if err := WriteAt(f, pieces, at); err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(f.Name())
		if err != nil || len(got) < len(want) || !bytes.Equal(got[:len(want)], want) {
			t.Errorf("%d pieces: %d bytes, want %d: %v", n, len(got), len(want), err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
		if err := WriteAt(f, [][]byte{{1}}, 0); !errors.Is(err, os.ErrClosed) {
			t.Errorf("written to a closed file: %v", err)
		}
	}
}

func TestWhatTheSystemRefusesIsToldWithTheFile(t *testing.T) {
	f, err := os.Open("write_test.go")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var at *os.PathError
	if err := WriteAt(f, [][]byte{{1}, {2}}, 0); !errors.As(err, &at) || at.Path != f.Name() {
		t.Errorf("a file that is only read: %v", err)
	}
}

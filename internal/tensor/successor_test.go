package tensor

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

func TestDigestOfPiecesIsTheStates(t *testing.T) {
	big := layout(t, Spec{"a", F32, []int64{(1<<20)/2 + 3}, Parameter}, Spec{"b", F32, []int64{(1 << 20) / 4}, Buffer})
	for _, l := range []*Layout{model(t), big} {
		s := filled(l, false)
		defer s.Close()
		for _, piece := range []int{1, 63, (1 << 20) / 4, 1 << 30} {
			if l == big && piece < 63 {
				continue // the same, slowly
			}
			d := NewDigester(l)
			for at := 0; at < len(s.Theta); at += piece {
				d.Theta(s.Theta[at:min(at+piece, len(s.Theta))])
				d.Momentum(s.Momentum[at:min(at+piece, len(s.Theta))])
			}
			if d.Sum(s.Buffers, s.Integers) != s.Digest() {
				t.Errorf("%d elements in pieces of %d: another digest", len(s.Theta), piece)
			}
		}
	}
}

// A successor that is given every value of a state is that state's file, byte for
// byte.
func TestSuccessorIsTheFileOfItsValues(t *testing.T) {
	l := model(t)
	old, s := NewState(l), filled(l, false)
	defer old.Close()
	defer s.Close()
	before := saved(t, old, true)
	f := must(ParseFile(bytes.NewReader(before), int64(len(before))))(t)
	if got := must(f.StateLayout())(t); got.Digest() != l.Digest() {
		t.Fatal("another layout")
	}
	w := must(os.Create(filepath.Join(t.TempDir(), "next")))(t)
	defer w.Close()
	next := must(NewSuccessor(f, w))(t)
	for i, spec := range l.Tensors() {
		at, n := l.Offset(i), spec.Elements()
		var err error
		switch spec.Role {
		case Parameter:
			for _, half := range [][2]int{{n / 2, n}, {0, n / 2}} {
				lo, hi := half[0], half[1]
				if err = next.WriteF32(spec.Name, lo, s.Theta[at+lo:at+hi]); err == nil {
					err = next.WriteF32(MomentumPrefix+spec.Name, lo, s.Momentum[at+lo:at+hi])
				}
			}
		case Buffer:
			err = next.WriteF32(spec.Name, 0, s.Buffers[at:at+n])
		case Integer:
			err = next.WriteBytes(spec.Name, s.Integers[at:at+n*spec.DType.Size()])
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if got := must(os.ReadFile(w.Name()))(t); !bytes.Equal(got, saved(t, s, true)) {
		t.Fatal("another file than SaveState's")
	}
	g := must(OpenFile(w.Name()))(t)
	defer g.Close()
	piece := make([]float32, 10)
	if err := g.ReadF32("z.weight", 20, piece); err != nil {
		t.Fatal(err)
	}
	i, _ := l.Lookup("z.weight")
	if !bytes.Equal(bytesOf(piece), bytesOf(s.Theta[l.Offset(i)+20:][:10])) {
		t.Error("a piece of a tensor differs")
	}
	for name, err := range map[string]error{
		"past the end": g.ReadF32("z.weight", 60, piece), "before": g.ReadF32("z.weight", -1, piece), "no float": g.ReadF32("mask", 0, piece[:1]),
		"unknown": next.WriteF32("x", 0, nil), "short": next.WriteBytes("mask", nil),
	} {
		if err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

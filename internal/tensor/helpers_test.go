package tensor

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"testing"
)

func must[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func layout(t testing.TB, specs ...Spec) *Layout {
	t.Helper()
	return must(NewLayout(specs))(t)
}

// model has every float type, a rank-0 tensor, an empty one, a buffer and
// integers.
func model(t testing.TB) *Layout {
	return layout(t,
		Spec{"z.weight", F32, []int64{7, 9}, Parameter},
		Spec{"half", F16, []int64{5}, Parameter},
		Spec{"brain", BF16, []int64{2, 3, 1}, Parameter},
		Spec{"double", F64, []int64{4}, Parameter},
		Spec{"scalar", F32, nil, Parameter},
		Spec{"empty", F32, []int64{0, 3}, Parameter},
		Spec{"bn.running_mean", F32, []int64{3}, Buffer},
		Spec{"ema", BF16, []int64{2}, Buffer},
		Spec{"bn.num_batches_tracked", I64, nil, Integer},
		Spec{"mask", Bool, []int64{3}, Integer},
	)
}

// filled is a state of values that every float type holds exactly, or of any.
func filled(l *Layout, exact bool) *State {
	s := NewState(l)
	r := rand.New(rand.NewPCG(1, 2))
	for _, v := range [][]float32{s.Theta, s.Momentum, s.Buffers} {
		for i := range v {
			if v[i] = float32(r.NormFloat64()); exact {
				v[i] = float32(r.IntN(256)-128) / 16
			}
		}
	}
	for i := range s.Integers {
		s.Integers[i] = byte(r.IntN(256))
	}
	return s
}

func saved(t testing.TB, s *State, withMomentum bool) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := SaveState(&b, s, withMomentum); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func parse(b []byte) (*File, error) { return ParseFile(bytes.NewReader(b), int64(len(b))) }

// raw is a safetensors file of any header and data.
func raw(header string, data ...byte) []byte {
	b := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	return append(append(b, header...), data...)
}

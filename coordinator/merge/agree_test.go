package merge

import (
	"testing"

	"girassol.dev/internal/algorithm"
	"girassol.dev/internal/codec"
	"girassol.dev/internal/replica"
	"girassol.dev/internal/tensor"
	"pgregory.net/rapid"
)

// rapidLayout draws layouts with 0-d, 1-d, prime, tiny, empty and compressed
// tensors, buffers and integers.
func rapidLayout(t *rapid.T) *tensor.Layout {
	specs := []tensor.Spec{spec("p", 3)}
	shapes := [][]int64{nil, {}, {1}, {0}, {5, 0, 2}, {1031}, {31, 33}, {32, 32}, {1, 1024}, {37, 41}, {4096}, {64, 64}, {3, 3, 7, 71}, {73, 127}}
	floats := []tensor.DType{tensor.F64, tensor.F32, tensor.F16, tensor.BF16}
	integers := []tensor.DType{tensor.I64, tensor.I32, tensor.I16, tensor.I8, tensor.U64, tensor.U32, tensor.U16, tensor.U8, tensor.Bool}
	for i := range rapid.IntRange(0, 8).Draw(t, "tensors") {
		s := tensor.Spec{
			Name:  string(rune('a'+rapid.IntRange(0, 25).Draw(t, "letter"))) + string(rune('0'+i)),
			Shape: rapid.SampledFrom(shapes).Draw(t, "shape"),
			Role:  rapid.SampledFrom([]tensor.Role{tensor.Parameter, tensor.Parameter, tensor.Buffer, tensor.Integer}).Draw(t, "role"),
		}
		if s.Role == tensor.Integer {
			s.DType = rapid.SampledFrom(integers).Draw(t, "integer")
		} else {
			s.DType = rapid.SampledFrom(floats).Draw(t, "float")
		}
		specs = append(specs, s)
	}
	return newLayout(t, specs...)
}

func TestEveryReplicaStepsToTheCoordinatorsState(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := rapidLayout(t)
		tr := rapid.SampledFrom([]algorithm.Transform{identity, dct}).Draw(t, "transform")
		side := func(name string) algorithm.Encoding {
			return enc(tr, rapid.SampledFrom([]int{1, 1, 2, 16, 300, 4096}).Draw(t, name+" keep"),
				rapid.SampledFrom([]algorithm.Values{fp32, bf16, twoBit}).Draw(t, name+" values"))
		}
		p := parameters(algorithm.DecoupledMomentum, side("up"), side("down"))
		cfg := configure(l, p)
		seed := uint64(rapid.IntRange(0, 1<<20).Draw(t, "seed"))
		s := randomState(l, seed)
		other := clone(s)
		defer s.Close()
		defer other.Close()
		R := make([]float32, cfg.Uplink.Len())
		for round := range uint64(rapid.IntRange(1, 3).Draw(t, "rounds")) {
			updates := randomUpdates(t, cfg, rapid.IntRange(1, 4).Draw(t, "sites"), seed+round)
			_, out := merge(t, s, R, cfg, updates)
			if int64(len(out)) > codec.MaxSize(cfg.Downlink, p.Downlink) {
				t.Fatalf("%d bytes, MaxSize %d", len(out), codec.MaxSize(cfg.Downlink, p.Downlink))
			}
			if err := replica.Step(other, cfg.Downlink, p, parse(t, cfg.Downlink, p.Downlink, out)); err != nil {
				t.Fatal(err)
			}
			if s.Digest() != other.Digest() {
				t.Fatalf("replica and coordinator disagree after round %d", round)
			}
		}
	})
}

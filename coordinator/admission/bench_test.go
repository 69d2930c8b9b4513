package admission

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"

	"girassol.dev/internal/algorithm"
	"girassol.dev/internal/codec"
	"girassol.dev/internal/tensor"
)

// What the bounds cost: the norm of one update, and the directions of three, per
// parameter of the model.
func BenchmarkBounds(b *testing.B) {
	for _, name := range []string{algorithm.DecoupledMomentum, algorithm.DiLoCo} {
		p, err := algorithm.Defaults(name)
		if err != nil {
			b.Fatal(err)
		}
		l, err := tensor.NewLayout([]tensor.Spec{{Name: "w", DType: tensor.F32, Shape: []int64{1024, 4096}, Role: tensor.Parameter}})
		if err != nil {
			b.Fatal(err)
		}
		d := codec.NewDomain(l, p.Uplink.Transform)
		var us []Update
		for i := range 3 {
			x := noise(rand.New(rand.NewPCG(uint64(i), 1)), d.Len())
			var buf bytes.Buffer
			if _, err := codec.Encode(&buf, d, p.Uplink, x, codec.Aux{}); err != nil {
				b.Fatal(err)
			}
			payload, err := codec.Parse(d, p.Uplink, bytes.NewReader(buf.Bytes()), int64(buf.Len()), nil)
			if err != nil {
				b.Fatal(err)
			}
			us = append(us, Update{Member: fmt.Sprint(i), Site: fmt.Sprint(i), Norm: 1, Vector: payload})
		}
		perParameter := func(b *testing.B) {
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(d.Len()), "s/Gparam")
		}
		b.Run(name+"/norm", func(b *testing.B) {
			for b.Loop() {
				if _, err := Norm(d.Blocks(), us[0].Vector); err != nil {
					b.Fatal(err)
				}
			}
			perParameter(b)
		})
		b.Run(name+"/directions of three", func(b *testing.B) {
			for b.Loop() {
				if _, err := Disagreeing(d.Blocks(), us, -1); err != nil {
					b.Fatal(err)
				}
			}
			perParameter(b)
		})
	}
}

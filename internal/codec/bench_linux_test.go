package codec

import (
	"io"
	"math/rand/v2"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"girassol.dev/internal/algorithm"
	"girassol.dev/internal/tensor"
)

// cpuSeconds that this thread has used: other work on the machine does not count.
func cpuSeconds(tb testing.TB) float64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts); err != nil {
		tb.Fatal(err)
	}
	return float64(ts.Sec) + float64(ts.Nsec)*1e-9
}

// BenchmarkSparse reports parameters per second of one core: the transform, the
// encoder (selection, quantisation, packing), both together, and the decoder.
func BenchmarkSparse(b *testing.B) {
	l, err := tensor.NewLayout([]tensor.Spec{{Name: "w", DType: tensor.F32, Shape: []int64{2048, 4096}, Role: tensor.Parameter}})
	if err != nil {
		b.Fatal(err)
	}
	r := rand.New(rand.NewPCG(1, 1))
	d := NewDomain(l, algorithm.DCT64)
	x, y, z := tensor.NewVector(d.Len()), tensor.NewVector(d.Len()), tensor.NewVector(d.Len())
	for i := range x {
		x[i] = float32(r.NormFloat64() * r.ExpFloat64())
	}
	d.Forward(y, x)
	e := algorithm.Encoding{Transform: algorithm.DCT64, KeepOneIn: 16, Values: algorithm.TwoBit}
	run := func(name string, f func()) {
		b.Run(name, func(b *testing.B) {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			start := cpuSeconds(b)
			for b.Loop() {
				f()
			}
			b.ReportMetric(float64(d.Len())*float64(b.N)/(cpuSeconds(b)-start)/1e9, "Gparam/cpu-s")
		})
	}
	encode := func(x []float32) {
		if _, err := Encode(io.Discard, d, e, x, Aux{}); err != nil {
			b.Fatal(err)
		}
	}
	run("copy", func() { copy(z, x) })
	run("transform", func() { d.Forward(z, x) })
	run("encode", func() { encode(y) })
	enc := make([]float32, BlockSize)
	run("transform and encode", func() {
		w := NewEncoder(io.Discard, d, e)
		for _, block := range d.Blocks() {
			v := enc[:block.Len()]
			d.ForwardBlock(block, v, x[block.ParamLo:block.ParamHi])
			if err := w.Block(block, v, nil); err != nil {
				b.Fatal(err)
			}
		}
	})
}

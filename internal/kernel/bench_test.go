package kernel

import (
	"testing"
	"time"
)

// Benchmarks report the ratio to copying the same vector, measured in the same
// process and interleaved with it: absolute rates differ between machines and
// from one minute to the next.
func ratioToCopy(b *testing.B, elements int, run func()) {
	src, dst := normal(1, elements), make([]float32, elements)
	var copying, running time.Duration
	b.SetBytes(int64(4 * elements))
	for b.Loop() {
		start := time.Now()
		copy(dst, src)
		mid := time.Now()
		run()
		copying += mid.Sub(start)
		running += time.Since(mid)
	}
	b.ReportMetric(float64(copying)/float64(running), "x-copy")
	b.ReportMetric(float64(elements)*float64(b.N)/running.Seconds()/1e6, "Mparam/s")
}

const large = 1 << 23

func BenchmarkAxpy(b *testing.B) {
	dst, src := normal(2, large), normal(3, large)
	ratioToCopy(b, large, func() { Axpy(dst, 0.5, src) })
}

func BenchmarkNesterov(b *testing.B) {
	theta, m, g := normal(2, large), normal(3, large), normal(4, large)
	ratioToCopy(b, large, func() { Nesterov(theta, m, g, 1, 0.6) })
}

func BenchmarkDCT64(b *testing.B) {
	dst, src := normal(2, large), normal(3, large)
	ratioToCopy(b, large, func() { DCT64(dst, src) })
}

func BenchmarkIDCT64(b *testing.B) {
	dst, src := normal(2, large), normal(3, large)
	ratioToCopy(b, large, func() { IDCT64(dst, src) })
}

func BenchmarkTopK(b *testing.B) {
	x, s := normal(2, large), new(Selector)
	ratioToCopy(b, large, func() {
		for i := 0; i < len(x); i += GroupSize {
			s.TopK(x[i:i+GroupSize], GroupSize/16)
		}
	})
}

func BenchmarkPackBF16(b *testing.B) {
	src, dst := normal(2, large), make([]byte, 2*large)
	ratioToCopy(b, large, func() { PackBF16(dst, src) })
}

func BenchmarkUnpackBF16(b *testing.B) {
	dst, src := normal(2, large), make([]byte, 2*large)
	ratioToCopy(b, large, func() { UnpackBF16(dst, src) })
}

func BenchmarkAxpyBF16(b *testing.B) {
	dst, src := normal(2, large), make([]byte, 2*large)
	ratioToCopy(b, large, func() { AxpyBF16(dst, 0.5, src) })
}

func BenchmarkSumSquares(b *testing.B) {
	x, sum := normal(2, large), 0.0
	ratioToCopy(b, large, func() { sum += SumSquares(x) })
}

func BenchmarkFinite(b *testing.B) {
	x := normal(2, large)
	ratioToCopy(b, large, func() {
		if Finite(x) >= 0 {
			b.Fatal("not finite")
		}
	})
}

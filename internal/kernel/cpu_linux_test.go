package kernel

import (
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// cpuSeconds that this thread has used: other work on the machine does not count.
func cpuSeconds(tb testing.TB) float64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts); err != nil {
		tb.Fatal(err)
	}
	return float64(ts.Sec) + float64(ts.Nsec)*1e-9
}

// BenchmarkCache reports parameters per second of one core on vectors of one
// group, which stay in its cache.
func BenchmarkCache(b *testing.B) {
	x, y, z := normal(2, GroupSize), normal(3, GroupSize), normal(4, GroupSize)
	raw, codes, s := make([]byte, 2*GroupSize), make([]byte, GroupSize/4), new(Selector)
	for _, c := range []struct {
		name string
		run  func()
	}{
		{"copy", func() { copy(y, x) }},
		{"Axpy", func() { Axpy(y, 1e-9, x) }},
		{"Nesterov", func() { Nesterov(y, z, x, 1e-9, 0.5) }},
		{"DCT64", func() { DCT64(y, x) }},
		{"IDCT64", func() { IDCT64(y, x) }},
		{"TopK", func() { s.TopK(x, GroupSize/16) }},
		{"SplitSums", func() { SplitSums(x, 0.5) }},
		{"TwoLevels", func() { TwoLevels(codes, z, 0.5, 0.4, 0.6) }},
		{"PackBF16", func() { PackBF16(raw, x) }},
		{"Finite", func() { Finite(x) }},
		{"Largest", func() { Largest(x) }},
		{"SumSquares", func() { SumSquares(x) }},
	} {
		b.Run(c.name, func(b *testing.B) {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			start := cpuSeconds(b)
			for b.Loop() {
				c.run()
			}
			b.ReportMetric(GroupSize*float64(b.N)/(cpuSeconds(b)-start)/1e9, "Gparam/cpu-s")
		})
	}
}

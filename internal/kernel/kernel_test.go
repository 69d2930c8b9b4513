package kernel

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func normal(seed uint64, n int) []float32 {
	r := rand.New(rand.NewPCG(seed, 1))
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(r.NormFloat64())
	}
	return x
}

func TestAxpyRoundsTheProductBeforeItAdds(t *testing.T) {
	for _, n := range []int{0, 1, 7, 8, 9, 64, 1001} {
		dst, src := normal(1, n), normal(2, n)
		want := slices.Clone(dst)
		for i := range want {
			want[i] += float32(0.37 * src[i])
		}
		Axpy(dst, 0.37, src)
		if !slices.Equal(dst, want) {
			t.Errorf("n=%d differs from the scalar definition", n)
		}
	}
	// A fused multiply-add would give 2^-24 here instead of 0.
	eps := float32(1) + 0x1p-12
	dst := []float32{-(1 + 0x1p-11), 0, 0, 0, 0, 0, 0, 0, -(1 + 0x1p-11)}
	Axpy(dst, eps, []float32{eps, 0, 0, 0, 0, 0, 0, 0, eps})
	if dst[0] != 0 || dst[8] != 0 {
		t.Errorf("product was not rounded: %v", dst)
	}
}

func TestNesterovMatchesHandComputedSteps(t *testing.T) {
	// mu 0.5, eta 2: m = 1+0.5*4 = 3, theta = 10 - 2*(1+1.5) = 5;
	// then g=-2: m = -2+1.5 = -0.5, theta = 5 - 2*(-2-0.25) = 9.5.
	for _, n := range []int{1, 4, 5, 11} {
		theta, m := slices.Repeat([]float32{10}, n), slices.Repeat([]float32{4}, n)
		Nesterov(theta, m, slices.Repeat([]float32{1}, n), 2, 0.5)
		if theta[n-1] != 5 || m[n-1] != 3 || theta[0] != 5 || m[0] != 3 {
			t.Fatalf("n=%d: theta %v m %v, want 5 and 3", n, theta, m)
		}
		Nesterov(theta, m, slices.Repeat([]float32{-2}, n), 2, 0.5)
		if theta[n-1] != 9.5 || m[n-1] != -0.5 || theta[0] != 9.5 || m[0] != -0.5 {
			t.Fatalf("n=%d: theta %v m %v, want 9.5 and -0.5", n, theta, m)
		}
	}
}

func TestNesterovGainIdentity(t *testing.T) {
	// d_t = (1+mu)*g_t + mu^2*m_{t-1} with eta 1.
	const mu = float32(0.6)
	g, m := normal(3, 257), normal(4, 257)
	theta, old := normal(5, 257), slices.Clone(m)
	before := slices.Clone(theta)
	Nesterov(theta, m, g, 1, mu)
	for i := range g {
		want := (1+float64(mu))*float64(g[i]) + float64(mu)*float64(mu)*float64(old[i])
		if got := float64(before[i]) - float64(theta[i]); math.Abs(got-want) > 2e-6*(1+math.Abs(want)) {
			t.Fatalf("element %d moved by %g, want %g", i, got, want)
		}
	}
}

func TestOuterStepMovesTowardsTheSite(t *testing.T) {
	// Shared weight 1, a site trained it to 0, learning rate 1, no momentum: the
	// model becomes 0. With the sign of the pseudo-gradient wrong it becomes 2.
	theta, m := []float32{1}, []float32{0}
	g := []float32{1 - 0}
	Nesterov(theta, m, g, 1, 0)
	if theta[0] != 0 {
		t.Fatalf("model is %g, want 0", theta[0])
	}
}

func TestNesterovRoundsEachProduct(t *testing.T) {
	theta, m, g := normal(6, 103), normal(7, 103), normal(8, 103)
	wantTheta, wantM := slices.Clone(theta), slices.Clone(m)
	for i := range g {
		p := float32(0.9 * wantM[i])
		wantM[i] = p + g[i]
		q := float32(0.9 * wantM[i])
		s := g[i] + q
		r := float32(0.7 * s)
		wantTheta[i] -= r
	}
	Nesterov(theta, m, g, 0.7, 0.9)
	if !slices.Equal(theta, wantTheta) || !slices.Equal(m, wantM) {
		t.Fatal("differs from the scalar definition")
	}
}

// sortedTopK is the definition of TopK.
func sortedTopK(x []float32, k int) []uint16 {
	all := make([]uint16, len(x))
	for i := range all {
		all[i] = uint16(i)
	}
	abs := func(i uint16) float64 { return math.Abs(float64(x[i])) }
	slices.SortFunc(all, func(a, b uint16) int {
		return cmp.Or(cmp.Compare(abs(b), abs(a)), cmp.Compare(a, b))
	})
	all = all[:max(0, min(k, len(all)))]
	slices.Sort(all)
	return all
}

func TestTopKEdges(t *testing.T) {
	inf := float32(math.Inf(1))
	negativeZero := float32(math.Copysign(0, -1))
	for _, c := range []struct {
		name string
		x    []float32
		k    int
		want []uint16
	}{
		{"one of one", []float32{3}, 1, []uint16{0}},
		{"nothing wanted", []float32{3, 4}, 0, []uint16{}},
		{"empty", nil, 3, []uint16{}},
		{"all wanted", []float32{1, -5, 2}, 3, []uint16{0, 1, 2}},
		{"more than all wanted", []float32{1, -5, 2}, 9, []uint16{0, 1, 2}},
		{"sign does not count", []float32{1, -5, 2, 4}, 2, []uint16{1, 3}},
		{"ties go to the lower index", []float32{2, -1, 1, -1, 1}, 3, []uint16{0, 1, 2}},
		{"all equal", []float32{7, 7, -7, 7}, 2, []uint16{0, 1}},
		{"all zero of both signs", []float32{negativeZero, 0, 0, negativeZero}, 2, []uint16{0, 1}},
		{"zeros fill up", []float32{0, 0, 1, 0}, 2, []uint16{0, 2}},
		{"subnormals order", []float32{1e-45, 4e-45, 0, 3e-45}, 2, []uint16{1, 3}},
		{"infinity is largest", []float32{math.MaxFloat32, inf, 0}, 1, []uint16{1}},
		{"last bit decides", []float32{1, math.Nextafter32(1, 2), 1}, 1, []uint16{1}},
	} {
		// Padded, the group is long enough for every path.
		padded := append(slices.Clone(c.x), make([]float32, 100)...)
		if got := new(Selector).TopK(c.x, c.k); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
		if got, want := new(Selector).TopK(padded, c.k), sortedTopK(padded, c.k); !slices.Equal(got, want) {
			t.Errorf("%s, padded: %v, want %v", c.name, got, want)
		}
	}
}

func TestTopKEqualsSorting(t *testing.T) {
	var s Selector // of all, so that each begins where another group ended
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, GroupSize).Draw(t, "n")
		levels := rapid.SampledFrom([]int{1, 2, 5, 1000, 1 << 30}).Draw(t, "levels")
		seed := rapid.Uint64().Draw(t, "seed")
		k := rapid.IntRange(0, n).Draw(t, "k")
		r := rand.New(rand.NewPCG(seed, 0))
		x := make([]float32, n)
		for i := range x {
			x[i] = float32(r.IntN(levels)) * float32(r.NormFloat64())
			if levels < 1000 {
				x[i] = float32(r.IntN(levels)) - 1
			}
		}
		if scale := rapid.IntRange(-140, 120).Draw(t, "scale"); levels >= 1000 {
			for i := range x {
				x[i] = float32(math.Ldexp(float64(x[i]), scale-30))
			}
		}
		if got, want := s.TopK(x, k), sortedTopK(x, k); !slices.Equal(got, want) {
			t.Fatalf("TopK %v, sorting %v", got, want)
		}
	})
}

func TestTopKDoesNotAllocate(t *testing.T) {
	x, s := normal(10, GroupSize), new(Selector)
	if n := testing.AllocsPerRun(10, func() { s.TopK(x, 256) }); n != 0 {
		t.Errorf("%g allocations", n)
	}
}

func TestBF16RoundsToNearestEven(t *testing.T) {
	for _, c := range []struct {
		in   uint32
		want uint16
	}{
		{0x3f800000, 0x3f80}, // 1
		{0x3f808000, 0x3f80}, // half way, even below
		{0x3f818000, 0x3f82}, // half way, even above
		{0x3f808001, 0x3f81},
		{0x3f807fff, 0x3f80},
		{0xbf808001, 0xbf81},
		{0x00000000, 0x0000},
		{0x80000000, 0x8000},
		{0x00000001, 0x0000},
		{0x7f7fffff, 0x7f80}, // largest float32 rounds to infinity
		{0x7f800000, 0x7f80},
		{0xff800000, 0xff80},
		{0x7f800001, 0x7fc0}, // a signalling NaN with low bits stays NaN
		{0x7fc00000, 0x7fc0},
		{0xffffffff, 0xffff},
	} {
		if got := BF16(math.Float32frombits(c.in)); got != c.want {
			t.Errorf("BF16(%#x) = %#x, want %#x", c.in, got, c.want)
		}
	}
	for b := range 1 << 16 {
		f := FromBF16(uint16(b))
		if got := BF16(f); got != uint16(b) && f == f {
			t.Fatalf("%#x does not survive: %#x", b, got)
		}
	}
}

func TestPackedBF16IsLittleEndian(t *testing.T) {
	for _, n := range []int{0, 1, 3, 4, 5, 130} {
		x := normal(11, n)
		packed := make([]byte, 2*n)
		PackBF16(packed, x)
		got := make([]float32, n)
		UnpackBF16(got, packed)
		for i := range x {
			b := BF16(x[i])
			if packed[2*i] != byte(b) || packed[2*i+1] != byte(b>>8) || got[i] != FromBF16(b) {
				t.Fatalf("n=%d element %d: % x -> %g", n, i, packed[2*i:2*i+2], got[i])
			}
		}
	}
}

func TestFiniteFindsTheFirst(t *testing.T) {
	for _, bad := range []float64{math.NaN(), math.Inf(1), math.Inf(-1)} {
		for n := 1; n < 40; n++ {
			x := normal(12, n)
			x[0] = math.MaxFloat32
			if got := Finite(x); got != -1 {
				t.Fatalf("n=%d: %d, want -1", n, got)
			}
			for at := range n {
				y := slices.Clone(x)
				y[at] = float32(bad)
				y[n-1] = float32(bad)
				if got := Finite(y); got != at {
					t.Fatalf("n=%d: %d, want %d", n, got, at)
				}
			}
		}
	}
	if got := Finite(nil); got != -1 {
		t.Errorf("empty: %d", got)
	}
}

func TestDotAndSumSquares(t *testing.T) {
	x, y := normal(13, 1003), normal(14, 1003)
	dot, squares := 0.0, 0.0
	for i := range x {
		dot += float64(x[i]) * float64(y[i])
		squares += float64(x[i]) * float64(x[i])
	}
	if got := Dot(x, y); math.Abs(got-dot) > 1e-9*(1+math.Abs(dot)) {
		t.Errorf("Dot %g, want %g", got, dot)
	}
	if got := SumSquares(x); math.Abs(got-squares) > 1e-9*squares {
		t.Errorf("SumSquares %g, want %g", got, squares)
	}
	sum := slices.Clone(y)
	if got, want := AddSquares(sum, x), SumSquares(x); got != want {
		t.Errorf("AddSquares %g, SumSquares %g", got, want)
	}
	for i := range sum {
		if sum[i] != y[i]+x[i] {
			t.Fatalf("element %d is %g, want %g + %g", i, sum[i], y[i], x[i])
		}
	}
	if got := SumSquares([]float32{3e38, 3e38}); math.IsInf(got, 0) {
		t.Error("SumSquares overflows on finite input")
	}
}

func TestDifferentLengthsPanic(t *testing.T) {
	for name, f := range map[string]func(){
		"Axpy":     func() { Axpy(make([]float32, 2), 1, make([]float32, 3)) },
		"Nesterov": func() { Nesterov(make([]float32, 2), make([]float32, 2), make([]float32, 3), 1, 0) },
		"DCT64":    func() { DCT64(make([]float32, 65), make([]float32, 65)) },
		"TopK":     func() { new(Selector).TopK(make([]float32, GroupSize+1), 1) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s took lengths that do not fit", name)
				}
			}()
			f()
		}()
	}
}

// TestResultsAreTheSameOnEveryArchitecture compares with results of amd64. It
// fails where a compiler fuses a product into a sum, or a table is computed
// differently: replicas on mixed hardware would then drift apart.
func TestResultsAreTheSameOnEveryArchitecture(t *testing.T) {
	r := rand.New(rand.NewPCG(42, 7))
	vector := func() []float32 {
		x := make([]float32, 64*33)
		for i := range x {
			x[i] = float32(r.IntN(1<<24)-1<<23) / 999_983
		}
		return x
	}
	h := sha256.New()
	sum := func(what string, x []float32, want string) {
		h.Reset()
		for _, v := range x {
			_ = binary.Write(h, binary.LittleEndian, v)
		}
		if got := hex.EncodeToString(h.Sum(nil)[:8]); got != want {
			t.Errorf("%s: %s, want %s", what, got, want)
		}
	}
	a, b, c := vector(), vector(), vector()
	Axpy(a, 0.1, b)
	sum("Axpy", a, "2c830883f26f41e4")
	Nesterov(a, b, c, 0.7, 0.9)
	sum("Nesterov theta", a, "87b754e186bba9c1")
	sum("Nesterov m", b, "0be7aad997faea75")
	DCT64(a, b)
	sum("DCT64", a, "6fbc66a825284b1f")
	IDCT64(c, a)
	sum("IDCT64", c, "67f4c15415fa3a72")
	if got, want := math.Float64bits(Dot(a, b)), uint64(0xc0aa4d5a2847478c); got != want {
		t.Errorf("Dot: %#x, want %#x", got, want)
	}
	packed := make([]byte, 2*len(a))
	PackBF16(packed, a)
	UnpackBF16(b, packed)
	sum("BF16", b, "ffd248471835c1dc")
}

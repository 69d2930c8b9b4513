package kernel

import (
	"encoding/binary"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// TestMain runs every test with the assembly and again without it.
func TestMain(m *testing.M) {
	flag.Parse()
	code := m.Run()
	if avx2 && code == 0 && flag.Lookup("test.bench").Value.String() == "" {
		fmt.Println("again without AVX2:")
		avx2 = false
		code = m.Run()
	}
	os.Exit(code)
}

// portably runs f without the assembly.
func portably(f func()) {
	was := avx2
	avx2 = false
	defer func() { avx2 = was }()
	f()
}

// odd values: what rounding, tails and comparisons trip over.
var odd = []float32{
	0, float32(math.Copysign(0, -1)), 1, -1, math.MaxFloat32, -math.MaxFloat32, math.SmallestNonzeroFloat32, -1e-45, 0x1p-126, 1.17549e-38,
	float32(math.Inf(1)), float32(math.Inf(-1)), float32(math.NaN()), 1e30, -3e-30, 0x1.01p0, 0x1.03p0, 0x1.ffp127,
}

// same compares bits; of NaNs only that they are.
func same(a, b []float32) bool {
	return slices.EqualFunc(a, b, func(x, y float32) bool {
		return math.Float32bits(x) == math.Float32bits(y) || x != x && y != y
	})
}

func TestAssemblyGivesTheBitsOfThePortableCode(t *testing.T) {
	if !avx2 {
		t.Skip("no AVX2 here, or it is turned off")
	}
	rapid.Check(t, func(t *rapid.T) {
		n, off := rapid.IntRange(0, 1300).Draw(t, "n"), rapid.IntRange(0, 7).Draw(t, "offset")
		special := rapid.SampledFrom([]int{0, 3, 50}).Draw(t, "one in so many is odd")
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
		vector := func(finite bool) []float32 {
			x := make([]float32, n+off)[off:]
			for i := range x {
				x[i] = float32(r.NormFloat64())
				if special > 0 && r.IntN(special) == 0 {
					x[i] = odd[r.IntN(len(odd))]
				}
				if finite && (x[i] != x[i] || x[i]-x[i] != 0) {
					x[i] = 2
				}
			}
			return x
		}
		bytes := make([]byte, 2*n+off)[off:]
		for i := range n {
			binary.LittleEndian.PutUint16(bytes[2*i:], uint16(r.Uint32()))
		}
		a, b, c := vector(false), vector(false), vector(false)
		w, eta, mu := float32(r.NormFloat64()), float32(r.Float64()), float32(r.Float64())
		check := func(what string, run func(a, b, c []float32, out []byte) any) {
			type result struct {
				a, b, c []float32
				out     []byte
				value   string
			}
			do := func() (x result) {
				x.a, x.b, x.c, x.out = slices.Clone(a), slices.Clone(b), slices.Clone(c), slices.Clone(bytes)
				x.value = fmt.Sprint(run(x.a, x.b, x.c, x.out))
				return x
			}
			fast := do()
			var plain result
			portably(func() { plain = do() })
			if !same(fast.a, plain.a) || !same(fast.b, plain.b) || !same(fast.c, plain.c) || !slices.Equal(fast.out, plain.out) || fast.value != plain.value {
				t.Fatalf("%s of %d elements differs: %s and %s", what, n, fast.value, plain.value)
			}
		}
		check("Axpy", func(a, b, _ []float32, _ []byte) any { Axpy(a, w, b); return nil })
		check("Axpy onto itself", func(a, _, _ []float32, _ []byte) any { Axpy(a, w, a); return nil })
		check("AxpyBF16", func(a, _, _ []float32, out []byte) any { AxpyBF16(a, w, out); return nil })
		check("Nesterov", func(a, b, c []float32, _ []byte) any { Nesterov(a, b, c, eta, mu); return nil })
		check("PackBF16", func(a, _, _ []float32, out []byte) any { PackBF16(out, a); return nil })
		check("UnpackBF16", func(a, _, _ []float32, out []byte) any { UnpackBF16(a, out); return nil })
		check("Finite", func(a, _, _ []float32, _ []byte) any { return Finite(a) })
		blocks := n &^ (Block - 1)
		check("DCT64", func(a, b, _ []float32, _ []byte) any { DCT64(a[:blocks], b[:blocks]); return nil })
		check("IDCT64", func(a, b, _ []float32, _ []byte) any { IDCT64(a[:blocks], b[:blocks]); return nil })
		a, b = vector(true), vector(true)
		check("Finite of finite", func(a, _, _ []float32, _ []byte) any { return Finite(a) })
		check("Dot", func(a, b, _ []float32, _ []byte) any { return math.Float64bits(Dot(a, b)) })
		check("AddSquares", func(a, b, _ []float32, _ []byte) any { return math.Float64bits(AddSquares(a, b)) })
		check("SplitSums", func(a, _, _ []float32, _ []byte) any {
			below, above, n := SplitSums(a, float64(eta))
			return fmt.Sprint(math.Float64bits(below), math.Float64bits(above), n)
		})
		check("TwoLevels", func(a, _, _ []float32, _ []byte) any {
			codes := make([]byte, (len(a)+3)/4)
			TwoLevels(codes, a, eta, eta/2, 2*eta)
			return codes
		})
		check("OneLevel", func(a, _, _ []float32, _ []byte) any {
			codes := make([]byte, (len(a)+7)/8)
			OneLevel(codes, a, eta)
			return codes
		})
		check("FromTwoLevels", func(a, _, _ []float32, out []byte) any {
			FromTwoLevels(a, out[:(len(a)+3)/4], mu, eta)
			return nil
		})
		check("FromOneLevel", func(a, _, _ []float32, out []byte) any { FromOneLevel(a, out[:(len(a)+7)/8], eta); return nil })
		step := largestOf(a) / 130
		check("Multiples8", func(a, _, _ []float32, out []byte) any { Multiples8(out[:len(a)], a, step); return nil })
		check("Multiples4", func(a, _, _ []float32, out []byte) any { Multiples4(out[:(len(a)+1)/2], a, 9*step); return nil })
		check("FromMultiples8", func(a, _, _ []float32, out []byte) any { FromMultiples8(a, out[:len(a)], eta); return nil })
		check("FromMultiples4", func(a, _, _ []float32, out []byte) any { FromMultiples4(a, out[:(len(a)+1)/2], eta); return nil })
		k := rapid.IntRange(0, n).Draw(t, "k")
		check("HalvedGaps", func(a, _, _ []float32, _ []byte) any {
			return HalvedGaps(new(Selector).TopK(a, k), uint(k%12))
		})
		check("TopK", func(a, _, _ []float32, _ []byte) any { return new(Selector).TopK(a, k) })
	})
}

func largestOf(x []float32) float32 {
	largest := float32(0x1p-126)
	for _, v := range x {
		largest = max(largest, v, -v)
	}
	return largest
}

package codec

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"girassol.dev/internal/algorithm"
	"girassol.dev/internal/kernel"
	"pgregory.net/rapid"
)

var allValues = []algorithm.Values{algorithm.FP32, algorithm.BF16, algorithm.EightBit, algorithm.FourBit, algorithm.TwoBit, algorithm.OneBit}

var allGroups = []int{256, 512, 1024, 2048, 4096}

// roundTrip encodes and decodes one group and checks that both ends hold the
// same.
func roundTrip(t interface {
	Helper()
	Fatalf(string, ...any)
}, x []float32, f format) (decoded []float32, bytes []byte) {
	t.Helper()
	var g, h group
	out := g.encode(nil, x, f)
	if int64(len(out)) > f.maxBytes(len(x)) {
		t.Fatalf("%d bytes, bound %d", len(out), f.maxBytes(len(x)))
	}
	used, err := h.decode(append(slices.Clone(out), 0xff, 0xff, 0xff), len(x), f)
	if err != nil || used != len(out) {
		t.Fatalf("decoded %d of %d bytes: %v", used, len(out), err)
	}
	sent, decoded := make([]float32, len(x)), make([]float32, len(x))
	scatter(sent, 1, &g)
	scatter(decoded, 1, &h)
	if !sameBits(sent, decoded) {
		t.Fatalf("sender and receiver differ")
	}
	return decoded, out
}

func sameBits(a, b []float32) bool {
	return slices.EqualFunc(a, b, func(x, y float32) bool { return math.Float32bits(x) == math.Float32bits(y) })
}

func TestGroupComesBackAsSent(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := format{rapid.SampledFrom(allValues).Draw(t, "values"), rapid.SampledFrom([]int{1, 2, 3, 8, 16, 64, 4096}).Draw(t, "keep"),
			rapid.SampledFrom(allGroups).Draw(t, "group")}
		n := rapid.IntRange(1, f.group).Draw(t, "n")
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
		x := make([]float32, n)
		switch rapid.SampledFrom([]string{"normal", "spread", "clustered", "sparse", "equal"}).Draw(t, "kind") {
		case "normal":
			for i := range x {
				x[i] = float32(r.NormFloat64())
			}
		case "spread":
			for i := range x {
				x[i] = float32(r.NormFloat64() * math.Exp2(float64(r.IntN(200)-140)))
			}
		case "clustered":
			for i := range x {
				x[i] = float32(math.Exp(-float64(i) / 10))
			}
		case "sparse":
			for range r.IntN(5) {
				x[r.IntN(n)] = float32(r.NormFloat64())
			}
		case "equal":
			for i := range x {
				x[i] = 0.3
			}
		}
		decoded, bytes := roundTrip(t, x, f)
		k, kept := f.kept(n), 0
		for _, v := range decoded {
			if v != 0 {
				kept++
			}
		}
		if kept > k {
			t.Fatalf("%d kept, at most %d", kept, k)
		}
		top := new(kernel.Selector).TopK(x, k)
		for i, v := range decoded {
			if v != 0 && !slices.Contains(top, uint16(i)) {
				t.Fatalf("index %d is not among the %d largest", i, k)
			}
			if f.values == algorithm.FP32 && v != 0 && v != x[i] {
				t.Fatalf("fp32 value %g came as %g", x[i], v)
			}
		}
		// What the receiver has survives another trip unchanged.
		again, _ := roundTrip(t, decoded, f)
		if !sameBits(again, decoded) {
			t.Fatalf("decode(encode(x)) is not idempotent")
		}
		var g group
		if !slices.Equal(g.encode(nil, x, f), bytes) {
			t.Fatalf("encoding is not deterministic")
		}
	})
}

func TestGroupEdges(t *testing.T) {
	tiny := math.Float32frombits(1)
	for _, c := range []struct {
		name string
		x    []float32
		f    format
		want []float32
	}{
		{"single element", []float32{-0.5}, format{algorithm.TwoBit, 16, MaxGroupSize}, []float32{-0.5}},
		{"single element of all", []float32{-0.5}, format{algorithm.TwoBit, 1, MaxGroupSize}, []float32{-0.5}},
		{"all are kept", []float32{1, -2, 1}, format{algorithm.FP32, 1, MaxGroupSize}, []float32{1, -2, 1}},
		{"at least one", []float32{1, -3, 2}, format{algorithm.FP32, 4096, MaxGroupSize}, []float32{0, -3, 0}},
		{"equal values, one level", slices.Repeat([]float32{0.75}, 8), format{algorithm.TwoBit, 1, MaxGroupSize}, slices.Repeat([]float32{0.75}, 8)},
		{"two values, two levels", []float32{1, -4, 1, 4}, format{algorithm.TwoBit, 1, MaxGroupSize}, []float32{1, -4, 1, 4}},
		{"a small one beside a huge one", []float32{0x1p-60, 0x1p60}, format{algorithm.TwoBit, 1, MaxGroupSize}, []float32{0x1p-60, 0x1p60}},
		{"ties go to the lower index", []float32{2, -2, 2, 2}, format{algorithm.FP32, 2, MaxGroupSize}, []float32{2, -2, 0, 0}},
		{"subnormals", []float32{tiny, 0, -tiny}, format{algorithm.FP32, 1, MaxGroupSize}, []float32{tiny, 0, -tiny}},
		{"subnormals in 2bit", []float32{0x1p-133, 0, -0x1p-133}, format{algorithm.TwoBit, 1, MaxGroupSize}, []float32{0x1p-133, 0, -0x1p-133}},
		// Below half of bf16's least subnormal, 2^-133, levels are zero and
		// everything stays with the sender.
		{"too small for 2bit", []float32{0x1p-140, 0, -0x1p-140}, format{algorithm.TwoBit, 1, MaxGroupSize}, []float32{0, 0, 0}},
		{"beyond the bound is cut", []float32{math.MaxFloat32, -math.MaxFloat32}, format{algorithm.BF16, 1, MaxGroupSize}, []float32{MaxMagnitude, -MaxMagnitude}},
		{"beyond the bound in 2bit", []float32{math.MaxFloat32, 1}, format{algorithm.TwoBit, 1, MaxGroupSize}, []float32{MaxMagnitude, 1}},
		{"bf16 ties to even", []float32{1 + 0x1p-8, 1 + 3*0x1p-8}, format{algorithm.BF16, 1, MaxGroupSize}, []float32{1, 1 + 0x1p-6}},
		{"the largest is the last step", []float32{127, -1, 0.4, 64.5, -64.51}, format{algorithm.EightBit, 1, 256}, []float32{127, -1, 0, 64, -65}},
		{"halves of bytes", []float32{-7, 3.5, 2.5, 0, 1}, format{algorithm.FourBit, 1, 256}, []float32{-7, 4, 2, 0, 1}},
		{"one level", []float32{1, -2, 3, 0}, format{algorithm.OneBit, 1, 256}, []float32{1.5, -1.5, 1.5, 1.5}},
		{"equal values, 8bit", slices.Repeat([]float32{-0.75}, 9), format{algorithm.EightBit, 1, 256}, slices.Repeat([]float32{-127 * 0x1.84p-8}, 9)},
		{"equal values, 1bit", slices.Repeat([]float32{-0.75}, 9), format{algorithm.OneBit, 1, 256}, slices.Repeat([]float32{-0.75}, 9)},
		{"small ones beside a huge one stay with the sender", []float32{1, 0x1p40, -2}, format{algorithm.EightBit, 1, 256}, []float32{0, 127 * 0x1.02p33, 0}},
		{"too small for a step", []float32{tiny, -0x1p-121, 0x1p-122}, format{algorithm.EightBit, 1, 256}, []float32{0, 0, 0}},
		{"just large enough for a step", []float32{127 * 0x1p-126, -0x1p-126}, format{algorithm.EightBit, 1, 256}, []float32{127 * 0x1p-126, -0x1p-126}},
		{"subnormals in 1bit", []float32{0x1p-133, -0x1p-133}, format{algorithm.OneBit, 1, 256}, []float32{0x1p-133, -0x1p-133}},
		{"too small for 1bit", []float32{0x1p-140, -0x1p-140}, format{algorithm.OneBit, 1, 256}, []float32{0, 0}},
		{"beyond the bound in 8bit", []float32{math.MaxFloat32, -MaxMagnitude}, format{algorithm.EightBit, 1, 256}, []float32{127 * 0x1.02p89, -127 * 0x1.02p89}},
		{"beyond the bound in 4bit", []float32{math.MaxFloat32, 1}, format{algorithm.FourBit, 1, 256}, []float32{7 * 0x1.24p93, 0}},
		{"beyond the bound in 1bit", []float32{math.MaxFloat32, -math.MaxFloat32}, format{algorithm.OneBit, 1, 256}, []float32{MaxMagnitude, -MaxMagnitude}},
		{"negative zero", []float32{float32(math.Copysign(0, -1)), 1}, format{algorithm.FP32, 1, MaxGroupSize}, []float32{0, 1}},
	} {
		got, _ := roundTrip(t, c.x, c.f)
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

func TestHalfWayBetweenTheLevelsGoesLow(t *testing.T) {
	// The levels are the means of each half, in bf16 exactly 1 and 4.
	x := append(slices.Repeat([]float32{1}, 1000), slices.Repeat([]float32{-4}, 1000)...)
	got, _ := roundTrip(t, append(x, 2.5, -2.5), format{algorithm.TwoBit, 1, MaxGroupSize})
	if got[0] != 1 || got[1000] != -4 || got[2000] != 1 || got[2001] != -1 {
		t.Errorf("%g %g %g %g, want 1 -4 1 -1", got[0], got[1000], got[2000], got[2001])
	}
}

func TestZeroGroupTakesOneByte(t *testing.T) {
	for _, f := range []format{
		{algorithm.TwoBit, 1, MaxGroupSize}, {algorithm.TwoBit, 16, MaxGroupSize}, {algorithm.FP32, 8, MaxGroupSize}, {algorithm.BF16, 2, MaxGroupSize},
		{algorithm.EightBit, 1, MaxGroupSize}, {algorithm.FourBit, 16, MaxGroupSize}, {algorithm.OneBit, 4, 256},
	} {
		if got, b := roundTrip(t, make([]float32, f.group), f); len(b) != 1 || slices.ContainsFunc(got, func(v float32) bool { return v != 0 }) {
			t.Errorf("%v: %d bytes", f, len(b))
		}
	}
}

// What the sender keeps is what it had less what was sent, and what a step rounds
// away is at most half of it.
func TestRoundingIsBoundedByTheStep(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 5))
	for _, group := range allGroups {
		for _, c := range []struct {
			values algorithm.Values
			most   float64
		}{{algorithm.EightBit, 127}, {algorithm.FourBit, 7}} {
			x := make([]float32, group)
			for i := range x {
				x[i] = float32(r.NormFloat64())
			}
			got, b := roundTrip(t, x, format{c.values, 1, group})
			largest := float64(math.Float32frombits(kernel.Largest(x)))
			for i := range x {
				// A bf16 step is up to 2^-9 off, and the last one is cut.
				if off := math.Abs(float64(x[i]) - float64(got[i])); off > 0.5*largest/c.most*(1+0x1p-8) {
					t.Fatalf("%s: %g became %g", c.values, x[i], got[i])
				}
			}
			if want := 3 + group*map[algorithm.Values]int{algorithm.EightBit: 8, algorithm.FourBit: 4}[c.values]/8; len(b) != want {
				t.Errorf("%s in groups of %d takes %d bytes, want %d", c.values, group, len(b), want)
			}
		}
	}
}

// Bytes that no encoder of ours writes, each wrong in one place.
func TestHostileGroupsAreRefused(t *testing.T) {
	bf16 := func(v float32) []byte { b := kernel.BF16(v); return []byte{byte(b), byte(b >> 8)} }
	// A group of all values: code 0 in 4 bits, then the step in 16, 4 bits to fill.
	head := func(v float32) []byte { s := bf16(v); return []byte{s[0] << 4, s[0]>>4 | s[1]<<4, s[1] >> 4} }
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	for _, c := range []struct {
		name   string
		values algorithm.Values
		in     []byte
		n      int
		want   error
	}{
		{"good", algorithm.EightBit, append(head(1), 1, 0x81), 2, nil},
		{"-128 steps", algorithm.EightBit, append(head(1), 1, 0x80), 2, errMultiple},
		{"values missing", algorithm.EightBit, append(head(1), 1), 2, errShort},
		{"step of zero", algorithm.EightBit, append(head(0), 1, 2), 2, errStep},
		{"negative step", algorithm.EightBit, append(head(-1), 1, 2), 2, errStep},
		{"subnormal step", algorithm.FourBit, append(head(0x1p-127), 1), 2, errStep},
		{"step is not a number", algorithm.FourBit, append(head(nan), 1), 2, errMagnitude},
		{"infinite step", algorithm.EightBit, append(head(inf), 1, 2), 2, errMagnitude},
		{"steps beyond the bound", algorithm.EightBit, append(head(0x1p90), 1, 2), 2, errMagnitude},
		{"good halves", algorithm.FourBit, append(head(1), 0x97, 0x01), 3, nil},
		{"-8 steps in the low half", algorithm.FourBit, append(head(1), 0x18, 0x01), 3, errMultiple},
		{"-8 steps in the high half", algorithm.FourBit, append(head(1), 0x81, 0x01), 3, errMultiple},
		{"a half too many", algorithm.FourBit, append(head(1), 0x11, 0x11), 3, errMultiple},
		{"good signs", algorithm.OneBit, []byte{0, 0xf8, 0xa3}, 4, nil},
		{"no level", algorithm.OneBit, []byte{0, 0, 0xa0}, 4, errStep},
		{"negative level", algorithm.OneBit, []byte{0, 0xf8, 0xab}, 4, errStep},
		{"level is not a number", algorithm.OneBit, []byte{0, 0xfc, 0xa7}, 4, errMagnitude},
		{"signs missing", algorithm.OneBit, []byte{0, 0xf8, 0xa3}, 14, errShort},
	} {
		var g group
		used, err := g.decode(c.in, c.n, format{c.values, 1, 256})
		if !errors.Is(err, c.want) || err == nil && used != len(c.in) {
			t.Errorf("%s, %s: %v after %d bytes, want %v", c.values, c.name, err, used, c.want)
		}
	}
	for at := range 40 {
		b := slices.Repeat([]byte{0x77}, 40)
		if hasNibble8(b) {
			t.Fatal("7 was taken for 8")
		}
		b[at] = 0x87
		if !hasNibble8(b) {
			t.Fatalf("8 at byte %d was not seen", at)
		}
	}
}

func TestIndexCostStaysBelowTwelveBits(t *testing.T) {
	for _, keep := range []int{2, 3, 4, 8, 16, 32, 64, 256, 1024, 4096} {
		f := format{algorithm.TwoBit, keep, MaxGroupSize}
		k := f.kept(MaxGroupSize)
		bits := 8*f.maxBytes(MaxGroupSize) - codeBits - 32 - 2*int64(k) - 7
		t.Logf("1/%d: at most %.2f bit per index", keep, float64(bits)/float64(k))
		if bits > 12*int64(k)+12 {
			t.Errorf("1/%d: %d bits for %d indices", keep, bits, k)
		}
	}
}

func TestLevelsAreNearestCentroids(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 3))
	x := make([]float32, 256)
	for i := range x {
		x[i] = float32(1 + 0.1*r.NormFloat64())
		if i%4 == 0 {
			x[i] = float32(-5 + 0.1*r.NormFloat64())
		}
	}
	low, high := levels(x)
	if math.Abs(float64(low)-1) > 0.05 || math.Abs(float64(high)-5) > 0.1 {
		t.Errorf("levels %g and %g of clusters at 1 and 5", low, high)
	}
	// For a half-normal the two-level error is about 12 % of the energy.
	for i := range x {
		x[i] = float32(r.NormFloat64())
	}
	got, _ := roundTrip(t, x, format{algorithm.TwoBit, 1, MaxGroupSize})
	lost := 0.0
	for i := range x {
		lost += float64(x[i]-got[i]) * float64(x[i]-got[i])
	}
	if share := lost / kernel.SumSquares(x); share > 0.16 {
		t.Errorf("quantisation loses %.3f of the energy, want about 0.12", share)
	}
}

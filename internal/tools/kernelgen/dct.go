package main

import (
	"math"

	. "github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// Eight blocks of 64 are transformed at a time, one in each lane. Registers hold
// eight values of a stage; what is between stages lies in slots of 32 bytes on the
// stack, whose places are known here, so that a permutation costs nothing.

// slots on an aligned frame.
func slots(n int) []operand.Mem {
	base := GP64()
	LEAQ(AllocLocal(32*n+32), base)
	ADDQ(operand.U32(31), base)
	ANDQ(operand.I32(-32), base)
	out := make([]operand.Mem, n)
	for i := range out {
		out[i] = mem(base, 32*i)
	}
	return out
}

// factors of a stage of n: 1/(2*cos(pi*(i+1/2)/n)); scales of the ends. The
// portable code has the same as literals.
func lee(n, i int) float64 { return 1 / (2 * math.Cos(math.Pi*(float64(i)+0.5)/float64(n))) }

var factors = map[uint32]operand.Mem{}

// factor is a constant in memory, in every lane.
func factor(f float64) operand.Mem {
	v := math.Float32bits(float32(f))
	if m, ok := factors[v]; ok {
		return m
	}
	name := "factor" + hex(v)
	m := GLOBL(name, NOPTR|RODATA)
	for i := range 8 {
		DATA(4*i, operand.U32(v))
	}
	factors[v] = m
	return m
}

func hex(v uint32) string {
	const digits = "0123456789abcdef"
	out := make([]byte, 8)
	for i := range out {
		out[7-i] = digits[v>>(4*i)&15]
	}
	return string(out)
}

const (
	scale0 = 0.125
	scaleK = 0.17677669529663687
)

func load(m operand.Mem) reg.VecVirtual {
	v := YMM()
	VMOVAPS(m, v)
	return v
}

func store(v reg.VecVirtual, m operand.Mem) { VMOVAPS(v, m) }

func add(a, b operand.Op) reg.VecVirtual { v := YMM(); VADDPS(b, a, v); return v }
func sub(a, b operand.Op) reg.VecVirtual { v := YMM(); VSUBPS(b, a, v); return v }
func mul(a operand.Op, f float64) reg.VecVirtual {
	v := YMM()
	VMULPS(factor(f), a, v)
	return v
}

// transpose8 turns eight registers of one row each into eight of one column each.
func transpose8(r [8]reg.VecVirtual) (c [8]reg.VecVirtual) {
	var t, u [8]reg.VecVirtual
	for i := range 4 {
		t[2*i], t[2*i+1] = YMM(), YMM()
		VUNPCKLPS(r[2*i+1], r[2*i], t[2*i])
		VUNPCKHPS(r[2*i+1], r[2*i], t[2*i+1])
	}
	for i := range 2 {
		a, b, c, d := t[4*i], t[4*i+1], t[4*i+2], t[4*i+3]
		for j := range 4 {
			u[4*i+j] = YMM()
		}
		VSHUFPS(operand.U8(0x44), c, a, u[4*i])
		VSHUFPS(operand.U8(0xee), c, a, u[4*i+1])
		VSHUFPS(operand.U8(0x44), d, b, u[4*i+2])
		VSHUFPS(operand.U8(0xee), d, b, u[4*i+3])
	}
	for j := range 4 {
		c[j], c[j+4] = YMM(), YMM()
		VPERM2F128(operand.U8(0x20), u[4+j], u[j], c[j])
		VPERM2F128(operand.U8(0x31), u[4+j], u[j], c[j+4])
	}
	return c
}

// forward4 and forward8 are those of dct.go, on registers.
func forward4(x [4]reg.VecVirtual) (y [4]reg.VecVirtual) {
	a0, b0 := add(x[0], x[3]), mul(sub(x[0], x[3]), lee(4, 0))
	a1, b1 := add(x[1], x[2]), mul(sub(x[1], x[2]), lee(4, 1))
	y[0], y[2] = add(a0, a1), mul(sub(a0, a1), lee(2, 0))
	s, d := add(b0, b1), mul(sub(b0, b1), lee(2, 0))
	y[1], y[3] = add(s, d), d
	return y
}

func forward8(v []operand.Mem) {
	var a, b [4]reg.VecVirtual
	for i := range 4 {
		x, y := load(v[i]), load(v[7-i])
		a[i] = add(x, y)
		b[i] = mul(sub(x, y), lee(8, i))
	}
	a = forward4(a)
	for i := range a {
		store(a[i], v[2*i])
	}
	b = forward4(b)
	for i := range 3 {
		store(add(b[i], b[i+1]), v[2*i+1])
	}
	store(b[3], v[7])
}

// forward transforms n slots in place and says in which order the results are.
func forward(v []operand.Mem) []operand.Mem {
	n := len(v)
	if n == 8 {
		forward8(v)
		return v
	}
	a, b := split(v)
	a, b = forward(a), forward(b)
	out := make([]operand.Mem, n)
	for i := range n / 2 {
		out[2*i], out[2*i+1] = a[i], b[i]
		if i+1 < n/2 {
			store(add(load(b[i]), b[i+1]), b[i])
		}
	}
	return out
}

// split is the first stage: sums, and differences times their factors.
func split(v []operand.Mem) (a, b []operand.Mem) {
	n := len(v)
	for i := range n / 2 {
		x, y := load(v[i]), load(v[n-1-i])
		store(add(x, y), v[i])
		store(mul(sub(x, y), lee(n, i)), v[n-1-i])
		a, b = append(a, v[i]), append(b, v[n-1-i])
	}
	return a, b
}

func dct64() {
	transform("dctAVX2", false, forward64, "dctAVX2 is DCT64 of eight blocks; both slices have 512 elements each.")
}

func idct64() {
	transform("idctAVX2", true, inverse64, "idctAVX2 is IDCT64 of eight blocks; both slices have 512 elements each. As much is",
		"fetched from a and b, 4 KiB on, for who goes on with them.")
}

func transform(name string, others bool, do func(in []operand.Mem) []operand.Mem, doc ...string) {
	signature := "func(dst, src []float32)"
	if others {
		signature = "func(dst, src []float32, a, b *float32)"
	}
	TEXT(name, 0, signature)
	Pragma("noescape")
	Doc(doc...)
	dst := Load(Param("dst").Base(), GP64())
	src := Load(Param("src").Base(), GP64())
	var a, b reg.Register
	if others {
		a, b = Load(Param("a"), GP64()), Load(Param("b"), GP64())
	}
	in := slots(64)
	for tile := range 8 {
		var rows [8]reg.VecVirtual
		for r := range rows {
			switch {
			case others:
				// What is transformed is in cache; what comes next is not. A line now
				// and then does not keep the processor waiting.
				at := 4*1024 + 64*(4*tile+r/2)
				if r%2 == 0 {
					PREFETCHT1(mem(a, at))
				} else {
					PREFETCHT1(mem(b, at))
				}
			case tile%2 == 0:
				// The next blocks: rows of 256 bytes at a time are no pattern that the
				// processor sees by itself.
				PREFETCHT0(mem(src, 4*1024+4*(64*r+8*tile)))
			}
			rows[r] = YMM()
			VMOVUPS(mem(src, 4*(64*r+8*tile)), rows[r])
		}
		for c, v := range transpose8(rows) {
			store(v, in[8*tile+c])
		}
	}
	out := do(in)
	for tile := range 8 {
		var columns [8]reg.VecVirtual
		for c := range columns {
			columns[c] = load(out[8*tile+c])
		}
		for r, v := range transpose8(columns) {
			VMOVUPS(v, mem(dst, 4*(64*r+8*tile)))
		}
	}
	end()
}

func forward64(v []operand.Mem) []operand.Mem {
	a, b := split(v)
	a, b = forward(a), forward(b)
	out := make([]operand.Mem, 64)
	for i := range 32 {
		out[2*i], out[2*i+1] = a[i], b[i]
		scale := scaleK
		if i == 0 {
			scale = scale0
		}
		store(mul(load(a[i]), scale), a[i])
		odd := load(b[i])
		if i < 31 {
			odd = add(odd, b[i+1])
		}
		store(mul(odd, scaleK), b[i])
	}
	return out
}

func inverse4(x [4]reg.VecVirtual) (y [4]reg.VecVirtual) {
	c := mul(x[2], lee(2, 0))
	a0, a1 := add(x[0], c), sub(x[0], c)
	d := mul(add(x[1], x[3]), lee(2, 0))
	b0, b1 := mul(add(x[1], d), lee(4, 0)), mul(sub(x[1], d), lee(4, 1))
	return [4]reg.VecVirtual{add(a0, b0), add(a1, b1), sub(a1, b1), sub(a0, b0)}
}

func inverse8(v []operand.Mem) {
	a := inverse4([4]reg.VecVirtual{load(v[0]), load(v[2]), load(v[4]), load(v[6])})
	v1, v3, v5 := load(v[1]), load(v[3]), load(v[5])
	b := inverse4([4]reg.VecVirtual{v1, add(v1, v3), add(v3, v5), add(v5, v[7])})
	for i := range 4 {
		o := mul(b[i], lee(8, i))
		store(add(a[i], o), v[i])
		store(sub(a[i], o), v[7-i])
	}
}

// inverse transforms n slots in place and says in which order the results are.
func inverse(v []operand.Mem) []operand.Mem {
	n := len(v)
	if n == 8 {
		inverse8(v)
		return v
	}
	// From the back, since each takes its place before the next one reads it.
	for i := n/2 - 1; i > 0; i-- {
		store(add(load(v[2*i-1]), v[2*i+1]), v[2*i+1])
	}
	return butterfly(v)
}

// butterfly transforms the even and the odd slots and joins them.
func butterfly(v []operand.Mem) []operand.Mem {
	n := len(v)
	a, b := make([]operand.Mem, n/2), make([]operand.Mem, n/2)
	for i := range n / 2 {
		a[i], b[i] = v[2*i], v[2*i+1]
	}
	a, b = inverse(a), inverse(b)
	out := make([]operand.Mem, n)
	for i := range n / 2 {
		x, y := load(a[i]), mul(load(b[i]), lee(n, i))
		store(add(x, y), a[i])
		store(sub(x, y), b[i])
		out[i], out[n-1-i] = a[i], b[i]
	}
	return out
}

func inverse64(v []operand.Mem) []operand.Mem {
	for i := range 32 {
		scale := scaleK
		if i == 0 {
			scale = scale0
		}
		store(mul(load(v[2*i]), scale), v[2*i])
	}
	last := mul(load(v[1]), scaleK)
	store(last, v[1])
	for i := 1; i < 32; i++ {
		odd := mul(load(v[2*i+1]), scaleK)
		store(add(last, odd), v[2*i+1])
		last = odd
	}
	return butterfly(v)
}

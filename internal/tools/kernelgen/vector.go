package main

import (
	. "github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

const f32 = 4

func mem(base reg.Register, disp int) operand.Mem { return operand.Mem{Base: base, Disp: disp} }

// base and length of a slice parameter.
func slice(name string) (base, length reg.GPVirtual) {
	return Load(Param(name).Base(), GP64()).(reg.GPVirtual), Load(Param(name).Len(), GP64()).(reg.GPVirtual)
}

// broadcast a parameter of four bytes to all lanes.
func broadcast(name string) reg.VecVirtual {
	v := YMM()
	addr, err := Param(name).Resolve()
	if err != nil {
		panic(err)
	}
	VBROADCASTSS(addr.Addr, v)
	return v
}

func constant(v uint32) reg.VecVirtual {
	g, x, y := GP32(), XMM(), YMM()
	MOVL(operand.U32(v), g)
	VMOVD(g, x)
	VPBROADCASTD(x, y)
	return y
}

// loop runs body until n, a number of elements, is used up in steps.
func loop(label string, n reg.Register, step int, body func()) {
	CMPQ(n, operand.U32(uint32(step)))
	JLT(operand.LabelRef(label + "Done"))
	Label(label)
	body()
	SUBQ(operand.U32(uint32(step)), n)
	CMPQ(n, operand.U32(uint32(step)))
	JGE(operand.LabelRef(label))
	Label(label + "Done")
}

func end() {
	VZEROUPPER()
	RET()
}

func axpy() {
	TEXT("axpyAVX2", NOSPLIT, "func(dst, src []float32, w float32)")
	Pragma("noescape")
	Doc("axpyAVX2 adds w*src to dst; the length is a multiple of 64.")
	dst, n := slice("dst")
	src := Load(Param("src").Base(), GP64())
	w := broadcast("w")
	loop("axpy", n, 64, func() {
		// All of dst is read before any of it is written: the two vectors may lie
		// at the same place of their pages, and a load behind such a store waits.
		var d [8]reg.VecVirtual
		for i := range d {
			d[i] = YMM()
			VMOVUPS(mem(dst, 32*i), d[i])
		}
		for i := range d {
			t := YMM()
			VMULPS(mem(src, 32*i), w, t)
			VADDPS(t, d[i], d[i])
		}
		for i := range d {
			VMOVUPS(d[i], mem(dst, 32*i))
		}
		ADDQ(operand.U32(64*f32), dst)
		ADDQ(operand.U32(64*f32), src)
	})
	end()
}

func axpyBF16() {
	TEXT("axpyBF16AVX2", NOSPLIT, "func(dst []float32, src []byte, w float32)")
	Pragma("noescape")
	Doc("axpyBF16AVX2 adds w times bfloat16 values to dst; its length is a multiple of 32.")
	dst, n := slice("dst")
	src := Load(Param("src").Base(), GP64())
	w := broadcast("w")
	loop("axpyBF16", n, 32, func() {
		var d [4]reg.VecVirtual
		for i := range d {
			d[i] = YMM()
			VMOVUPS(mem(dst, 32*i), d[i])
		}
		for i := range d {
			t := YMM()
			VPMOVZXWD(mem(src, 16*i), t)
			VPSLLD(operand.U8(16), t, t)
			VMULPS(t, w, t)
			VADDPS(t, d[i], d[i])
		}
		for i := range d {
			VMOVUPS(d[i], mem(dst, 32*i))
		}
		ADDQ(operand.U32(32*f32), dst)
		ADDQ(operand.U32(32*2), src)
	})
	end()
}

func nesterov() {
	TEXT("nesterovAVX2", NOSPLIT, "func(theta, m, g []float32, eta, mu float32)")
	Pragma("noescape")
	Doc("nesterovAVX2 is the outer step; the length is a multiple of 32.")
	theta, n := slice("theta")
	m := Load(Param("m").Base(), GP64())
	g := Load(Param("g").Base(), GP64())
	eta, mu := broadcast("eta"), broadcast("mu")
	loop("nesterov", n, 32, func() {
		var t, v, d [4]reg.VecVirtual
		for i := range d {
			t[i], v[i], d[i] = YMM(), YMM(), YMM()
			VMOVUPS(mem(theta, 32*i), t[i])
			VMULPS(mem(m, 32*i), mu, v[i])
			VMOVUPS(mem(g, 32*i), d[i])
		}
		for i := range d {
			VADDPS(d[i], v[i], v[i])
			VMOVUPS(v[i], mem(m, 32*i))
			VMULPS(v[i], mu, v[i])
			VADDPS(v[i], d[i], d[i])
			VMULPS(d[i], eta, d[i])
			VSUBPS(d[i], t[i], t[i])
			VMOVUPS(t[i], mem(theta, 32*i))
		}
		for _, p := range []reg.Register{theta, m, g} {
			ADDQ(operand.U32(32*f32), p)
		}
	})
	end()
}

func packBF16() {
	TEXT("packBF16AVX2", NOSPLIT, "func(dst []byte, x []float32)")
	Pragma("noescape")
	Doc("packBF16AVX2 rounds x to bfloat16; its length is a multiple of 16.")
	dst := Load(Param("dst").Base(), GP64())
	x, n := slice("x")
	one, half, quiet := constant(1), constant(0x7fff), constant(0x40)
	magnitude, infinity := constant(0x7fffffff), constant(0x7f800000)
	loop("packBF16", n, 16, func() {
		var r [2]reg.VecVirtual
		for i := range r {
			v, high, even, nan := YMM(), YMM(), YMM(), YMM()
			VMOVDQU(mem(x, 32*i), v)
			VPSRLD(operand.U8(16), v, high)
			VPAND(one, high, even)
			VPAND(magnitude, v, nan)
			VPCMPGTD(infinity, nan, nan)
			VPADDD(half, v, v)
			VPADDD(even, v, v)
			VPSRLD(operand.U8(16), v, v)
			VPOR(quiet, high, high)
			r[i] = YMM()
			VPBLENDVB(nan, high, v, r[i])
		}
		VPACKUSDW(r[1], r[0], r[0])
		VPERMQ(operand.U8(0xd8), r[0], r[0])
		VMOVDQU(r[0], mem(dst, 0))
		ADDQ(operand.U32(16*f32), x)
		ADDQ(operand.U32(16*2), dst)
	})
	end()
}

func unpackBF16() {
	TEXT("unpackBF16AVX2", NOSPLIT, "func(dst []float32, src []byte)")
	Pragma("noescape")
	Doc("unpackBF16AVX2 widens bfloat16 values; the length of dst is a multiple of 32.")
	dst, n := slice("dst")
	src := Load(Param("src").Base(), GP64())
	loop("unpackBF16", n, 32, func() {
		for i := range 4 {
			t := YMM()
			VPMOVZXWD(mem(src, 16*i), t)
			VPSLLD(operand.U8(16), t, t)
			VMOVDQU(t, mem(dst, 32*i))
		}
		ADDQ(operand.U32(32*f32), dst)
		ADDQ(operand.U32(32*2), src)
	})
	end()
}

func finite() {
	TEXT("finiteAVX2", NOSPLIT, "func(x []float32) int")
	Pragma("noescape")
	Doc("finiteAVX2 says how many elements at the start of x, in whole blocks of 64,",
		"are finite; the length is a multiple of 64.")
	x, n := slice("x")
	done := GP64()
	XORQ(done, done)
	exponent, low := constant(0x7f800000), constant(1<<23)
	loop("finite", n, 64, func() {
		or := YMM()
		for i := range 8 {
			v := or
			if i > 0 {
				v = YMM()
			}
			VPAND(mem(x, 32*i), exponent, v)
			VPADDD(low, v, v) // carries into the sign bit when all ones
			if i > 0 {
				VPOR(v, or, or)
			}
		}
		signs := GP32()
		VMOVMSKPS(or, signs)
		TESTL(signs, signs)
		JNE(operand.LabelRef("finiteDone"))
		ADDQ(operand.U32(64*f32), x)
		ADDQ(operand.U32(64), done)
	})
	Store(done, ReturnIndex(0))
	end()
}

func largest() {
	TEXT("largestAVX2", NOSPLIT, "func(x []byte) uint32")
	Pragma("noescape")
	Doc("largestAVX2 gives the largest bits of an absolute value among little-endian",
		"float32; the length is a multiple of 128 and not 0.")
	x, n := slice("x")
	mask := constant(0x7fffffff)
	var m [4]reg.VecVirtual
	for i := range m {
		m[i] = YMM()
		VPXOR(m[i], m[i], m[i])
	}
	loop("largest", n, 128, func() {
		for i := range m {
			v := YMM()
			VPAND(mem(x, 32*i), mask, v)
			VPMAXUD(v, m[i], m[i])
		}
		ADDQ(operand.U32(128), x)
	})
	VPMAXUD(m[1], m[0], m[0])
	VPMAXUD(m[3], m[2], m[2])
	VPMAXUD(m[2], m[0], m[0])
	Store(fold(m[0], VPMAXUD), ReturnIndex(0))
	end()
}

// fold joins the eight lanes of v into one.
func fold(v reg.VecVirtual, join func(...operand.Op)) reg.GPVirtual {
	h := XMM()
	VEXTRACTI128(operand.U8(1), v, h)
	join(v.AsX(), h, h)
	for _, order := range []uint8{0x4e, 0xb1} {
		t := XMM()
		VPSHUFD(operand.U8(order), h, t)
		join(t, h, h)
	}
	out := GP32()
	VMOVD(h, out)
	return out
}

func dot() {
	TEXT("dotAVX2", NOSPLIT, "func(x, y []float32, sums *[16]float64)")
	Pragma("noescape")
	Doc("dotAVX2 adds the products of x and y to sixteen interleaved sums; the length is a",
		"multiple of 16. A product of two float32 is exact in float64, so that the",
		"fused operation rounds as often as the portable code.")
	x, n := slice("x")
	y := Load(Param("y").Base(), GP64())
	sums := Load(Param("sums"), GP64())
	var s [4]reg.VecVirtual
	for i := range s {
		s[i] = YMM()
		VMOVUPD(mem(sums, 32*i), s[i])
	}
	loop("dot", n, 16, func() {
		for i := range s {
			a, b := YMM(), YMM()
			VCVTPS2PD(mem(x, 16*i), a)
			VCVTPS2PD(mem(y, 16*i), b)
			VFMADD231PD(a, b, s[i])
		}
		ADDQ(operand.U32(16*f32), x)
		ADDQ(operand.U32(16*f32), y)
	})
	for i := range s {
		VMOVUPD(s[i], mem(sums, 32*i))
	}
	end()
}

func addSquares() {
	TEXT("addSquaresAVX2", NOSPLIT, "func(dst, src []float32, sums *[16]float64)")
	Pragma("noescape")
	Doc("addSquaresAVX2 adds src to dst and its squares to sixteen interleaved sums; the",
		"length is a multiple of 16.")
	dst, n := slice("dst")
	src := Load(Param("src").Base(), GP64())
	sums := Load(Param("sums"), GP64())
	var s [4]reg.VecVirtual
	for i := range s {
		s[i] = YMM()
		VMOVUPD(mem(sums, 32*i), s[i])
	}
	loop("addSquares", n, 16, func() {
		for i := range 2 {
			v, d := YMM(), YMM()
			VMOVUPS(mem(src, 32*i), v)
			VADDPS(mem(dst, 32*i), v, d)
			VMOVUPS(d, mem(dst, 32*i))
			low, high := YMM(), YMM()
			VCVTPS2PD(v.AsX(), low)
			VEXTRACTF128(operand.U8(1), v, high.AsX())
			VCVTPS2PD(high.AsX(), high)
			VFMADD231PD(low, low, s[2*i])
			VFMADD231PD(high, high, s[2*i+1])
		}
		ADDQ(operand.U32(16*f32), dst)
		ADDQ(operand.U32(16*f32), src)
	})
	for i := range s {
		VMOVUPD(s[i], mem(sums, 32*i))
	}
	end()
}

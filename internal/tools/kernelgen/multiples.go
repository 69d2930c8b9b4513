package main

import (
	. "github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// words is a constant of eight words.
func words(name string, v [8]uint32) reg.VecVirtual {
	m := GLOBL(name, NOPTR|RODATA)
	for i, w := range v {
		DATA(4*i, operand.U32(w))
	}
	y := YMM()
	VMOVDQU(m, y)
	return y
}

func fromTwoBits() {
	TEXT("fromTwoBitsAVX2", NOSPLIT, "func(v []float32, codes []byte, levels *[4]float32)")
	Pragma("noescape")
	Doc("fromTwoBitsAVX2 writes the level of each code of two bits, from the low bits on;",
		"the length of v is a multiple of 16.")
	v, n := slice("v")
	codes := Load(Param("codes").Base(), GP64())
	levels := Load(Param("levels"), GP64())
	table := YMM()
	VBROADCASTF128(mem(levels, 0), table)
	low := words("twoBitsLow", [8]uint32{0, 2, 4, 6, 8, 10, 12, 14})
	high := words("twoBitsHigh", [8]uint32{16, 18, 20, 22, 24, 26, 28, 30})
	loop("fromTwoBits", n, 16, func() {
		c, a, b := YMM(), YMM(), YMM()
		VPBROADCASTD(mem(codes, 0), c)
		VPSRLVD(low, c, a)
		VPSRLVD(high, c, b)
		// Only the two low bits of each choose.
		VPERMILPS(a, table, a)
		VPERMILPS(b, table, b)
		VMOVUPS(a, mem(v, 0))
		VMOVUPS(b, mem(v, 32))
		ADDQ(operand.U32(16*f32), v)
		ADDQ(operand.U32(4), codes)
	})
	end()
}

func signs() {
	TEXT("signsAVX2", NOSPLIT, "func(codes []byte, v []float32, level float32)")
	Pragma("noescape")
	Doc("signsAVX2 replaces each value by the level with its sign, zero by the positive",
		"one, and writes a bit for each that is negative; the length of v is a multiple",
		"of 8.")
	codes := Load(Param("codes").Base(), GP64())
	v, n := slice("v")
	level, sign := broadcast("level"), constant(0x80000000)
	zero := YMM()
	VPXOR(zero, zero, zero)
	loop("signs", n, 8, func() {
		minus, bits := YMM(), GP32()
		VMOVUPS(mem(v, 0), minus)
		VCMPPS(operand.U8(0x11), zero, minus, minus) // x < 0: not the bit, which -0 has too
		VMOVMSKPS(minus, bits)
		MOVB(bits.As8(), mem(codes, 0))
		VANDPS(sign, minus, minus)
		VXORPS(level, minus, minus)
		VMOVUPS(minus, mem(v, 0))
		ADDQ(operand.U32(8*f32), v)
		INCQ(codes)
	})
	end()
}

func fromOneBit() {
	TEXT("fromOneBitAVX2", NOSPLIT, "func(v []float32, codes []byte, level float32)")
	Pragma("noescape")
	Doc("fromOneBitAVX2 writes the level, negative for each bit that is set; the length of",
		"v is a multiple of 8.")
	v, n := slice("v")
	codes := Load(Param("codes").Base(), GP64())
	level, sign := broadcast("level"), constant(0x80000000)
	up := words("oneBit", [8]uint32{31, 30, 29, 28, 27, 26, 25, 24})
	loop("fromOneBit", n, 8, func() {
		c, x := GP32(), YMM()
		MOVBLZX(mem(codes, 0), c)
		VMOVD(c, x.AsX())
		VPBROADCASTD(x.AsX(), x)
		VPSLLVD(up, x, x)
		VPAND(sign, x, x)
		VXORPS(level, x, x)
		VMOVUPS(x, mem(v, 0))
		ADDQ(operand.U32(8*f32), v)
		INCQ(codes)
	})
	end()
}

// multiples replaces 32 values at v by the nearest multiples of the step, cut to
// most, and gives which, as words.
func multiples(v reg.Register, step, most, least reg.VecVirtual) (q [4]reg.VecVirtual) {
	for i := range q {
		q[i] = YMM()
		x := YMM()
		VMOVUPS(mem(v, 32*i), x)
		VDIVPS(step, x, x)
		VMINPS(most, x, x)
		VMAXPS(least, x, x)
		VCVTPS2DQ(x, q[i]) // to nearest, ties to even
		VCVTDQ2PS(q[i], x)
		VMULPS(step, x, x)
		VMOVUPS(x, mem(v, 32*i))
	}
	return q
}

func multiples8() {
	TEXT("multiples8AVX2", NOSPLIT, "func(codes []byte, v []float32, step float32)")
	Pragma("noescape")
	Doc("multiples8AVX2 replaces each value by the nearest multiple of the step, up to 127",
		"of them, and writes which; the length of v is a multiple of 32.")
	codes := Load(Param("codes").Base(), GP64())
	v, n := slice("v")
	step, most, least := broadcast("step"), constant(0x42fe0000), constant(0xc2fe0000)
	order := words("packOrder", [8]uint32{0, 4, 1, 5, 2, 6, 3, 7})
	loop("multiples8", n, 32, func() {
		q := multiples(v, step, most, least)
		VPACKSSDW(q[1], q[0], q[0])
		VPACKSSDW(q[3], q[2], q[2])
		VPACKSSWB(q[2], q[0], q[0])
		VPERMD(q[0], order, q[0])
		VMOVDQU(q[0], mem(codes, 0))
		ADDQ(operand.U32(32*f32), v)
		ADDQ(operand.U32(32), codes)
	})
	end()
}

func fromMultiples8() {
	TEXT("fromMultiples8AVX2", NOSPLIT, "func(v []float32, codes []byte, step float32)")
	Pragma("noescape")
	Doc("fromMultiples8AVX2 writes the multiples of the step; the length of v is a multiple",
		"of 8.")
	v, n := slice("v")
	codes := Load(Param("codes").Base(), GP64())
	step := broadcast("step")
	loop("fromMultiples8", n, 8, func() {
		x := YMM()
		VPMOVSXBD(mem(codes, 0), x)
		VCVTDQ2PS(x, x)
		VMULPS(step, x, x)
		VMOVUPS(x, mem(v, 0))
		ADDQ(operand.U32(8*f32), v)
		ADDQ(operand.U32(8), codes)
	})
	end()
}

func multiples4() {
	TEXT("multiples4AVX2", NOSPLIT, "func(codes []byte, v []float32, step float32)")
	Pragma("noescape")
	Doc("multiples4AVX2 replaces each value by the nearest multiple of the step, up to 7",
		"of them, and writes which, two to a byte; the length of v is a multiple of 32.")
	codes := Load(Param("codes").Base(), GP64())
	v, n := slice("v")
	step, most, least := broadcast("step"), constant(0x40e00000), constant(0xc0e00000)
	half := constant(0x0f0f0f0f)
	// Of each pair of bytes the first once and the second sixteen times.
	pair := constant(0x10011001)
	order := words("packOrder4", [8]uint32{0, 4, 1, 5, 2, 6, 3, 7})
	loop("multiples4", n, 32, func() {
		q := multiples(v, step, most, least)
		VPACKSSDW(q[1], q[0], q[0])
		VPACKSSDW(q[3], q[2], q[2])
		VPACKSSWB(q[2], q[0], q[0])
		VPERMD(q[0], order, q[0])
		VPAND(half, q[0], q[0])
		VPMADDUBSW(pair, q[0], q[0])
		h := XMM()
		VEXTRACTI128(operand.U8(1), q[0], h)
		VPACKUSWB(h, q[0].AsX(), h)
		VMOVDQU(h, mem(codes, 0))
		ADDQ(operand.U32(32*f32), v)
		ADDQ(operand.U32(16), codes)
	})
	end()
}

func fromMultiples4() {
	TEXT("fromMultiples4AVX2", NOSPLIT, "func(v []float32, codes []byte, step float32)")
	Pragma("noescape")
	Doc("fromMultiples4AVX2 writes the multiples of the step, two of a byte; the length of",
		"v is a multiple of 8.")
	v, n := slice("v")
	codes := Load(Param("codes").Base(), GP64())
	step := broadcast("step")
	up := words("fourBits", [8]uint32{28, 24, 20, 16, 12, 8, 4, 0})
	loop("fromMultiples4", n, 8, func() {
		x := YMM()
		VPBROADCASTD(mem(codes, 0), x)
		VPSLLVD(up, x, x)
		VPSRAD(operand.U8(28), x, x)
		VCVTDQ2PS(x, x)
		VMULPS(step, x, x)
		VMOVUPS(x, mem(v, 0))
		ADDQ(operand.U32(8*f32), v)
		ADDQ(operand.U32(4), codes)
	})
	end()
}

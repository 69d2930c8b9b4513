package main

import (
	. "github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

func lloyd() {
	TEXT("splitSumsAVX2", NOSPLIT, "func(v []float32, bound float64, sums *[8]float64) int")
	Pragma("noescape")
	Doc("splitSumsAVX2 adds |v| in four interleaved lanes, those up to the bound to the",
		"first four sums and those above it to the others, and says how many are above;",
		"the length is a multiple of 4.")
	v, n := slice("v")
	sums := Load(Param("sums"), GP64())
	bound, mask := YMM(), YMM()
	addr, err := Param("bound").Resolve()
	if err != nil {
		panic(err)
	}
	VBROADCASTSD(addr.Addr, bound)
	VPCMPEQD(mask, mask, mask)
	VPSRLQ(operand.U8(1), mask, mask)
	below, above, count := YMM(), YMM(), YMM()
	VMOVUPD(mem(sums, 0), below)
	VMOVUPD(mem(sums, 32), above)
	VPXOR(count, count, count)
	loop("splitSums", n, 4, func() {
		x, over, part := YMM(), YMM(), YMM()
		VCVTPS2PD(mem(v, 0), x)
		VANDPD(mask, x, x)
		VCMPPD(operand.U8(0x1e), bound, x, over) // x > bound
		VPSUBQ(over, count, count)
		VANDPD(over, x, part)
		VADDPD(part, above, above)
		VANDNPD(x, over, part)
		VADDPD(part, below, below)
		ADDQ(operand.U32(4*f32), v)
	})
	VMOVUPD(below, mem(sums, 0))
	VMOVUPD(above, mem(sums, 32))
	h, s := XMM(), XMM()
	VEXTRACTI128(operand.U8(1), count, h)
	VPADDQ(count.AsX(), h, h)
	VPSHUFD(operand.U8(0x4e), h, s)
	VPADDQ(s, h, h)
	out := GP64()
	VMOVQ(h, out)
	Store(out, ReturnIndex(0))
	end()
}

func signsAndLevels() {
	TEXT("signsAndLevelsAVX2", NOSPLIT, "func(codes []byte, v []float32, bound, low, high float32)")
	Pragma("noescape")
	Doc("signsAndLevelsAVX2 replaces eight values at a time by the level of their side of",
		"the bound with their sign, and writes their codes: for each, from the low bits on,",
		"a bit for negative and one for high. The length of v is a multiple of 8.")
	codes := Load(Param("codes").Base(), GP64())
	v, n := slice("v")
	bound, low, high := broadcast("bound"), broadcast("low"), broadcast("high")
	magnitude, sign := constant(0x7fffffff), constant(0x80000000)
	negative, large := GP64(), GP64()
	MOVQ(operand.U64(0x5555), negative)
	MOVQ(operand.U64(0xaaaa), large)
	zero := YMM()
	VPXOR(zero, zero, zero)
	loop("signsAndLevels", n, 8, func() {
		x, a, over, minus, level := YMM(), YMM(), YMM(), YMM(), YMM()
		VMOVUPS(mem(v, 0), x)
		VANDPS(magnitude, x, a)
		VCMPPS(operand.U8(0x1e), bound, a, over)
		VCMPPS(operand.U8(0x11), zero, x, minus) // x < 0: not the bit, which -0 has too
		VBLENDVPS(over, high, low, level)
		var s, l reg.GPVirtual = GP64(), GP64()
		VMOVMSKPS(minus, s.As32())
		VMOVMSKPS(over, l.As32())
		VANDPS(sign, minus, minus)
		VXORPS(minus, level, level)
		VMOVUPS(level, mem(v, 0))
		PDEPQ(negative, s, s)
		PDEPQ(large, l, l)
		ORQ(l, s)
		MOVW(s.As16(), mem(codes, 0))
		ADDQ(operand.U32(8*f32), v)
		ADDQ(operand.U32(2), codes)
	})
	end()
}

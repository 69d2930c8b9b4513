package main

import (
	. "github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// Selection works on keys, the bits of absolute values, which order as the values
// do and are positive as signed integers.

func magnitudes() {
	TEXT("magnitudesAVX2", NOSPLIT, "func(keys []uint32, x []float32) uint32")
	Pragma("noescape")
	Doc("magnitudesAVX2 writes the bits of |x| and gives the largest; the length is a",
		"multiple of 16 and not 0.")
	keys := Load(Param("keys").Base(), GP64())
	x, n := slice("x")
	mask := constant(0x7fffffff)
	a, b := YMM(), YMM()
	VPXOR(a, a, a)
	VPXOR(b, b, b)
	loop("magnitudes", n, 16, func() {
		u, v := YMM(), YMM()
		VPAND(mem(x, 0), mask, u)
		VPAND(mem(x, 32), mask, v)
		VMOVDQU(u, mem(keys, 0))
		VMOVDQU(v, mem(keys, 32))
		VPMAXUD(u, a, a)
		VPMAXUD(v, b, b)
		ADDQ(operand.U32(16*f32), x)
		ADDQ(operand.U32(16*f32), keys)
	})
	VPMAXUD(b, a, a)
	Store(fold(a, VPMAXUD), ReturnIndex(0))
	end()
}

func countAbove() {
	TEXT("countAboveAVX2", NOSPLIT, "func(keys []uint32, t *[3]uint32, counts *[3]uint64)")
	Pragma("noescape")
	Doc("countAboveAVX2 counts the keys above each of three; the length is a multiple of 32.")
	keys, n := slice("keys")
	t, counts := Load(Param("t"), GP64()), Load(Param("counts"), GP64())
	var bounds, sums [3]reg.VecVirtual
	for i := range sums {
		bounds[i], sums[i] = YMM(), YMM()
		VPBROADCASTD(mem(t, 4*i), bounds[i])
		VPXOR(sums[i], sums[i], sums[i])
	}
	loop("countAbove", n, 32, func() {
		for i := range 4 {
			v := YMM()
			VMOVDQU(mem(keys, 32*i), v)
			for j := range sums {
				above := YMM()
				VPCMPGTD(bounds[j], v, above)
				VPSUBD(above, sums[j], sums[j])
			}
		}
		ADDQ(operand.U32(32*f32), keys)
	})
	for i := range sums {
		wide := GP64()
		MOVL(fold(sums[i], VPADDD), wide.As32())
		MOVQ(wide, mem(counts, 8*i))
	}
	end()
}

// lanes holds, for each mask of eight lanes, the numbers of those that are set, in
// order and one byte each.
func lanes() operand.Mem {
	m := GLOBL("lanes", NOPTR|RODATA)
	for mask := range 256 {
		var entry uint64
		at := 0
		for lane := range 8 {
			if mask>>lane&1 == 1 {
				entry |= uint64(lane) << (8 * at)
				at++
			}
		}
		DATA(8*mask, operand.U64(entry))
	}
	return m
}

var laneTable operand.Mem

func table() reg.GPVirtual {
	if laneTable == (operand.Mem{}) {
		laneTable = lanes()
	}
	p := GP64()
	LEAQ(laneTable, p)
	return p
}

func keysBetween() {
	TEXT("keysBetweenAVX2", NOSPLIT, "func(dst, keys []uint32, low, high uint32) int")
	Pragma("noescape")
	Doc("keysBetweenAVX2 copies the keys in (low, high] and says how many they are; the",
		"length of keys is a multiple of 32, and dst has room for all and 8 more.")
	dst := Load(Param("dst").Base(), GP64())
	keys, n := slice("keys")
	low, high := broadcast("low"), broadcast("high")
	lut := table()
	start := GP64()
	MOVQ(dst, start)
	loop("keysBetween", n, 32, func() {
		// Usually none of them is in.
		var v, in [4]reg.VecVirtual
		for i := range v {
			v[i], in[i] = YMM(), YMM()
			over := YMM()
			VMOVDQU(mem(keys, 32*i), v[i])
			VPCMPGTD(low, v[i], in[i])
			VPCMPGTD(high, v[i], over)
			VPANDN(in[i], over, in[i])
		}
		a, b := YMM(), YMM()
		VPOR(in[0], in[1], a)
		VPOR(in[2], in[3], b)
		VPOR(a, b, a)
		VPTEST(a, a)
		JEQ(operand.LabelRef("keysBetweenNone"))
		for i := range v {
			order := YMM()
			mask, count := GP64(), GP64()
			VMOVMSKPS(in[i], mask.As32())
			VPMOVZXBD(operand.Mem{Base: lut, Index: mask, Scale: 8}, order)
			VPERMD(v[i], order, v[i])
			VMOVDQU(v[i], mem(dst, 0))
			POPCNTQ(mask, count)
			LEAQ(operand.Mem{Base: dst, Index: count, Scale: 4}, dst)
		}
		Label("keysBetweenNone")
		ADDQ(operand.U32(32*f32), keys)
	})
	SUBQ(start, dst)
	SHRQ(operand.U8(2), dst)
	Store(dst, ReturnIndex(0))
	end()
}

func indicesAbove() {
	TEXT("indicesAboveAVX2", NOSPLIT, "func(idx []uint16, keys []uint32, t uint32) int")
	Pragma("noescape")
	Doc("indicesAboveAVX2 writes the indices of the keys above t, in ascending order, and",
		"says how many they are; the length of keys is a multiple of 8, and idx has room",
		"for 8 more than there are.")
	idx := Load(Param("idx").Base(), GP64())
	keys, n := slice("keys")
	t := broadcast("t")
	lut := table()
	start := GP64()
	MOVQ(idx, start)
	from, eight := XMM(), XMM()
	VPXOR(from, from, from)
	g := GP32()
	MOVL(operand.U32(8<<16|8), g)
	VMOVD(g, eight)
	VPBROADCASTD(eight, eight)
	loop("indicesAbove", n, 8, func() {
		v, order := YMM(), XMM()
		VMOVDQU(mem(keys, 0), v)
		VPCMPGTD(t, v, v)
		mask, count := GP64(), GP64()
		VMOVMSKPS(v, mask.As32())
		VPMOVZXBW(operand.Mem{Base: lut, Index: mask, Scale: 8}, order)
		VPADDW(from, order, order)
		VMOVDQU(order, mem(idx, 0))
		POPCNTQ(mask, count)
		LEAQ(operand.Mem{Base: idx, Index: count, Scale: 2}, idx)
		VPADDW(eight, from, from)
		ADDQ(operand.U32(8*f32), keys)
	})
	SUBQ(start, idx)
	SHRQ(operand.U8(1), idx)
	Store(idx, ReturnIndex(0))
	end()
}

func halvedGaps() {
	TEXT("halvedGapsAVX2", NOSPLIT, "func(idx []uint16, b uint64) uint32")
	Pragma("noescape")
	Doc("halvedGapsAVX2 sums ((gap>>b)+1)>>1 over the gaps between each index and the one",
		"before it, which stands in front of idx; the length is a multiple of 16.")
	idx, n := slice("idx")
	shift := XMM()
	VMOVQ(Load(Param("b"), GP64()), shift)
	one, sum := YMM(), YMM()
	VPCMPEQW(one, one, one)
	VPSRLW(operand.U8(15), one, one)
	VPXOR(sum, sum, sum)
	loop("halvedGaps", n, 16, func() {
		v := YMM()
		VMOVDQU(mem(idx, 0), v)
		VPSUBW(mem(idx, -2), v, v)
		VPSUBW(one, v, v)
		VPSRLW(shift, v, v)
		VPADDW(one, v, v)
		VPSRLW(operand.U8(1), v, v)
		VPMADDWD(one, v, v)
		VPADDD(v, sum, sum)
		ADDQ(operand.U32(32), idx)
	})
	Store(fold(sum, VPADDD), ReturnIndex(0))
	end()
}

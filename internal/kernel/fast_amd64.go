package kernel

import "golang.org/x/sys/cpu"

// The assembly is made by internal/tools/kernelgen.
//
//go:generate go -C ../tools/kernelgen run . -out ../../kernel/avx2_amd64.s -stubs ../../kernel/avx2_amd64.go -pkg kernel

// avx2 says whether the assembly can run here. Tests turn it off.
var avx2 = cpu.X86.HasAVX2 && cpu.X86.HasFMA && cpu.X86.HasBMI2 && cpu.X86.HasPOPCNT

// The functions below do as much from the start of their vectors as the assembly
// can, and say how many elements that was; the portable code does the rest.

func axpyFast(dst []float32, w float32, src []float32) int {
	n := whole(len(dst), 64)
	if n > 0 {
		axpyAVX2(dst[:n], src[:n], w)
	}
	return n
}

func axpyBF16Fast(dst []float32, w float32, src []byte) int {
	n := whole(len(dst), 32)
	if n > 0 {
		axpyBF16AVX2(dst[:n], src[:2*n], w)
	}
	return n
}

func nesterovFast(theta, m, g []float32, eta, mu float32) int {
	n := whole(len(theta), 32)
	if n > 0 {
		nesterovAVX2(theta[:n], m[:n], g[:n], eta, mu)
	}
	return n
}

func packBF16Fast(dst []byte, x []float32) int {
	n := whole(len(x), 16)
	if n > 0 {
		packBF16AVX2(dst[:2*n], x[:n])
	}
	return n
}

func unpackBF16Fast(dst []float32, src []byte) int {
	n := whole(len(dst), 32)
	if n > 0 {
		unpackBF16AVX2(dst[:n], src[:2*n])
	}
	return n
}

// finiteFast ends at the first block that has something else.
func finiteFast(x []float32) int {
	n := whole(len(x), 64)
	if n > 0 {
		n = finiteAVX2(x[:n])
	}
	return n
}

func largestFast(x []byte) (n int, largest uint32) {
	n = whole(len(x), 128)
	if n > 0 {
		largest = largestAVX2(x[:n])
	}
	return n, largest
}

func dotFast(x, y []float32, sums *[16]float64) int {
	n := whole(len(x), 16)
	if n > 0 {
		dotAVX2(x[:n], y[:n], sums)
	}
	return n
}

func addSquaresFast(dst, src []float32, sums *[16]float64) int {
	n := whole(len(src), 16)
	if n > 0 {
		addSquaresAVX2(dst[:n], src[:n], sums)
	}
	return n
}

func dctFast(dst, src []float32) int {
	n := whole(len(dst), 8*Block)
	for at := 0; at < n; at += 8 * Block {
		dctAVX2(dst[at:at+8*Block], src[at:at+8*Block])
	}
	return n
}

func idctFast(dst, src, a, b []float32) int {
	n := whole(len(dst), 8*Block)
	for at := 0; at < n; at += 8 * Block {
		idctAVX2(dst[at:at+8*Block], src[at:at+8*Block], &a[at], &b[at])
	}
	return n
}

func splitSumsFast(v []float32, bound float64, sums *[8]float64) (n, above int) {
	n = whole(len(v), 4)
	if n > 0 {
		above = splitSumsAVX2(v[:n], bound, sums)
	}
	return n, above
}

// halvedGapsFast takes n gaps from the second on.
func halvedGapsFast(idx []uint16, b uint) (n int, sum uint32) {
	if n = whole(len(idx)-1, 16); n > 0 {
		sum = halvedGapsAVX2(idx[1:n+1], uint64(b))
	}
	return n, sum
}

func twoLevelsFast(codes []byte, v []float32, bound, low, high float32) int {
	n := whole(len(v), 8)
	if n > 0 {
		signsAndLevelsAVX2(codes[:n/4], v[:n], bound, low, high)
	}
	return n
}

func fromTwoLevelsFast(v []float32, codes []byte, levels *[4]float32) int {
	n := whole(len(v), 16)
	if n > 0 {
		fromTwoBitsAVX2(v[:n], codes[:n/4], levels)
	}
	return n
}

func oneLevelFast(codes []byte, v []float32, level float32) int {
	n := whole(len(v), 8)
	if n > 0 {
		signsAVX2(codes[:n/8], v[:n], level)
	}
	return n
}

func fromOneLevelFast(v []float32, codes []byte, level float32) int {
	n := whole(len(v), 8)
	if n > 0 {
		fromOneBitAVX2(v[:n], codes[:n/8], level)
	}
	return n
}

func multiples8Fast(codes []byte, v []float32, step float32) int {
	n := whole(len(v), 32)
	if n > 0 {
		multiples8AVX2(codes[:n], v[:n], step)
	}
	return n
}

func fromMultiples8Fast(v []float32, codes []byte, step float32) int {
	n := whole(len(v), 8)
	if n > 0 {
		fromMultiples8AVX2(v[:n], codes[:n], step)
	}
	return n
}

func multiples4Fast(codes []byte, v []float32, step float32) int {
	n := whole(len(v), 32)
	if n > 0 {
		multiples4AVX2(codes[:n/2], v[:n], step)
	}
	return n
}

func fromMultiples4Fast(v []float32, codes []byte, step float32) int {
	n := whole(len(v), 8)
	if n > 0 {
		fromMultiples4AVX2(v[:n], codes[:n/2], step)
	}
	return n
}

// whole is how many of n elements are in blocks for the assembly.
func whole(n, block int) int {
	if !avx2 {
		return 0
	}
	return n - n%block
}

// Kernelgen writes the AVX2 assembly of internal/kernel. Run it by make
// generate; its output is committed.
//
// Every routine does what the portable Go beside it does, lane by lane in the
// same order and with products rounded before they are added, so that both give
// the same bits. The routines take whole blocks only: their callers do the tails
// in Go.
package main

import (
	. "github.com/mmcloughlin/avo/build"
)

func main() {
	ConstraintExpr("amd64")

	axpy()
	axpyBF16()
	nesterov()
	packBF16()
	unpackBF16()
	finite()
	largest()
	dot()
	addSquares()

	dct64()
	idct64()

	magnitudes()
	countAbove()
	keysBetween()
	indicesAbove()
	halvedGaps()

	lloyd()
	signsAndLevels()
	fromTwoBits()
	signs()
	fromOneBit()
	multiples8()
	fromMultiples8()
	multiples4()
	fromMultiples4()

	Generate()
}

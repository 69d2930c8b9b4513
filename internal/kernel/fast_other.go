//go:build !amd64

package kernel

// Elsewhere the portable code does it all.

func axpyFast([]float32, float32, []float32) int                     { return 0 }
func axpyBF16Fast([]float32, float32, []byte) int                    { return 0 }
func nesterovFast(_, _, _ []float32, _, _ float32) int               { return 0 }
func packBF16Fast([]byte, []float32) int                             { return 0 }
func unpackBF16Fast([]float32, []byte) int                           { return 0 }
func finiteFast([]float32) int                                       { return 0 }
func largestFast([]byte) (int, uint32)                               { return 0, 0 }
func dotFast(_, _ []float32, _ *[16]float64) int                     { return 0 }
func addSquaresFast(_, _ []float32, _ *[16]float64) int              { return 0 }
func dctFast(_, _ []float32) int                                     { return 0 }
func idctFast(_, _, _, _ []float32) int                              { return 0 }
func splitSumsFast([]float32, float64, *[8]float64) (int, int)       { return 0, 0 }
func halvedGapsFast([]uint16, uint) (int, uint32)                    { return 0, 0 }
func twoLevelsFast([]byte, []float32, float32, float32, float32) int { return 0 }
func fromTwoLevelsFast([]float32, []byte, *[4]float32) int           { return 0 }
func oneLevelFast([]byte, []float32, float32) int                    { return 0 }
func fromOneLevelFast([]float32, []byte, float32) int                { return 0 }
func multiples8Fast([]byte, []float32, float32) int                  { return 0 }
func fromMultiples8Fast([]float32, []byte, float32) int              { return 0 }
func multiples4Fast([]byte, []float32, float32) int                  { return 0 }
func fromMultiples4Fast([]float32, []byte, float32) int              { return 0 }
func (s *Selector) kthFast([]float32, int) (threshold, bool)         { return threshold{}, false }
func (s *Selector) indicesFast(k int, _ uint32) []uint16             { return s.indices[:k] }

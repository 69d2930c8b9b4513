// Package kernel owns the inner loops over float32 vectors: weighted
// accumulation, the outer step, the cosine transform, selection of the largest,
// quantisation by levels and steps, bfloat16 and norms.
//
// Each function is portable Go; on amd64 with AVX2 assembly does all but the tail
// of the vectors. Every result that can enter a model is the same bit for bit on
// every architecture and on both paths: products are rounded to float32 before they
// are added (a fused multiply-add only where the product is exact), elements are
// independent of each other, and sums have a fixed order, in interleaved lanes that
// a vector register can hold. Only which NaN comes out of a NaN may differ; none
// enters a model. Tests run on both paths and compare them.
//
// It is pure. It must not know about tensors, encodings or rounds.
package kernel

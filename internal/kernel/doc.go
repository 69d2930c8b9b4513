// Package kernel owns the inner loops over float32 vectors: weighted
// accumulation, the outer step, the cosine transform, selection of the largest,
// bfloat16 and norms.
//
// It is pure and portable Go behind functions that assembly may replace. Every
// result that can enter a model is the same bit for bit on every architecture:
// products are rounded to float32 before they are added (no fused
// multiply-add), and sums have a fixed order. It must not know about tensors,
// encodings or rounds.
package kernel

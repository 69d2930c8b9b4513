package transformer

import (
	"gonum.org/v1/gonum/blas"
	"gonum.org/v1/gonum/blas/blas32"
)

// A tile of the product is at most tileRows x tileCols: gonum multiplies so
// small a matrix on the calling goroutine, and it stays in the first-level
// cache. Several trainers share a machine, so none may spread over its cores.
const (
	tileRows = 64
	tileCols = 192
)

// mat is a row-major view of rows x cols with the given stride.
func mat(data []float32, rows, cols, stride int) blas32.General {
	return blas32.General{Rows: rows, Cols: cols, Stride: stride, Data: data}
}

// dense is a view without gaps.
func dense(data []float32, rows, cols int) blas32.General { return mat(data, rows, cols, cols) }

// gemm is c = alpha*op(a)*op(b) + beta*c, tile by tile.
func gemm(ta, tb blas.Transpose, alpha float32, a, b blas32.General, beta float32, c blas32.General) {
	colTiles := (c.Cols + tileCols - 1) / tileCols
	width := (c.Cols + colTiles - 1) / colTiles
	for i := 0; i < c.Rows; i += tileRows {
		m := min(tileRows, c.Rows-i)
		at := a
		if ta == blas.NoTrans {
			at.Data, at.Rows = a.Data[i*a.Stride:], m
		} else {
			at.Data, at.Cols = a.Data[i:], m
		}
		for j := 0; j < c.Cols; j += width {
			n := min(width, c.Cols-j)
			bt := b
			if tb == blas.NoTrans {
				bt.Data, bt.Cols = b.Data[j:], n
			} else {
				bt.Data, bt.Rows = b.Data[j*b.Stride:], n
			}
			blas32.Gemm(ta, tb, alpha, at, bt, beta, mat(c.Data[i*c.Stride+j:], m, n, c.Stride))
		}
	}
}

// transpose writes the transpose of src (rows x cols, strided) to dst, without
// gaps. It goes in blocks so that both sides stay in cache.
func transpose(dst, src []float32, rows, cols, stride int) {
	const blk = 16
	for i := 0; i < rows; i += blk {
		for j := 0; j < cols; j += blk {
			for r := i; r < min(i+blk, rows); r++ {
				row := src[r*stride : r*stride+cols]
				for c := j; c < min(j+blk, cols); c++ {
					dst[c*rows+r] = row[c]
				}
			}
		}
	}
}

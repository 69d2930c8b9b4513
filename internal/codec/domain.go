package codec

import (
	"fmt"
	"sort"

	"girassol.dev/internal/algorithm"
	"girassol.dev/internal/kernel"
	"girassol.dev/internal/tensor"
)

const (
	// MinSparse is the fewest elements of a tensor that is worth compressing.
	MinSparse = 1024
	// MaxGroupSize is the largest number of coefficients among which the largest are
	// kept; the sizes divide each other.
	MaxGroupSize = algorithm.MaxGroupSize
	// BlockSize is the most elements of a Block: 64 KiB as float32, so that what a
	// merge holds of a block stays in a core's nearer caches.
	BlockSize = 4 * MaxGroupSize
)

// Block is a run of one tensor's elements: the unit in which callers walk a
// domain with bounded scratch. Lo and Hi bound it in the domain, ParamLo and
// ParamHi in the parameter vector. It starts at a whole group of its tensor.
type Block struct {
	Lo, Hi           int
	ParamLo, ParamHi int
	// Tensor is the index in the layout.
	Tensor int
	// Compressed tensors are transformed, and cut when the encoding keeps only
	// one in so many.
	Compressed bool

	index int
}

// Len is the number of domain elements.
func (b Block) Len() int { return b.Hi - b.Lo }

// Domain maps a layout's parameter vector to the vector in which updates,
// residuals and merges live. It is immutable.
type Domain struct {
	layout    *tensor.Layout
	transform algorithm.Transform
	blocks    []Block
	// first block of each layout tensor; first[i] == first[i+1] when it has
	// none (no parameter, or no elements).
	first []int
	n     int
}

// NewDomain lays out the domain. An unknown transform is a defect of the
// caller, who has validated the algorithm, and panics.
func NewDomain(l *tensor.Layout, t algorithm.Transform) *Domain {
	if t != algorithm.Identity && t != algorithm.DCT64 {
		panic(fmt.Sprintf("codec: unknown transform %q", t))
	}
	d := &Domain{layout: l, transform: t}
	for i, s := range l.Tensors() {
		d.first = append(d.first, len(d.blocks))
		if s.Role != tensor.Parameter {
			continue
		}
		n := s.Elements()
		param, end := l.Offset(i), l.Offset(i)+n
		compressed := len(s.Shape) >= 2 && n >= MinSparse
		if compressed && t == algorithm.DCT64 {
			n = (n + kernel.Block - 1) / kernel.Block * kernel.Block
		}
		for lo := 0; lo < n; lo += BlockSize {
			hi := min(lo+BlockSize, n)
			d.blocks = append(d.blocks, Block{
				Lo: d.n + lo, Hi: d.n + hi,
				ParamLo: param + lo, ParamHi: min(param+hi, end),
				Tensor: i, Compressed: compressed, index: len(d.blocks),
			})
		}
		d.n += n
	}
	d.first = append(d.first, len(d.blocks))
	return d
}

// Len is the length of a domain vector.
func (d *Domain) Len() int { return d.n }

// Layout is what the domain was made for.
func (d *Domain) Layout() *tensor.Layout { return d.layout }

// Transform of the compressed tensors.
func (d *Domain) Transform() algorithm.Transform { return d.transform }

// Blocks walks the domain from 0 to Len without gaps; do not change it.
func (d *Domain) Blocks() []Block { return d.blocks }

// Equal says whether vectors of both domains mean the same.
func (d *Domain) Equal(o *Domain) bool {
	return d == o || d.transform == o.transform && d.layout.Digest() == o.layout.Digest()
}

// tensorBlocks is the blocks of layout tensor i.
func (d *Domain) tensorBlocks(i int) []Block { return d.blocks[d.first[i]:d.first[i+1]] }

// blockAt finds the block that starts at domain element lo.
func (d *Domain) blockAt(lo int) (int, bool) {
	i := sort.Search(len(d.blocks), func(i int) bool { return d.blocks[i].Lo >= lo })
	return i, i < len(d.blocks) && d.blocks[i].Lo == lo
}

func (d *Domain) transformed(b Block) bool { return b.Compressed && d.transform == algorithm.DCT64 }

// Forward maps parameters to the domain; dst has Len elements, src as many as
// the layout has parameters. It is linear.
func (d *Domain) Forward(dst, src []float32) {
	for _, b := range d.blocks {
		d.ForwardBlock(b, dst[b.Lo:b.Hi], src[b.ParamLo:b.ParamHi])
	}
}

// ForwardBlock is Forward of one block: dst has Hi-Lo elements, src
// ParamHi-ParamLo.
func (d *Domain) ForwardBlock(b Block, dst, src []float32) {
	if !d.transformed(b) {
		copy(dst, src)
		return
	}
	whole := len(src) / kernel.Block * kernel.Block
	kernel.DCT64(dst[:whole], src[:whole])
	if whole < len(src) {
		var tail [kernel.Block]float32
		copy(tail[:], src[whole:])
		kernel.DCT64(dst[whole:], tail[:])
	}
}

// Inverse maps a domain vector to parameters; it undoes Forward to rounding.
func (d *Domain) Inverse(dst, src []float32) {
	for _, b := range d.blocks {
		d.InverseBlock(b, dst[b.ParamLo:b.ParamHi], src[b.Lo:b.Hi])
	}
}

// InverseBlock is Inverse of one block: dst has ParamHi-ParamLo elements, src
// Hi-Lo.
func (d *Domain) InverseBlock(b Block, dst, src []float32) {
	d.InverseBlockBefore(b, dst, src, src, src)
}

// InverseBlockBefore is InverseBlock for who goes on with the same elements of two
// other vectors: their memory is fetched meanwhile.
func (d *Domain) InverseBlockBefore(b Block, dst, src, theta, momentum []float32) {
	if !d.transformed(b) {
		copy(dst, src)
		return
	}
	whole := len(dst) / kernel.Block * kernel.Block
	kernel.IDCT64Before(dst[:whole], src[:whole], theta[:whole], momentum[:whole])
	if whole < len(dst) {
		var tail [kernel.Block]float32
		kernel.IDCT64(tail[:], src[whole:])
		copy(dst[whole:], tail[:])
	}
}

package tensor

import "girassol.dev/internal/kernel"

// Digester makes a state's Digest of its elements piece by piece, for who does
// not hold the state. Theta and momentum each come in their order.
type Digester struct {
	layout *Layout
	stores [4]leaves // theta, momentum, buffers, integers
}

// NewDigester is a Digester for a state of this layout.
func NewDigester(l *Layout) *Digester { return &Digester{layout: l} }

// Theta takes the elements that follow.
func (d *Digester) Theta(v []float32) { d.stores[0].floats(v) }

// Momentum takes the elements that follow.
func (d *Digester) Momentum(v []float32) { d.stores[1].floats(v) }

// Sum ends the digest with buffers and integers.
func (d *Digester) Sum(buffers []float32, integers []byte) [32]byte {
	d.stores[2].floats(buffers)
	d.stores[3].write(integers)
	var sizes [4]int
	var sums [4][]byte
	for i := range d.stores {
		s := &d.stores[i]
		s.end()
		sizes[i], sums[i] = s.size, s.sums
	}
	return digestRoot(d.layout, sizes, sums)
}

// leaves hashes a store in blocks of digestLeaf bytes.
type leaves struct {
	size    int
	sums    []byte
	open    []byte // the beginning of a leaf whose end has not come
	scratch []byte
}

func (s *leaves) floats(v []float32) {
	if littleEndian {
		s.write(bytesOf(v))
		return
	}
	if s.scratch == nil {
		s.scratch = make([]byte, digestLeaf)
	}
	for len(v) > 0 {
		n := min(len(v), leafElements)
		kernel.PackFP32(s.scratch[:4*n], v[:n])
		s.write(s.scratch[:4*n])
		v = v[n:]
	}
}

func (s *leaves) write(b []byte) {
	s.size += len(b)
	for len(b) > 0 {
		if len(s.open) == 0 && len(b) >= digestLeaf {
			s.leaf(b[:digestLeaf])
			b = b[digestLeaf:]
			continue
		}
		if s.open == nil {
			s.open = make([]byte, 0, digestLeaf)
		}
		n := min(len(b), digestLeaf-len(s.open))
		s.open = append(s.open, b[:n]...)
		b = b[n:]
		if len(s.open) == digestLeaf {
			s.end()
		}
	}
}

func (s *leaves) leaf(b []byte) {
	var sum [leafSize]byte
	putLeaf(sum[:], b)
	s.sums = append(s.sums, sum[:]...)
}

func (s *leaves) end() {
	if len(s.open) > 0 {
		s.leaf(s.open)
		s.open = s.open[:0]
	}
}

package tensor

import (
	"crypto/sha256"
	"encoding/binary"
	"hash"

	"girassol.dev/internal/kernel"
)

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
	root := d.layout.Digest()
	pre := append([]byte(nil), root[:]...)
	for i := range d.stores {
		s := &d.stores[i]
		s.end()
		pre = binary.LittleEndian.AppendUint64(pre, s.size)
		pre = append(pre, s.sums...)
	}
	return sha256.Sum256(pre)
}

// leaves hashes a store in blocks of digestBlock bytes.
type leaves struct {
	size    uint64
	sums    []byte
	h       hash.Hash
	open    int // bytes in h
	scratch []byte
}

func (s *leaves) floats(v []float32) {
	if littleEndian {
		s.write(bytesOf(v))
		return
	}
	if s.scratch == nil {
		s.scratch = make([]byte, digestBlock)
	}
	for len(v) > 0 {
		n := min(len(v), digestBlock/4)
		kernel.PackFP32(s.scratch[:4*n], v[:n])
		s.write(s.scratch[:4*n])
		v = v[n:]
	}
}

func (s *leaves) write(b []byte) {
	if s.h == nil {
		s.h = sha256.New()
	}
	s.size += uint64(len(b))
	for len(b) > 0 {
		n := min(len(b), digestBlock-s.open)
		s.h.Write(b[:n])
		b = b[n:]
		if s.open += n; s.open == digestBlock {
			s.end()
		}
	}
}

func (s *leaves) end() {
	if s.open == 0 {
		return
	}
	s.sums = s.h.Sum(s.sums)
	s.h.Reset()
	s.open = 0
}

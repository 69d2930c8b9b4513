package tensor

import (
	"crypto/sha256"
	"encoding/binary"
	"runtime"
	"sync"
	"sync/atomic"

	"girassol.dev/internal/kernel"
)

// State is the shared model state, the thing that every replica holds bit for
// bit: the model's values and the momentum of the outer step.
type State struct {
	Layout *Layout
	// Theta and Momentum have Layout.Parameters() elements.
	Theta, Momentum []float32
	// Buffers has Layout.Buffers() elements.
	Buffers []float32
	// Integers has Layout.IntegerBytes() bytes, little endian.
	Integers []byte
}

// NewState returns a zeroed state. Close it: large states live outside the Go
// heap.
func NewState(l *Layout) *State {
	return &State{
		Layout:   l,
		Theta:    NewVector(l.Parameters()),
		Momentum: NewVector(l.Parameters()),
		Buffers:  NewVector(l.Buffers()),
		Integers: make([]byte, l.IntegerBytes()),
	}
}

// Close frees the memory; the state and slices of it are of no use afterwards.
// A second Close does nothing.
func (s *State) Close() {
	FreeVector(s.Theta)
	FreeVector(s.Momentum)
	FreeVector(s.Buffers)
	s.Theta, s.Momentum, s.Buffers, s.Integers = nil, nil, nil, nil
}

// CopyFrom makes s equal to o, bit for bit. Both must have the same layout.
func (s *State) CopyFrom(o *State) {
	if s.Layout.Digest() != o.Layout.Digest() {
		panic("tensor: CopyFrom of a state with another layout")
	}
	copy(s.Theta, o.Theta)
	copy(s.Momentum, o.Momentum)
	copy(s.Buffers, o.Buffers)
	copy(s.Integers, o.Integers)
}

// digestBlock is the number of bytes under one leaf of the digest.
const digestBlock = 1 << 20

// Digest identifies the state in every bit:
//
//	SHA-256( layout digest
//	       | for each of theta, momentum, buffers, integers, in this order:
//	           its size in bytes as 8 bytes, little endian
//	         | SHA-256 of each 1 MiB of its bytes in order, the last one shorter )
//
// Elements are little-endian float32; integers have the bytes of their own
// type, little endian. An empty store has a size and no hashes. The leaves are
// hashed by up to GOMAXPROCS goroutines, all of which have ended on return.
// The state must not change meanwhile.
func (s *State) Digest() [32]byte { return s.digest(littleEndian) }

// leaf is one block: of floats, or of bytes as they are.
type leaf struct {
	floats []float32
	bytes  []byte
}

func (s *State) digest(view bool) [32]byte {
	root := s.Layout.Digest()
	pre := append([]byte(nil), root[:]...)
	var leaves []leaf
	var sizes [4]int
	for i, v := range [][]float32{s.Theta, s.Momentum, s.Buffers} {
		sizes[i] = 4 * len(v)
		for len(v) > 0 {
			n := min(len(v), digestBlock/4)
			leaves = append(leaves, leaf{floats: v[:n]})
			v = v[n:]
		}
	}
	sizes[3] = len(s.Integers)
	for b := s.Integers; len(b) > 0; {
		n := min(len(b), digestBlock)
		leaves = append(leaves, leaf{bytes: b[:n]})
		b = b[n:]
	}
	sums := hashLeaves(leaves, view)
	for _, size := range sizes {
		pre = binary.LittleEndian.AppendUint64(pre, uint64(size))
		for range (size + digestBlock - 1) / digestBlock {
			pre = append(pre, sums[0][:]...)
			sums = sums[1:]
		}
	}
	return sha256.Sum256(pre)
}

func hashLeaves(leaves []leaf, view bool) [][32]byte {
	sums := make([][32]byte, len(leaves))
	var next atomic.Int64
	work := func() {
		var scratch []byte
		for {
			i := int(next.Add(1)) - 1
			if i >= len(leaves) {
				return
			}
			l := leaves[i]
			switch {
			case l.bytes != nil:
				sums[i] = sha256.Sum256(l.bytes)
			case view:
				sums[i] = sha256.Sum256(bytesOf(l.floats))
			default:
				if scratch == nil {
					scratch = make([]byte, digestBlock)
				}
				kernel.PackFP32(scratch[:4*len(l.floats)], l.floats)
				sums[i] = sha256.Sum256(scratch[:4*len(l.floats)])
			}
		}
	}
	var wg sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), len(leaves)) - 1 {
		wg.Go(work)
	}
	work()
	wg.Wait()
	return sums
}

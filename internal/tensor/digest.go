package tensor

import (
	"crypto/sha256"
	"encoding/binary"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/zeebo/xxh3"

	"girassol.dev/internal/kernel"
)

// A state's digest finds replicas that have diverged and files that are damaged,
// whose differences are accidents. It does not withstand who wants two states
// with one digest: members and coordinator know each other by mTLS. What names a
// model's shape, the layout's digest, is SHA-256 throughout.

// DigestForm names how states are digested. It stands beside digests that are
// kept, so that one of another form is told from a damaged state.
const DigestForm = "xxh3-128/64KiB"

// digestLeaf is the number of bytes under one leaf: what a core still has in its
// nearer caches after it was written.
const digestLeaf = 64 << 10

const leafElements = digestLeaf / 4

// Digest identifies the state in every bit, against accidents:
//
//	SHA-256( layout digest
//	       | for each of theta, momentum, buffers, integers, in this order:
//	           its size in bytes as 8 bytes, little endian
//	         | XXH3-128 of each 64 KiB of its bytes in order, the last one
//	           shorter, as 16 bytes, big endian )
//
// Elements are little-endian float32; integers have the bytes of their own
// type, little endian. An empty store has a size and no hashes. The leaves are
// hashed by up to GOMAXPROCS goroutines, all of which have ended on return.
// The state must not change meanwhile.
func (s *State) Digest() [32]byte {
	t := s.DigestTrail()
	t.parallel(min(runtime.GOMAXPROCS(0), 1+len(t.sums[0])/leafSize/4))
	return t.Sum()
}

// leafSize is the number of bytes of a leaf's hash.
const leafSize = 16

// DigestTrail makes the digest of a state behind somebody who changes it from
// front to back, while what was changed last is still in cache.
type DigestTrail struct {
	s    *State
	sums [4][]byte // of the leaves of theta, momentum, buffers, integers
	done int       // leaves of theta and momentum
	// view says that floats in memory are the bytes of the definition.
	view    bool
	scratch []byte
}

// DigestTrail starts before the first parameter.
func (s *State) DigestTrail() *DigestTrail {
	t := &DigestTrail{s: s, view: littleEndian}
	for i, n := range t.sizes() {
		t.sums[i] = make([]byte, (n+digestLeaf-1)/digestLeaf*leafSize)
	}
	return t
}

func (t *DigestTrail) sizes() [4]int {
	return [4]int{4 * len(t.s.Theta), 4 * len(t.s.Momentum), 4 * len(t.s.Buffers), len(t.s.Integers)}
}

// Upto says that the first n parameters of theta and momentum have the values
// that the digest is of.
func (t *DigestTrail) Upto(n int) {
	for ; (t.done+1)*leafElements <= n; t.done++ {
		t.scratch = t.pair(t.done, t.scratch)
	}
}

// pair hashes leaf i of theta and of momentum.
func (t *DigestTrail) pair(i int, scratch []byte) []byte {
	lo, hi := i*leafElements, min((i+1)*leafElements, len(t.s.Theta))
	scratch = t.floats(t.sums[0][i*leafSize:], t.s.Theta[lo:hi], scratch)
	return t.floats(t.sums[1][i*leafSize:], t.s.Momentum[lo:hi], scratch)
}

func (t *DigestTrail) floats(sum []byte, v []float32, scratch []byte) []byte {
	if t.view {
		putLeaf(sum, bytesOf(v))
		return scratch
	}
	if scratch == nil {
		scratch = make([]byte, digestLeaf)
	}
	kernel.PackFP32(scratch[:4*len(v)], v)
	putLeaf(sum, scratch[:4*len(v)])
	return scratch
}

func putLeaf(sum, b []byte) {
	h := xxh3.Hash128(b)
	binary.BigEndian.PutUint64(sum, h.Hi)
	binary.BigEndian.PutUint64(sum[8:], h.Lo)
}

// parallel hashes what is left of theta and momentum by so many goroutines.
func (t *DigestTrail) parallel(workers int) {
	var next atomic.Int64
	next.Store(int64(t.done))
	leaves := len(t.sums[0]) / leafSize
	work := func() {
		var scratch []byte
		for {
			// Some at a time: goroutines seldom meet.
			const some = 16
			lo := int(next.Add(some)) - some
			if lo >= leaves {
				return
			}
			for i := lo; i < min(lo+some, leaves); i++ {
				scratch = t.pair(i, scratch)
			}
		}
	}
	var wg sync.WaitGroup
	for range workers - 1 {
		wg.Go(work)
	}
	work()
	wg.Wait()
	t.done = leaves
}

// Sum is the digest of the state, all of which has its values now.
func (t *DigestTrail) Sum() [32]byte {
	for leaves := len(t.sums[0]) / leafSize; t.done < leaves; t.done++ {
		t.scratch = t.pair(t.done, t.scratch)
	}
	for i := range len(t.sums[2]) / leafSize {
		v := t.s.Buffers[i*leafElements:]
		t.scratch = t.floats(t.sums[2][i*leafSize:], v[:min(len(v), leafElements)], t.scratch)
	}
	for i := range len(t.sums[3]) / leafSize {
		b := t.s.Integers[i*digestLeaf:]
		putLeaf(t.sums[3][i*leafSize:], b[:min(len(b), digestLeaf)])
	}
	return digestRoot(t.s.Layout, t.sizes(), t.sums)
}

func digestRoot(l *Layout, sizes [4]int, sums [4][]byte) (root [32]byte) {
	h := sha256.New()
	layout := l.Digest()
	h.Write(layout[:])
	for i, s := range sums {
		h.Write(binary.LittleEndian.AppendUint64(nil, uint64(sizes[i])))
		h.Write(s)
	}
	h.Sum(root[:0])
	return root
}

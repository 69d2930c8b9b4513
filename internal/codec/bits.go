package codec

import (
	"encoding/binary"
	"math/bits"
)

// bitWriter appends bits to a byte slice, least significant first.
type bitWriter struct {
	out []byte
	acc uint64
	n   uint // bits in acc, fewer than 32 between calls
}

// put writes the low n bits of v, n <= 32; the bits above are zero.
func (w *bitWriter) put(v uint32, n uint) {
	w.acc |= uint64(v) << w.n
	w.n += n
	if w.n >= 32 {
		w.out = binary.LittleEndian.AppendUint32(w.out, uint32(w.acc))
		w.acc >>= 32
		w.n -= 32
	}
}

// indices writes the gaps between ascending indices with Rice parameter b.
func (w *bitWriter) indices(idx []uint16, b uint) {
	out, acc, n := w.out, w.acc, w.n
	next, mask := uint32(0), uint32(1)<<b-1
	for _, i := range idx {
		gap := uint32(i) - next
		next = uint32(i) + 1
		q := uint(gap >> (b & 31))
		if q+1+b > 32 {
			w.out, w.acc, w.n = out, acc, n
			w.rice(gap, b)
			out, acc, n = w.out, w.acc, w.n
			continue
		}
		acc |= uint64((gap&mask)<<1|1) << (q & 31) << (n & 31)
		n += q + 1 + b
		if n >= 32 {
			out = binary.LittleEndian.AppendUint32(out, uint32(acc))
			acc >>= 32
			n -= 32
		}
	}
	w.out, w.acc, w.n = out, acc, n
}

// rice writes gap with parameter b.
func (w *bitWriter) rice(gap uint32, b uint) {
	q := uint(gap >> b)
	for ; q >= 32; q -= 32 {
		w.put(0, 32)
	}
	w.put(1<<q, q+1)
	w.put(gap&(1<<b-1), b)
}

// flush fills the last byte with zero bits.
func (w *bitWriter) flush() {
	for ; w.n > 0; w.n -= min(w.n, 8) {
		w.out = append(w.out, byte(w.acc))
		w.acc >>= 8
	}
	w.acc = 0
}

// bitReader reads what bitWriter wrote. Past the end it delivers zero bits and
// remembers that it did.
type bitReader struct {
	in  []byte
	pos int
	acc uint64
	n   uint // bits of acc that count; those above are right or zero
	out bool // ran past the end
}

// fill brings n to at least 56 unless the input ends.
func (r *bitReader) fill() {
	if len(r.in)-r.pos >= 8 {
		r.acc |= binary.LittleEndian.Uint64(r.in[r.pos:]) << r.n
		r.pos += int(63-r.n) >> 3
		r.n |= 56
		return
	}
	for r.n <= 56 && r.pos < len(r.in) {
		r.acc |= uint64(r.in[r.pos]) << r.n
		r.pos++
		r.n += 8
	}
}

// take reads n bits, n <= 32.
func (r *bitReader) take(n uint) uint32 {
	if r.n < n {
		r.fill()
		if r.n < n {
			r.out = true
			return 0
		}
	}
	v := uint32(r.acc & (1<<n - 1))
	r.acc >>= n
	r.n -= n
	return v
}

// rice reads a gap with parameter b; one above limit comes back as limit+1.
func (r *bitReader) rice(b uint, limit uint32) uint32 {
	q := uint32(0)
	for {
		if r.n < 32 {
			r.fill()
			if r.n == 0 {
				r.out = true
				return 0
			}
		}
		z := uint(bits.TrailingZeros64(r.acc))
		if z < r.n {
			q += uint32(z)
			r.acc >>= z + 1
			r.n -= z + 1
			break
		}
		q += uint32(r.n)
		r.acc, r.n = 0, 0
		if q > limit {
			return limit + 1
		}
	}
	if q > limit>>b {
		return limit + 1
	}
	return q<<b | r.take(b)
}

// align ends the string of bits: the number of bytes it took, and whether the
// bits that fill the last one are zero.
func (r *bitReader) align() (used int, clean bool) {
	fill := r.n & 7
	return r.pos - int(r.n>>3), r.acc&(1<<fill-1) == 0
}

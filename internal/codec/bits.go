package codec

import (
	"encoding/binary"
	"math/bits"
	"slices"
)

// bitSpare is how far past the last bit the writer may store.
const bitSpare = 16

// bitWriter writes bits into a buffer that has room for them and bitSpare bytes
// more, least significant first.
type bitWriter struct {
	out []byte // all of the buffer
	at  int    // bytes of it that are whole
	acc uint64
	n   uint // bits in acc, fewer than 8 between calls
}

// newBitWriter appends to out, which grows by room and spare.
func newBitWriter(out []byte, room int) bitWriter {
	at := len(out)
	out = slices.Grow(out, room+bitSpare)
	return bitWriter{out: out[:cap(out)], at: at}
}

// put writes the low n bits of v, n <= 56; the bits above are zero.
func (w *bitWriter) put(v uint64, n uint) {
	w.acc |= v << (w.n & 63)
	w.n += n
	binary.LittleEndian.PutUint64(w.out[w.at:], w.acc)
	w.at += int(w.n >> 3)
	w.acc >>= w.n &^ 7 & 63
	w.n &= 7
}

// indices writes the gaps between ascending indices with Rice parameter b.
func (w *bitWriter) indices(idx []uint16, b uint) {
	out, at, acc, n := w.out, w.at, w.acc, w.n
	b &= 31
	next, mask := uint32(0), uint32(1)<<b-1
	// Two at a time while both are short.
	for len(idx) >= 2 {
		i, j := uint32(idx[0]), uint32(idx[1])
		p, q := i-next, j-i-1
		u, v := uint(p>>b), uint(q>>b)
		short := 27 - b
		if u > short || v > short {
			w.at, w.acc, w.n = at, acc, n
			w.rice(p, b)
			w.rice(q, b)
			at, acc, n = w.at, w.acc, w.n
		} else {
			length := u + 1 + b
			two := uint64((p&mask)<<1|1)<<(u&63) | uint64((q&mask)<<1|1)<<(v&63)<<(length&63)
			acc |= two << (n & 63)
			n += length + v + 1 + b
			binary.LittleEndian.PutUint64(out[at:], acc)
			at += int(n >> 3)
			acc >>= n &^ 7 & 63
			n &= 7
		}
		next = j + 1
		idx = idx[2:]
	}
	w.at, w.acc, w.n = at, acc, n
	if len(idx) > 0 {
		w.rice(uint32(idx[0])-next, b)
	}
}

// rice writes gap with parameter b.
func (w *bitWriter) rice(gap uint32, b uint) {
	q := uint(gap >> b)
	for ; q >= 32; q -= 32 {
		w.put(0, 32)
	}
	w.put(1<<q, q+1)
	w.put(uint64(gap&(1<<b-1)), b)
}

// bytes writes n bits that b holds; those behind them are zero.
func (w *bitWriter) bytes(b []byte, n int) {
	for ; n >= 32; n -= 32 {
		w.put(uint64(binary.LittleEndian.Uint32(b)), 32)
		b = b[4:]
	}
	for ; n > 0; n -= 8 {
		w.put(uint64(b[0]), uint(min(n, 8)))
		b = b[1:]
	}
}

// flush fills the last byte with zero bits and gives what was written.
func (w *bitWriter) flush() []byte {
	if w.n > 0 {
		w.out[w.at] = byte(w.acc)
		w.at++
		w.acc, w.n = 0, 0
	}
	return w.out[:w.at]
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

// bytes reads n bits into dst, whose last byte is filled with zeros.
func (r *bitReader) bytes(dst []byte, n int) {
	for ; n >= 32; n -= 32 {
		binary.LittleEndian.PutUint32(dst, r.take(32))
		dst = dst[4:]
	}
	for ; n > 0; n -= 8 {
		dst[0] = byte(r.take(uint(min(n, 8))))
		dst = dst[1:]
	}
}

// indices reads ascending indices below n whose gaps have the parameter b, which
// is at most maxRice, and says whether they are.
func (r *bitReader) indices(idx []uint16, b uint, n uint32) bool {
	in, pos, acc, have := r.in, r.pos, r.acc, r.n
	b &= 15
	next, mask := uint32(0), uint32(1)<<b-1
	for j := range idx {
		if j&3 == 0 && len(in)-pos >= 8 {
			acc |= binary.LittleEndian.Uint64(in[pos:]) << (have & 63)
			pos += int(63-have) >> 3
			have |= 56
		}
		q := uint(bits.TrailingZeros64(acc))
		length := q + 1 + b
		if length <= have && q < 32 {
			next += uint32(q)<<b | uint32(acc>>((q+1)&63))&mask
			acc >>= length & 63
			have -= length
		} else {
			// The end of the bytes is near, or a gap is long.
			r.pos, r.acc, r.n = pos, acc, have
			gap := r.rice(b, n)
			if r.out || gap > n {
				return false
			}
			next += gap
			pos, acc, have = r.pos, r.acc, r.n
		}
		idx[j] = uint16(next)
		next++
	}
	r.pos, r.acc, r.n = pos, acc, have
	// They ascend, and next cannot have overflown: 4096 gaps below 2^17.
	return next <= n
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

package codec

import (
	"fmt"
	"io"
	"math"

	"girassol.dev/api/federation/v1alpha1"
	"girassol.dev/internal/algorithm"
	"girassol.dev/internal/kernel"
	"girassol.dev/internal/tensor"
)

// Payload is a payload that Parse has checked. It holds an index and reads the
// bytes anew at each use, so that its memory does not depend on their number.
// It is safe for concurrent use if its reader is.
type Payload struct {
	d    *Domain
	e    algorithm.Encoding
	f    format
	r    io.ReaderAt
	size int64
	// spans of the blocks, and where buffers and integers start, by layout index.
	spans []span
	aux   []int64
}

type span struct {
	at int64
	n  int
}

func (s span) end() int64 { return s.at + int64(s.n) }

// Domain that the payload lives in.
func (p *Payload) Domain() *Domain { return p.d }

// Encoding that it was written under.
func (p *Payload) Encoding() algorithm.Encoding { return p.e }

// Size in bytes.
func (p *Payload) Size() int64 { return p.size }

// Add adds w times the decoded values to the domain vector dst:
// dst[i] += float32(w*x[i]).
func (p *Payload) Add(dst []float32, w float32) error {
	return p.AddRange(dst, 0, p.d.n, w)
}

// Decode writes the decoded values to dst, zeros where nothing was sent.
func (p *Payload) Decode(dst []float32) error {
	clear(dst)
	return p.Add(dst, 1)
}

// AddRange is Add for the domain elements lo to hi, both on block boundaries;
// dst[0] is element lo. Its cost is that of the blocks in the range. An error
// means that the bytes could not be read again as they were parsed; dst is then
// partly changed.
func (p *Payload) AddRange(dst []float32, lo, hi int, w float32) error {
	if len(dst) != hi-lo {
		panic(fmt.Sprintf("codec: %d elements for the range %d to %d", len(dst), lo, hi))
	}
	if lo == hi {
		return nil
	}
	i, ok := p.d.blockAt(lo)
	if !ok {
		panic(fmt.Sprintf("codec: no block begins at %d", lo))
	}
	s := scratches.Get().(*scratch)
	defer scratches.Put(s)
	g := groups.Get().(*group)
	defer groups.Put(g)
	from := &window{r: p.r, buf: s.raw[:]}
	for ; lo < hi; i++ {
		b := p.d.blocks[i]
		if b.Hi > hi {
			panic(fmt.Sprintf("codec: no block ends at %d", hi))
		}
		// No further than this block: what follows may never be wanted.
		from.size = p.spans[b.index].end()
		if err := p.addBlock(dst[:b.Len()], b, w, from, s, g); err != nil {
			return err
		}
		dst = dst[b.Len():]
		lo = b.Hi
	}
	return nil
}

func (p *Payload) addBlock(dst []float32, b Block, w float32, from *window, s *scratch, g *group) error {
	if !b.Compressed || p.f.fixed() {
		return p.eachPlain(p.spans[b.index].at, b.Len(), p.f, MaxMagnitude, s, func(lo int, v []float32) {
			kernel.Axpy(dst[lo:lo+len(v)], w, v)
		})
	}
	return p.eachGroup(b, from, g, func(lo, n int) { scatter(dst[lo:lo+n], w, g) })
}

// eachPlain reads n plain values at an offset, piece by piece.
func (p *Payload) eachPlain(at int64, n int, f format, limit float32, s *scratch, visit func(lo int, v []float32)) error {
	for lo := 0; lo < n; {
		v := s.val[:min(n-lo, len(s.val))]
		raw := s.raw[:len(v)*f.width()]
		if err := p.read(raw, at); err != nil {
			return err
		}
		if !unpack(v, raw, f, limit) {
			return p.changed(at, errMagnitude)
		}
		visit(lo, v)
		lo += len(v)
		at += int64(len(raw))
	}
	return nil
}

// eachGroup decodes the groups of a compressed block into g one by one, out of w.
func (p *Payload) eachGroup(b Block, w *window, g *group, visit func(lo, n int)) error {
	at := p.spans[b.index]
	w.seek(at.at, at.end())
	for lo := 0; lo < b.Len(); lo += p.f.group {
		n := min(p.f.group, b.Len()-lo)
		in, err := w.peek(p.f.hostileBytes(n))
		if err != nil {
			return err
		}
		used, err := g.decode(in, n, p.f)
		if err != nil {
			return p.changed(w.at, err)
		}
		w.skip(used)
		visit(lo, n)
	}
	return nil
}

// Buffers writes the buffers, as values, to dst.
func (p *Payload) Buffers(dst []float32) error {
	return p.EachBuffer(func(at int, v []float32) { copy(dst[at:], v) })
}

// EachBuffer shows the buffers piece by piece: at is the place of v[0] in the
// layout's buffer store; v is valid during the call.
func (p *Payload) EachBuffer(visit func(at int, v []float32)) error {
	s := scratches.Get().(*scratch)
	defer scratches.Put(s)
	for i, spec := range p.d.layout.Tensors() {
		if spec.Role != tensor.Buffer {
			continue
		}
		base := p.d.layout.Offset(i)
		err := p.eachPlain(p.aux[i], spec.Elements(), bufferFormat, math.MaxFloat32, s, func(lo int, v []float32) {
			visit(base+lo, v)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// Integers writes the integer tensors to dst.
func (p *Payload) Integers(dst []byte) error {
	for i, spec := range p.d.layout.Tensors() {
		if spec.Role != tensor.Integer {
			continue
		}
		at := p.d.layout.Offset(i)
		if err := p.read(dst[at:at+spec.Elements()*spec.DType.Size()], p.aux[i]); err != nil {
			return err
		}
	}
	return nil
}

func (p *Payload) read(b []byte, at int64) error {
	if n, err := p.r.ReadAt(b, at); n < len(b) {
		return readError(err, at+int64(n), p.size)
	}
	return nil
}

func (p *Payload) changed(at int64, err error) error {
	return fault(v1alpha1.ReasonChecksumMismatch, "", "the bytes near %d changed since they were checked: %v", at, err)
}

var bufferFormat = format{values: algorithm.FP32, keep: 1, group: MaxGroupSize}

// unpack reads plain values and says whether all are within ±limit.
func unpack(dst []float32, src []byte, f format, limit float32) bool {
	if f.values == algorithm.FP32 {
		kernel.UnpackFP32(dst, src)
	} else {
		kernel.UnpackBF16(dst, src)
	}
	return kernel.Largest(dst) <= math.Float32bits(limit)
}

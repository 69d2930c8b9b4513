package codec

import (
	"fmt"
	"io"
	"math"
	"slices"

	"girassol.dev/api/federation/v1alpha1"
	"girassol.dev/internal/algorithm"
	"girassol.dev/internal/kernel"
	"girassol.dev/internal/tensor"
)

// Aux is what travels whole behind the parameters: the layout's buffers and
// integers, as values.
type Aux struct {
	Buffers  []float32
	Integers []byte
}

// Encode writes the payload of the domain vector x and says how many bytes it
// has. It is deterministic and needs about a block of memory. An *Error with
// NotFinite names the tensor that holds a NaN or an infinity.
func Encode(w io.Writer, d *Domain, e algorithm.Encoding, x []float32, aux Aux) (int64, error) {
	enc := NewEncoder(w, d, e)
	for _, b := range d.blocks {
		if err := enc.Block(b, x[b.Lo:b.Hi], nil); err != nil {
			return enc.written, err
		}
	}
	return enc.Close(aux)
}

// Encoder writes a payload block by block. It is for one goroutine.
type Encoder struct {
	w       io.Writer
	d       *Domain
	f       format
	group   group
	out     []byte
	next    int
	written int64
	err     error
}

// NewEncoder writes the header. The encoding's transform must be the domain's;
// another is a defect of the caller and panics.
func NewEncoder(w io.Writer, d *Domain, e algorithm.Encoding) *Encoder {
	if e.Transform != d.transform {
		panic(fmt.Sprintf("codec: encoding is %q, domain %q", e.Transform, d.transform))
	}
	enc := &Encoder{w: w, d: d, f: formatOf(e)}
	_ = enc.write(header(d, e)) // kept in enc.err, which the next call returns
	return enc
}

// Block writes the next block of the domain. x holds the block's elements;
// decoded, unless nil, has as many zeros and gets what the receiver will have.
func (enc *Encoder) Block(b Block, x, decoded []float32) error {
	if err := enc.begin(b, x); err != nil {
		return err
	}
	out := enc.out[:0]
	if !b.Compressed || enc.f.fixed() {
		out = enc.plain(out, x, decoded)
	} else {
		for lo := 0; lo < len(x); lo += enc.f.group {
			hi := min(lo+enc.f.group, len(x))
			out = enc.group.encode(out, x[lo:hi], enc.f)
			if decoded != nil {
				scatter(decoded[lo:hi], 1, &enc.group)
			}
		}
	}
	enc.out = out
	return enc.write(out)
}

// Split writes the next block of the domain and takes from x what the receiver
// will have, which it leaves in decoded. It says how large that is: its sum of
// squares.
func (enc *Encoder) Split(b Block, x, decoded []float32) (squares float64, err error) {
	if err := enc.begin(b, x); err != nil {
		return 0, err
	}
	clear(decoded)
	out := enc.out[:0]
	if !b.Compressed || enc.f.fixed() {
		out = enc.plain(out, x, decoded)
		kernel.Axpy(x, -1, decoded)
		squares = kernel.SumSquares(decoded)
	} else {
		for lo := 0; lo < len(x); lo += enc.f.group {
			hi := min(lo+enc.f.group, len(x))
			out = enc.group.encode(out, x[lo:hi], enc.f)
			squares += kernel.SumSquares(enc.group.val)
			enc.group.split(x[lo:hi], decoded[lo:hi])
		}
	}
	enc.out = out
	return squares, enc.write(out)
}

// begin checks a block and makes room for its bytes.
func (enc *Encoder) begin(b Block, x []float32) error {
	if enc.err != nil {
		return enc.err
	}
	if b.index != enc.next || len(x) != b.Len() {
		panic(fmt.Sprintf("codec: block %d of %d elements written, want block %d", b.index, len(x), enc.next))
	}
	enc.next++
	if i := kernel.Finite(x); i >= 0 {
		enc.err = fault(v1alpha1.ReasonNotFinite, enc.d.layout.Tensors()[b.Tensor].Name,
			"element %d of block %d is %g", i, b.index-enc.d.first[b.Tensor], x[i])
		return enc.err
	}
	if need := int(enc.f.blockBytes(b)) + bitSpare; cap(enc.out) < need {
		enc.out = make([]byte, 0, need)
	}
	return nil
}

func (enc *Encoder) plain(out []byte, x, decoded []float32) []byte {
	if kernel.Largest(x) > math.Float32bits(MaxMagnitude) {
		clamped := make([]float32, len(x))
		for i, v := range x {
			clamped[i] = clamp(v)
		}
		x = clamped
	}
	at, n := len(out), enc.f.width()*len(x)
	out = slices.Grow(out, n)[:at+n]
	if enc.f.values == algorithm.FP32 {
		kernel.PackFP32(out[at:], x)
		if decoded != nil {
			kernel.Axpy(decoded, 1, x)
		}
		return out
	}
	kernel.PackBF16(out[at:], x)
	if decoded != nil {
		kernel.AxpyBF16(decoded, 1, out[at:])
	}
	return out
}

// scatter adds w times the group's values to dst.
func scatter(dst []float32, w float32, g *group) {
	for j, i := range g.idx {
		dst[i] += float32(w * g.val[j])
	}
}

// split takes the group's values from x and sets them in decoded, which is zero.
func (g *group) split(x, decoded []float32) {
	decoded = decoded[:len(x)]
	for j, i := range g.idx {
		v := g.val[j]
		x[i] -= v
		decoded[i] = v
	}
}

// Close writes buffers and integers and ends the payload.
func (enc *Encoder) Close(aux Aux) (int64, error) {
	l := enc.d.layout
	if enc.err == nil && enc.next != len(enc.d.blocks) {
		panic(fmt.Sprintf("codec: closed after %d of %d blocks", enc.next, len(enc.d.blocks)))
	}
	if len(aux.Buffers) != l.Buffers() || len(aux.Integers) != l.IntegerBytes() {
		panic(fmt.Sprintf("codec: %d buffer elements and %d integer bytes, want %d and %d",
			len(aux.Buffers), len(aux.Integers), l.Buffers(), l.IntegerBytes()))
	}
	for i, s := range l.Tensors() {
		if s.Role != tensor.Buffer || enc.err != nil {
			continue
		}
		values := aux.Buffers[l.Offset(i) : l.Offset(i)+s.Elements()]
		if j := kernel.Finite(values); j >= 0 {
			enc.err = fault(v1alpha1.ReasonNotFinite, s.Name, "element %d is %g", j, values[j])
		}
		for len(values) > 0 && enc.err == nil {
			n := min(len(values), BlockSize)
			enc.out = slices.Grow(enc.out[:0], 4*n)[:4*n]
			kernel.PackFP32(enc.out, values[:n])
			_ = enc.write(enc.out) // kept in enc.err
			values = values[n:]
		}
	}
	if enc.err == nil {
		_ = enc.write(aux.Integers)
	}
	return enc.written, enc.err
}

func (enc *Encoder) write(b []byte) error {
	if enc.err != nil || len(b) == 0 {
		return enc.err
	}
	n, err := enc.w.Write(b)
	enc.written += int64(n)
	if err != nil {
		enc.err = fmt.Errorf("codec: write payload: %w", err)
	}
	return enc.err
}

package codec

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	"girassol.dev/api/federation/v1alpha1"
	"girassol.dev/internal/algorithm"
	"girassol.dev/internal/kernel"
	"girassol.dev/internal/tensor"
)

// Section places one tensor inside a payload whose sender has another tensor
// order. Offset counts from the payload's start; the sections follow the header
// without gaps, in any order. DType is the type that the tensor has in the
// sender's model: any float type stands for any other, since values travel in
// the encoding's own format; integer types must be the layout's.
type Section struct {
	Name   string
	DType  string
	Shape  []int64
	Offset int64
	Length int64
}

// Parse checks a payload whole, in bounded memory that depends on the domain
// and not on the bytes: size, header, names, shapes and types, index order and
// range, values, and that nothing is left over. nil sections mean layout order.
// r must stay readable and unchanged as long as the Payload is in use. What is
// wrong with the bytes comes back as an *Error; any other error is r's.
func Parse(d *Domain, e algorithm.Encoding, r io.ReaderAt, size int64, sections []Section) (*Payload, error) {
	if e.Transform != d.transform {
		return nil, fault(v1alpha1.ReasonEncodingMismatch, "", "encoding is %q, the domain's transform %q", e.Transform, d.transform)
	}
	if limit := MaxSize(d, e); size > limit {
		return nil, fault(v1alpha1.ReasonTooLarge, "", "%d bytes, at most %d", size, limit)
	}
	if size < HeaderSize {
		return nil, fault(v1alpha1.ReasonTruncated, "", "%d bytes, the header alone has %d", size, HeaderSize)
	}
	s := scratches.Get().(*scratch)
	defer scratches.Put(s)
	g := groups.Get().(*group)
	defer groups.Put(g)
	w := &window{r: r, size: size, end: size, buf: s.raw[:]}
	b, err := w.peek(HeaderSize)
	if err != nil {
		return nil, err
	}
	if err := checkHeader(b[:HeaderSize], d, e, sections != nil); err != nil {
		return nil, err
	}
	w.skip(HeaderSize)
	p := &Payload{
		d: d, e: e, f: formatOf(e), r: r, size: size,
		spans: make([]span, len(d.blocks)),
		aux:   make([]int64, len(d.layout.Tensors())),
	}
	var places []Section
	if sections != nil {
		if places, err = place(d.layout, sections, size); err != nil {
			return nil, err
		}
	}
	for _, role := range [...]tensor.Role{tensor.Parameter, tensor.Buffer, tensor.Integer} {
		for i, spec := range d.layout.Tensors() {
			if spec.Role != role {
				continue
			}
			if places != nil {
				w.seek(places[i].Offset, places[i].Offset+places[i].Length)
			}
			if err := p.scan(w, g, s, i, spec); err != nil {
				return nil, err
			}
			if places != nil && w.at != w.end {
				return nil, fault(v1alpha1.ReasonMalformed, spec.Name, "%d bytes too many", w.end-w.at)
			}
		}
	}
	if places == nil && w.at != size {
		return nil, fault(v1alpha1.ReasonMalformed, "", "%d bytes behind the last tensor", size-w.at)
	}
	return p, nil
}

// scan checks tensor i, which starts at w.at, and indexes it.
func (p *Payload) scan(w *window, g *group, s *scratch, i int, spec tensor.Spec) error {
	switch spec.Role {
	case tensor.Buffer:
		p.aux[i] = w.at
		return scanPlain(w, s, spec.Name, spec.Elements(), bufferFormat, math.MaxFloat32)
	case tensor.Integer:
		p.aux[i] = w.at
		return scanRaw(w, spec.Name, int64(spec.Elements())*int64(spec.DType.Size()))
	}
	for _, b := range p.d.tensorBlocks(i) {
		start := w.at
		var err error
		if !b.Compressed || p.f.fixed() {
			err = scanPlain(w, s, spec.Name, b.Len(), p.f, MaxMagnitude)
		} else {
			err = scanGroups(w, g, spec.Name, b.Len(), p.f)
		}
		if err != nil {
			return err
		}
		p.spans[b.index] = span{start, int(w.at - start)}
	}
	return nil
}

func scanRaw(w *window, name string, n int64) error {
	if n > w.end-w.at {
		return fault(v1alpha1.ReasonTruncated, name, "%d bytes are left, want %d", w.end-w.at, n)
	}
	for n > 0 {
		b, err := w.peek(int(min(n, int64(len(w.buf)))))
		if err != nil {
			return err
		}
		w.skip(len(b))
		n -= int64(len(b))
	}
	return nil
}

func scanPlain(w *window, s *scratch, name string, n int, f format, limit float32) error {
	if need := int64(n) * int64(f.width()); need > w.end-w.at {
		return fault(v1alpha1.ReasonTruncated, name, "%d bytes are left, want %d", w.end-w.at, need)
	}
	for done := 0; done < n; {
		m := min(n-done, len(s.val))
		b, err := w.peek(m * f.width())
		if err != nil {
			return err
		}
		if !within(s, m, b, f, limit) {
			return fault(v1alpha1.ReasonNotFinite, name, "a value is NaN, infinite or beyond %g", limit)
		}
		w.skip(m * f.width())
		done += m
	}
	return nil
}

// within is unpack for who does not need the values.
func within(s *scratch, n int, b []byte, f format, limit float32) bool {
	if f.values == algorithm.FP32 {
		return kernel.LargestFP32(b[:4*n]) <= math.Float32bits(limit)
	}
	return unpack(s.val[:n], b, f, limit)
}

func scanGroups(w *window, g *group, name string, n int, f format) error {
	for lo := 0; lo < n; lo += f.group {
		size := min(f.group, n-lo)
		b, err := w.peek(f.hostileBytes(size))
		if err != nil {
			return err
		}
		used, err := g.decode(b, size, f)
		switch {
		case errors.Is(err, errShort):
			return fault(v1alpha1.ReasonTruncated, name, "%v", err)
		case errors.Is(err, errMagnitude):
			return fault(v1alpha1.ReasonNotFinite, name, "%v", err)
		case err != nil:
			return fault(v1alpha1.ReasonMalformed, name, "%v", err)
		}
		w.skip(used)
	}
	return nil
}

// place matches sections with the layout's tensors by name.
func place(l *tensor.Layout, sections []Section, size int64) ([]Section, error) {
	tensors := l.Tensors()
	places := make([]Section, len(tensors))
	found := make([]bool, len(tensors))
	var unknown []string
	for _, s := range sections {
		i, ok := l.Lookup(s.Name)
		if !ok {
			unknown = append(unknown, s.Name)
			continue
		}
		if found[i] {
			return nil, fault(v1alpha1.ReasonMalformed, s.Name, "has two sections")
		}
		if s.Offset < HeaderSize || s.Length < 0 || s.Offset > size || s.Length > size-s.Offset {
			return nil, fault(v1alpha1.ReasonTruncated, s.Name, "section of %d bytes at %d is not inside the payload of %d", s.Length, s.Offset, size)
		}
		places[i], found[i] = s, true
	}
	var missing []string
	for i, t := range tensors {
		if !found[i] {
			missing = append(missing, t.Name)
		}
	}
	switch {
	case len(unknown) > 0:
		return nil, fault(v1alpha1.ReasonUnknownTensor, unknown[0], "the model has no such tensor%s", contrast(unknown, missing))
	case len(missing) > 0:
		return nil, fault(v1alpha1.ReasonMissingTensor, missing[0], "has no section%s", contrast(unknown, missing))
	}
	for i, t := range tensors {
		s := places[i]
		if !slices.Equal(s.Shape, t.Shape) {
			return nil, fault(v1alpha1.ReasonShapeMismatch, t.Name, "has shape %v, want %v", s.Shape, t.Shape)
		}
		dtype := tensor.DType(s.DType)
		if dtype.Size() == 0 || t.Role == tensor.Integer && dtype != t.DType || t.Role != tensor.Integer && !dtype.Float() {
			return nil, fault(v1alpha1.ReasonDTypeMismatch, t.Name, "is %q, want %q", s.DType, t.DType)
		}
	}
	order := slices.Clone(places)
	slices.SortFunc(order, func(a, b Section) int {
		return cmp.Or(cmp.Compare(a.Offset, b.Offset), cmp.Compare(a.Length, b.Length))
	})
	at := int64(HeaderSize)
	for _, s := range order {
		if s.Offset != at {
			return nil, fault(v1alpha1.ReasonMalformed, s.Name, "section begins at %d, the one before ends at %d", s.Offset, at)
		}
		at += s.Length
	}
	if at != size {
		return nil, fault(v1alpha1.ReasonMalformed, "", "%d bytes behind the last section", size-at)
	}
	return places, nil
}

func contrast(unknown, missing []string) string {
	list := func(what string, names []string) string {
		if len(names) == 0 {
			return ""
		}
		const most = 4
		more := ""
		if len(names) > most {
			more = fmt.Sprintf(" and %d more", len(names)-most)
			names = names[:most]
		}
		return fmt.Sprintf("; %s: %.200q%s", what, strings.Join(names, ", "), more)
	}
	return list("unknown", unknown) + list("missing", missing)
}

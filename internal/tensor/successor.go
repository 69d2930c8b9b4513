package tensor

import (
	"encoding/json"
	"fmt"
	"io"

	"girassol.dev/internal/kernel"
)

// StateLayout is the layout of a whole state, as SaveState writes it with
// momentum, checked against what the file holds.
func (f *File) StateLayout() (*Layout, error) {
	var specs []Spec
	if err := json.Unmarshal([]byte(f.meta[LayoutKey]), &specs); err != nil {
		return nil, fmt.Errorf("tensor: metadata %s: %w", LayoutKey, err)
	}
	l, err := NewLayout(specs)
	if err != nil {
		return nil, fmt.Errorf("tensor: metadata %s: %w", LayoutKey, err)
	}
	want := map[string]Spec{}
	for _, s := range l.Tensors() {
		if s.DType.Float() {
			s.DType = F32
		}
		want[s.Name] = s
		if s.Role == Parameter {
			want[MomentumPrefix+s.Name] = s
		}
	}
	return l, f.compare(want)
}

// ReadF32 reads elements of an F32 tensor from its element at on.
func (f *File) ReadF32(name string, at int, dst []float32) error {
	e, err := f.piece(name, at, len(dst))
	if err != nil {
		return err
	}
	if littleEndian {
		return f.read(e, bytesOf(dst), 4*int64(at))
	}
	raw := make([]byte, 4*len(dst))
	if err := f.read(e, raw, 4*int64(at)); err != nil {
		return err
	}
	kernel.UnpackFP32(dst, raw)
	return nil
}

func (f *File) piece(name string, at, n int) (entry, error) {
	e, ok := f.entries[name]
	switch {
	case !ok:
		return e, fmt.Errorf("tensor: no %q in the file", name)
	case e.spec.DType != F32 || at < 0 || n > e.spec.Elements()-at:
		return e, fmt.Errorf("tensor: %q is %s %v and has no %d fp32 values at %d", name, e.spec.DType, e.spec.Shape, n, at)
	}
	return e, nil
}

// Successor writes a file with the same tensors as another, in pieces and in any
// order, so that the tensors need not be in memory at once. What is not written
// is a hole.
type Successor struct {
	f *File
	w io.WriterAt
}

// NewSuccessor writes the header of f to w.
func NewSuccessor(f *File, w io.WriterAt) (*Successor, error) {
	header := make([]byte, f.data)
	if err := readAt(f.r, header, 0); err != nil {
		return nil, fmt.Errorf("tensor: safetensors header: %w", err)
	}
	if _, err := w.WriteAt(header, 0); err != nil {
		return nil, fmt.Errorf("tensor: writing the header: %w", err)
	}
	return &Successor{f, w}, nil
}

// WriteF32 writes elements of an F32 tensor from its element at on.
func (s *Successor) WriteF32(name string, at int, v []float32) error {
	e, err := s.f.piece(name, at, len(v))
	if err != nil {
		return err
	}
	if littleEndian {
		return s.write(e, bytesOf(v), 4*int64(at))
	}
	raw := make([]byte, 4*len(v))
	kernel.PackFP32(raw, v)
	return s.write(e, raw, 4*int64(at))
}

// WriteBytes writes a whole tensor as it is, little endian.
func (s *Successor) WriteBytes(name string, b []byte) error {
	e, ok := s.f.entries[name]
	if !ok || e.size != int64(len(b)) {
		return fmt.Errorf("tensor: no %q of %d bytes in the file", name, len(b))
	}
	return s.write(e, b, 0)
}

func (s *Successor) write(e entry, b []byte, at int64) error {
	if _, err := s.w.WriteAt(b, e.offset+at); err != nil {
		return fmt.Errorf("tensor: writing %q: %w", e.spec.Name, err)
	}
	return nil
}

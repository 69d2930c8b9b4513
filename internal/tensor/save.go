package tensor

import (
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// record is one tensor to write: floats, or bytes as they are.
type record struct {
	spec   Spec
	floats []float32
	bytes  []byte
}

func (r record) size() int { return r.spec.Elements() * r.spec.DType.Size() }

// SaveState writes s as safetensors.
//
// Without momentum it is a model for trainers and users: each tensor in its own
// type, rounded to nearest; a value beyond a narrower type's range is an error.
//
// With momentum it is the whole state: floats as F32, exactly, the momentum of
// each parameter under MomentumPrefix, and the layout in the metadata.
// LoadState returns the same state, bit for bit.
func SaveState(w io.Writer, s *State, withMomentum bool) error {
	l := s.Layout
	meta := map[string]string{"format": "pt"}
	var buffers []string
	var records []record
	for i, t := range l.Tensors() {
		at, n := l.Offset(i), t.Elements()
		if withMomentum && t.DType.Float() {
			t.DType = F32
		}
		switch t.Role {
		case Parameter:
			records = append(records, record{spec: t, floats: s.Theta[at:][:n]})
			if withMomentum {
				m := t
				m.Name = MomentumPrefix + t.Name
				records = append(records, record{spec: m, floats: s.Momentum[at:][:n]})
			}
		case Buffer:
			records = append(records, record{spec: t, floats: s.Buffers[at:][:n]})
			if !strings.Contains(t.Name, ",") {
				buffers = append(buffers, t.Name)
			}
		case Integer:
			records = append(records, record{spec: t, bytes: s.Integers[at:][:n*t.DType.Size()]})
		}
	}
	if len(buffers) > 0 {
		meta[BuffersKey] = strings.Join(buffers, ",")
	}
	if withMomentum {
		text, err := json.Marshal(l.Tensors())
		if err != nil {
			return fmt.Errorf("tensor: layout: %w", err)
		}
		meta[LayoutKey] = string(text)
	}
	return save(w, records, meta)
}

// SaveVectors writes one-dimensional F32 tensors as safetensors, readable
// through File.
func SaveVectors(w io.Writer, names []string, vecs [][]float32, metadata map[string]string) error {
	if len(names) != len(vecs) {
		return fmt.Errorf("tensor: %d names for %d vectors", len(names), len(vecs))
	}
	records := make([]record, len(names))
	for i, name := range names {
		records[i] = record{
			spec:   Spec{Name: name, DType: F32, Shape: []int64{int64(len(vecs[i]))}, Role: Parameter},
			floats: vecs[i],
		}
	}
	return save(w, records, metadata)
}

// dataAlign is where tensor data begins, to suit vector loads from a mapping.
const dataAlign = 64

func save(w io.Writer, records []record, meta map[string]string) error {
	// Wide types first keeps every tensor aligned to its type, which some
	// readers need.
	slices.SortStableFunc(records, func(a, b record) int {
		return cmp.Or(cmp.Compare(b.spec.DType.Size(), a.spec.DType.Size()), strings.Compare(a.spec.Name, b.spec.Name))
	})
	header, err := encodeHeader(records, meta)
	if err != nil {
		return err
	}
	if _, err := w.Write(header); err != nil {
		return fmt.Errorf("tensor: writing the header: %w", err)
	}
	var scratch []byte
	for _, r := range records {
		if scratch, err = writeRecord(w, r, scratch); err != nil {
			return fmt.Errorf("tensor: writing %q: %w", r.spec.Name, err)
		}
	}
	return nil
}

func encodeHeader(records []record, meta map[string]string) ([]byte, error) {
	type tensor struct {
		DType   DType   `json:"dtype"`
		Shape   []int64 `json:"shape"`
		Offsets [2]int  `json:"data_offsets"`
	}
	b := append(make([]byte, 8), '{')
	field := func(key string, value any) error {
		k, err := json.Marshal(key)
		if err != nil {
			return err
		}
		v, err := json.Marshal(value)
		if err != nil {
			return err
		}
		if len(b) > 9 {
			b = append(b, ',')
		}
		b = append(append(append(b, k...), ':'), v...)
		return nil
	}
	if len(meta) > 0 {
		if err := field("__metadata__", meta); err != nil {
			return nil, fmt.Errorf("tensor: metadata: %w", err)
		}
	}
	at := 0
	seen := map[string]bool{"__metadata__": true}
	for _, r := range records {
		if seen[r.spec.Name] {
			return nil, fmt.Errorf("tensor: %q twice or reserved", r.spec.Name)
		}
		seen[r.spec.Name] = true
		shape := r.spec.Shape
		if shape == nil {
			shape = []int64{}
		}
		end := at + r.size()
		if err := field(r.spec.Name, tensor{r.spec.DType, shape, [2]int{at, end}}); err != nil {
			return nil, fmt.Errorf("tensor: %q: %w", r.spec.Name, err)
		}
		at = end
	}
	b = append(b, '}')
	for len(b)%dataAlign != 0 {
		b = append(b, ' ')
	}
	if len(b)-8 > MaxHeader {
		return nil, fmt.Errorf("tensor: header of %d bytes, at most %d", len(b)-8, MaxHeader)
	}
	binary.LittleEndian.PutUint64(b, uint64(len(b)-8))
	return b, nil
}

func writeRecord(w io.Writer, r record, scratch []byte) ([]byte, error) {
	if !r.spec.DType.Float() {
		_, err := w.Write(r.bytes)
		return scratch, err
	}
	size := r.spec.DType.Size()
	for at := 0; at < len(r.floats); {
		block := r.floats[at:min(len(r.floats), at+readBlock/size)]
		if r.spec.DType == F32 && littleEndian {
			if _, err := w.Write(bytesOf(block)); err != nil {
				return scratch, err
			}
			at += len(block)
			continue
		}
		for i, v := range block {
			if !fits(r.spec.DType, v) {
				return scratch, fmt.Errorf("element %d is %g, beyond the range of %s: use a wider type for this tensor", at+i, v, r.spec.DType)
			}
		}
		if scratch == nil {
			scratch = make([]byte, readBlock)
		}
		encoded := scratch[:len(block)*size]
		encodeAs(r.spec.DType, encoded, block)
		if _, err := w.Write(encoded); err != nil {
			return scratch, err
		}
		at += len(block)
	}
	return scratch, nil
}

// WriteFileAtomic writes a file so that path holds either its old content or
// all of the new, also after a loss of power: a temporary file in the same
// folder, fsync, rename, fsync of the folder. After an error nothing is left
// behind.
func WriteFileAtomic(path string, write func(io.Writer) error) (err error) {
	dir := filepath.Dir(path)
	f, err := os.CreateTemp(dir, "."+filepath.Base(path)+".*.tmp")
	if err != nil {
		return fmt.Errorf("tensor: %w", err)
	}
	defer func() {
		if err != nil {
			// Closing twice is harmless, and the error at hand says more.
			_ = f.Close()
			_ = os.Remove(f.Name())
		}
	}()
	if err := write(f); err != nil {
		return fmt.Errorf("tensor: writing %s: %w", path, err)
	}
	for _, step := range []func() error{
		func() error { return f.Chmod(0o644) },
		f.Sync,
		f.Close,
		func() error { return os.Rename(f.Name(), path) },
	} {
		if err := step(); err != nil {
			return fmt.Errorf("tensor: writing %s: %w", path, err)
		}
	}
	return SyncDir(dir)
}

// SyncDir makes the renames and removals in a folder durable.
func SyncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("tensor: %w", err)
	}
	if err := errors.Join(d.Sync(), d.Close()); err != nil {
		return fmt.Errorf("tensor: syncing %s: %w", dir, err)
	}
	return nil
}

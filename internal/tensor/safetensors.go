package tensor

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"unicode/utf8"
)

// MaxHeader is the largest safetensors header, in bytes, as in the format's
// reference implementation.
const MaxHeader = 100_000_000

// File is a parsed safetensors file: an 8-byte little-endian header length, a
// JSON header, and the tensors' bytes without gaps. Its methods may be used by
// several goroutines at once.
type File struct {
	r       io.ReaderAt
	close   func() error
	specs   []Spec
	entries map[string]entry
	meta    map[string]string
	data    int64 // where the tensors begin
}

type entry struct {
	spec   Spec
	offset int64 // from the start of the file
	size   int64
}

// OpenFile opens and parses a safetensors file; Close it.
func OpenFile(path string) (*File, error) {
	fd, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("tensor: %w", err)
	}
	info, err := fd.Stat()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("tensor: %w", err), fd.Close())
	}
	f, err := ParseFile(fd, info.Size())
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", path, err), fd.Close())
	}
	f.close = fd.Close
	return f, nil
}

// ParseFile parses a safetensors file of size bytes that anybody may have
// written. It takes no more memory than the header, at most MaxHeader and never
// more than size, calls for. It refuses gaps, overlaps, trailing bytes, double
// names and sizes that do not follow from type and shape.
func ParseFile(r io.ReaderAt, size int64) (*File, error) {
	if size < 8 {
		return nil, fmt.Errorf("tensor: %d bytes are no safetensors file", size)
	}
	var head [8]byte
	if err := readAt(r, head[:], 0); err != nil {
		return nil, fmt.Errorf("tensor: safetensors header length: %w", err)
	}
	n := binary.LittleEndian.Uint64(head[:])
	if n > MaxHeader {
		return nil, fmt.Errorf("tensor: safetensors header claims %d bytes, at most %d", n, MaxHeader)
	}
	if int64(n) > size-8 {
		return nil, fmt.Errorf("tensor: safetensors header claims %d bytes, the file has %d behind its length", n, size-8)
	}
	header := make([]byte, n)
	if err := readAt(r, header, 8); err != nil {
		return nil, fmt.Errorf("tensor: safetensors header: %w", err)
	}
	f := &File{r: r, entries: map[string]entry{}, meta: map[string]string{}, data: 8 + int64(n)}
	ends, err := f.parseHeader(header)
	if err != nil {
		return nil, fmt.Errorf("tensor: safetensors header: %w", err)
	}
	if err := f.place(ends, 8+int64(n), size-8-int64(n)); err != nil {
		return nil, fmt.Errorf("tensor: safetensors: %w", err)
	}
	return f, nil
}

// span is a tensor's place as the header claims it.
type span struct {
	name       string
	begin, end int64
}

func (f *File) parseHeader(header []byte) ([]span, error) {
	if len(header) == 0 || header[0] != '{' {
		return nil, errors.New("must begin with {")
	}
	if !utf8.Valid(header) {
		return nil, errors.New("is not UTF-8")
	}
	dec := json.NewDecoder(bytes.NewReader(header))
	var spans []span
	seen := map[string]bool{}
	err := object(dec, func(name string) error {
		if seen[name] {
			return fmt.Errorf("%.80q twice", name)
		}
		seen[name] = true
		if name == "__metadata__" {
			return object(dec, func(key string) error {
				if _, dup := f.meta[key]; dup {
					return fmt.Errorf("metadata %.80q twice", key)
				}
				var v *string
				if err := dec.Decode(&v); err != nil || v == nil {
					return fmt.Errorf("metadata %.80q is no string", key)
				}
				f.meta[key] = *v
				return nil
			})
		}
		if len(spans) == MaxTensors {
			return fmt.Errorf("more than %d tensors", MaxTensors)
		}
		s, err := f.parseTensor(dec, name)
		if err != nil {
			return fmt.Errorf("%.80q: %w", name, err)
		}
		spans = append(spans, s)
		return nil
	})
	if err != nil {
		return nil, err
	}
	if rest := bytes.TrimLeft(header[dec.InputOffset():], " \t\r\n"); len(rest) > 0 {
		return nil, errors.New("has bytes behind its closing brace")
	}
	return spans, nil
}

func (f *File) parseTensor(dec *json.Decoder, name string) (span, error) {
	var spec struct {
		dtype   *DType
		shape   []int64
		offsets []int64
	}
	err := object(dec, func(key string) error {
		var twice bool
		var err error
		switch key {
		case "dtype":
			twice = spec.dtype != nil
			err = dec.Decode(&spec.dtype)
		case "shape":
			twice = spec.shape != nil
			err = dec.Decode(&spec.shape)
		case "data_offsets":
			twice = spec.offsets != nil
			err = dec.Decode(&spec.offsets)
		default:
			return fmt.Errorf("unknown field %.80q", key)
		}
		if twice {
			return fmt.Errorf("%s twice", key)
		}
		return err
	})
	if err != nil {
		return span{}, err
	}
	if spec.dtype == nil || spec.shape == nil || len(spec.offsets) != 2 {
		return span{}, errors.New("needs dtype, shape and two data_offsets")
	}
	s := Spec{Name: name, DType: *spec.dtype, Shape: spec.shape, Role: Integer}
	if s.DType.Float() {
		s.Role = Parameter
	}
	n, err := checkSpec(s)
	if err != nil {
		return span{}, err
	}
	s.Role = ""
	begin, end := spec.offsets[0], spec.offsets[1]
	size := n * int64(s.DType.Size())
	if begin < 0 || end < begin || end-begin != size {
		return span{}, fmt.Errorf("data_offsets [%d %d] do not hold %d bytes, which %s %v has", begin, end, size, s.DType, s.Shape)
	}
	f.entries[name] = entry{spec: s, size: size}
	return span{name, begin, end}, nil
}

// place checks that the tensors fill the data without gap or overlap.
func (f *File) place(spans []span, start, size int64) error {
	slices.SortFunc(spans, func(a, b span) int {
		return cmp.Or(cmp.Compare(a.begin, b.begin), cmp.Compare(a.end, b.end), cmp.Compare(a.name, b.name))
	})
	at := int64(0)
	for _, s := range spans {
		if s.begin != at {
			return fmt.Errorf("%.80q begins at byte %d of the data, want %d (no gaps, no overlaps)", s.name, s.begin, at)
		}
		at = s.end
		e := f.entries[s.name]
		e.offset = start + s.begin
		f.entries[s.name] = e
		f.specs = append(f.specs, e.spec)
	}
	if at != size {
		return fmt.Errorf("tensors end at byte %d of the data, the file at %d", at, size)
	}
	return nil
}

// object reads a JSON object and calls field with each key; field reads the
// value.
func object(dec *json.Decoder, field func(key string) error) error {
	t, err := dec.Token()
	if err != nil {
		return noEOF(err)
	}
	if t != json.Delim('{') {
		return fmt.Errorf("found %v, want an object", t)
	}
	for dec.More() {
		t, err := dec.Token()
		if err != nil {
			return noEOF(err)
		}
		key, ok := t.(string)
		if !ok {
			return fmt.Errorf("found %v, want a key", t)
		}
		if err := field(key); err != nil {
			return noEOF(err)
		}
	}
	_, err = dec.Token()
	return noEOF(err)
}

func noEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// readAt fills b; a reader that ends early is an error.
func readAt(r io.ReaderAt, b []byte, off int64) error {
	n, err := r.ReadAt(b, off)
	if n == len(b) {
		return nil
	}
	if err == nil || err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

// Specs is the file's tensors in the order of their data, without roles.
func (f *File) Specs() []Spec { return slices.Clone(f.specs) }

// Metadata is the header's __metadata__, empty when there is none.
func (f *File) Metadata() map[string]string { return maps.Clone(f.meta) }

// readBlock is how much of a tensor is in memory while it is converted.
const readBlock = 1 << 20

// ReadFloats reads a float tensor of len(dst) elements and converts it to
// float32. After an error dst may be partly written. Values are not judged: see
// ReadInto.
func (f *File) ReadFloats(name string, dst []float32) error {
	e, ok := f.entries[name]
	if !ok {
		return fmt.Errorf("tensor: no %q in the file", name)
	}
	if !e.spec.DType.Float() || e.spec.Elements() != len(dst) {
		return fmt.Errorf("tensor: %q is %s %v, not %d floats", name, e.spec.DType, e.spec.Shape, len(dst))
	}
	if e.spec.DType == F32 && littleEndian {
		return f.read(e, bytesOf(dst), 0)
	}
	size := e.spec.DType.Size()
	scratch := make([]byte, min(e.size, readBlock))
	for at := int64(0); len(dst) > 0; {
		n := min(len(dst), readBlock/size)
		if err := f.read(e, scratch[:n*size], at); err != nil {
			return err
		}
		decodeAs(e.spec.DType, dst[:n], scratch[:n*size])
		dst = dst[n:]
		at += int64(n * size)
	}
	return nil
}

// ReadBytes reads a tensor of len(dst) bytes as they are, little endian.
func (f *File) ReadBytes(name string, dst []byte) error {
	e, ok := f.entries[name]
	if !ok {
		return fmt.Errorf("tensor: no %q in the file", name)
	}
	if e.size != int64(len(dst)) {
		return fmt.Errorf("tensor: %q has %d bytes, not %d", name, e.size, len(dst))
	}
	return f.read(e, dst, 0)
}

func (f *File) read(e entry, b []byte, at int64) error {
	if err := readAt(f.r, b, e.offset+at); err != nil {
		return fmt.Errorf("tensor: reading %q: %w", e.spec.Name, err)
	}
	return nil
}

// Close closes what OpenFile opened.
func (f *File) Close() error {
	if f.close == nil {
		return nil
	}
	return f.close()
}

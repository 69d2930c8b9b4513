// Package tensor owns what a model is to every other package: named tensors laid
// out in flat vectors, the buffers that hold them, their digest, and the
// safetensors files they travel in.
//
// It must not know what the numbers are for: rounds, merging and encodings are
// elsewhere.
package tensor

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
)

// DType is an element type by its safetensors name.
type DType string

// The element types of safetensors that Girassol reads.
const (
	F64  DType = "F64"
	F32  DType = "F32"
	F16  DType = "F16"
	BF16 DType = "BF16"
	I64  DType = "I64"
	I32  DType = "I32"
	I16  DType = "I16"
	I8   DType = "I8"
	U64  DType = "U64"
	U32  DType = "U32"
	U16  DType = "U16"
	U8   DType = "U8"
	Bool DType = "BOOL"
)

// Size is the number of bytes of one element, 0 for an unknown type.
func (d DType) Size() int {
	switch d {
	case F64, I64, U64:
		return 8
	case F32, I32, U32:
		return 4
	case F16, BF16, I16, U16:
		return 2
	case I8, U8, Bool:
		return 1
	}
	return 0
}

// Float says whether the type holds real numbers.
func (d DType) Float() bool { return d == F64 || d == F32 || d == F16 || d == BF16 }

// Role says what merging does with a tensor.
type Role string

// The roles of tensors.
const (
	// Parameter: trained; pseudo-gradients are averaged, outer momentum applies.
	Parameter Role = "parameter"
	// Buffer: a float statistic such as BatchNorm's; its values are averaged,
	// without outer momentum.
	Buffer Role = "buffer"
	// Integer: a counter; never averaged, taken whole from one site.
	Integer Role = "integer"
)

// Spec is one tensor of a model.
type Spec struct {
	Name  string  `json:"name"`
	DType DType   `json:"dtype"`
	Shape []int64 `json:"shape"`
	Role  Role    `json:"role"`
}

// Elements is the number of elements; 1 for a 0-d tensor.
func (s Spec) Elements() int {
	n := int64(1)
	for _, d := range s.Shape {
		n *= d
	}
	return int(n)
}

// Limits of a layout, against hostile headers.
const (
	MaxTensors = 1 << 17
	MaxRank    = 16
	MaxName    = 1024
	// MaxElements of one layout: 2^40.
	MaxElements = int64(1) << 40
)

// Layout is an immutable, ordered set of tensors (by name) and their places in
// three flat stores: parameters and buffers as float32 elements, integers as
// bytes of their own type.
type Layout struct {
	specs   []Spec
	offsets []int
	index   map[string]int
	params  int
	buffers int
	ints    int
	digest  [32]byte
}

// NewLayout sorts the tensors by name and refuses double names, unknown types,
// negative or overflowing shapes and roles that do not fit their type.
func NewLayout(specs []Spec) (*Layout, error) {
	if len(specs) == 0 {
		return nil, errors.New("tensor: a model needs at least one tensor")
	}
	if len(specs) > MaxTensors {
		return nil, fmt.Errorf("tensor: %d tensors, at most %d", len(specs), MaxTensors)
	}
	l := &Layout{specs: make([]Spec, len(specs)), index: make(map[string]int, len(specs))}
	for i, s := range specs {
		s.Shape = slices.Clone(s.Shape)
		l.specs[i] = s
	}
	slices.SortFunc(l.specs, func(a, b Spec) int { return strings.Compare(a.Name, b.Name) })
	total := int64(0)
	h := sha256.New()
	for i, s := range l.specs {
		n, err := checkSpec(s)
		if err != nil {
			return nil, err
		}
		if _, dup := l.index[s.Name]; dup {
			return nil, fmt.Errorf("tensor: %q twice", s.Name)
		}
		if total += n; total > MaxElements {
			return nil, fmt.Errorf("tensor: more than %d elements", MaxElements)
		}
		l.index[s.Name] = i
		store := l.store(s.Role)
		l.offsets = append(l.offsets, *store)
		if s.Role == Integer {
			*store += int(n) * s.DType.Size()
		} else {
			*store += int(n)
		}
		writeSpec(h, s)
	}
	if l.params == 0 {
		return nil, errors.New("tensor: a model needs at least one parameter")
	}
	h.Sum(l.digest[:0])
	return l, nil
}

func (l *Layout) store(r Role) *int {
	switch r {
	case Parameter:
		return &l.params
	case Buffer:
		return &l.buffers
	}
	return &l.ints
}

func checkSpec(s Spec) (int64, error) {
	if s.Name == "" || len(s.Name) > MaxName {
		return 0, fmt.Errorf("tensor: name %.40q must have 1 to %d bytes", s.Name, MaxName)
	}
	if s.DType.Size() == 0 {
		return 0, fmt.Errorf("tensor: %q has unknown dtype %q", s.Name, s.DType)
	}
	if len(s.Shape) > MaxRank {
		return 0, fmt.Errorf("tensor: %q has rank %d, at most %d", s.Name, len(s.Shape), MaxRank)
	}
	switch s.Role {
	case Parameter, Buffer:
		if !s.DType.Float() {
			return 0, fmt.Errorf("tensor: %q is %s, a %s must be a float", s.Name, s.DType, s.Role)
		}
	case Integer:
		if s.DType.Float() {
			return 0, fmt.Errorf("tensor: %q is %s, an integer tensor must not be a float", s.Name, s.DType)
		}
	default:
		return 0, fmt.Errorf("tensor: %q has unknown role %q", s.Name, s.Role)
	}
	n := int64(1)
	for _, d := range s.Shape {
		if d < 0 || (d > 0 && n > math.MaxInt64/d) {
			return 0, fmt.Errorf("tensor: %q has impossible shape %v", s.Name, s.Shape)
		}
		n *= d
	}
	if n > MaxElements {
		return 0, fmt.Errorf("tensor: %q has %d elements, at most %d", s.Name, n, MaxElements)
	}
	return n, nil
}

func writeSpec(h interface{ Write([]byte) (int, error) }, s Spec) {
	var b []byte
	b = binary.AppendUvarint(b, uint64(len(s.Name)))
	b = append(b, s.Name...)
	b = append(b, s.DType...)
	b = append(b, 0)
	b = append(b, s.Role...)
	b = append(b, 0)
	b = binary.AppendUvarint(b, uint64(len(s.Shape)))
	for _, d := range s.Shape {
		b = binary.AppendUvarint(b, uint64(d))
	}
	_, _ = h.Write(b)
}

// Tensors is every tensor in name order; do not change it.
func (l *Layout) Tensors() []Spec { return l.specs }

// Lookup finds a tensor by name.
func (l *Layout) Lookup(name string) (int, bool) {
	i, ok := l.index[name]
	return i, ok
}

// Offset is where tensor i starts in the store of its role: in elements for
// parameters and buffers, in bytes for integers.
func (l *Layout) Offset(i int) int { return l.offsets[i] }

// Parameters is the length of the parameter vector.
func (l *Layout) Parameters() int { return l.params }

// Buffers is the length of the buffer vector.
func (l *Layout) Buffers() int { return l.buffers }

// IntegerBytes is the size of the integer store.
func (l *Layout) IntegerBytes() int { return l.ints }

// Digest is SHA-256 over names, types, shapes and roles.
func (l *Layout) Digest() [32]byte { return l.digest }

// Diff spells out, tensor by tensor, how other differs; empty when equal.
func (l *Layout) Diff(other *Layout) []string {
	var out []string
	for _, s := range l.specs {
		i, ok := other.index[s.Name]
		if !ok {
			out = append(out, fmt.Sprintf("%s: missing (want %s %v)", s.Name, s.DType, s.Shape))
			continue
		}
		o := other.specs[i]
		if o.DType != s.DType || o.Role != s.Role || !slices.Equal(o.Shape, s.Shape) {
			out = append(out, fmt.Sprintf("%s: is %s %v %s, want %s %v %s",
				s.Name, o.DType, o.Shape, o.Role, s.DType, s.Shape, s.Role))
		}
	}
	for _, o := range other.specs {
		if _, ok := l.index[o.Name]; !ok {
			out = append(out, fmt.Sprintf("%s: unknown (%s %v)", o.Name, o.DType, o.Shape))
		}
	}
	return out
}

package tensor

import (
	"fmt"
	"slices"
	"strings"

	"girassol.dev/api/federation/v1alpha1"
	"girassol.dev/internal/kernel"
)

// Metadata keys and tensor names of Girassol in safetensors files.
const (
	// BuffersKey lists the names of buffers, separated by commas.
	BuffersKey = "girassol.buffers"
	// LayoutKey is the layout as JSON, in files that hold a whole state.
	LayoutKey = "girassol.layout"
	// MomentumPrefix comes before a parameter's name in the name of its outer
	// momentum. Model tensors must not begin with ReservedPrefix.
	MomentumPrefix = "girassol.momentum/"
	ReservedPrefix = "girassol."
)

// MismatchError says that a file does not hold the model it should.
type MismatchError struct {
	Reason v1alpha1.Reason
	// Differences, one per tensor, in name order.
	Differences []string
}

func (e *MismatchError) Error() string {
	const show = 8
	d := e.Differences
	if len(d) > show {
		d = append(slices.Clone(d[:show]), fmt.Sprintf("and %d more", len(d)-show))
	}
	return fmt.Sprintf("tensor: %s: %s", e.Reason, strings.Join(d, "; "))
}

// RolesFor says what merging does with each tensor. Integers are Integer.
// Floats that the metadata lists under BuffersKey, or whose name ends in the
// component running_mean or running_var as BatchNorm's do, are Buffer. The rest
// are Parameter.
func RolesFor(specs []Spec, metadata map[string]string) []Spec {
	buffers := map[string]bool{}
	for name := range strings.SplitSeq(metadata[BuffersKey], ",") {
		buffers[strings.TrimSpace(name)] = true
	}
	out := slices.Clone(specs)
	for i, s := range out {
		last := s.Name[strings.LastIndexByte(s.Name, '.')+1:]
		switch {
		case !s.DType.Float():
			out[i].Role = Integer
		case buffers[s.Name] || last == "running_mean" || last == "running_var":
			out[i].Role = Buffer
		default:
			out[i].Role = Parameter
		}
	}
	return out
}

// LoadState reads a model, or a whole state as SaveState writes it with
// momentum. A model's momentum is zero. NaN and infinities are refused with a
// MismatchError that names the tensor. Close the state.
func LoadState(f *File) (*State, error) {
	if _, whole := f.meta[LayoutKey]; !whole {
		return loadModel(f)
	}
	l, err := f.StateLayout()
	if err != nil {
		return nil, err
	}
	s := NewState(l)
	if err := f.readValues(l, s.Theta, s.Buffers, s.Integers); err != nil {
		s.Close()
		return nil, err
	}
	for i, t := range l.Tensors() {
		if t.Role != Parameter {
			continue
		}
		if err := f.readFinite(MomentumPrefix+t.Name, s.Momentum[l.Offset(i):][:t.Elements()]); err != nil {
			s.Close()
			return nil, err
		}
	}
	return s, nil
}

func loadModel(f *File) (*State, error) {
	for _, s := range f.specs {
		if strings.HasPrefix(s.Name, ReservedPrefix) {
			return nil, fmt.Errorf("tensor: %q begins with the reserved %q: rename the tensor", s.Name, ReservedPrefix)
		}
	}
	l, err := NewLayout(RolesFor(f.specs, f.meta))
	if err != nil {
		return nil, err
	}
	s := NewState(l)
	if err := f.readValues(l, s.Theta, s.Buffers, s.Integers); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// ReadInto reads the values of a model with layout l, matching tensors by name
// in any order. Missing and unknown tensors, other shapes, an integer type
// where a float belongs or the other way round, and other integer types are
// refused before anything is written; floats of other types are converted. NaN
// and infinities are refused as well, when part of the values may have been
// written. All of these are a *MismatchError.
func ReadInto(f *File, l *Layout, theta, buffers []float32, integers []byte) error {
	if len(theta) != l.Parameters() || len(buffers) != l.Buffers() || len(integers) != l.IntegerBytes() {
		return fmt.Errorf("tensor: ReadInto: %d parameters, %d buffer elements, %d integer bytes; the layout has %d, %d, %d",
			len(theta), len(buffers), len(integers), l.Parameters(), l.Buffers(), l.IntegerBytes())
	}
	want := make(map[string]Spec, len(l.Tensors()))
	for _, s := range l.Tensors() {
		want[s.Name] = s
	}
	if err := f.compare(want); err != nil {
		return err
	}
	return f.readValues(l, theta, buffers, integers)
}

// compare checks that the file holds exactly the wanted tensors.
func (f *File) compare(want map[string]Spec) error {
	type difference struct {
		name, text string
		reason     v1alpha1.Reason
	}
	var found []difference
	for name, w := range want {
		e, ok := f.entries[name]
		have := e.spec
		switch {
		case !ok:
			found = append(found, difference{name, fmt.Sprintf("%s: missing (want %s %v)", name, w.DType, w.Shape), v1alpha1.ReasonMissingTensor})
		case have.DType != w.DType && (!have.DType.Float() || !w.DType.Float()):
			found = append(found, difference{name, fmt.Sprintf("%s: is %s, want %s", name, have.DType, w.DType), v1alpha1.ReasonDTypeMismatch})
		case !slices.Equal(have.Shape, w.Shape):
			found = append(found, difference{name, fmt.Sprintf("%s: has shape %v, want %v", name, have.Shape, w.Shape), v1alpha1.ReasonShapeMismatch})
		}
	}
	for _, s := range f.specs {
		if _, ok := want[s.Name]; !ok {
			found = append(found, difference{s.Name, fmt.Sprintf("%s: unknown (%s %v)", s.Name, s.DType, s.Shape), v1alpha1.ReasonUnknownTensor})
		}
	}
	if len(found) == 0 {
		return nil
	}
	slices.SortFunc(found, func(a, b difference) int { return strings.Compare(a.name, b.name) })
	e := &MismatchError{Reason: found[0].reason}
	for _, d := range found {
		e.Differences = append(e.Differences, d.text)
	}
	return e
}

func (f *File) readValues(l *Layout, theta, buffers []float32, integers []byte) error {
	for i, t := range l.Tensors() {
		var err error
		switch at := l.Offset(i); t.Role {
		case Parameter:
			err = f.readFinite(t.Name, theta[at:][:t.Elements()])
		case Buffer:
			err = f.readFinite(t.Name, buffers[at:][:t.Elements()])
		case Integer:
			err = f.ReadBytes(t.Name, integers[at:][:t.Elements()*t.DType.Size()])
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (f *File) readFinite(name string, dst []float32) error {
	if err := f.ReadFloats(name, dst); err != nil {
		return err
	}
	if i := kernel.Finite(dst); i >= 0 {
		return &MismatchError{
			Reason:      v1alpha1.ReasonNotFinite,
			Differences: []string{fmt.Sprintf("%s: element %d is %g", name, i, dst[i])},
		}
	}
	return nil
}

package tensor

// State is the shared model state, the thing that every replica holds bit for
// bit: the model's values and the momentum of the outer step.
type State struct {
	Layout *Layout
	// Theta and Momentum have Layout.Parameters() elements.
	Theta, Momentum []float32
	// Buffers has Layout.Buffers() elements.
	Buffers []float32
	// Integers has Layout.IntegerBytes() bytes, little endian.
	Integers []byte
}

// NewState returns a zeroed state. Close it: large states live outside the Go
// heap.
func NewState(l *Layout) *State {
	return &State{
		Layout:   l,
		Theta:    NewVector(l.Parameters()),
		Momentum: NewVector(l.Parameters()),
		Buffers:  NewVector(l.Buffers()),
		Integers: make([]byte, l.IntegerBytes()),
	}
}

// Close frees the memory; the state and slices of it are of no use afterwards.
// A second Close does nothing.
func (s *State) Close() {
	FreeVector(s.Theta)
	FreeVector(s.Momentum)
	FreeVector(s.Buffers)
	s.Theta, s.Momentum, s.Buffers, s.Integers = nil, nil, nil, nil
}

// CopyFrom makes s equal to o, bit for bit. Both must have the same layout.
func (s *State) CopyFrom(o *State) {
	if s.Layout.Digest() != o.Layout.Digest() {
		panic("tensor: CopyFrom of a state with another layout")
	}
	copy(s.Theta, o.Theta)
	copy(s.Momentum, o.Momentum)
	copy(s.Buffers, o.Buffers)
	copy(s.Integers, o.Integers)
}

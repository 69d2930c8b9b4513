package agent

import (
	"fmt"

	"girassol.dev/internal/tensor"
	"girassol.dev/siteagent/replica"
	"girassol.dev/siteagent/trainer"
)

// training holds a round's vectors: where the trainer started and where it
// ended.
type training struct {
	layout *tensor.Layout
	state  *tensor.State
	work   replica.Work
}

func newTraining(st *tensor.State) *training {
	return &training{
		layout: st.Layout, state: st,
		work: replica.Work{
			Start: tensor.NewVector(st.Layout.Parameters()), End: tensor.NewVector(st.Layout.Parameters()),
			Buffers: make([]float32, st.Layout.Buffers()), Integers: make([]byte, st.Layout.IntegerBytes()),
		},
	}
}

// free may be called twice.
func (t *training) free() {
	tensor.FreeVector(t.work.Start)
	tensor.FreeVector(t.work.End)
	t.work = replica.Work{}
}

// begin writes the working point for the trainer. In narrower types it is
// rounded; the work counts from what the trainer was given.
func (t *training) begin(r *replica.Replica, rho float64, path string) error {
	r.Start(t.work.Start, rho)
	if err := writeModel(path, t.state, t.work.Start); err != nil {
		return err
	}
	for _, s := range t.layout.Tensors() {
		if s.DType.Float() && s.DType != tensor.F32 && s.DType != tensor.F64 {
			return t.read(path)
		}
	}
	return nil
}

// read takes the start back from the file.
func (t *training) read(path string) error {
	f, err := tensor.OpenFile(path)
	if err != nil {
		return err
	}
	defer f.Close()
	return tensor.ReadInto(f, t.layout, t.work.Start, t.work.Buffers, t.work.Integers)
}

// end reads the trainer's result, by name.
func (t *training) end(o trainer.Outcome) error {
	file, err := o.Open()
	if err != nil {
		return err
	}
	defer file.Close()
	fi, err := file.Stat()
	if err != nil {
		return fmt.Errorf("agent: result: %w", err)
	}
	f, err := tensor.ParseFile(file, fi.Size())
	if err != nil {
		return fmt.Errorf("agent: result %s: %w", o.Result.Path, err)
	}
	if err := tensor.ReadInto(f, t.layout, t.work.End, t.work.Buffers, t.work.Integers); err != nil {
		return fmt.Errorf("agent: result %s: %w", o.Result.Path, err)
	}
	return nil
}

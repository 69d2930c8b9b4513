// Command testserver serves the trainer API as an agent does, for the tests of
// the Python package: it takes tasks on standard input and says on standard
// output what became of them, one JSON object per line each.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"sync"
	"time"

	trainerv1 "girassol.dev/api/trainer/v1"
	"girassol.dev/internal/tensor"
	"girassol.dev/siteagent/trainer"
)

// order is one line of input.
type order struct {
	// Op is run, finish, abort, or seed.
	Op      string         `json:"op"`
	Task    trainerv1.Task `json:"task"`
	Seconds float64        `json:"seconds"` // to the task's stop time
}

// report is one line of output.
type report struct {
	// Event is ready, seed, or ended.
	Event  string            `json:"event"`
	Result *trainerv1.Result `json:"result,omitempty"`
	// Values is the merged tensors' first elements by name.
	Values map[string]float32 `json:"values,omitempty"`
	Error  string             `json:"error,omitempty"`
	Path   string             `json:"path,omitempty"`
}

func main() {
	if len(os.Args) != 3 {
		log.Fatal("usage: testserver SOCKET WORKDIR")
	}
	if err := run(os.Args[1], os.Args[2], os.Stdin, os.Stdout); err != nil {
		log.Fatal(err)
	}
}

func run(socket, work string, in io.Reader, out io.Writer) error {
	s, err := trainer.New(trainer.Options{SocketPath: socket, WorkDir: work, Grace: 10 * time.Second})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx) }()
	var mu sync.Mutex
	tell := func(r report) {
		mu.Lock()
		defer mu.Unlock()
		_ = json.NewEncoder(out).Encode(r)
	}
	go func() {
		for seed := range s.Seeds() {
			r := report{Event: "seed", Path: seed.Path}
			if err := checkSeed(seed.Path); err != nil {
				r.Error = err.Error()
			}
			tell(r)
		}
	}()
	tell(report{Event: "ready"})
	stop := func(error) {}
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		var o order
		if err := json.Unmarshal(lines.Bytes(), &o); err != nil {
			return fmt.Errorf("order: %w", err)
		}
		switch o.Op {
		case "run":
			taskCtx, end := context.WithCancelCause(ctx)
			stop = end
			o.Task.StopAt = time.Now().Add(time.Duration(o.Seconds * float64(time.Second)))
			go func() {
				defer end(nil)
				tell(perform(taskCtx, s, o.Task))
			}()
		case "finish":
			stop(trainer.ErrFinish)
		case "abort":
			stop(trainer.ErrAbort)
		case "seed":
			s.SetSeedWanted(true)
		}
	}
	cancel()
	return errors.Join(lines.Err(), <-served)
}

func perform(ctx context.Context, s *trainer.Server, t trainerv1.Task) report {
	r := report{Event: "ended"}
	o, err := s.Run(ctx, t, nil)
	if err == nil {
		r.Result = &o.Result
		if o.Result.Path != "" {
			r.Values, err = read(o, t.ModelPath)
		}
	}
	if err != nil {
		r.Error = err.Error()
	}
	return r
}

// read takes the result as the agent does: by the model's layout.
func read(o trainer.Outcome, modelPath string) (map[string]float32, error) {
	m, err := tensor.OpenFile(modelPath)
	if err != nil {
		return nil, err
	}
	defer m.Close()
	l, err := tensor.NewLayout(tensor.RolesFor(m.Specs(), m.Metadata()))
	if err != nil {
		return nil, err
	}
	file, err := o.Open()
	if err != nil {
		return nil, err
	}
	defer file.Close()
	fi, err := file.Stat()
	if err != nil {
		return nil, err
	}
	f, err := tensor.ParseFile(file, fi.Size())
	if err != nil {
		return nil, err
	}
	theta, buffers := make([]float32, l.Parameters()), make([]float32, l.Buffers())
	if err := tensor.ReadInto(f, l, theta, buffers, make([]byte, l.IntegerBytes())); err != nil {
		return nil, err
	}
	values := map[string]float32{}
	for _, s := range l.Tensors() {
		if !s.DType.Float() || s.Elements() == 0 {
			continue
		}
		v := make([]float32, s.Elements())
		if err := f.ReadFloats(s.Name, v); err != nil {
			return nil, err
		}
		values[s.Name] = v[0]
	}
	return values, nil
}

func checkSeed(path string) error {
	f, err := tensor.OpenFile(path)
	if err != nil {
		return err
	}
	defer f.Close()
	st, err := tensor.LoadState(f)
	if err != nil {
		return err
	}
	st.Close()
	return nil
}

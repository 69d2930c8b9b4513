package main

import (
	"bufio"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"

	"girassol.dev/internal/algorithm"
	"girassol.dev/internal/codec"
	"girassol.dev/internal/tensor"
)

const (
	scopeMemory = "memory"
	scopeFiles  = "files"
)

// job is what both programs are told.
type job struct {
	Scope   string    `json:"scope"`
	Files   []string  `json:"files"`
	Weights []int     `json:"weights"`
	Shapes  [][]int64 `json:"shapes"`
	// Header is where the first layer's values begin in a file.
	Header int `json:"header"`
}

func (j job) remove() {
	for _, f := range j.Files {
		_ = os.Remove(f)
	}
}

// layers of an update, of equal size but for the last one.
const layers = 16

func (j job) layout() (*tensor.Layout, error) {
	var specs []tensor.Spec
	for i, s := range j.Shapes {
		specs = append(specs, tensor.Spec{Name: fmt.Sprintf("layer.%02d", i), DType: tensor.F32, Shape: s, Role: tensor.Parameter})
	}
	return tensor.NewLayout(specs)
}

// writeUpdates writes so many dense fp32 updates of mb MB as sites send them: a header
// and the layers' values behind it.
func writeUpdates(dir string, sites, mb int) (j job, err error) {
	const columns = 500
	rows := int64(mb) * 1e6 / 4 / columns
	for range layers - 1 {
		j.Shapes = append(j.Shapes, []int64{rows / layers, columns})
	}
	j.Shapes = append(j.Shapes, []int64{rows - rows/layers*(layers-1), columns})
	j.Header = codec.HeaderSize
	l, err := j.layout()
	if err != nil {
		return j, err
	}
	p, err := algorithm.Defaults(algorithm.FedAvg)
	if err != nil {
		return j, err
	}
	d := codec.NewDomain(l, p.Uplink.Transform)
	x := make([]float32, d.Len())
	for i := range sites {
		rng := rand.New(rand.NewPCG(uint64(i), 7))
		for k := range x {
			x[k] = rng.Float32() - 0.25
		}
		j.Files = append(j.Files, filepath.Join(dir, fmt.Sprintf("update-%02d", i)))
		j.Weights = append(j.Weights, 1000+100*i)
		if err := writeUpdate(j.Files[i], d, p.Uplink, x); err != nil {
			return j, err
		}
	}
	return j, nil
}

func writeUpdate(path string, d *codec.Domain, e algorithm.Encoding, x []float32) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	w := bufio.NewWriterSize(f, 1<<20)
	_, err = codec.Encode(w, d, e, x, codec.Aux{})
	if err == nil {
		err = w.Flush()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	return err
}

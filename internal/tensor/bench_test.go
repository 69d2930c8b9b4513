package tensor

import (
	"bytes"
	"fmt"
	"testing"
	"time"
)

const benchElements = 1 << 23

func benchState(b *testing.B) *State {
	s := NewState(layout(b, Spec{"w", F32, []int64{benchElements}, Parameter}))
	b.Cleanup(s.Close)
	for i := range s.Theta {
		s.Theta[i] = float32(i % 1000)
		s.Momentum[i] = float32(i % 77)
	}
	return s
}

// BenchmarkDigest reports its speed as a share of copying the same state,
// measured in the same process and interleaved.
func BenchmarkDigest(b *testing.B) {
	s, o := benchState(b), benchState(b)
	var copying, hashing time.Duration
	b.SetBytes(8 * benchElements)
	for b.Loop() {
		start := time.Now()
		o.CopyFrom(s)
		mid := time.Now()
		s.Digest()
		copying += mid.Sub(start)
		hashing += time.Since(mid)
	}
	b.ReportMetric(float64(copying)/float64(hashing), "x-copy")
}

// BenchmarkVectors copies between vectors of NewVector, and reports the speed
// as a multiple of copying between vectors of make.
func BenchmarkVectors(b *testing.B) {
	x, y := NewVector(benchElements), NewVector(benchElements)
	defer FreeVector(x)
	defer FreeVector(y)
	p, q := make([]float32, benchElements), make([]float32, benchElements)
	for i := range p { // so that no copy meets a page for the first time
		x[i], y[i], p[i], q[i] = 1, 1, 1, 1
	}
	var heap, mapped time.Duration
	b.SetBytes(4 * benchElements)
	for b.Loop() {
		start := time.Now()
		copy(p, q)
		mid := time.Now()
		copy(x, y)
		heap += mid.Sub(start)
		mapped += time.Since(mid)
	}
	b.ReportMetric(float64(heap)/float64(mapped), "x-heap")
}

// BenchmarkSafetensors writes and reads a state in memory, as a share of
// copying it.
func BenchmarkSafetensors(b *testing.B) {
	s, o := benchState(b), benchState(b)
	var file bytes.Buffer
	if err := SaveState(&file, s, true); err != nil {
		b.Fatal(err)
	}
	var copying, writing, reading time.Duration
	b.SetBytes(8 * benchElements)
	for b.Loop() {
		start := time.Now()
		o.CopyFrom(s)
		copying += time.Since(start)
		start = time.Now()
		file.Reset()
		if err := SaveState(&file, s, true); err != nil {
			b.Fatal(err)
		}
		writing += time.Since(start)
		f, err := parse(file.Bytes())
		if err != nil {
			b.Fatal(err)
		}
		start = time.Now()
		if err := f.ReadFloats("w", o.Theta); err != nil {
			b.Fatal(err)
		}
		reading += time.Since(start)
	}
	b.ReportMetric(float64(copying)/float64(writing), "write-x-copy")
	b.ReportMetric(float64(copying)/2/float64(reading), "read-x-copy")
}

// BenchmarkParseHeader parses the header of a file of 5000 tensors.
func BenchmarkParseHeader(b *testing.B) {
	names, vecs := make([]string, 5000), make([][]float32, 5000)
	for i := range names {
		names[i] = fmt.Sprintf("model.layers.%d.self_attn.q_proj.weight", i)
	}
	var file bytes.Buffer
	if err := SaveVectors(&file, names, vecs, nil); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, err := parse(file.Bytes()); err != nil {
			b.Fatal(err)
		}
	}
}

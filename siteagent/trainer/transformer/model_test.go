package transformer

import (
	"fmt"
	"math"
	"math/rand/v2"
	"path/filepath"
	"runtime"
	"testing"
)

// text is some structure to learn, without any file.
func text(n int) *Corpus {
	rng := rand.New(rand.NewPCG(7, 7))
	words := []string{"sun", "flower", "wind", "grid", "clean ", "power, ", "turns ", "to ", "the ", "light. ", "\n"}
	var b []byte
	for len(b) < n {
		b = append(b, words[rng.IntN(len(words))]...)
	}
	return NewCorpus(b[:n])
}

func small() Config {
	c := DefaultConfig()
	c.Dim, c.Layers, c.Heads, c.Context, c.Batch = 24, 2, 3, 10, 3
	return c
}

func TestDefaultModelHasTheParametersOfTheStudy(t *testing.T) {
	l, err := DefaultConfig().Layout()
	if err != nil {
		t.Fatal(err)
	}
	if got := l.Parameters(); got != 115_328 {
		t.Errorf("%d parameters, want 115328", got)
	}
}

// The gradient of every tensor against central differences of the loss, along
// the gradient itself and along random directions.
func TestGradientAgreesWithNumericDifferences(t *testing.T) {
	tr, err := NewTrainer(small(), text(4000), 3)
	if err != nil {
		t.Fatal(err)
	}
	m := tr.model
	for range 30 { // away from the flat start
		tr.Step()
	}
	tr.gradient()
	n := float64(m.cfg.TokensPerStep())
	at := func() float64 {
		m.refresh()
		m.forward()
		return m.loss(false) / n
	}
	rng := rand.New(rand.NewPCG(1, 2))
	for i, s := range m.layout.Tensors() {
		lo := m.layout.Offset(i)
		w := m.theta[lo : lo+s.Elements()]
		g := append([]float32(nil), m.grad[lo:lo+s.Elements()]...)
		saved := append([]float32(nil), w...)
		norm := norm2(g)
		if norm == 0 {
			t.Errorf("%s: gradient is zero", s.Name)
			continue
		}
		for trial := range 3 {
			dir := make([]float64, len(g))
			length := 0.0
			for j := range dir {
				dir[j] = float64(g[j]) / norm
				if trial > 0 {
					dir[j] += rng.NormFloat64() / math.Sqrt(float64(len(g)))
				}
				length += dir[j] * dir[j]
			}
			length = math.Sqrt(length)
			want := 0.0
			for j := range dir {
				dir[j] /= length
				want += dir[j] * float64(g[j])
			}
			const eps = 5e-3
			for j := range w {
				w[j] = saved[j] + float32(eps*dir[j])
			}
			up := at()
			for j := range w {
				w[j] = saved[j] - float32(eps*dir[j])
			}
			down := at()
			copy(w, saved)
			got := (up - down) / (2 * eps)
			if math.Abs(got-want) > 0.01*math.Abs(want)+2e-4 {
				t.Errorf("%s, direction %d: numeric %.6f, backward %.6f", s.Name, trial, got, want)
			}
		}
	}
}

func TestExp32IsClose(t *testing.T) {
	worst := 0.0
	for x := float32(0); x > -86; x -= 0.00731 {
		want := math.Exp(float64(x))
		worst = max(worst, math.Abs(float64(exp32(x))-want)/want)
	}
	if worst > 3e-7 {
		t.Errorf("relative error %.2g", worst)
	}
	if exp32(0) != 1 || exp32(-90) != 0 || exp32(float32(math.Inf(-1))) != 0 {
		t.Error("the ends are wrong")
	}
	if v := exp32(float32(math.NaN())); v == v {
		t.Errorf("exp32(NaN) = %v", v)
	}
}

func BenchmarkStep(b *testing.B) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	corpus, err := ReadFolder(filepath.Join("..", ".."), 4<<20) // the site agent's own source
	if err != nil {
		b.Fatal(err)
	}
	for _, d := range []int{64, 128} {
		b.Run(fmt.Sprintf("dim=%d", d), func(b *testing.B) {
			c := DefaultConfig()
			c.Dim = d
			tr, err := NewTrainer(c, corpus, 1)
			if err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			for b.Loop() {
				tr.Step()
			}
			b.ReportMetric(float64(tr.Tokens())/b.Elapsed().Seconds(), "tokens/s")
		})
	}
}

package transformer

import (
	"math"
	"path/filepath"
	"slices"
	"testing"

	"girassol.dev/internal/tensor"
)

func newTrainer(t *testing.T, c Config, seed uint64) *Trainer {
	t.Helper()
	tr, err := NewTrainer(c, text(20000), seed)
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

func TestTrainingLearns(t *testing.T) {
	tr := newTrainer(t, small(), 1)
	held := NewCorpus(text(60000).data[40000:])
	before, _, err := Evaluate(tr.Model(), held, 3000)
	if err != nil {
		t.Fatal(err)
	}
	if math.Abs(before-math.Log(256)) > 0.3 {
		t.Errorf("untrained loss is %.3f, want about ln 256 = %.3f", before, math.Log(256))
	}
	for range 400 {
		tr.Step()
	}
	after, n, err := Evaluate(tr.Model(), held, 3000)
	if err != nil {
		t.Fatal(err)
	}
	if after > 2 || n != 3000 {
		t.Errorf("held-out loss %.3f over %d bytes after training, from %.3f", after, n, before)
	}
}

func TestSameSeedGivesTheSameBytes(t *testing.T) {
	a, b, c := newTrainer(t, small(), 1), newTrainer(t, small(), 1), newTrainer(t, small(), 2)
	for range 20 {
		a.Step()
		b.Step()
		c.Step()
	}
	if !slices.Equal(a.Weights(), b.Weights()) {
		t.Error("same seed, different weights")
	}
	if slices.Equal(a.Weights(), c.Weights()) {
		t.Error("another seed, the same weights")
	}
}

func TestAStepAllocatesNothing(t *testing.T) {
	tr := newTrainer(t, small(), 1)
	if n := testing.AllocsPerRun(5, func() { tr.Step() }); n != 0 {
		t.Errorf("%v allocations in a step", n)
	}
}

func TestEvaluationLeavesTheWeightsAlone(t *testing.T) {
	tr := newTrainer(t, small(), 1)
	before := slices.Clone(tr.Weights())
	first, _, err := Evaluate(tr.Model(), text(5000), 1000)
	if err != nil {
		t.Fatal(err)
	}
	second, _, err := Evaluate(tr.Model(), text(5000), 1000)
	if err != nil {
		t.Fatal(err)
	}
	if first != second || !slices.Equal(before, tr.Weights()) {
		t.Errorf("evaluating twice: %v and %v", first, second)
	}
}

func TestEvaluationCountsEachByteOnceWhateverTheBatch(t *testing.T) {
	// 7 windows are no multiple of the batch: the filling must not count.
	c := small()
	data := text(7*c.Context + 1)
	m, err := NewModel(c)
	if err != nil {
		t.Fatal(err)
	}
	c.Batch = 1
	single, err := NewModel(c)
	if err != nil {
		t.Fatal(err)
	}
	a, na, _ := Evaluate(m, data, 1<<20)
	b, nb, _ := Evaluate(single, data, 1<<20)
	if na != 70 || nb != 70 || math.Abs(a-b) > 1e-6 {
		t.Errorf("batch %d: %v over %d, batch 1: %v over %d", small().Batch, a, na, b, nb)
	}
}

func TestWeightsSurviveAFile(t *testing.T) {
	tr := newTrainer(t, small(), 1)
	tr.Step()
	path := filepath.Join(t.TempDir(), "model.safetensors")
	if err := tr.Model().Save(path); err != nil {
		t.Fatal(err)
	}
	other, err := NewModel(small())
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Load(path); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(tr.Weights(), other.Weights()) {
		t.Error("weights differ after save and load")
	}
	f, err := tensor.OpenFile(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	for _, s := range tensor.RolesFor(f.Specs(), f.Metadata()) {
		if s.Role != tensor.Parameter {
			t.Errorf("%s is a %s: all that is in the file is trained", s.Name, s.Role)
		}
	}
	wider := small()
	wider.Dim = 30
	m, err := NewModel(wider)
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Load(path); err == nil {
		t.Error("a model of another width took the file")
	}
}

func TestLossThatIsNotFiniteChangesNothing(t *testing.T) {
	tr := newTrainer(t, small(), 1)
	w := slices.Clone(tr.Weights())
	w[0] = float32(math.Inf(1))
	for i := range w { // every embedding, so that any window hits one
		w[i] = float32(math.Inf(1))
	}
	if err := tr.LoadWeights(w); err != nil {
		t.Fatal(err)
	}
	if loss := tr.Step(); !math.IsNaN(loss) && !math.IsInf(loss, 0) {
		t.Fatalf("loss is %v", loss)
	}
	if !slices.Equal(w, tr.Weights()) || tr.Tokens() != 0 {
		t.Error("the step was taken")
	}
}

func TestAdamWAgreesWithAPlainOne(t *testing.T) {
	l, err := tensor.NewLayout([]tensor.Spec{
		{Name: "a", DType: tensor.F32, Shape: []int64{2, 2}, Role: tensor.Parameter},
		{Name: "b", DType: tensor.F32, Shape: []int64{2}, Role: tensor.Parameter},
	})
	if err != nil {
		t.Fatal(err)
	}
	o := Optimizer{LR: 0.01, Beta1: 0.9, Beta2: 0.95, WeightDecay: 0.1, Clip: 1}
	opt := newAdamW(l)
	theta := []float32{1, -2, 3, 4, 5, -6}
	want := []float64{1, -2, 3, 4, 5, -6}
	m, v := make([]float64, 6), make([]float64, 6)
	for step := 1; step <= 5; step++ {
		g := []float64{0.5, -1, 0.25, 3, -0.1, 0.7 * float64(step)}
		g32 := make([]float32, 6)
		norm := 0.0
		for i, x := range g {
			g32[i] = float32(x)
			norm += x * x
		}
		norm = math.Sqrt(norm)
		opt.step(theta, g32, o, 0)
		for i := range g {
			x := g[i] / max(1, norm)
			m[i] = 0.9*m[i] + 0.1*x
			v[i] = 0.95*v[i] + 0.05*x*x
			decay := 0.0
			if i < 4 { // vectors do not decay
				decay = 0.1
			}
			want[i] -= 0.01 * decay * want[i]
			want[i] -= 0.01 * (m[i] / (1 - math.Pow(0.9, float64(step)))) /
				(math.Sqrt(v[i]/(1-math.Pow(0.95, float64(step)))) + 1e-8)
		}
	}
	for i := range want {
		if math.Abs(float64(theta[i])-want[i]) > 1e-5 {
			t.Errorf("element %d: %v, want %v", i, theta[i], want[i])
		}
	}
}

func TestRateWarmsUpBySteppingAndFallsByCommittedSamples(t *testing.T) {
	o := Optimizer{LR: 1, Warmup: 10, TotalSamples: 1000, LRFloor: 0.1}
	for _, c := range []struct {
		step, samples uint64
		want          float64
	}{{1, 0, 0.1}, {5, 0, 0.5}, {10, 0, 1}, {99, 500, 0.55}, {99, 1000, 0.1}, {99, 5000, 0.1}} {
		if got := o.Rate(c.step, c.samples); math.Abs(got-c.want) > 1e-9 {
			t.Errorf("step %d, %d samples: %v, want %v", c.step, c.samples, got, c.want)
		}
	}
	o.TotalSamples = 0
	if got := o.Rate(99, 5000); got != 1 {
		t.Errorf("without an end the rate is %v", got)
	}
}

func TestTaskConfigIsReadStrictly(t *testing.T) {
	o, err := DefaultOptimizer().With(map[string]string{"lr": "0.5", "warmup": "7", "total_samples": "99", "of_another_trainer": "x"})
	if err != nil || o.LR != 0.5 || o.Warmup != 7 || o.TotalSamples != 99 || o.Clip != 1 {
		t.Errorf("%+v, %v", o, err)
	}
	for _, bad := range []map[string]string{
		{"lr": "fast"}, {"lr": "NaN"}, {"lr": "-1"}, {"beta2": "1"}, {"warmup": "1.5"}, {"total_samples": "-1"}, {"lr_floor": "2"}, {"clip": "Inf"},
	} {
		if _, err := DefaultOptimizer().With(bad); err == nil {
			t.Errorf("%v was taken", bad)
		}
	}
}

func TestConfigRefusesShapesThatDoNotWorkOut(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"odd head width": func(c *Config) { c.Dim = 20; c.Heads = 4 },
		"no layers":      func(c *Config) { c.Layers = 0 },
		"negative batch": func(c *Config) { c.Batch = -1 },
		"huge context":   func(c *Config) { c.Context = 1 << 30 },
	} {
		c := DefaultConfig()
		change(&c)
		if _, err := NewTrainer(c, text(1000), 1); err == nil {
			t.Errorf("%s: taken", name)
		}
	}
	if _, err := NewTrainer(small(), NewCorpus([]byte("short")), 1); err == nil {
		t.Error("a corpus shorter than a window was taken")
	}
}

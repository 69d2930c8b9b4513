package transformer

import (
	"slices"

	trainerv1 "girassol.dev/api/trainer/v1"
)

// In a federation that counts samples (spec.data) a sample is a window of the
// training text, which all sites must have alike: the text is cut into windows of
// the context's length, and sample i is window i*stride mod the number of windows,
// so that neighbours in a lease come from all over the text. Samples behind the
// number of windows begin again at the first.

// Windows is how many samples the text has, for spec.data.samples.
func (c *Corpus) Windows(context int) uint64 { return uint64((len(c.data) - 1) / context) }

// stride is a number without a common divisor with n, near 0.618 n.
func stride(n uint64) uint64 {
	s := max(1, uint64(float64(n)*0.6180339887498949))
	for gcd(s, n) != 1 {
		s++
	}
	return s
}

func gcd(a, b uint64) uint64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// read fills inputs and targets with samples. Fewer than fit are repeated.
func (c *Corpus) read(samples []uint64, inputs, targets []byte, context int) {
	n := c.Windows(context)
	step := stride(n)
	for i, at := 0, 0; at < len(inputs); i, at = i+1, at+context {
		start := int(samples[i%len(samples)]%n*step%n) * context
		c.window(start, inputs[at:at+context], targets[at:at+context])
	}
}

// StepOn is Step on these samples, at least one and at most a batch. A short batch
// repeats them.
func (t *Trainer) StepOn(samples []uint64) float64 {
	m := t.model
	t.corpus.read(samples, m.tmp.inputs, m.tmp.targets, m.cfg.Context)
	return t.step(len(samples) * m.cfg.Context)
}

// lease goes over the samples of a task's data in order.
type lease struct {
	left []trainerv1.DataRange
	used []trainerv1.DataRange
}

// newLease is nil for a task without data.
func newLease(data []trainerv1.DataRange) *lease {
	if len(data) == 0 {
		return nil
	}
	return &lease{left: slices.Clone(data)}
}

// step takes a step on random windows, or on samples of the task's data, and tells
// its loss and number of tokens: 0 when the data is used up.
func (p *Process) step(data *lease) (loss float64, tokens int) {
	t := p.Trainer
	if data == nil {
		return t.Step(), t.model.cfg.TokensPerStep()
	}
	samples := data.next(t.model.cfg.Batch)
	if len(samples) == 0 {
		return 0, 0
	}
	return t.StepOn(samples), len(samples) * t.model.cfg.Context
}

// next are the next n samples, fewer at the end.
func (l *lease) next(n int) []uint64 {
	var out []uint64
	for len(out) < n && len(l.left) > 0 {
		r := &l.left[0]
		k := min(uint64(n-len(out)), r.End-r.Begin)
		for i := range k {
			out = append(out, r.Begin+i)
		}
		l.use(trainerv1.DataRange{Begin: r.Begin, End: r.Begin + k, Pass: r.Pass})
		if r.Begin += k; r.Begin == r.End {
			l.left = l.left[1:]
		}
	}
	return out
}

func (l *lease) use(r trainerv1.DataRange) {
	if n := len(l.used); n > 0 && l.used[n-1].Pass == r.Pass && l.used[n-1].End == r.Begin {
		l.used[n-1].End = r.End
		return
	}
	l.used = append(l.used, r)
}

// consumed is what the steps used.
func (l *lease) consumed() []trainerv1.DataRange {
	if l == nil {
		return nil
	}
	return l.used
}

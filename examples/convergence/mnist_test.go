package main

import (
	"math"
	"testing"
)

func TestPerceptronGradientIsTheLossesSlope(t *testing.T) {
	d := noise(t, 8)
	m := newMLP(d.l)
	m.load(d.initial(3))
	x := &d.train[0]
	m.learn(x)
	loss := func() float64 { m.forward(x); return m.softmax(x.label) }
	first := int(x.at[0]) * hidden // a pixel that is not black
	for name, at := range map[string]struct{ theta, grad []float32 }{
		"fc1.bias": {m.p.b1, m.g.b1}, "fc2.bias": {m.p.b2, m.g.b2}, "fc2.weight": {m.p.w2, m.g.w2},
		"fc1.weight": {m.p.w1[first:], m.g.w1[first:]},
	} {
		for i := range 8 {
			const h = 1e-3
			old := at.theta[i]
			at.theta[i] = old + h
			above := loss()
			at.theta[i] = old - h
			slope := (above - loss()) / (2 * h)
			at.theta[i] = old
			if math.Abs(slope-float64(at.grad[i])) > 1e-3+0.02*math.Abs(slope) {
				t.Errorf("%s[%d]: gradient %g, slope %g", name, i, at.grad[i], slope)
			}
		}
	}
}

func TestWeightsGoInAndOutUnchanged(t *testing.T) {
	d := noise(t, 8)
	m := newMLP(d.l)
	want := d.initial(1)
	m.load(want)
	got := make([]float32, len(want))
	m.store(got)
	for i := range got {
		if got[i] != want[i] {
			t.Fatalf("weight %d is %g, was %g", i, got[i], want[i])
		}
	}
}

func TestSitesShareAllImages(t *testing.T) {
	d := noise(t, 1003)
	for _, split := range []string{iid, nonIID} {
		for _, sites := range []int{1, 2, 7} {
			learners, err := d.learners(setting{Split: split, Sites: sites, Seed: 1})
			if err != nil {
				t.Fatal(err)
			}
			seen, most := map[int]int{}, 0
			for _, l := range learners {
				labels := map[uint8]bool{}
				for _, i := range l.(*mlpLearner).own {
					seen[i]++
					labels[d.train[i].label] = true
				}
				most = max(most, len(labels))
			}
			if len(seen) != len(d.train) {
				t.Errorf("%s, %d sites: %d images of %d", split, sites, len(seen), len(d.train))
			}
			// A piece of a fourteenth of ten labels touches three at most.
			if split == nonIID && sites == 7 && most > 6 {
				t.Errorf("a site has %d labels", most)
			}
		}
	}
	if _, err := d.learners(setting{Split: iid, Sites: 500, Seed: 1}); err == nil {
		t.Error("two images are enough for a batch")
	}
}

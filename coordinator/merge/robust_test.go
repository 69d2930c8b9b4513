package merge

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"

	"girassol.dev/internal/algorithm"
	"girassol.dev/internal/codec"
	"girassol.dev/internal/tensor"
	"pgregory.net/rapid"
)

func robust(trim, clip float64) algorithm.Robust {
	return algorithm.Robust{TrimFraction: trim, ClipFactor: clip}
}

// dense is a configuration of FedAvg, whose step is the mean itself.
func dense(l *tensor.Layout, r algorithm.Robust) Config {
	p := parameters(algorithm.FedAvg, enc(identity, 1, fp32), enc(identity, 1, fp32))
	p.Robust = r
	return configure(l, p)
}

// meanOf is Q, through the mean's own blocks.
func meanOf(t failer, cfg Config, updates []Update) []float32 {
	t.Helper()
	m, err := NewRobustMean(cfg.Uplink, updates, cfg.Params.Robust)
	if err != nil {
		t.Fatal(err)
	}
	q := make([]float32, cfg.Uplink.Len())
	for _, b := range cfg.Uplink.Blocks() {
		if err := m.Block(b, q[b.Lo:b.Hi]); err != nil {
			t.Fatal(err)
		}
	}
	return q
}

func valuesOf(t failer, updates []Update) [][]float32 {
	t.Helper()
	var out [][]float32
	for _, u := range updates {
		x := make([]float32, u.Payload.Domain().Len())
		if err := u.Payload.Decode(x); err != nil {
			t.Fatal(err)
		}
		out = append(out, x)
	}
	return out
}

func TestGarbageOfOneMemberStaysOutOfATrimmedMean(t *testing.T) {
	l := mixedLayout(t)
	cfg := dense(l, robust(0.25, 0))
	updates := randomUpdates(t, cfg, 4, 1)
	honest := valuesOf(t, updates)
	for bad := range updates {
		garbage := random(77, cfg.Uplink.Len())
		for i := range garbage {
			garbage[i] *= 1e6
		}
		attacked := slices.Clone(updates)
		attacked[bad].Payload = encode(t, cfg.Uplink, cfg.Params.Uplink, garbage, randomAux(l, 1))
		attacked[bad].Weight = 1e12 // of what it claims the mean knows nothing
		q := meanOf(t, cfg, attacked)
		for i, v := range q {
			least, greatest := math.Inf(1), math.Inf(-1)
			for j, x := range honest {
				if j != bad {
					least, greatest = min(least, float64(x[i])), max(greatest, float64(x[i]))
				}
			}
			if float64(v) < least || float64(v) > greatest {
				t.Fatalf("member %d: element %d is %g, the others sent %g to %g", bad, i, v, least, greatest)
			}
		}
	}
}

func TestClippingBoundsGarbageAndKeepsTheWeights(t *testing.T) {
	l := mixedLayout(t)
	cfg := dense(l, robust(0, 2))
	updates := randomUpdates(t, cfg, 5, 3)
	if plain := dense(l, robust(0, 0)); !sameBits(meanOf(t, cfg, updates), meanOf(t, plain, updates)) {
		t.Error("clipping changes a mean in which nothing is too large")
	}
	median := func() float64 {
		var norms []float64
		for _, x := range valuesOf(t, updates) {
			norms = append(norms, norm(widen(x)))
		}
		slices.Sort(norms)
		return norms[2]
	}()
	x := random(9, cfg.Uplink.Len())
	for i := range x {
		x[i] *= 1e6
	}
	updates[1].Payload = encode(t, cfg.Uplink, cfg.Params.Uplink, x, randomAux(l, 9))
	s := randomState(l, 1)
	defer s.Close()
	res, _ := merge(t, s, nil, cfg, updates)
	if !slices.Equal(res.Clipped, []string{updates[1].Member}) {
		t.Errorf("clipped %v, want %s", res.Clipped, updates[1].Member)
	}
	// By definition, in float64.
	q, weights := meanOf(t, cfg, updates), 0.0
	for _, u := range updates {
		weights += u.Weight
	}
	all := valuesOf(t, updates)
	for i, v := range q {
		want := 0.0
		for j, u := range updates {
			scale := 1.0
			if j == 1 {
				// The garbage is the greatest, so the median of the rest moves by one at most.
				scale = 2 * medianWith(all) / norm(widen(all[1]))
			}
			want += u.Weight / weights * scale * float64(all[j][i])
		}
		if math.Abs(float64(v)-want) > 1e-5*(1+math.Abs(want)) {
			t.Fatalf("element %d is %g, want %g", i, v, want)
		}
		if i > 200 {
			break
		}
	}
	if largest := norm(widen(q)); largest > 3*median {
		t.Errorf("a mean of norm %g from updates of %g", largest, median)
	}
}

func medianWith(all [][]float32) float64 {
	var norms []float64
	for _, x := range all {
		norms = append(norms, norm(widen(x)))
	}
	slices.Sort(norms)
	return norms[(len(norms)-1)/2]
}

// With nothing to trim and equal weights a trimmed mean is the plain one in every
// bit; with a fraction of 0 it is whatever the weights.
func TestNothingTrimmedIsThePlainMean(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := rapidLayout(t)
		n := rapid.IntRange(1, 9).Draw(t, "members")
		plain := dense(l, robust(0, 0))
		updates := randomUpdates(t, plain, n, rapid.Uint64Range(1, 1000).Draw(t, "seed"))
		// A factor that nobody reaches.
		if cfg := dense(l, robust(0, 1e6)); !sameBits(meanOf(t, cfg, updates), meanOf(t, plain, updates)) {
			t.Fatal("a fraction of 0 is not the plain mean")
		}
		for i := range updates {
			updates[i].Weight = 3
		}
		few := dense(l, robust(0.1, 0)) // less than one of nine
		if !sameBits(meanOf(t, few, updates), meanOf(t, plain, updates)) {
			t.Fatal("without a member to cut off it is not the plain mean of equal weights")
		}
	})
}

func TestRobustMeansDoNotDependOnTheOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := rapidLayout(t)
		r := robust(rapid.Float64Range(0, 0.499).Draw(t, "trim"), rapid.SampledFrom([]float64{0, 0.5, 1, 3}).Draw(t, "clip"))
		cfg := dense(l, r)
		updates := randomUpdates(t, cfg, rapid.IntRange(1, 9).Draw(t, "members"), 5)
		s := randomState(l, 2)
		defer s.Close()
		again := clone(s)
		defer again.Close()
		res, bytes := merge(t, s, nil, cfg, updates)
		shuffled := rapid.Permutation(updates).Draw(t, "order")
		other, otherBytes := merge(t, again, nil, cfg, shuffled)
		if res.Digest != other.Digest || string(bytes) != string(otherBytes) || !slices.Equal(res.Clipped, other.Clipped) {
			t.Fatal("another order, another model")
		}
	})
}

// Whatever the minority sends, the result lies within what the majority sent, and
// equals the definition: sort, cut, mean.
func TestTrimmedMeansLieWithinTheMajority(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(3, 12).Draw(t, "members")
		k := rapid.IntRange(1, (n-1)/2).Draw(t, "trimmed")
		bad := rapid.IntRange(0, k).Draw(t, "bad")
		value := rapid.OneOf(rapid.Float32Range(-10, 10), rapid.SampledFrom([]float32{0, float32(math.Copysign(0, -1)), 1e-40, -1e-40}))
		hostile := rapid.OneOf(value, rapid.Float32Range(-codec.MaxMagnitude, codec.MaxMagnitude))
		var values []float32
		for i := range n {
			if i < bad {
				values = append(values, hostile.Draw(t, "hostile"))
			} else {
				values = append(values, value.Draw(t, "value"))
			}
		}
		honest := slices.Clone(values[bad:])
		sorted := slices.Sorted(slices.Values(values))
		want := 0.0
		for _, v := range sorted[k : n-k] {
			want += float64(v) / float64(n-2*k)
		}
		rand.New(rand.NewPCG(1, uint64(n))).Shuffle(n, func(i, j int) { values[i], values[j] = values[j], values[i] })
		got := trimmedMean(values, k)
		if got < slices.Min(honest) || got > slices.Max(honest) {
			t.Fatalf("%g is not in %v", got, honest)
		}
		if math.Abs(float64(got)-want) > 1e-6*(1e-30+math.Abs(want)+float64(slices.Max(honest)-slices.Min(honest))) {
			t.Fatalf("%g, want %g", got, want)
		}
	})
}

// Half of two is not a majority: the smaller norm is the median, and one of zeros
// says nothing of the other.
func TestClippingOfFewMembers(t *testing.T) {
	l := newLayout(t, spec("w", 8))
	cfg := dense(l, robust(0, 2))
	update := func(member string, v float32) Update {
		x := make([]float32, 8)
		for i := range x {
			x[i] = v
		}
		return Update{Member: member, Weight: 1, Payload: encode(t, cfg.Uplink, cfg.Params.Uplink, x, codec.Aux{})}
	}
	for name, c := range map[string]struct {
		updates []Update
		want    float32
	}{
		"one":             {[]Update{update("a", 4)}, 4},
		"two":             {[]Update{update("a", 1), update("b", 1000)}, 1.5}, // (1 + 2)/2
		"one of zeros":    {[]Update{update("a", 0), update("b", 6)}, 3},
		"within":          {[]Update{update("a", 2), update("b", 4)}, 3},
		"three, of which": {[]Update{update("a", 1), update("b", 1), update("c", -1e9)}, 0},
	} {
		if got := meanOf(t, cfg, c.updates)[0]; math.Abs(float64(got-c.want)) > 1e-6 {
			t.Errorf("%s: %g, want %g", name, got, c.want)
		}
	}
}

// Buffers and counters are as in a plain merge.
func TestStatisticsAreMergedAsEver(t *testing.T) {
	l := mixedLayout(t)
	plain, bounded := dense(l, robust(0, 0)), dense(l, robust(0.25, 3))
	updates := randomUpdates(t, plain, 5, 8)
	a := randomState(l, 4)
	defer a.Close()
	b := clone(a)
	defer b.Close()
	merge(t, a, nil, plain, updates)
	merge(t, b, nil, bounded, updates)
	if !sameBits(a.Buffers, b.Buffers) || !slices.Equal(a.Integers, b.Integers) {
		t.Error("they differ")
	}
	if sameBits(a.Theta, b.Theta) {
		t.Error("nothing was trimmed")
	}
}

// fragile fails to read once it is broken.
type fragile struct {
	*bytes.Reader
	broken bool
}

func (f *fragile) ReadAt(p []byte, at int64) (int, error) {
	if f.broken {
		return 0, errors.New("input/output error")
	}
	return f.Reader.ReadAt(p, at)
}

func TestAReadThatFailsWhileClippingChangesNothing(t *testing.T) {
	l := newLayout(t, spec("w", 64, 64))
	cfg := dense(l, robust(0, 2))
	updates := randomUpdates(t, cfg, 3, 1)
	var b bytes.Buffer
	if _, err := codec.Encode(&b, cfg.Uplink, cfg.Params.Uplink, random(1, cfg.Uplink.Len()), codec.Aux{}); err != nil {
		t.Fatal(err)
	}
	r := &fragile{Reader: bytes.NewReader(b.Bytes())}
	var err error
	if updates[1].Payload, err = codec.Parse(cfg.Uplink, cfg.Params.Uplink, r, int64(b.Len()), nil); err != nil {
		t.Fatal(err)
	}
	r.broken = true
	s := randomState(l, 1)
	defer s.Close()
	before := s.Digest()
	_, err = Merge(s, nil, cfg, updates, &limited{left: 1 << 30})
	if err == nil || errors.Is(err, ErrPartial) || s.Digest() != before {
		t.Errorf("%v, state changed: %t", err, s.Digest() != before)
	}
}

func TestATrimmedMeanHoldsBlocksNotModels(t *testing.T) {
	if raceDetector() {
		t.Skip("the race detector makes sync.Pool forget, so that allocations say nothing")
	}
	l := newLayout(t, spec("w", 1024, 2048)) // 8 MiB a vector
	cfg := dense(l, robust(0.2, 3))
	var updates []Update
	for i := range 16 {
		x := random(uint64(i), cfg.Uplink.Len())
		updates = append(updates, Update{Member: fmt.Sprintf("%03d", i), Weight: 1, Payload: encode(t, cfg.Uplink, cfg.Params.Uplink, x, codec.Aux{})})
	}
	s := tensor.NewState(l)
	defer s.Close()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	if _, err := Merge(s, nil, cfg, updates, &limited{left: 1 << 30}); err != nil {
		t.Fatal(err)
	}
	runtime.ReadMemStats(&after)
	if used := after.TotalAlloc - before.TotalAlloc; used > 8<<20 {
		t.Errorf("%d bytes allocated for 16 updates of 8 MiB", used)
	}
}

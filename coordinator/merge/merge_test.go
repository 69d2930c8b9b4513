package merge

import (
	"bytes"
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"girassol.dev/api/federation/v1alpha1"
	"girassol.dev/internal/algorithm"
	"girassol.dev/internal/codec"
	"girassol.dev/internal/kernel"
	"girassol.dev/internal/replica"
	"girassol.dev/internal/tensor"
)

const (
	identity = algorithm.Identity
	dct      = algorithm.DCT64
	fp32     = algorithm.FP32
	bf16     = algorithm.BF16
	twoBit   = algorithm.TwoBit
)

// Everything sent at full precision both ways is DiLoCo, here in float64 from
// its definition.
func TestFullPrecisionIsDenseDiLoCo(t *testing.T) {
	l := mixedLayout(t)
	for _, tr := range []algorithm.Transform{identity, dct} {
		for _, strategy := range []string{algorithm.DecoupledMomentum, algorithm.DiLoCo, algorithm.FedAvg} {
			for n := 1; n <= 4; n++ {
				p := parameters(strategy, enc(tr, 1, fp32), enc(tr, 1, fp32))
				cfg := configure(l, p)
				sites := newSites(n, cfg.Uplink)
				s := randomState(l, 5)
				clear(s.Momentum)
				theta, m := widen(s.Theta), make([]float64, len(s.Theta))
				for round := range 6 {
					var updates []Update
					weights := 0.0
					g := make([]float64, len(theta))
					for _, site := range sites {
						// rho does not matter: nothing is left in the residual.
						updates = append(updates, site.round(t, s.Theta, 1, p.Uplink, randomAux(l, uint64(round))))
						weights += site.weight
						for i := range g {
							trained := theta[i] + float64(site.pull)*(float64(site.target[i])-theta[i])
							g[i] += site.weight * (theta[i] - trained)
						}
					}
					merge(t, s, nil, cfg, updates)
					for i, site := range sites {
						if err := site.u.Settle(updates[i].Payload); err != nil {
							t.Fatal(err)
						}
						if site.u.Norm() != 0 {
							t.Fatalf("a lossless uplink leaves %g at %s", site.u.Norm(), site.member)
						}
					}
					for i := range theta {
						step := g[i] / weights
						m[i] = p.OuterMomentum*m[i] + step
						theta[i] -= p.OuterLearningRate * (step + p.OuterMomentum*m[i])
					}
				}
				// The transform's rounding is relative to the norm of a block.
				tolerance := map[algorithm.Transform]float64{identity: 3e-6, dct: 3e-5}[tr]
				scale := norm(theta) / math.Sqrt(float64(len(theta)))
				for i, want := range theta {
					if off := math.Abs(float64(s.Theta[i]) - want); off > tolerance*(scale+math.Abs(want)) {
						t.Fatalf("%s %s, %d sites: theta[%d] is %g, want %g", tr, strategy, n, i, s.Theta[i], want)
					}
				}
				freeSites(sites)
				s.Close()
			}
		}
	}
}

func widen(x []float32) []float64 {
	out := make([]float64, len(x))
	for i, v := range x {
		out[i] = float64(v)
	}
	return out
}

func norm(x []float64) float64 {
	sum := 0.0
	for _, v := range x {
		sum += v * v
	}
	return math.Sqrt(sum)
}

func TestModelMovesToTheSitesNotAwayFromThem(t *testing.T) {
	l := newLayout(t, spec("w", 1))
	p := parameters(algorithm.FedAvg, enc(identity, 1, fp32), enc(identity, 1, fp32))
	cfg := configure(l, p)
	s := tensor.NewState(l)
	defer s.Close()
	s.Theta[0] = 1
	u := replica.NewResidual(cfg.Uplink)
	defer u.Close()
	if _, err := u.Absorb(s.Theta, []float32{0}); err != nil {
		t.Fatal(err)
	}
	merge(t, s, nil, cfg, []Update{{Member: "a", Weight: 1, Payload: encode(t, cfg.Uplink, p.Uplink, u.Vector(), codec.Aux{})}})
	if s.Theta[0] != 0 {
		t.Errorf("model is %g, want 0", s.Theta[0])
	}
}

var lossy = []algorithm.Parameters{
	parameters(algorithm.DecoupledMomentum, enc(dct, 16, twoBit), enc(dct, 8, twoBit)),
	parameters(algorithm.DecoupledMomentum, enc(identity, 8, bf16), enc(identity, 1, bf16)),
	parameters(algorithm.DecoupledMomentum, enc(dct, 1, fp32), enc(dct, 4, fp32)),
	parameters(algorithm.DecoupledMomentum, enc(dct, 64, twoBit), enc(dct, 1, fp32)),
	parameters(algorithm.DecoupledMomentum, enc(dct, 16, algorithm.EightBit), enc(dct, 8, algorithm.FourBit)),
	parameters(algorithm.DecoupledMomentum, enc(identity, 32, algorithm.OneBit), inGroups(256, enc(identity, 16, algorithm.OneBit))),
	parameters(algorithm.DecoupledMomentum, inGroups(512, enc(identity, 4, algorithm.FourBit)), enc(identity, 1, algorithm.EightBit)),
}

func inGroups(size int, e algorithm.Encoding) algorithm.Encoding {
	e.GroupSize = size
	return e
}

func TestOrderOfUpdatesDoesNotMatterInAnyBit(t *testing.T) {
	l := mixedLayout(t)
	for _, p := range lossy {
		cfg := configure(l, p)
		updates := randomUpdates(t, cfg, 5, 1)
		base := randomState(l, 1)
		defer base.Close()
		startR := random(77, cfg.Uplink.Len())
		var digest [32]byte
		var bytesOut []byte
		var residual []float32
		r := rand.New(rand.NewPCG(1, 1))
		for try := range 12 {
			given := slices.Clone(updates)
			s, R := clone(base), slices.Clone(startR)
			_, out := merge(t, s, R, cfg, updates)
			for i := range given {
				if given[i].Member != updates[i].Member {
					t.Fatal("the caller's slice was reordered")
				}
			}
			if try == 0 {
				digest, bytesOut, residual = s.Digest(), out, R
			}
			if s.Digest() != digest || !bytes.Equal(out, bytesOut) || !sameBits(R, residual) {
				t.Fatalf("%+v: another order, another result", p)
			}
			s.Close()
			r.Shuffle(len(updates), func(i, j int) { updates[i], updates[j] = updates[j], updates[i] })
		}
	}
}

func TestWhatComesUpGoesDownOrStays(t *testing.T) {
	l := mixedLayout(t)
	for _, p := range lossy {
		cfg := configure(l, p)
		s := randomState(l, 2)
		R := random(3, cfg.Uplink.Len())
		for round := range uint64(4) {
			updates := randomUpdates(t, cfg, 3, round)
			before := slices.Clone(R)
			total := 0.0
			for _, u := range updates {
				total += u.Weight
			}
			Q := make([]float32, len(R))
			for _, u := range updates {
				if err := u.Payload.Add(Q, float32(u.Weight/total)); err != nil {
					t.Fatal(err)
				}
			}
			res, out := merge(t, s, R, cfg, updates)
			D := make([]float32, len(R))
			if err := parse(t, cfg.Downlink, p.Downlink, out).Decode(D); err != nil {
				t.Fatal(err)
			}
			for i := range R {
				full := before[i] + Q[i]
				if D[i] == 0 && math.Float32bits(R[i]) != math.Float32bits(full) {
					t.Fatalf("entry %d stays here as %g, want %g", i, R[i], full)
				}
				ulp := 0x1p-23 * max(math.Abs(float64(full)), math.Abs(float64(D[i])))
				if off := math.Abs(float64(D[i]) + float64(R[i]) - float64(full)); off > ulp {
					t.Fatalf("entry %d: D %g + R %g is not %g", i, D[i], R[i], full)
				}
			}
			for what, pair := range map[string][2]float64{
				"mean": {res.MeanNorm, kernel.SumSquares(Q)}, "delta": {res.DeltaNorm, kernel.SumSquares(D)}, "residual": {res.ResidualNorm, kernel.SumSquares(R)},
			} {
				if math.Abs(pair[0]-math.Sqrt(pair[1])) > 1e-9*pair[0] {
					t.Errorf("norm of the %s is said to be %g, is %g", what, pair[0], math.Sqrt(pair[1]))
				}
			}
		}
		s.Close()
	}
}

func TestTheWeightOfASingleSiteDoesNotMatter(t *testing.T) {
	l := mixedLayout(t)
	for _, p := range lossy {
		cfg := configure(l, p)
		one := randomUpdates(t, cfg, 1, 3)
		base := randomState(l, 3)
		defer base.Close()
		var first [32]byte
		for i, w := range []float64{1, 7, 1e-300, 1e300} {
			one[0].Weight = w
			s := clone(base)
			R := make([]float32, cfg.Uplink.Len())
			merge(t, s, R, cfg, one)
			if i == 0 {
				first = s.Digest()
			}
			if s.Digest() != first {
				t.Errorf("weight %g gives another model", w)
			}
			s.Close()
		}
	}
}

func TestASiteSplitInTwoCountsAsOne(t *testing.T) {
	l := mixedLayout(t)
	for _, p := range lossy {
		cfg := configure(l, p)
		updates := randomUpdates(t, cfg, 2, 4)
		base := randomState(l, 4)
		defer base.Close()
		whole, split := clone(base), clone(base)
		defer whole.Close()
		defer split.Close()
		R1, R2 := make([]float32, cfg.Uplink.Len()), make([]float32, cfg.Uplink.Len())
		merge(t, whole, R1, cfg, updates[:1])
		half := updates[0]
		half.Weight /= 2
		twin := half
		twin.Member = "twin/node"
		merge(t, split, R2, cfg, []Update{half, twin})
		// Halves are exact: the same in every bit.
		if whole.Digest() != split.Digest() || !sameBits(R1, R2) {
			t.Errorf("%+v: two halves of one site differ from it", p)
		}
		// Beside another site, to rounding. Lossless down, so that no selection
		// turns a rounding into a choice.
		cfg.Params.Downlink = enc(cfg.Downlink.Transform(), 1, fp32)
		s1, s2 := clone(base), clone(base)
		defer s1.Close()
		defer s2.Close()
		merge(t, s1, nil, cfg, updates)
		merge(t, s2, nil, cfg, []Update{half, twin, updates[1]})
		for i := range s1.Theta {
			if off := math.Abs(float64(s1.Theta[i] - s2.Theta[i])); off > 1e-4 {
				t.Fatalf("%+v: theta[%d] %g and %g", p, i, s1.Theta[i], s2.Theta[i])
			}
		}
	}
}

func TestAConfigurationThatDoesNotFitChangesNothing(t *testing.T) {
	l := mixedLayout(t)
	cfg := configure(l, lossy[0])
	s := randomState(l, 1)
	defer s.Close()
	before := s.Digest()
	updates := randomUpdates(t, cfg, 2, 1)
	for name, c := range map[string]func(Config) (Config, []float32){
		"other transform": func(c Config) (Config, []float32) {
			c.Downlink = codec.NewDomain(l, identity)
			return c, make([]float32, c.Uplink.Len())
		},
		"no residual for a lossy downlink": func(c Config) (Config, []float32) { return c, nil },
		"residual of other length":         func(c Config) (Config, []float32) { return c, make([]float32, 3) },
		"impossible momentum": func(c Config) (Config, []float32) {
			c.Params.OuterMomentum = 1.5
			return c, make([]float32, c.Uplink.Len())
		},
	} {
		cfg, r := c(cfg)
		var out bytes.Buffer
		if _, err := Merge(s, r, cfg, updates, &out); err == nil || errors.Is(err, ErrPartial) || out.Len() > 0 {
			t.Errorf("%s: %v, %d bytes", name, err, out.Len())
		}
	}
	if s.Digest() != before {
		t.Error("the state changed")
	}
}

func TestUpdatesThatCannotBeMergedChangeNothing(t *testing.T) {
	l := mixedLayout(t)
	cfg := configure(l, lossy[0])
	s := randomState(l, 1)
	defer s.Close()
	before := s.Digest()
	R := random(8, cfg.Uplink.Len())
	startR := slices.Clone(R)
	foreign := configure(newLayout(t, spec("other", 40, 40)), lossy[0])
	for _, c := range []struct {
		name   string
		change func(u []Update) []Update
		member string
		reason v1alpha1.Reason // empty: ErrNoWeight
	}{
		{"no updates", func([]Update) []Update { return nil }, "", ""},
		{"all weights zero", func(u []Update) []Update { u[0].Weight, u[1].Weight, u[2].Weight = 0, 0, 0; return u }, "", ""},
		{"a zero", func(u []Update) []Update { u[1].Weight = 0; return u }, "site-01/node", v1alpha1.ReasonInvalidWeight},
		{"negative", func(u []Update) []Update { u[2].Weight = -5; return u }, "site-02/node", v1alpha1.ReasonInvalidWeight},
		{"NaN", func(u []Update) []Update { u[0].Weight = math.NaN(); return u }, "site-00/node", v1alpha1.ReasonInvalidWeight},
		{"infinite", func(u []Update) []Update { u[0].Weight = math.Inf(1); return u }, "site-00/node", v1alpha1.ReasonInvalidWeight},
		{"minus infinite", func(u []Update) []Update { u[0].Weight = math.Inf(-1); return u }, "site-00/node", v1alpha1.ReasonInvalidWeight},
		{"sum overflows", func(u []Update) []Update { u[0].Weight, u[1].Weight = 1e308, 1.5e308; return u }, "site-01/node", v1alpha1.ReasonInvalidWeight},
		{"twice", func(u []Update) []Update { return append(u, u[1]) }, "site-01/node", v1alpha1.ReasonConflictingUpdate},
		{"no payload", func(u []Update) []Update { u[1].Payload = nil; return u }, "site-01/node", v1alpha1.ReasonEncodingMismatch},
		{"payload of another model", func(u []Update) []Update {
			u[1].Payload = randomUpdates(t, foreign, 1, 1)[0].Payload
			return u
		}, "site-01/node", v1alpha1.ReasonEncodingMismatch},
	} {
		var out bytes.Buffer
		_, err := Merge(s, R, cfg, c.change(randomUpdates(t, cfg, 3, 1)), &out)
		var bad *UpdateError
		if c.reason == "" && !errors.Is(err, ErrNoWeight) {
			t.Errorf("%s: %v, want ErrNoWeight", c.name, err)
		}
		if c.reason != "" && (!errors.As(err, &bad) || bad.Member != c.member || bad.Reason != c.reason) {
			t.Errorf("%s: %v, want %s for %s", c.name, err, c.reason, c.member)
		}
		if errors.Is(err, ErrPartial) || out.Len() > 0 || s.Digest() != before || !sameBits(R, startR) {
			t.Fatalf("%s: something changed", c.name)
		}
	}
	// And the next round goes on.
	merge(t, s, R, cfg, randomUpdates(t, cfg, 3, 1))
}

package engine

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"testing"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	"girassol.dev/coordinator/round"
	"girassol.dev/internal/algorithm"
	"girassol.dev/internal/codec"
	"girassol.dev/internal/kernel"
	"girassol.dev/internal/tensor"
)

var siteNames = []string{"a", "b", "c", "d"}

// pseudoGradient is what a site's local steps from a version amount to; the same
// for the same site and version, whenever it is asked.
func pseudoGradient(site string, version uint64, n int) []float32 {
	rng := rand.New(rand.NewPCG(version, uint64(site[0])))
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(rng.NormFloat64()) * 0.1
	}
	return x
}

// work is a deterministic update of every site: parameters, running statistics
// and a counter.
func work(t *testing.T, model *tensor.State, p algorithm.Parameters) func(*agent, *coordinatorv1.Grant) ([]byte, float64) {
	t.Helper()
	d := codec.NewDomain(model.Layout, p.Uplink.Transform)
	return func(a *agent, g *coordinatorv1.Grant) ([]byte, float64) {
		x := make([]float32, d.Len())
		d.Forward(x, pseudoGradient(a.site, g.GetBaseVersion(), model.Layout.Parameters()))
		aux := codec.Aux{Buffers: slices.Clone(model.Buffers), Integers: binary.LittleEndian.AppendUint64(nil, 100*uint64(a.site[0])+g.GetBaseVersion())}
		for i := range aux.Buffers {
			aux.Buffers[i] = 0.01 * float32(a.site[0]-'a'+1)
		}
		return encode(t, d, p.Uplink, x, aux), weightOf(a.site)
	}
}

func weightOf(site string) float64 { return []float64{3, 10, 1, 7}[site[0]-'a'] }

// denseDiLoCo is the plain reference: weighted mean, then PyTorch's Nesterov, all
// in float64.
type denseDiLoCo struct{ theta, m []float64 }

func (r *denseDiLoCo) round(sites []string, version uint64, eta, mu float64) {
	sum := 0.0
	for _, s := range sites {
		sum += weightOf(s)
	}
	g := make([]float64, len(r.theta))
	for _, s := range sites {
		for i, v := range pseudoGradient(s, version, len(g)) {
			g[i] += weightOf(s) / sum * float64(v)
		}
	}
	for i := range g {
		r.m[i] = mu*r.m[i] + g[i]
		r.theta[i] -= eta * (g[i] + mu*r.m[i])
	}
}

func TestFullPrecisionEqualsDenseDiLoCoForAnyNumberOfSites(t *testing.T) {
	t.Parallel()
	const rounds = 5
	for n := 1; n <= len(siteNames); n++ {
		sites := siteNames[:n]
		t.Run(fmt.Sprint(n, " sites"), func(t *testing.T) {
			p := defaults(t, algorithm.DiLoCo)
			cfg := testConfig(t.TempDir(), p, sites...)
			r, model := newRig(t, cfg), smallModel(t)
			agents := r.joinAll(sites...)
			agents[0].seed(model)
			agents[0].committed()
			for _, a := range agents[1:] {
				a.committed()
			}
			ref := denseDiLoCo{make([]float64, len(model.Theta)), make([]float64, len(model.Theta))}
			for i, v := range model.Theta {
				ref.theta[i] = float64(v)
			}
			for v := range uint64(rounds) {
				if c := r.round(agents, work(t, model, p)); c.GetVersion() != v+1 {
					t.Fatal(c)
				}
				ref.round(sites, v, p.OuterLearningRate, p.OuterMomentum)
			}
			compare := func(what string, theta, m []float32) {
				t.Helper()
				for i := range theta {
					if d := math.Abs(float64(theta[i]) - ref.theta[i]); d > 2e-6 {
						t.Fatalf("%s: theta[%d] is %v, want %v", what, i, theta[i], ref.theta[i])
					}
					if d := math.Abs(float64(m[i]) - ref.m[i]); d > 1e-6 {
						t.Fatalf("%s: m[%d] is %v, want %v", what, i, m[i], ref.m[i])
					}
				}
			}
			check := func(what string, r *rig) {
				t.Helper()
				if err := r.engine.do(r.ctx(), func() { compare(what, r.engine.model.state.Theta, r.engine.model.state.Momentum) }); err != nil {
					t.Fatal(err)
				}
			}
			check("at work", r)
			if err := r.stop(); err != nil {
				t.Fatal(err)
			}
			check("recovered", newRig(t, cfg))
		})
	}
}

// residualNorm is |R|^2, 0 where there is none.
func (r *rig) residualNorm() float64 {
	r.t.Helper()
	var sum float64
	if err := r.engine.do(r.ctx(), func() { sum = kernel.SumSquares(r.engine.model.residual) }); err != nil {
		r.t.Fatal(err)
	}
	return sum
}

func TestKillAtEveryVersionGoesOnToTheSameBits(t *testing.T) {
	t.Parallel()
	const rounds = 5
	sites := siteNames[:3]
	for _, strategy := range []string{algorithm.DiLoCo, algorithm.DecoupledMomentum} {
		t.Run(strategy, func(t *testing.T) {
			p := defaults(t, strategy)
			cfg := testConfig(t.TempDir(), p, sites...)
			model := smallModel(t)
			r := newRig(t, cfg)
			agents := r.joinAll(sites...)
			agents[0].seed(model)
			for _, a := range agents {
				a.committed()
			}
			var killed []string
			var digests [][]byte
			var norms []float64
			note := func() {
				killed = append(killed, r.killed())
				digests = append(digests, r.status().GetDigest())
				norms = append(norms, r.residualNorm())
			}
			note()
			for range rounds {
				r.round(agents, work(t, model, p))
				note()
			}
			for v, dir := range killed {
				cfg := cfg
				cfg.DataDir = dir
				k := newRig(t, cfg)
				if st := k.status(); !bytes.Equal(st.GetDigest(), digests[v]) || st.GetVersion() != uint64(v) {
					t.Fatalf("killed at version %d: recovered version %d with another digest", v, st.GetVersion())
				}
				if got := k.residualNorm(); got != norms[v] {
					t.Fatalf("killed at version %d: |R|^2 is %g, was %g", v, got, norms[v])
				}
				again := k.joinAll(sites...)
				for w := v; w < rounds; w++ {
					k.round(again, work(t, model, p))
				}
				if st := k.status(); !bytes.Equal(st.GetDigest(), digests[rounds]) || k.residualNorm() != norms[rounds] {
					t.Fatalf("killed at version %d: version %d is another one than without the kill", v, st.GetVersion())
				}
				if err := k.stop(); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

func TestOrderOfArrivalAndRepeatedUpdatesChangeNothing(t *testing.T) {
	t.Parallel()
	sites := siteNames[:3]
	p := defaults(t, algorithm.DecoupledMomentum)
	model := smallModel(t)
	run := func(order []int, repeat int) []byte {
		r := newRig(t, testConfig(t.TempDir(), p, sites...))
		agents := r.joinAll(sites...)
		agents[0].seed(model)
		for _, a := range agents {
			a.committed()
			a.heartbeat(coordinatorv1.MemberState_MEMBER_STATE_READY, 0)
		}
		grants := map[*agent]*coordinatorv1.Grant{}
		for _, a := range agents {
			grants[a] = a.grant()
		}
		var last func()
		for _, i := range order {
			a := agents[i]
			payload, weight := work(t, model, p)(a, grants[a])
			h := a.header(grants[a], "u", payload)
			h.Weight = weight
			last = func() { a.mustAccept(h, payload) }
			for range repeat {
				last()
			}
		}
		for _, a := range agents {
			a.committed()
		}
		last() // once more, after the commit
		st := r.status()
		if st.GetVersion() != 1 || st.GetCommittedSamples() != 3 {
			t.Fatalf("version %d of %d samples", st.GetVersion(), st.GetCommittedSamples())
		}
		return st.GetDigest()
	}
	want := run([]int{0, 1, 2}, 1)
	for _, order := range [][]int{{2, 1, 0}, {1, 2, 0}} {
		if got := run(order, 3); !bytes.Equal(got, want) {
			t.Fatalf("arrival in order %v makes another model", order)
		}
	}
}

// Running statistics are averaged without momentum and stay variances; counters
// keep type and shape, also in the snapshot's file.
func TestBuffersAndCountersOverRounds(t *testing.T) {
	t.Parallel()
	sites := siteNames[:2]
	p := defaults(t, algorithm.DiLoCo)
	cfg := testConfig(t.TempDir(), p, sites...)
	model := smallModel(t)
	r := newRig(t, cfg)
	agents := r.joinAll(sites...)
	agents[0].seed(model)
	for _, a := range agents {
		a.committed()
	}
	for range 6 {
		r.round(agents, work(t, model, p))
		if err := r.engine.do(r.ctx(), func() {
			s := r.engine.model.state
			want := float32((3*float64(float32(0.01)) + 10*float64(float32(0.02))) / 13)
			for i, v := range s.Buffers {
				if math.Abs(float64(v-want)) > 1e-9 {
					t.Fatalf("version %d: buffer %d is %v, want %v", r.engine.model.version, i, v, want)
				}
			}
			// b's, whose weight is greatest.
			if got := binary.LittleEndian.Uint64(s.Integers); got != 100*'b'+r.engine.model.version-1 {
				t.Fatalf("version %d: counter is %d", r.engine.model.version, got)
			}
		}); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	f, err := tensor.OpenFile(filepath.Join(cfg.DataDir, "snapshots", "000000000006", "state.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	i := slices.IndexFunc(f.Specs(), func(s tensor.Spec) bool { return s.Name == "bn.num_batches_tracked" })
	if i < 0 || f.Specs()[i].DType != tensor.I64 || len(f.Specs()[i].Shape) != 0 {
		t.Fatalf("the snapshot holds %v", f.Specs())
	}
}

func TestEventsComeInOrderAndNoneIsMissing(t *testing.T) {
	p := defaults(t, algorithm.DiLoCo)
	r, a := seeded(t, testConfig(t.TempDir(), p, "a"))
	model := smallModel(t)
	r.round([]*agent{a}, work(t, model, p))
	a.heartbeat(coordinatorv1.MemberState_MEMBER_STATE_READY, 0)
	a.grant()
	if _, err := r.engine.SetMembership(r.ctx(), Wish{Site: "a", Membership: round.Exclude, Reason: "Requested"}); err != nil {
		t.Fatal(err)
	}
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	want := []string{"RoundCommitted v0", "RoundCommitted v1", "MembershipChanged", "RoundStopped", "RoundVoid", "Shutdown"}
	if got := r.events.types(); !slices.Equal(got, want) {
		t.Fatalf("announced %v, want %v", got, want)
	}
}

package merge

import (
	"math"
	"slices"
	"testing"

	"girassol.dev/internal/algorithm"
	"girassol.dev/internal/codec"
	"girassol.dev/internal/tensor"
)

// Why members forget what they have not sent when the model goes back: one site
// trains once towards something a hundred times too large, the model is restored,
// and all go on as before. Kept, the residual brings the same harm again.
func TestAResidualThatOutlivesARollbackBringsTheHarmBack(t *testing.T) {
	l := newLayout(t, spec("w", 40, 26), spec("bias", 40))
	p := lossy[0]
	cfg := configure(l, p)
	// after is how far the model is from the sites' mean, in units of where it was
	// restored: at worst in 40 rounds after the rollback, and in the end.
	after := func(keep bool) (worst, end float64) {
		sites := newSites(4, cfg.Uplink)
		defer freeSites(sites)
		want, total := make([]float64, l.Parameters()), 0.0
		for _, site := range sites {
			site.pull = 0.02
			total += site.weight
		}
		for _, site := range sites {
			for i, v := range site.target {
				want[i] += float64(v) * site.weight / total
			}
		}
		s := tensor.NewState(l)
		defer s.Close()
		R := make([]float32, cfg.Uplink.Len())
		off := func() float64 {
			sum := 0.0
			for i, v := range want {
				sum += (float64(s.Theta[i]) - v) * (float64(s.Theta[i]) - v)
			}
			return math.Sqrt(sum)
		}
		round := func() {
			var updates []Update
			for _, site := range sites {
				rho := algorithm.Rho(nil, false, site.lastNorm, site.u.Norm())
				updates = append(updates, site.round(t, s.Theta, rho, p.Uplink, codec.Aux{}))
			}
			merge(t, s, R, cfg, updates)
			for i, site := range sites {
				if err := site.u.Settle(updates[i].Payload); err != nil {
					t.Fatal(err)
				}
			}
		}
		for range 100 {
			round()
		}
		theta, m, r, good := slices.Clone(s.Theta), slices.Clone(s.Momentum), slices.Clone(R), off()
		honest, pull := slices.Clone(sites[0].target), sites[0].pull
		for i := range sites[0].target {
			sites[0].target[i] *= 100
		}
		sites[0].pull = 1
		round()
		copy(sites[0].target, honest)
		sites[0].pull = pull
		copy(s.Theta, theta)
		copy(s.Momentum, m)
		copy(R, r)
		for _, site := range sites {
			if !keep {
				clear(site.u.Vector())
				site.lastNorm = 0
			}
		}
		for range 40 {
			round()
			worst = max(worst, off()/good)
		}
		return worst, off() / good
	}
	kept, keptEnd := after(true)
	reset, resetEnd := after(false)
	t.Logf("distance over that of the restored model: residual kept %.2f at worst, %.2f after 40 rounds; forgotten %.2f and %.2f", kept, keptEnd, reset, resetEnd)
	if !(reset < 1.3) || !(resetEnd < 1) || !(kept > 2*reset) {
		t.Error("a residual that is forgotten no longer is the safe choice")
	}
}

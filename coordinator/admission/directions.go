package admission

import (
	"fmt"
	"math"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/internal/codec"
	"girassol.dev/internal/kernel"
)

// Vector is an update's values in its domain: a *codec.Payload.
type Vector interface {
	// AddRange adds w times the elements lo to hi to dst.
	AddRange(dst []float32, lo, hi int, w float32) error
}

// Update whose direction is judged.
type Update struct {
	Member, Site string
	Norm         float64
	Vector       Vector
}

// Norm of a vector, block by block.
func Norm(blocks []codec.Block, v Vector) (float64, error) {
	scratch := make([]float32, longest(blocks))
	sum := 0.0
	for _, b := range blocks {
		x := scratch[:b.Len()]
		clear(x)
		if err := v.AddRange(x, b.Lo, b.Hi, 1); err != nil {
			return 0, err
		}
		sum += kernel.SumSquares(x)
	}
	return math.Sqrt(sum), nil
}

// Outlier is an update that does not go the others' way.
type Outlier struct {
	// Index in the updates that were judged.
	Index  int
	Cosine float64
	Breach
}

// fewest updates among which directions are judged: of two that disagree nobody
// can say which is wrong.
const fewest = 3

// singly is how many outliers are looked for one by one; after that, all that are
// below the bound go together, so that many of them cost no more.
const singly = 8

// Disagreeing finds the updates whose cosine to the sum of the others is below
// least, the worst first. After each the rest is judged anew, for one bad update
// spoils the sum that the good ones are compared with; it ends when fewer than
// three are left.
//
// In the sum every site has one voice, shared by its members, and every update the
// length of its share: neither a large norm nor much weight makes a direction that
// of the federation. An update of zeros is not judged and says nothing.
//
// The updates' order decides between equals. Memory is two blocks; each look reads
// every update twice.
func Disagreeing(blocks []codec.Block, updates []Update, least float64) ([]Outlier, error) {
	in := make([]bool, len(updates))
	left := 0
	for i, u := range updates {
		if u.Norm > 0 && !math.IsInf(u.Norm, 1) {
			in[i] = true
			left++
		}
	}
	var out []Outlier
	for left >= fewest {
		cosines, err := cosinesToOthers(blocks, updates, in)
		if err != nil {
			return nil, err
		}
		worst := -1
		for i, c := range cosines {
			if !in[i] || !(c < least) {
				continue
			}
			if len(out) >= singly {
				in[i] = false
				out = append(out, outlier(i, c, least, left))
				continue
			}
			if worst < 0 || c < cosines[worst] {
				worst = i
			}
		}
		if worst < 0 {
			return out, nil
		}
		in[worst] = false
		out = append(out, outlier(worst, cosines[worst], least, left))
		left--
	}
	return out, nil
}

func outlier(i int, cosine, least float64, among int) Outlier {
	return Outlier{i, cosine, Breach{v1alpha1.ReasonDirectionTooFar,
		fmt.Sprintf("cosine %.3f to the sum of the round's %d other updates; at least %g is taken", cosine, among-1, least)}}
}

// cosinesToOthers of the updates that are in. With unit vectors y and voices a,
// S = sum a*y, it is (<y,S> - a) / |S - a*y|, and |S - a*y|^2 = |S|^2 - 2a<y,S> + a^2:
// one pass, and numbers near 1 whatever the norms.
func cosinesToOthers(blocks []codec.Block, updates []Update, in []bool) ([]float64, error) {
	members := map[string]float64{}
	for i, u := range updates {
		if in[i] {
			members[u.Site]++
		}
	}
	n := longest(blocks)
	sum, one := make([]float32, n), make([]float32, n)
	along, square := make([]float64, len(updates)), 0.0
	for _, b := range blocks {
		s, y := sum[:b.Len()], one[:b.Len()]
		clear(s)
		for i, u := range updates {
			if in[i] {
				if err := scaled(y, b, u); err != nil {
					return nil, err
				}
				kernel.Axpy(s, float32(1/members[u.Site]), y)
			}
		}
		square += kernel.SumSquares(s)
		for i, u := range updates {
			if in[i] {
				if err := scaled(y, b, u); err != nil {
					return nil, err
				}
				along[i] += kernel.Dot(y, s)
			}
		}
	}
	for i, u := range updates {
		if !in[i] {
			continue
		}
		a := 1 / members[u.Site]
		others := math.Sqrt(max(square-2*a*along[i]+a*a, 0))
		along[i] -= a
		if others < 1e-6 { // they cancel out, so there is no direction to miss
			along[i] = 1
			continue
		}
		along[i] = min(max(along[i]/others, -1), 1)
	}
	return along, nil
}

// scaled writes a block of an update's vector, divided by its norm, to y. The inverse
// of a norm of subnormal numbers is no float32, so it is brought to them in two steps.
func scaled(y []float32, b codec.Block, u Update) error {
	clear(y)
	w, rest := 1/u.Norm, 1.0
	if w > math.MaxFloat32 {
		w, rest = 0x1p64, w/0x1p64
	}
	if err := u.Vector.AddRange(y, b.Lo, b.Hi, float32(w)); err != nil {
		return fmt.Errorf("update of %q: %w", u.Member, err)
	}
	if rest != 1 {
		for i := range y {
			y[i] *= float32(rest)
		}
	}
	return nil
}

func longest(blocks []codec.Block) int {
	n := 0
	for _, b := range blocks {
		n = max(n, b.Len())
	}
	return n
}

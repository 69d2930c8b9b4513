package admission

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"girassol.dev/internal/algorithm"
	"girassol.dev/internal/codec"
	"girassol.dev/internal/tensor"
)

// domain of a layout with columns of 64; 1200 make two blocks.
func domain(t testing.TB, transform algorithm.Transform, columns int64) *codec.Domain {
	t.Helper()
	l, err := tensor.NewLayout([]tensor.Spec{
		{Name: "w", DType: tensor.F32, Shape: []int64{64, columns}, Role: tensor.Parameter},
		{Name: "bias", DType: tensor.F32, Shape: []int64{77}, Role: tensor.Parameter},
	})
	if err != nil {
		t.Fatal(err)
	}
	return codec.NewDomain(l, transform)
}

// plain is a vector that is held whole.
type plain []float32

func (p plain) AddRange(dst []float32, lo, hi int, w float32) error {
	for i, v := range p[lo:hi] {
		dst[i] += w * v
	}
	return nil
}

func norm(x []float32) float64 {
	s := 0.0
	for _, v := range x {
		s += float64(v) * float64(v)
	}
	return math.Sqrt(s)
}

// towards is a direction with noise of the same length, times a size.
func towards(r *rand.Rand, d []float32, size float32) plain {
	out := make(plain, len(d))
	for i := range d {
		out[i] = size * (d[i] + float32(r.NormFloat64()))
	}
	return out
}

func noise(r *rand.Rand, n int) []float32 {
	out := make([]float32, n)
	for i := range out {
		out[i] = float32(r.NormFloat64())
	}
	return out
}

func indices(out []Outlier) []int {
	var at []int
	for _, o := range out {
		at = append(at, o.Index)
	}
	slices.Sort(at)
	return at
}

// One bad update, of any size and any share of members, is found; the good ones
// stay, though the sum that each is compared with holds the bad one.
func TestTheUpdateThatGoesAnotherWayIsFound(t *testing.T) {
	d := domain(t, algorithm.Identity, 40)
	rapid.Check(t, func(rt *rapid.T) {
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "seed"), 1))
		way := noise(r, d.Len())
		n := rapid.IntRange(2, 5).Draw(rt, "good")
		bad := rapid.IntRange(0, n).Draw(rt, "place")
		kind := rapid.SampledFrom([]string{"opposite", "noise"}).Draw(rt, "kind")
		var us []Update
		for i := range n + 1 {
			size := float32(math.Pow(10, rapid.Float64Range(-3, 6).Draw(rt, "size")))
			x := towards(r, way, size)
			if i == bad {
				x = plain(noise(r, d.Len()))
				for j := range x {
					if kind == "opposite" {
						x[j] = -way[j]
					}
					x[j] *= size
				}
			}
			us = append(us, Update{Member: fmt.Sprint(i), Site: fmt.Sprint(i), Norm: norm(x), Vector: x})
		}
		out, err := Disagreeing(d.Blocks(), us, 0.15)
		if err != nil || !slices.Equal(indices(out), []int{bad}) {
			rt.Fatalf("out are %v (%v), want %d (%s)", out, err, bad, kind)
		}
	})
}

// A site has one voice however many members it has.
func TestManyMembersOfOneSiteAreNoMajority(t *testing.T) {
	d := domain(t, algorithm.Identity, 40)
	r := rand.New(rand.NewPCG(1, 1))
	way := noise(r, d.Len())
	var us []Update
	for i := range 3 {
		x := towards(r, way, 1)
		us = append(us, Update{Member: fmt.Sprint("good", i), Site: fmt.Sprint("good", i), Norm: norm(x), Vector: x})
	}
	for i := range 10 {
		x := make(plain, d.Len())
		for j := range x {
			x[j] = -way[j]
		}
		us = append(us, Update{Member: fmt.Sprint("bad", i), Site: "bad", Norm: norm(x), Vector: x})
	}
	out, err := Disagreeing(d.Blocks(), us, 0)
	if err != nil {
		t.Fatal(err)
	}
	if got := indices(out); !slices.Equal(got, []int{3, 4, 5, 6, 7, 8, 9, 10, 11, 12}) {
		t.Errorf("out are %v, want all of the one bad site", got)
	}
}

// As they are computed block by block without a model's vector: the same as by the
// book, for dense and sparse payloads.
func TestCosinesAreThoseOfTheDecodedUpdates(t *testing.T) {
	for _, name := range []string{algorithm.DiLoCo, algorithm.DecoupledMomentum} {
		p, err := algorithm.Defaults(name)
		if err != nil {
			t.Fatal(err)
		}
		d := domain(t, p.Uplink.Transform, 1200)
		r := rand.New(rand.NewPCG(2, 2))
		way := noise(r, d.Len())
		var us []Update
		var decoded [][]float32
		for i := range 4 {
			x := towards(r, way, float32(i+1))
			var b bytes.Buffer
			if _, err := codec.Encode(&b, d, p.Uplink, x, codec.Aux{}); err != nil {
				t.Fatal(err)
			}
			payload, err := codec.Parse(d, p.Uplink, bytes.NewReader(b.Bytes()), int64(b.Len()), nil)
			if err != nil {
				t.Fatal(err)
			}
			y := make([]float32, d.Len())
			if err := payload.Decode(y); err != nil {
				t.Fatal(err)
			}
			decoded = append(decoded, y)
			size, err := Norm(d.Blocks(), payload)
			if err != nil || math.Abs(size/norm(y)-1) > 1e-9 {
				t.Fatalf("norm %g, want %g (%v)", size, norm(y), err)
			}
			us = append(us, Update{Member: fmt.Sprint(i), Site: fmt.Sprint(i), Norm: size, Vector: payload})
		}
		got, err := cosinesToOthers(d.Blocks(), us, []bool{true, true, true, true})
		if err != nil {
			t.Fatal(err)
		}
		for i := range us {
			var dot, square float64
			for j := range d.Len() {
				others := 0.0
				for k := range us {
					if k != i {
						others += float64(decoded[k][j]) / us[k].Norm
					}
				}
				dot += others * float64(decoded[i][j]) / us[i].Norm
				square += others * others
			}
			if want := dot / math.Sqrt(square); math.Abs(got[i]-want) > 1e-5 {
				t.Errorf("%s, update %d: cosine %.7f, want %.7f", name, i, got[i], want)
			}
		}
	}
}

func TestTwoUpdatesAndZerosAreNotJudged(t *testing.T) {
	d := domain(t, algorithm.Identity, 40)
	r := rand.New(rand.NewPCG(3, 3))
	x := plain(noise(r, d.Len()))
	y := make(plain, len(x))
	for i := range x {
		y[i] = -x[i]
	}
	zero := make(plain, len(x))
	us := []Update{{"a", "a", norm(x), x}, {"b", "b", norm(y), y}, {"c", "c", 0, zero}, {"d", "d", 0, zero}}
	if out, err := Disagreeing(d.Blocks(), us, 0.9); err != nil || len(out) != 0 {
		t.Errorf("%v, %v", out, err)
	}
}

type broken struct{}

func (broken) AddRange([]float32, int, int, float32) error { return errors.New("the disk is gone") }

func TestAnUpdateThatCannotBeReadAgainIsAnError(t *testing.T) {
	d := domain(t, algorithm.Identity, 40)
	us := []Update{{"a", "a", 1, broken{}}, {"b", "b", 1, broken{}}, {"c", "c", 1, broken{}}}
	if _, err := Disagreeing(d.Blocks(), us, 0); err == nil {
		t.Error("no error")
	}
	if _, err := Norm(d.Blocks(), broken{}); err == nil {
		t.Error("no error")
	}
}

// Many outliers cost no more looks than a few.
func TestManyOutliersAreFoundInBoundedLooks(t *testing.T) {
	d := domain(t, algorithm.Identity, 40)
	r := rand.New(rand.NewPCG(4, 4))
	way := noise(r, d.Len())
	reads := 0
	var us []Update
	for i := range 60 {
		x := towards(r, way, 1)
		if i >= 31 {
			x = noise(r, d.Len())
		}
		us = append(us, Update{Member: fmt.Sprint(i), Site: fmt.Sprint(i), Norm: norm(x), Vector: counting{x, &reads}})
	}
	out, err := Disagreeing(d.Blocks(), us, 0.3)
	if err != nil || len(out) != 29 {
		t.Fatalf("%d outliers (%v), want 29", len(out), err)
	}
	if most := 2 * 60 * len(d.Blocks()) * (singly + 3); reads > most {
		t.Errorf("%d reads, at most %d", reads, most)
	}
}

type counting struct {
	plain
	n *int
}

func (c counting) AddRange(dst []float32, lo, hi int, w float32) error {
	*c.n++
	return c.plain.AddRange(dst, lo, hi, w)
}

// Numbers whose inverse is beyond float32, as an update can hold, are a direction as
// any other, and spoil none of the others' comparisons.
func TestTheSmallestAndTheLargestNumbersAreDirectionsLikeOthers(t *testing.T) {
	d := domain(t, algorithm.Identity, 40)
	r := rand.New(rand.NewPCG(7, 1))
	way := noise(r, d.Len())
	for _, size := range []float32{0x1p-140, 0x1p-126, 0x1p90} {
		var us []Update
		for i := range 5 {
			x := towards(r, way, 0.01)
			switch i {
			case 1: // the way of all, in a size of its own
				x = towards(r, way, size)
			case 3:
				for j := range x {
					x[j] = -x[j]
				}
			}
			us = append(us, Update{Member: fmt.Sprint(i), Site: fmt.Sprint(i), Norm: norm(x), Vector: x})
		}
		out, err := Disagreeing(d.Blocks(), us, 0.15)
		if err != nil || !slices.Equal(indices(out), []int{3}) {
			t.Errorf("size %g: out are %v (%v), want 3", size, out, err)
		}
	}
}

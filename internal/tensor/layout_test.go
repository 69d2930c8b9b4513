package tensor

import (
	"math"
	"slices"
	"strings"
	"testing"
)

func TestLayoutPlacesTensorsByNameInTheirStores(t *testing.T) {
	l := layout(t,
		Spec{"b", F32, []int64{2, 2}, Parameter}, Spec{"a", BF16, []int64{3}, Parameter}, Spec{"m", F32, []int64{5}, Buffer},
		Spec{"n", I64, nil, Integer}, Spec{"k", I16, []int64{3}, Integer})
	var names []string
	offsets := map[string]int{}
	for i, s := range l.Tensors() {
		names = append(names, s.Name)
		offsets[s.Name] = l.Offset(i)
	}
	if !slices.Equal(names, []string{"a", "b", "k", "m", "n"}) {
		t.Errorf("order %v", names)
	}
	for name, want := range map[string]int{"a": 0, "b": 3, "m": 0, "k": 0, "n": 6} {
		if offsets[name] != want {
			t.Errorf("%s at %d, want %d", name, offsets[name], want)
		}
	}
	if l.Parameters() != 7 || l.Buffers() != 5 || l.IntegerBytes() != 14 {
		t.Errorf("stores of %d, %d, %d", l.Parameters(), l.Buffers(), l.IntegerBytes())
	}
	if _, ok := l.Lookup("c"); ok {
		t.Error("found a tensor that is not there")
	}
}

func TestLayoutDigestDependsOnContentNotOrder(t *testing.T) {
	a, b := Spec{"a", F32, []int64{2, 3}, Parameter}, Spec{"b", F32, nil, Parameter}
	want := layout(t, a, b).Digest()
	if layout(t, b, a).Digest() != want {
		t.Error("the order of the list changes the digest")
	}
	for what, change := range map[string]func(*Spec){
		"name":  func(s *Spec) { s.Name = "aa" },
		"type":  func(s *Spec) { s.DType = F64 },
		"shape": func(s *Spec) { s.Shape = []int64{3, 2} },
		"role":  func(s *Spec) { s.Role = Buffer },
	} {
		c := a
		change(&c)
		if layout(t, c, b).Digest() == want {
			t.Errorf("another %s has the same digest", what)
		}
		if d := layout(t, a, b).Diff(layout(t, c, b)); len(d) == 0 || !strings.HasPrefix(d[0], "a: ") {
			t.Errorf("another %s: difference %v", what, d)
		}
	}
}

func TestImpossibleLayoutsAreRefused(t *testing.T) {
	good := Spec{"w", F32, []int64{2}, Parameter}
	for what, specs := range map[string][]Spec{
		"nothing":             {},
		"no parameter":        {{"m", F32, nil, Buffer}},
		"twice":               {good, good},
		"no name":             {{"", F32, nil, Parameter}},
		"integer parameter":   {{"w", I32, nil, Parameter}},
		"float integer":       {good, {"n", F32, nil, Integer}},
		"no role":             {{"w", F32, nil, ""}},
		"unknown type":        {{"w", "F8", nil, Parameter}},
		"negative":            {{"w", F32, []int64{-2}, Parameter}},
		"overflow":            {{"w", F32, []int64{math.MaxInt64, 3}, Parameter}},
		"too large together":  {{"v", F32, []int64{1 << 40}, Parameter}, good},
		"rank above the most": {{"w", F32, make([]int64, MaxRank+1), Parameter}},
	} {
		if _, err := NewLayout(specs); err == nil {
			t.Errorf("%s: allowed", what)
		}
	}
}

package engine

import (
	"math"
	"strings"
	"testing"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
)

func TestFiguresThatNoCounterHasAreNone(t *testing.T) {
	good := func() *coordinatorv1.Energy {
		return &coordinatorv1.Energy{Joules: 10, MeteredJoules: 8, UncertaintyJoules: 1, Source: "rapl+model", Boot: 7}
	}
	if counted(good()) == nil || counted(&coordinatorv1.Energy{}) == nil {
		t.Error("a counter is refused")
	}
	if counted(nil) != nil {
		t.Error("none is one")
	}
	for name, spoil := range map[string]func(*coordinatorv1.Energy){
		"no number":               func(e *coordinatorv1.Energy) { e.Joules = math.NaN() },
		"infinite":                func(e *coordinatorv1.Energy) { e.Joules = math.Inf(1) },
		"negative":                func(e *coordinatorv1.Energy) { e.Joules, e.MeteredJoules = -1, -1 },
		"negative uncertainty":    func(e *coordinatorv1.Energy) { e.UncertaintyJoules = -1 },
		"uncertainty no number":   func(e *coordinatorv1.Energy) { e.UncertaintyJoules = math.NaN() },
		"metered no number":       func(e *coordinatorv1.Energy) { e.MeteredJoules = math.NaN() },
		"more metered than all":   func(e *coordinatorv1.Energy) { e.MeteredJoules = 11 },
		"a source without an end": func(e *coordinatorv1.Energy) { e.Source = strings.Repeat("x", 1<<20) },
	} {
		e := good()
		if spoil(e); counted(e) != nil {
			t.Errorf("%s: taken for a counter", name)
		}
	}
}

package store

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"girassol.dev/signals"
	"girassol.dev/signals/planner"
	"girassol.dev/signals/sanity"
	"girassol.dev/signals/window"
)

func verdictState() sanity.State {
	value := 0.0
	now := time.Date(2026, 3, 2, 0, 0, 0, 0, time.UTC)
	s, _ := sanity.Check(sanity.Policy{}, sanity.State{}, sanity.Input{Reading: &signals.Reading{Kind: signals.Marginal,
		Unit: signals.GramsPerKWh, Region: "r", Value: &value, PointTime: now, Period: 5 * time.Minute}}, now)
	return s
}

func TestVerdictsOverridesAndThePlanAreThereAfterARestart(t *testing.T) {
	dir := t.TempDir()
	f := open(t, dir)
	if plan, moved, err := f.LoadPlan(); err != nil || plan.Sites != nil || moved != nil {
		t.Fatalf("%+v, %v, %v", plan, moved, err)
	}
	round := uint64(7)
	plan := planner.State{Sites: map[string]planner.Memory{"a": {Chosen: true, Changed: &round}, "b": {}}}
	moved := map[string]time.Time{"a": time.Date(2026, 3, 2, 0, 30, 0, 0, time.UTC)}
	override := window.Override{Admit: true, Until: time.Date(2026, 3, 2, 1, 0, 0, 0, time.UTC), By: "hand", Why: "test"}
	for _, err := range []error{
		f.Save("sanity", state(50)), // as a folder's name
		f.SaveSanity("a", verdictState()),
		f.SaveOverride("a", &override),
		f.SaveOverride("b", &override),
		f.SaveOverride("b", nil),
		f.SaveOverride("c", nil),
		f.SavePlan(plan, moved),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	f = open(t, dir)
	if got, err := f.Load(); err != nil || len(got) != 1 {
		t.Errorf("%d window states, %v", len(got), err)
	}
	if got, err := f.LoadSanity(); err != nil || !reflect.DeepEqual(got, map[string]sanity.State{"a": verdictState()}) {
		t.Errorf("%+v, %v", got, err)
	}
	if got, err := f.LoadOverrides(); err != nil || !reflect.DeepEqual(got, map[string]window.Override{"a": override}) {
		t.Errorf("%+v, %v", got, err)
	}
	if got, when, err := f.LoadPlan(); err != nil || !reflect.DeepEqual(got, plan) || !reflect.DeepEqual(when, moved) {
		t.Errorf("%+v, %v, %v", got, when, err)
	}
}

func TestADamagedMemoryIsNamedAndLeavesTheOthers(t *testing.T) {
	for name, content := range map[string]string{
		"garbage":       "\x00\x01",
		"other site":    `{"version":1,"name":"good","state":{}}`,
		"other version": `{"version":2,"name":"bad","state":{}}`,
		"unknown field": `{"version":1,"name":"bad","state":{"opened":true}}`,
	} {
		t.Run(name, func(t *testing.T) {
			f := open(t, t.TempDir())
			if err := f.SaveSanity("good", verdictState()); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(f.dir, sanityDir, "bad.json"), []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
			got, err := f.LoadSanity()
			if err == nil || !strings.Contains(err.Error(), "bad.json") {
				t.Errorf("%v", err)
			}
			if len(got) != 1 {
				t.Errorf("%+v", got)
			}
		})
	}
	f := open(t, t.TempDir())
	for _, name := range []string{"", "../x", ".x"} {
		if f.SaveSanity(name, sanity.State{}) == nil || f.SaveOverride(name, nil) == nil {
			t.Errorf("%q was taken as a name", name)
		}
	}
}

package store

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"girassol.dev/api/federation/v1alpha1"
	"girassol.dev/signals"
	"girassol.dev/signals/window"
)

func open(t *testing.T, dir string) *Files {
	t.Helper()
	f, err := OpenFiles(dir)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func state(value float64) window.State {
	p := window.Policy{Mode: window.Grams, Enter: 100, Leave: 100, EnterConfirmations: 1, LeaveConfirmations: 1,
		MaxStale: time.Hour, OnStale: v1alpha1.StaleHold}
	now := time.Date(2026, 3, 2, 0, 0, 0, 0, time.UTC)
	s, _ := window.Decide(p, window.State{}, &signals.Reading{Kind: signals.Marginal, Unit: signals.GramsPerKWh,
		Region: "r", Value: &value, PointTime: now, Period: 5 * time.Minute}, now)
	return s
}

func TestAStateIsThereAfterARestart(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "windows")
	f := open(t, dir)
	a, b := state(50), state(500)
	for site, s := range map[string]window.State{"ca-north": state(1), "tx": b} {
		if err := f.Save(site, s); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Save("ca-north", a); err != nil { // replaces
		t.Fatal(err)
	}
	got, err := open(t, dir).Load()
	if err != nil {
		t.Fatal(err)
	}
	if want := map[string]window.State{"ca-north": a, "tx": b}; !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
	entries, _ := os.ReadDir(dir)
	if len(entries) != 2 {
		t.Errorf("%d files for two sites", len(entries))
	}
}

func TestDamageOfOneSiteLeavesTheOthers(t *testing.T) {
	for name, content := range map[string]string{
		"garbage":       "\x00\x01",
		"cut short":     `{"version":1,"site":"bad","state":{"win`,
		"other site":    `{"version":1,"site":"good","state":{"open":true,"enterCount":0,"leaveCount":0,"thresholds":{}}}`,
		"other version": `{"version":2,"site":"bad","state":{}}`,
		"unknown field": `{"version":1,"site":"bad","state":{"opened":true}}`,
		"empty":         "",
	} {
		t.Run(name, func(t *testing.T) {
			f := open(t, t.TempDir())
			if err := f.Save("good", state(50)); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(f.path("bad"), []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
			got, err := f.Load()
			if err == nil || !strings.Contains(err.Error(), "bad.json") {
				t.Errorf("%v", err)
			}
			if len(got) != 1 || !got["good"].Open {
				t.Errorf("%+v", got)
			}
		})
	}
}

func TestNamesThatEscapeTheDirectoryAreRefused(t *testing.T) {
	f := open(t, t.TempDir())
	for _, site := range []string{"", "../x", "a/b", ".", "..", ".hidden", "a\x00b", "ü", strings.Repeat("a", 201)} {
		if err := f.Save(site, state(1)); err == nil {
			t.Errorf("%q was accepted", site)
		}
	}
}

func TestASaveThatFailsLeavesTheOldState(t *testing.T) {
	dir := t.TempDir()
	f := open(t, dir)
	if err := f.Save("a", state(50)); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(f.path("b"), 0o755); err != nil { // rename onto a folder fails
		t.Fatal(err)
	}
	if err := f.Save("b", state(50)); err == nil || !strings.Contains(err.Error(), "site b") {
		t.Errorf("%v", err)
	}
	entries, _ := os.ReadDir(dir)
	if len(entries) != 2 {
		t.Errorf("a temporary file was left: %v", entries)
	}
	if got, _ := f.Load(); !got["a"].Open {
		t.Errorf("%+v", got)
	}
}

func TestSitesAreSavedConcurrently(t *testing.T) {
	f := open(t, t.TempDir())
	var wg sync.WaitGroup
	for _, site := range []string{"a", "b", "c", "d"} {
		wg.Go(func() {
			for range 10 {
				if err := f.Save(site, state(50)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if got, err := f.Load(); err != nil || len(got) != 4 {
		t.Errorf("%d states, %v", len(got), err)
	}
}

func TestADirectoryThatCannotBeMadeIsAnErrorAtOnce(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenFiles(filepath.Join(file, "windows")); err == nil {
		t.Error("accepted")
	}
}

package main

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func someResults() []result {
	s := setting{mnistTask, iid, noChurn, 4, 25, 32, 1}
	curve := []point{{16, 1e5, score{.5, .8}}, {32, 2e5, score{.3, .9}}}
	second := s
	second.Seed = 2
	return []result{
		{setting: s, Variant: "dm", score: score{.3, .9}, Ratio: 44, Curve: curve},
		{setting: second, Variant: "dm", score: score{.5, .8}, Ratio: 46, Curve: curve[:1]},
		{setting: s, Variant: "diloco", score: score{Loss: math.Inf(1)}, Diverged: "round 3: too large"},
		{setting: second, Variant: "diloco", score: score{.3, .9}, Curve: curve},
	}
}

func TestReportHasMeansAndDivergence(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "report")
	r := newReport("go run .", time.Minute, someResults())
	if err := r.write(dir); err != nil {
		t.Fatal(err)
	}
	md, err := os.ReadFile(filepath.Join(dir, "results.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"`go run .` in 60 s, 4 runs", "| dm | 2 | 0.4000 ± 0.1414 | 0.8500 ± 0.0707 | 45.0 |", "| diloco | 2 | diverged |"} {
		if !strings.Contains(string(md), want) {
			t.Errorf("no %q in:\n%s", want, md)
		}
	}
	data, err := os.ReadFile(filepath.Join(dir, "results.json"))
	if err != nil {
		t.Fatal(err)
	}
	var back report
	if err := json.Unmarshal(data, &back); err != nil || len(back.Results) != 4 {
		t.Errorf("%v: %s", err, data)
	}
	for _, what := range []string{"loss", "accuracy"} {
		if svg, err := os.ReadFile(filepath.Join(dir, "mnist-iid-4-none-"+what+".svg")); err != nil || !strings.Contains(string(svg), "<svg") {
			t.Errorf("picture of the %s: %v", what, err)
		}
	}
}

// What examples/bench counts on sockets beside the payloads, see
// docs/convergence.md.
func TestOverheadIsHundredsOfBytes(t *testing.T) {
	p := mustVariant(t, "dm").Params
	up, down := overhead(p, 4, 8000, 13000)
	t.Logf("%d bytes up, %d down beside the payloads", up, down)
	if up < 150 || up > 600 || down < 250 || down > 1000 {
		t.Errorf("%d bytes up, %d down", up, down)
	}
	if u, d := overhead(p, 4, 5<<20, 5<<20); u-up < 4*20 || d-down < 4*20 {
		t.Error("chunks cost nothing")
	}
}

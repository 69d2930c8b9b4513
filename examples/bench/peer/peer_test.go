package main

import (
	"bytes"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"girassol.dev/internal/algorithm"
	"girassol.dev/internal/codec"
)

// The test binary is the program's own child, as the command is.
func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == roleOurs {
		os.Exit(start())
	}
	os.Exit(m.Run())
}

// The mean that is timed is the weighted mean of what the files hold, in both scopes.
func TestTheMeanThatIsTimedIsTheUpdates(t *testing.T) {
	j, err := writeUpdates(t.TempDir(), 3, 1)
	if err != nil {
		t.Fatal(err)
	}
	l, err := j.layout()
	if err != nil {
		t.Fatal(err)
	}
	p, err := algorithm.Defaults(algorithm.FedAvg)
	if err != nil {
		t.Fatal(err)
	}
	d := codec.NewDomain(l, p.Uplink.Transform)
	want := make([]float64, d.Len())
	weights := 0
	for _, w := range j.Weights {
		weights += w
	}
	for i, name := range j.Files {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		payload, err := codec.Parse(d, p.Uplink, bytes.NewReader(b), int64(len(b)), nil)
		if err != nil {
			t.Fatal(err)
		}
		x := make([]float32, d.Len())
		if err := payload.Decode(x); err != nil {
			t.Fatal(err)
		}
		for k, v := range x {
			want[k] += float64(v) * float64(j.Weights[i]) / float64(weights)
		}
	}
	sum, squares := 0.0, 0.0
	for _, v := range want {
		sum += v
		squares += v * v
	}
	for _, scope := range []string{scopeMemory, scopeFiles} {
		j.Scope = scope
		r, err := aggregate(t.Context(), j, ownCommand)
		if err != nil {
			t.Fatal(err)
		}
		if math.Abs(r.Sum-sum) > 1e-6*squares || math.Abs(r.Squares-squares) > 1e-6*squares || r.Seconds <= 0 || r.peak < 4*int64(d.Len()) {
			t.Errorf("%s: %+v, want sums %g and %g", scope, r, sum, squares)
		}
	}
}

func TestWithoutPyPIThereIsOneLineAndNoFailure(t *testing.T) {
	t.Setenv("PATH", t.TempDir()) // nor Python
	var out, log bytes.Buffer
	if err := run(t.Context(), []string{"-mb", "1", "-dir", t.TempDir()}, &out, &log); err != nil {
		t.Fatal(err)
	}
	if got := out.String(); !strings.HasPrefix(got, "skipped: ") || strings.Count(got, "\n") != 1 {
		t.Errorf("says %q", got)
	}
}

// A stand-in for Flower that answers another mean: the comparison must not pass it by.
func TestAnotherMeanIsNoPeer(t *testing.T) {
	sh, err := exec.LookPath("sh")
	if err != nil {
		t.Skip("no shell to stand in for Python")
	}
	python := filepath.Join(t.TempDir(), "python")
	script := "#!" + sh + "\ncat >/dev/null\necho '{\"who\": \"other\", \"seconds\": 1, \"cpu\": 1, \"sum\": 1, \"squares\": 2}'\n"
	if err := os.WriteFile(python, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	var out, log bytes.Buffer
	err = run(t.Context(), []string{"-mb", "1", "-sites", "2", "-dir", t.TempDir(), "-python", python}, &out, &log)
	if err == nil || !strings.Contains(err.Error(), "means differ") {
		t.Errorf("%v: %s", err, out.String())
	}
}

func TestOptionsThatCannotWorkAreRefused(t *testing.T) {
	for _, args := range [][]string{{"-sites", "0"}, {"-mb", "x"}, {"-mb", "0"}, {"-o", "xml"}} {
		if err := run(t.Context(), args, &bytes.Buffer{}, &bytes.Buffer{}); err == nil || !strings.Contains(err.Error(), args[0]) {
			t.Errorf("%v: %v", args, err)
		}
	}
}

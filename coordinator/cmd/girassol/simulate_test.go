package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const study = "../../../examples/fieldstudy/federation.yaml"

func simulated(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	code = run(context.Background(), append([]string{"simulate"}, args...), func(string) string { return "" }, &out, &errs)
	return code, out.String(), errs.String()
}

func TestSimulateGivesFiguresPicturesAndTraces(t *testing.T) {
	folder := t.TempDir()
	code, stdout, stderr := simulated(t, "-f", study, "--twin", "7", "--work", "36kWh", "-o", "json",
		"--report", filepath.Join(folder, "report.html"), "--pictures", folder, "--save-traces", folder)
	if code != exitOK {
		t.Fatalf("exit %d: %s", code, stderr)
	}
	var got struct {
		Hours, KWh, CleanShare *float64
		KgCO2e                 struct{ Marginal, Average *float64 }
		Sites                  map[string]struct {
			Starts            *int
			WindowUse, Energy *float64
		}
		Baselines map[string]any
		Bound     map[string]any
	}
	if err := json.Unmarshal([]byte(stdout), &got); err != nil {
		t.Fatal(err)
	}
	if got.Hours == nil || got.KWh == nil || got.CleanShare == nil || got.KgCO2e.Marginal == nil || got.KgCO2e.Average == nil ||
		len(got.Sites) != 3 || len(got.Baselines) != 4 || got.Bound == nil {
		t.Errorf("a figure is missing: %s", stdout)
	}
	for name, s := range got.Sites {
		if s.Starts == nil || s.WindowUse == nil || s.Energy == nil {
			t.Errorf("a figure of %s is missing: %s", name, stdout)
		}
	}
	for _, name := range []string{"report.html", "timeline.svg", "emissions.svg", "marginal.csv", "average.csv"} {
		if info, err := os.Stat(filepath.Join(folder, name)); err != nil || info.Size() == 0 {
			t.Errorf("%s: %v", name, err)
		}
	}
	// The traces that were written lead to the same figures.
	code, again, stderr := simulated(t, "-f", study, "--trace", filepath.Join(folder, "marginal.csv"),
		"--average", filepath.Join(folder, "average.csv"), "--work", "36kWh", "-o", "json", "--seed", "7")
	if code != exitOK || again != stdout {
		t.Errorf("exit %d, the written traces give other figures: %s%s", code, stderr, again)
	}
}

func TestSimulateSaysWhatIsWrongWithItsFlags(t *testing.T) {
	for want, args := range map[string][]string{
		"--file is missing":                        {"--twin", "7"},
		`--work: "36": want an amount of`:          {"-f", study, "--twin", "7", "--work", "36"},
		`--work: "-1" is no amount above 0`:        {"-f", study, "--twin", "7", "--work", "-1kWh"},
		`--provisioning: "soon" is no time`:        {"-f", study, "--twin", "7", "--provisioning", "texas=soon"},
		`--idle-watts: "-4" is no number`:          {"-f", study, "--twin", "7", "--idle-watts=-4"},
		`site "mars" has no document of kind Site`: {"-f", study, "--twin", "7", "--step", "mars=3s"},
		`--forecast "yes": want none or trace`:     {"-f", study, "--twin", "7", "--forecast", "yes"},
		`--start: "noon" is not a time`:            {"-f", study, "--twin", "7", "--start", "noon"},
		"--start 2020-01-01T00:00:00Z is outside":  {"-f", study, "--twin", "7", "--start", "2020-01-01T00:00:00Z"},
		"no such file":                             {"-f", study, "--trace", "nowhere.csv"},
		"--twin and --trace: one of the two":       {"-f", study, "--twin", "7", "--trace", "x.csv"},
		"--save-traces: only those of --twin":      {"-f", study, "--save-traces", t.TempDir()},
	} {
		code, _, stderr := simulated(t, args...)
		if code == exitOK || !strings.Contains(stderr, want) {
			t.Errorf("%v: exit %d, says %q, want %q", args, code, stderr, want)
		}
	}
}

// The commands that the documents give work as they stand there, but for files
// of the reader's own.
func TestDocumentedSimulationsRun(t *testing.T) {
	root, err := filepath.Abs("../../..")
	if err != nil {
		t.Fatal(err)
	}
	ran := 0
	for _, name := range []string{"docs/energy.md", "examples/fieldstudy/README.md"} {
		text, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			t.Fatal(err)
		}
		t.Chdir(t.TempDir()) // pictures go here
		if err := os.Symlink(filepath.Join(root, "examples"), "examples"); err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			args, ok := strings.CutPrefix(strings.TrimSpace(line), "girassol simulate ")
			if !ok || strings.Contains(args, "moer.csv") {
				continue
			}
			if code, _, stderr := simulated(t, strings.Fields(args)...); code != exitOK {
				t.Errorf("%s: girassol simulate %s: exit %d: %s", name, args, code, stderr)
			}
			ran++
		}
	}
	if ran < 4 {
		t.Errorf("%d commands found", ran)
	}
}

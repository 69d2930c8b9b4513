package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"go.uber.org/goleak"

	"girassol.dev/examples/quickstart/plan"
	"girassol.dev/examples/quickstart/report"
)

// TestMain lets the test binary be the processes that it starts.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case roleCoordinator, roleAgent, roleTrainer:
			os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
		}
	}
	goleak.VerifyTestMain(m)
}

// watcher is an output that calls back once when a text has been written.
type watcher struct {
	mu   sync.Mutex
	b    bytes.Buffer
	want string
	then func()
}

func (w *watcher) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.b.Write(p)
	if w.then != nil && strings.Contains(w.b.String(), w.want) {
		w.then()
		w.then = nil
	}
	return len(p), nil
}

func (w *watcher) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.b.String()
}

func texts(t *testing.T) string {
	dir := t.TempDir()
	for _, sub := range []string{"poems", "letters"} {
		if err := os.Mkdir(filepath.Join(dir, sub), 0o755); err != nil {
			t.Fatal(err)
		}
		for i := range 24 {
			text := strings.Repeat(fmt.Sprintf("In %s number %d the sun turns, and the flower with it. ", sub, i), 40)
			if err := os.WriteFile(filepath.Join(dir, sub, fmt.Sprintf("%02d.txt", i)), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	return dir
}

// tiny is a model that trains in no time.
var tiny = []string{"--", "--dim", "16", "--layers", "1", "--heads", "2", "--context", "32", "--batch", "32", "--lr", "0.001"}

func start(w *watcher, args ...string) int { return run(append(args, tiny...), w, w) }

func read(t *testing.T, out string) report.Summary {
	t.Helper()
	b, err := os.ReadFile(plan.Folder(out).Summary())
	if err != nil {
		t.Fatal(err)
	}
	var s report.Summary
	if err := json.Unmarshal(b, &s); err != nil {
		t.Fatal(err)
	}
	return s
}

// TestRunStopsResumesAndReports is the whole demo with real processes: it is
// interrupted after its first round, taken up again, ended by --rounds, and
// compared.
func TestRunStopsResumesAndReports(t *testing.T) {
	if testing.Short() {
		t.Skip("starts seven processes; left out with -short")
	}
	data, out := texts(t), filepath.Join(t.TempDir(), "out")
	w := &watcher{want: "round 1 committed", then: func() { _ = syscall.Kill(os.Getpid(), syscall.SIGINT) }}
	if code := start(w, "--plain", "--data", data, "--out", out, "--speed", "1800", "--rounds", "6"); code != exitInterrupted {
		t.Fatalf("exit code %d, want %d:\n%s\n%s", code, exitInterrupted, w, logs(out))
	}
	if !strings.Contains(w.String(), "Go on with: ") || !strings.Contains(w.String(), "--resume --out ") {
		t.Errorf("an interrupted run does not say how to go on:\n%s", w)
	}
	if strings.Contains(w.String(), "Killed") {
		t.Errorf("processes had to be killed:\n%s\n%s", w, logs(out))
	}

	w = &watcher{}
	if code := run([]string{"--resume", "--plain", "--out", out, "--algorithm", "fedavg", "--seed", "9"}, w, w); code != 1 || !strings.Contains(w.String(), "--algorithm") || !strings.Contains(w.String(), "--seed") {
		t.Errorf("contradicting flags: exit code %d, %s", code, w)
	}

	w = &watcher{}
	if code := start(w, "--resume", "--plain", "--out", out, "--rounds", "3", "--compare"); code != 0 {
		t.Fatalf("exit code %d:\n%s\n%s", code, w, logs(out))
	}
	s := read(t, out)
	if len(s.Rounds) < 3 || s.Rounds[0].Version != 1 || s.Tokens == 0 || s.Parameters == 0 {
		t.Errorf("%d rounds, %d tokens, %d parameters", len(s.Rounds), s.Tokens, s.Parameters)
	}
	for i, r := range s.Rounds {
		if r.Version != uint64(i+1) || len(r.Members) == 0 || r.Digest == "" {
			t.Errorf("round %d is %+v", i, r)
		}
	}
	if s.HeldOut.Untrained == nil || s.HeldOut.Final == nil || *s.HeldOut.Final >= *s.HeldOut.Untrained {
		t.Errorf("held-out loss is %+v: nothing was learnt", s.HeldOut)
	}
	if s.Energy.KWh <= 0 || s.Energy.MarginalKg == nil || s.Energy.AverageKg == nil || len(s.Energy.Baselines) != 3 || s.Energy.Baselines[2].Region != "de" {
		t.Errorf("energy is %+v", s.Energy)
	}
	if s.Wire.BytesUp == 0 || s.Wire.BytesDown == 0 || s.Wire.Fewer == nil {
		t.Errorf("bytes are %+v", s.Wire)
	}
	if s.Comparison == nil || s.Comparison.Central == nil || s.Comparison.Central.Loss == nil || len(s.Comparison.Alone) != 2 {
		t.Errorf("comparison is %+v", s.Comparison)
	}
	for _, name := range []string{"report.html", "model.safetensors", "timeline.jsonl", "federation.yaml"} {
		if info, err := os.Stat(filepath.Join(out, name)); err != nil || info.Size() == 0 {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// logs is what the processes wrote, for a failed test.
func logs(out string) string {
	var b strings.Builder
	files, _ := filepath.Glob(filepath.Join(out, "logs", "*.log"))
	for _, f := range files {
		fmt.Fprintf(&b, "== %s\n%s\n", filepath.Base(f), lastLines(f, 12))
	}
	return b.String()
}

func TestBadFlagsAreOneLineThatNamesThem(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"--sites", "0"}, "--sites: 0"},
		{[]string{"--sites", "99"}, "--sites: 99"},
		{[]string{"--speed", "-3"}, "--speed: -3"},
		{[]string{"--algorithm", "magic"}, `--algorithm: "magic" is none of`},
		{[]string{"--rounds", "x"}, "--rounds"},
		{[]string{"--redis", "nowhere"}, "--redis:"},
		{[]string{"--frobnicate"}, "--frobnicate"},
		{[]string{"extra"}, `unexpected argument "extra"`},
		{[]string{"--", "--bogus"}, "trainer arguments: unknown flag: --bogus"},
		{[]string{"--", "--dim", "17"}, "trainer arguments: transformer: dim 17"},
		{[]string{"--", "wider"}, `trainer arguments: "wider" is no flag`},
		{[]string{"--", "--help"}, "see quickstart trainer --help"},
		{[]string{"--data", "/nowhere/at/all", "--out", "unused"}, "--data:"},
	} {
		w := &watcher{}
		if code := run(c.args, w, w); code != 1 {
			t.Errorf("%v: exit code %d", c.args, code)
		}
		lines := strings.Split(strings.TrimSpace(w.String()), "\n")
		if last := lines[len(lines)-1]; !strings.HasPrefix(last, "quickstart: ") || !strings.Contains(last, c.want) {
			t.Errorf("%v: %q lacks %q", c.args, w, c.want)
		}
	}
	if _, err := os.Stat("unused"); err == nil {
		t.Error("a refused run left a folder")
	}
}

func TestHelpExplainsEachFlagWithUnitAndDefault(t *testing.T) {
	w := &watcher{}
	if code := run([]string{"--help"}, w, w); code != 0 {
		t.Fatalf("exit code %d", code)
	}
	for _, flag := range []string{"algorithm", "sites", "speed", "seed", "rounds", "out", "data", "redis", "resume", "compare", "plain", "keep"} {
		_, flags, _ := strings.Cut(w.String(), "Flags:")
		i := strings.Index(flags, "      --"+flag+" ")
		if i < 0 {
			t.Errorf("--help lacks --%s", flag)
			continue
		}
		if line, _, _ := strings.Cut(flags[i:], "\n"); !strings.Contains(line, "default") {
			t.Errorf("--help says no default of --%s: %s", flag, line)
		}
	}
}

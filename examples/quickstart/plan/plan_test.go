package plan

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"girassol.dev/api/federation/v1alpha1"
	"girassol.dev/internal/algorithm"
	"girassol.dev/signals"
	"girassol.dev/signals/replay"
)

func valid() Options {
	return Options{Algorithm: DefaultAlgorithm, Speed: DefaultSpeed, Seed: 1, Out: DefaultOut}
}

func TestBadOptionsNameTheirFlag(t *testing.T) {
	if err := valid().Check(); err != nil {
		t.Fatal(err)
	}
	for flag, change := range map[string]func(*Options){
		"--algorithm": func(o *Options) { o.Algorithm = "sgd" },
		"--sites":     func(o *Options) { o.Sites = 17 },
		"--speed":     func(o *Options) { o.Speed = 0 },
		"--rounds":    func(o *Options) { o.Rounds = -1 },
		"--out":       func(o *Options) { o.Out = " " },
		"--redis":     func(o *Options) { o.Redis = "localhost:6379" },
	} {
		o := valid()
		change(&o)
		err := o.Check()
		if err == nil || !strings.HasPrefix(err.Error(), flag+":") || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", flag, err)
		}
	}
}

func TestContradictionsNameOnlyGivenFlags(t *testing.T) {
	run, o := valid(), valid()
	run.Sites = 3
	o.Algorithm, o.Seed, o.Speed = "diloco", 2, 10
	given := func(f string) bool { return f == "algorithm" || f == "seed" || f == "rounds" }
	if got := fmt.Sprint(o.Contradicts(run, given)); got != "[--algorithm --seed]" {
		t.Errorf("got %s", got)
	}
}

// texts makes a folder with two sub-folders of text.
func texts(t *testing.T) string {
	dir := t.TempDir()
	for _, sub := range []string{"Alpha Site", "beta"} {
		for i := range 20 {
			p := filepath.Join(dir, sub, fmt.Sprintf("%d.txt", i))
			if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(p, []byte(strings.Repeat(fmt.Sprintf("%s %d ", sub, i), 150)), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	return dir
}

func noGo() (string, error) { return "", errors.New("no go here") }

func TestPrepareWritesWhatTheProcessesRead(t *testing.T) {
	f := Folder(filepath.Join(t.TempDir(), "out"))
	o := valid()
	o.Data = texts(t)
	run, err := Prepare(f, o, noGo)
	if err != nil {
		t.Fatal(err)
	}
	if len(run.Sites) != 2 || run.Sites[0].Name != "alpha-site" || run.Sites[1].Name != "beta" || run.Options.Sites != 2 {
		t.Fatalf("sites are %+v", run.Sites)
	}
	trace, err := replay.ReadFile(f.Marginal(), signals.Marginal, signals.GramsPerKWh)
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(f.Config())
	if err != nil {
		t.Fatal(err)
	}
	docs := strings.Split(string(b), "---\n")
	if len(docs) != 3 {
		t.Fatalf("%d documents, want a Federation and two Sites", len(docs))
	}
	var fed v1alpha1.Federation
	if err := yaml.UnmarshalStrict([]byte(docs[0]), &fed); err != nil {
		t.Fatal(err)
	}
	for i, ref := range fed.Spec.Sites {
		var site v1alpha1.Site
		if err := yaml.UnmarshalStrict([]byte(docs[i+1]), &site); err != nil {
			t.Fatal(err)
		}
		if site.Name != ref.Name || site.Name != run.Sites[i].Name {
			t.Errorf("site %d is %s, %s and %s", i, site.Name, ref.Name, run.Sites[i].Name)
		}
		if _, err := trace.Column(site.Spec.Grid.Region); err != nil {
			t.Error(err)
		}
		list, err := os.ReadFile(f.Files(site.Name))
		if err != nil {
			t.Fatal(err)
		}
		for p := range strings.Lines(string(list)) {
			if _, err := os.Stat(strings.TrimSuffix(p, "\n")); err != nil {
				t.Error(err)
			}
		}
	}
	again, err := Load(f)
	if err != nil {
		t.Fatal(err)
	}
	if again.Start != run.Start || again.Options.Data != run.Options.Data || len(again.Sites) != 2 {
		t.Errorf("read back as %+v", again)
	}
}

func TestForeignFolderIsNotTouched(t *testing.T) {
	dir := t.TempDir()
	kept := filepath.Join(dir, "thesis.txt")
	if err := os.WriteFile(kept, []byte("years of work"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := Folder(dir).Clear(); err == nil || !strings.Contains(err.Error(), "--out:") {
		t.Errorf("got %v", err)
	}
	if _, err := os.Stat(kept); err != nil {
		t.Error(err)
	}
}

func TestEarlierRunIsReplacedAndOtherFilesStay(t *testing.T) {
	dir := t.TempDir()
	f := Folder(dir)
	for _, name := range []string{"run.json", "notes.txt", "report.html"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("{}"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Clear(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "notes.txt")); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(f.Report()); err == nil {
		t.Error("the earlier report is still there")
	}
}

func TestResumeOfNothingSaysSo(t *testing.T) {
	if _, err := Load(Folder(t.TempDir())); err == nil || !strings.Contains(err.Error(), "--resume: there is no run") {
		t.Errorf("got %v", err)
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "run.json"), []byte(`{"options":{}}`), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(Folder(dir)); err == nil || !strings.Contains(err.Error(), "--resume:") {
		t.Errorf("got %v", err)
	}
}

func TestMissingGoSaysWhatToDo(t *testing.T) {
	empty := t.TempDir()
	for name, root := range map[string]func() (string, error){
		"no go command": noGo, "go without sources": func() (string, error) { return empty, nil },
	} {
		out := filepath.Join(t.TempDir(), "out")
		_, err := Prepare(Folder(out), valid(), root)
		if err == nil || !strings.Contains(err.Error(), "no Go source tree") || !strings.Contains(err.Error(), "--data") {
			t.Errorf("%s: got %v", name, err)
		}
		if _, err := os.Stat(out); err == nil {
			t.Errorf("%s: a refused run left a folder", name)
		}
	}
}

func TestEachAlgorithmIsMergedAsTheReportSays(t *testing.T) {
	for _, name := range algorithm.Strategies() {
		o := valid()
		o.Algorithm = name
		got, err := o.Parameters()
		if err != nil {
			t.Fatal(err)
		}
		want, err := algorithm.Defaults(name)
		if err != nil {
			t.Fatal(err)
		}
		want.Adaptive = name == algorithm.DecoupledMomentum
		if got != want {
			t.Errorf("%s: %+v, want %+v", name, got, want)
		}
	}
}

func TestRoundsShrinkWithSpeed(t *testing.T) {
	for speed, want := range map[float64]int32{1: 600, 540: 3, 36000: 1} {
		if got := timingOf(speed).train; got != want {
			t.Errorf("speed %v: rounds of %d s, want %d", speed, got, want)
		}
	}
}

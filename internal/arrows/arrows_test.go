package arrows

import (
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestEveryImportFollowsTheArrows reads all Go files of the module.
func TestEveryImportFollowsTheArrows(t *testing.T) {
	root := moduleRoot(t)
	fset := token.NewFileSet()
	packages := map[string]bool{}
	err := filepath.WalkDir(root, func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			return skipDir(root, file, d)
		}
		if !strings.HasSuffix(file, ".go") {
			return nil
		}
		rel, err := filepath.Rel(root, file)
		if err != nil {
			return err
		}
		pkg := filepath.ToSlash(filepath.Dir(rel))
		src, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		f, err := parser.ParseFile(fset, filepath.ToSlash(rel), src, 0)
		if err != nil {
			return err
		}
		packages[pkg] = true
		for _, o := range (source{pkg: pkg, test: strings.HasSuffix(rel, "_test.go"), fset: fset, file: f}).offences() {
			t.Error(o)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, pkg := range []string{"coordinator/round", "internal/codec", "api/events"} {
		if !packages[pkg] {
			t.Errorf("package %s was not found below %s: the walk misses something", pkg, root)
		}
	}
}

// skipDir leaves out other modules and what the go command leaves out.
func skipDir(root, dir string, d fs.DirEntry) error {
	if dir == root {
		return nil
	}
	name := d.Name()
	if name == "testdata" || name == "vendor" || strings.HasPrefix(name, ".") || strings.HasPrefix(name, "_") {
		return fs.SkipDir
	}
	if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
		return fs.SkipDir
	}
	return nil
}

func moduleRoot(t *testing.T) string {
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			t.Fatal("no go.mod above the working directory")
		}
		dir = parent
	}
}

func TestEachRuleNamesItsOffence(t *testing.T) {
	for _, tc := range []struct {
		name, pkg, src string
		want           []string // parts of the one message; nil: none
	}{
		{"api imports internal", "api/events", `import "girassol.dev/internal/tensor"`,
			[]string{"x.go:1", "package api/events", "girassol.dev/internal/tensor", "contracts"}},
		{"api imports api", "api/events", `import "girassol.dev/api/federation/v1alpha1"`, nil},
		{"internal imports coordinator", "internal/codec", `import "girassol.dev/coordinator/round"`, []string{"internal is below everything"}},
		{"signals import the coordinator", "signals/director", `import "girassol.dev/coordinator/round"`, []string{"know nothing of training"}},
		{"agent imports coordinator", "siteagent/agent", `import "girassol.dev/coordinator/round"`, []string{"siteagent and coordinator speak"}},
		{"coordinator imports operator", "coordinator/app", `import "girassol.dev/operator/membership"`, []string{"never import each other"}},
		{"operator imports agent", "operator/controller", `import "girassol.dev/siteagent/hardware"`, []string{"never import each other"}},
		{"engine imports signals", "coordinator/engine", `import "girassol.dev/signals/window"`, []string{"signals are for"}},
		{"agent imports signals", "siteagent/agent", `import "girassol.dev/signals/window"`, []string{"signals are for"}},
		{"coordinator's app imports signals", "coordinator/app", `import "girassol.dev/signals/window"`, nil},
		{"the simulator imports signals", "coordinator/app/simulate", `import "girassol.dev/signals/window"`, nil},
		{"the simulator is used by the command", "coordinator/cmd/girassol", `import "girassol.dev/coordinator/app/simulate"`, nil},
		{"operator imports signals", "operator/membership", `import "girassol.dev/signals/window"`, nil},
		{"somebody imports an example", "siteagent/trainer", `import "girassol.dev/examples/quickstart/corpus"`, []string{"nothing builds on examples"}},
		{"engine imports its app", "coordinator/engine", `import "girassol.dev/coordinator/app"`, []string{"cmd/ and app/ packages are for commands"}},
		{"command imports its app", "coordinator/cmd/coordinator", `import "girassol.dev/coordinator/app"`, nil},
		{"example imports apps", "examples/quickstart", `import ("girassol.dev/coordinator/app"; "girassol.dev/siteagent/app")`, nil},
		{"a new folder", "misc/things", `import "girassol.dev/api/events"`, []string{`folder "misc" is not part of the house`}},
		{"redis elsewhere", "coordinator/server", `import "github.com/redis/go-redis/v9"`, []string{"go-redis/v9", "only coordinator/broadcast"}},
		{"redis where it belongs", "coordinator/broadcast", `import "github.com/redis/go-redis/v9"`, nil},
		{"client-go elsewhere", "coordinator/app", `import "k8s.io/client-go/kubernetes"`, []string{"only the operator"}},
		{"client-go in the operator", "operator/remote", `import "k8s.io/client-go/kubernetes"`, nil},
		{"flags in a library", "siteagent/hardware", `import "flag"`, []string{"imports flag", "only cmd/ and app/"}},
		{"flags in a command", "siteagent/cmd/agent", `import "flag"`, nil},
		{"environment in a library", "siteagent/hardware", `import "os"; var _ = os.Getenv("X")`, []string{"os.Getenv", "environment"}},
		{"environment in an app", "siteagent/app", `import "os"; var _ = os.Getenv("X")`, nil},
		{"files in a pure package", "coordinator/merge", `import "os/exec"`, []string{"imports os/exec", "pure"}},
		{"logging in a pure package", "coordinator/round", `import "log/slog"`, []string{"imports log/slog", "pure"}},
		{"sockets in a pure package", "signals/window", `import "net/http"`, []string{"imports net/http", "pure"}},
		{"readers in a pure package", "internal/codec", `import "io"; var _ io.ReaderAt`, nil},
		{"time as a value", "coordinator/round", `import "time"; var t time.Time; var d = 3 * time.Second`, nil},
		{"the clock", "coordinator/round", `import "time"; var t = time.Now()`, []string{"time.Now", "pure"}},
		{"the clock under another name", "signals/window", `import clock "time"; func f() { clock.Sleep(1) }`, []string{"time.Sleep"}},
		{"the clock as a value", "internal/kernel", `import "time"; var now = time.Now`, []string{"time.Now"}},
		{"a variable named time", "internal/kernel", `type c struct{ Now func() }; func f(time c) { time.Now() }`, nil},
		{"random without a seed", "internal/codec", `import "math/rand/v2"; var n = rand.IntN(3)`, []string{"rand.IntN without a seed"}},
		{"random with a seed", "internal/codec", `import "math/rand/v2"; func f(r *rand.Rand) *rand.Rand { return rand.New(rand.NewPCG(1, 2)) }`, nil},
		{"printing", "internal/codec", `import "fmt"; func f() { fmt.Println() }`, []string{"fmt.Println"}},
		{"the clock elsewhere", "coordinator/engine", `import "time"; var t = time.Now()`, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			fset := token.NewFileSet()
			f, err := parser.ParseFile(fset, "x.go", "package x; "+tc.src, 0)
			if err != nil {
				t.Fatal(err)
			}
			got := source{pkg: tc.pkg, fset: fset, file: f}.offences()
			if tc.want == nil {
				if len(got) > 0 {
					t.Fatalf("refused: %v", got)
				}
				return
			}
			if len(got) != 1 {
				t.Fatalf("%d offences, want 1: %v", len(got), got)
			}
			for _, part := range tc.want {
				if !strings.Contains(got[0], part) {
					t.Errorf("message %q does not say %q", got[0], part)
				}
			}
		})
	}
}

func TestTestsOfAPurePackageMayUseTheWorld(t *testing.T) {
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, "x_test.go", `package x; import ("os"; "time"; "flag"); var _ = os.Args; var _ = time.Now; var _ = flag.Parse`, 0)
	if err != nil {
		t.Fatal(err)
	}
	if got := (source{pkg: "coordinator/round", test: true, fset: fset, file: f}).offences(); len(got) > 0 {
		t.Errorf("refused: %v", got)
	}
	if !slices.Contains(pure, "coordinator/round") {
		t.Error("coordinator/round is not pure")
	}
}

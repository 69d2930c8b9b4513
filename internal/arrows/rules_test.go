// Package arrows holds the test of who may import whom: the arrows of the design
// and the purity of the packages that decide. It reads the source of every build
// tag, so a file for another system cannot slip through. It must not know what
// any package does.
package arrows

import (
	"fmt"
	"go/ast"
	"go/token"
	"path"
	"slices"
	"strconv"
	"strings"
)

const module = "girassol.dev"

// reach is what of ours each top-level folder may import besides itself.
var reach = map[string][]string{
	"api":         {},
	"internal":    {"api"},
	"signals":     {"api", "internal"},
	"coordinator": {"api", "internal"},
	"siteagent":   {"api", "internal"},
	"operator":    {"api", "internal", "signals"},
	"examples":    {"api", "internal", "signals", "coordinator", "siteagent", "operator"},
}

// exceptions widen reach for single packages.
var exceptions = map[string][]string{
	"coordinator/app":          {"signals"},
	"coordinator/app/simulate": {"signals"},
}

// owners are modules that few packages may import, and which.
var owners = []struct {
	modules, packages []string
	why               string
}{
	// internal/redislink makes the clients of coordinator/broadcast and of siteagent/agent.
	{[]string{"github.com/redis/go-redis"}, []string{"internal/redislink", "coordinator/broadcast", "siteagent/agent", "siteagent/app", "signals/store"},
		"only coordinator/broadcast, siteagent/agent and signals/store speak to Redis"},
	{[]string{"k8s.io/client-go", "sigs.k8s.io/controller-runtime"}, []string{"operator"},
		"only the operator speaks to Kubernetes"},
}

// pure packages: they decide or calculate and leave the world to their callers.
var pure = []string{
	"coordinator/round", "coordinator/merge", "operator/membership", "operator/inventory", "signals/window",
	"internal/kernel", "internal/codec", "coordinator/corpus", "coordinator/gate", "coordinator/admission",
}

// impure imports: a listed path forbids what is below it, too.
var impure = []string{
	"os", "net", "log", "syscall", "crypto/rand", "database/sql", "io/ioutil", "testing",
	"golang.org/x/sys", "google.golang.org/grpc", "github.com/prometheus/client_golang", "github.com/redis/go-redis",
}

// processor says what instructions there are, which changes no result.
const processor = "golang.org/x/sys/cpu"

// impureCalls by import path; rand.New and its sources take a seed and are fine.
var impureCalls = map[string][]string{
	"time": {"Now", "Since", "Until", "After", "AfterFunc", "Sleep", "Tick", "NewTimer", "NewTicker"},
	"fmt":  {"Print", "Printf", "Println", "Scan", "Scanf", "Scanln"},
}

// randomConstructors are the functions of math/rand that need a seed.
var randomConstructors = []string{"New", "NewSource", "NewPCG", "NewChaCha8", "NewZipf"}

// configReaders read flags; configCalls read the environment.
var (
	configReaders = []string{"flag", "github.com/spf13/cobra", "github.com/spf13/pflag"}
	configCalls   = map[string][]string{"os": {"Getenv", "LookupEnv", "ExpandEnv"}}
)

// source is one Go file; pkg is its folder below the module's root.
type source struct {
	pkg  string
	test bool
	fset *token.FileSet
	file *ast.File
}

// offences of a file against the rules, each with place, import and rule.
func (s source) offences() []string {
	var out []string
	say := func(at token.Pos, format string, args ...any) {
		p := s.fset.Position(at)
		out = append(out, fmt.Sprintf("%s:%d: package %s ", p.Filename, p.Line, s.pkg)+fmt.Sprintf(format, args...))
	}
	for _, spec := range s.file.Imports {
		imp, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			say(spec.Pos(), "has a malformed import: %v", err)
			continue
		}
		if ours, ok := strings.CutPrefix(imp, module+"/"); ok {
			if why := s.arrow(ours); why != "" {
				say(spec.Pos(), "imports %s: %s", imp, why)
			}
		}
		for _, o := range owners {
			// End-to-end tests look at the product from outside.
			if below(imp, o.modules) && !below(s.pkg, o.packages) && (!s.test || top(s.pkg) != "examples") {
				say(spec.Pos(), "imports %s: %s", imp, o.why)
			}
		}
		if s.test {
			continue
		}
		if s.pure() && below(imp, impure) && imp != processor {
			say(spec.Pos(), "imports %s: it is pure (no clock, no I/O, no logging): take a value, an io.Reader or the time as an argument", imp)
		}
		if below(imp, configReaders) && !s.readsConfig() {
			say(spec.Pos(), "imports %s: only cmd/ and app/ packages read flags", imp)
		}
	}
	if s.test {
		return out
	}
	s.calls(func(at token.Pos, imp, name string) {
		random := imp == "math/rand" || imp == "math/rand/v2"
		switch {
		case !s.readsConfig() && slices.Contains(configCalls[imp], name):
			say(at, "calls %s.%s: only cmd/ and app/ packages read the environment", path.Base(imp), name)
		case s.pure() && slices.Contains(impureCalls[imp], name):
			say(at, "calls %s.%s: it is pure: take the time or a writer as an argument", path.Base(imp), name)
		case s.pure() && random && !slices.Contains(randomConstructors, name):
			say(at, "calls rand.%s without a seed: it is pure: take a *rand.Rand as an argument", name)
		}
	})
	return out
}

// arrow says why an import of ours is not allowed; empty if it is.
func (s source) arrow(imp string) string {
	from, to := top(s.pkg), top(imp)
	allowed, known := reach[from]
	if !known {
		return fmt.Sprintf("folder %q is not part of the house; add it to the design and to this test", from)
	}
	if below(imp, benches) && !s.test && !below(s.pkg, benches) {
		return "only tests may use a test bench"
	}
	if configPackage(imp) && from != "examples" && (from != to || !configPackage(s.pkg)) {
		return "cmd/ and app/ packages are for commands, nothing else builds on them"
	}
	if to == from || slices.Contains(allowed, to) || slices.Contains(exceptions[s.pkg], to) {
		return ""
	}
	switch {
	case from == "api":
		return "api holds contracts and imports nothing else of ours"
	case from == "internal":
		return "internal is below everything and imports only api"
	case to == "examples":
		return "nothing builds on examples"
	case to == "signals":
		return "signals are for operator, coordinator/app and examples"
	case from == "signals":
		return "signals know nothing of training or Kubernetes and import only api and internal"
	}
	return fmt.Sprintf("%s and %s speak gRPC, HTTP or Redis and never import each other", from, to)
}

// calls visits every use of a package-level name of an import.
func (s source) calls(visit func(at token.Pos, imp, name string)) {
	names := map[string]string{}
	for _, spec := range s.file.Imports {
		imp, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			continue
		}
		name := path.Base(imp)
		if imp == "math/rand/v2" {
			name = "rand"
		}
		if spec.Name != nil {
			name = spec.Name.Name
		}
		names[name] = imp
	}
	ast.Inspect(s.file, func(n ast.Node) bool {
		sel, ok := n.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		// An identifier that the parser resolved is a variable that hides the import.
		if id, ok := sel.X.(*ast.Ident); ok && id.Obj == nil && names[id.Name] != "" && ast.IsExported(sel.Sel.Name) {
			imp := names[id.Name]
			if imp == "math/rand" || imp == "math/rand/v2" {
				// Types (rand.Rand, rand.Source) are no calls.
				if slices.Contains([]string{"Rand", "Source", "Source64", "Zipf", "PCG", "ChaCha8"}, sel.Sel.Name) {
					return true
				}
			}
			visit(sel.Pos(), imp, sel.Sel.Name)
		}
		return true
	})
}

func (s source) pure() bool { return slices.Contains(pure, s.pkg) }

// programs that are neither under cmd/ nor app/: the built-in trainer is a process
// of its own that stands where a user's trainer would; the test bench finds its
// binaries by the environment.
var programs = []string{"siteagent/trainer/transformer", "operator/testenv"}

// benches are for tests only.
var benches = []string{"operator/testenv", "operator/dashboards/promtest"}

// readsConfig: commands, their assembly, and examples, which are commands.
func (s source) readsConfig() bool {
	return configPackage(s.pkg) || top(s.pkg) == "examples" || slices.Contains(programs, s.pkg)
}

func configPackage(pkg string) bool {
	parts := strings.Split(pkg, "/")
	return len(parts) > 1 && (parts[1] == "app" || parts[1] == "cmd")
}

func top(pkg string) string {
	first, _, _ := strings.Cut(pkg, "/")
	return first
}

// below says whether an import path is one of the roots or lies under one.
func below(imp string, roots []string) bool {
	return slices.ContainsFunc(roots, func(root string) bool {
		return imp == root || strings.HasPrefix(imp, root+"/")
	})
}

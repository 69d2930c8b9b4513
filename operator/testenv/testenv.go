// Package testenv gives tests a real Kubernetes control plane: etcd and
// kube-apiserver with the project's kinds, and on demand the controller manager,
// the scheduler and KWOK's nodes.
//
// It owns where the binaries are and how they are started and stopped. It must
// not know what a test does with them. `make testenv` builds the binaries; a
// test without them is skipped and says so.
package testenv

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
)

// AssetsVariable names the folder of the binaries; unset it is .cache/testenv
// below the repository's root, where `make testenv` puts them.
const AssetsVariable = "KUBEBUILDER_ASSETS"

// shared is the control plane of the package under test; nil without binaries.
var shared *Environment

// Environment is a running control plane.
type Environment struct {
	env *envtest.Environment
	// Config has all rights.
	Config *rest.Config
	// Client speaks our kinds and the built-in ones, without a cache.
	Client client.Client

	once           sync.Once
	controllersErr error
	mu             sync.Mutex
	dir            string
	processes      []*Process
}

// Main is a package's TestMain: it starts one control plane for all its tests,
// if the binaries are there, and ends it.
func Main(m *testing.M) int {
	ctrllog.SetLogger(logr.Discard()) // it complains without one; a test may set its own
	if Assets() != "" && !fuzzing() {
		e, err := Start()
		if err != nil {
			fmt.Fprintln(os.Stderr, "testenv:", err)
			return 1
		}
		shared = e
		defer func() { e.Stop(); shared = nil }()
	}
	return m.Run()
}

// fuzzing: the fuzzer starts this binary once for each worker, and fuzz targets
// need no control plane.
func fuzzing() bool {
	return slices.ContainsFunc(os.Args[1:], func(arg string) bool { return strings.HasPrefix(strings.TrimLeft(arg, "-"), "test.fuzz") })
}

// Shared is the package's control plane; without the binaries it skips the test.
func Shared(t testing.TB) *Environment {
	t.Helper()
	if shared == nil {
		t.Skipf("no control plane: run `make testenv`, or set %s to a folder with etcd and kube-apiserver", AssetsVariable)
	}
	return shared
}

// Assets is the folder of the binaries, or empty.
func Assets() string {
	dir := os.Getenv(AssetsVariable)
	if dir == "" {
		dir = filepath.Join(Root(), ".cache", "testenv")
	}
	for _, name := range []string{"etcd", "kube-apiserver"} {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			return ""
		}
	}
	return dir
}

// Root of the repository.
func Root() string {
	_, file, _, _ := runtime.Caller(0)
	return filepath.Join(filepath.Dir(file), "..", "..")
}

// Scheme has our kinds and the built-in ones.
func Scheme() *kruntime.Scheme {
	s := kruntime.NewScheme()
	for _, add := range []func(*kruntime.Scheme) error{clientgoscheme.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(s); err != nil {
			panic(err) // two types of one name: a bug
		}
	}
	return s
}

// Start starts etcd and kube-apiserver and installs the project's kinds.
func Start() (*Environment, error) {
	env := &envtest.Environment{
		BinaryAssetsDirectory:    Assets(),
		CRDDirectoryPaths:        []string{filepath.Join(Root(), "charts", "girassol", "files", "crds")},
		ErrorIfCRDPathMissing:    true,
		ControlPlaneStartTimeout: 2 * time.Minute, // other packages' tests share the machine
		ControlPlaneStopTimeout:  time.Minute,
	}
	config, err := env.Start()
	if err != nil {
		return nil, fmt.Errorf("start the control plane of %s: %w", Assets(), err)
	}
	config.QPS, config.Burst = 1000, 1000
	c, err := client.New(config, client.Options{Scheme: Scheme()})
	if err != nil {
		_ = env.Stop()
		return nil, err
	}
	return &Environment{env: env, Config: config, Client: c}, nil
}

// Stop ends the control plane.
func (e *Environment) Stop() {
	for _, p := range e.processes {
		p.Kill()
	}
	if e.dir != "" {
		_ = os.RemoveAll(e.dir)
	}
	if err := e.env.Stop(); err != nil {
		fmt.Fprintln(os.Stderr, "testenv: the control plane did not end well:", err)
	}
}

// Kubeconfig writes a kubeconfig with all rights for other processes.
func (e *Environment) Kubeconfig(t testing.TB) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(path, e.env.KubeConfig, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// Namespace makes a namespace for one test.
func (e *Environment) Namespace(t testing.TB) string {
	t.Helper()
	name := strings.ToLower(strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' {
			return r
		}
		return '-'
	}, t.Name()))
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: strings.Trim(name[:min(len(name), 40)], "-") + "-"}}
	if err := e.Client.Create(context.Background(), ns); err != nil {
		t.Fatal(err)
	}
	return ns.Name
}

package churn

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/operator/resources"
	"girassol.dev/operator/testenv"
)

// labelBench on nodes and in the sites' selectors keeps tests apart, which share a
// cluster.
const labelBench = "testenv.girassol.dev/bench"

// The example's names.
const (
	federationName = "field-study"
	quebec         = "quebec"
	atlanta        = "atlanta"
	machinesName   = "quebec-a100"
)

// rig is one federation on the test bench, with an operator of its own.
type rig struct {
	t   *testing.T
	e   *testenv.Environment
	ns  string
	dir string

	federation *v1alpha1.Federation
	clock      *clock // nil: signals are real time's
	kubelet    *testenv.Kubelet
	machines   *testenv.Machines
	power      *testenv.Power // of atlanta's nodes
	watch      *recorder

	kubeconfig, traces string // the operator's
	metrics            string // where it serves them; empty: nowhere
	elect              []string
	operator           *testenv.Process
}

// clock is that of a replay.
type clock struct {
	start, anchor time.Time
	speed         float64
}

// at is the virtual time at a real one.
func (c *clock) at(real time.Time) time.Time {
	return c.start.Add(time.Duration(float64(real.Sub(c.anchor)) * c.speed))
}

// when is the real time of a virtual one.
func (c *clock) when(virtual time.Time) time.Time {
	return c.anchor.Add(time.Duration(float64(virtual.Sub(c.start)) / c.speed))
}

func (c *clock) args() []string {
	return []string{"--clock-start=" + c.start.Format(time.RFC3339), "--clock-anchor=" + c.anchor.Format(time.RFC3339Nano), fmt.Sprintf("--clock-speed=%g", c.speed)}
}

// setup of a rig.
type setup struct {
	// edit changes the example, which has the bench's patches already.
	edit func(f *v1alpha1.Federation, sites map[string]*v1alpha1.Site)
	// clock of the signals and the folder of the traces; without one energy is
	// ignored, and sites are moved by spec.override.
	clock  *clock
	traces string
	// driver is the time from a machine's boot to its GPUs.
	driver time.Duration
	// elect lets the operator act once it has the Lease, as in the chart; one that
	// was killed leaves it for 15 seconds.
	elect bool
	// metrics is where the operator serves them; empty: nowhere.
	metrics string
}

// boot of a machine takes so long.
const boot = time.Second

func newRig(t *testing.T, s setup) *rig {
	t.Helper()
	if testing.Short() {
		t.Skip("real processes on a real control plane take minutes: left out by -short")
	}
	e := testenv.Shared(t)
	e.Controllers(t)
	if err := build(); err != nil {
		t.Fatal(err)
	}
	e.MachineDeployments(t)
	// Not t.TempDir: a Unix socket's path may have 107 bytes.
	dir, err := os.MkdirTemp("", "ch-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	r := &rig{t: t, e: e, ns: e.Namespace(t), dir: dir, clock: s.clock, traces: s.traces, metrics: s.metrics}
	config, own := e.Operator(t, testenv.ScaleTarget{Group: testenv.MachineDeploymentKind.Group, Resource: "machinedeployments"})
	r.kubeconfig = testenv.WriteKubeconfig(t, config)
	if s.elect {
		r.elect = []string{"--leader-elect", "--pod-namespace=" + own}
	}
	t.Cleanup(func() {
		if t.Failed() {
			r.dump()
		}
	})
	r.hardware(s)
	t.Cleanup(func() {
		if r.operator != nil {
			r.operator.Kill()
		}
	})
	r.watch = watch(t, e, r.ns)
	r.apply(s)
	r.startOperator()
	return r
}

func (r *rig) create(o client.Object) {
	r.t.Helper()
	if err := r.e.Client.Create(context.Background(), o); err != nil {
		r.t.Fatal(err)
	}
}

// apply makes the example's objects, sites first, as a person would.
func (r *rig) apply(s setup) {
	r.t.Helper()
	all := example(r.t, true)
	f := typed[v1alpha1.Federation](r.t, all["Federation/"+federationName])
	sites := map[string]*v1alpha1.Site{}
	for _, name := range []string{quebec, atlanta} {
		site := typed[v1alpha1.Site](r.t, all["Site/"+name])
		site.Namespace = r.ns
		site.Spec.Nodes.Selector.MatchLabels[labelBench] = r.ns
		if s.clock == nil {
			site.Spec.Grid = v1alpha1.GridSpec{}
		}
		sites[name] = site
	}
	f.Namespace = r.ns
	f.Spec.Coordinator.NodeSelector[labelBench] = r.ns
	if s.clock == nil {
		f.Spec.Energy = v1alpha1.EnergySpec{Policy: v1alpha1.EnergyIgnore}
	}
	if s.edit != nil {
		s.edit(f, sites)
	}
	md := &unstructured.Unstructured{Object: jsonOf(r.t, all["MachineDeployment/"+machinesName])}
	md.SetNamespace(r.ns)
	if err := unstructured.SetNestedField(md.Object, int64(0), "spec", "replicas"); err != nil {
		r.t.Fatal(err)
	}
	r.create(md)
	for _, name := range slices.Sorted(maps.Keys(sites)) {
		r.create(sites[name])
	}
	r.create(f)
	r.federation = f
}

// startOperator runs the operator with its own account's rights, for this test's
// namespace alone.
func (r *rig) startOperator() {
	r.t.Helper()
	address := resources.CoordinatorAddress(r.federation)
	args := []string{program("operator"), "--kubeconfig=" + r.kubeconfig, "--namespaces=" + r.ns,
		"--resolve=" + address + "=" + net(testenv.PodAddress(r.ns, resources.CoordinatorName(federationName)+"-0"), resources.GRPCPort)}
	if r.clock != nil {
		args = append(args, r.clock.args()...)
	}
	args = append(args, r.elect...)
	if r.metrics != "" {
		args = append(args, "--metrics-listen="+r.metrics)
	}
	if r.traces != "" {
		args = append(args, "--traces="+r.traces)
	}
	p, err := testenv.StartProcess("operator", filepath.Join(r.dir, "logs", "operator.log"), r.dir, args, nil)
	if err != nil {
		r.t.Fatal(err)
	}
	r.operator = p
}

func net(host string, port int) string { return fmt.Sprintf("%s:%d", host, port) }

// until waits for a condition, by asking.
func (r *rig) until(what string, ok func() bool) {
	r.t.Helper()
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		if ok() {
			return
		}
		select {
		case <-r.operator.Done():
			r.t.Fatalf("the operator ended with code %d while it was waited for that it %s\n%s", r.operator.ExitCode(), what, r.operator.Tail(3000))
		default:
		}
	}
	r.t.Fatalf("within %s it never %s\n%s", patience, what, r.watch)
}

// remove deletes federation and sites and waits until everything of theirs is
// gone and given back.
func (r *rig) remove() {
	r.t.Helper()
	ctx := context.Background()
	for _, o := range []client.Object{
		&v1alpha1.Federation{ObjectMeta: metav1.ObjectMeta{Namespace: r.ns, Name: federationName}},
		&v1alpha1.Site{ObjectMeta: metav1.ObjectMeta{Namespace: r.ns, Name: quebec}},
		&v1alpha1.Site{ObjectMeta: metav1.ObjectMeta{Namespace: r.ns, Name: atlanta}},
	} {
		if err := r.e.Client.Delete(ctx, o); err != nil {
			r.t.Fatal(err)
		}
	}
	r.until("removed federation and sites", func() bool {
		federations, sites := &v1alpha1.FederationList{}, &v1alpha1.SiteList{}
		return r.e.Client.List(ctx, federations, client.InNamespace(r.ns)) == nil && r.e.Client.List(ctx, sites, client.InNamespace(r.ns)) == nil &&
			len(federations.Items)+len(sites.Items) == 0
	})
	r.until("ended all pods", func() bool {
		return len(r.pods(resources.ComponentAgent))+len(r.pods(resources.ComponentCoordinator)) == 0
	})
	if n := r.replicas(); n != 0 {
		r.t.Errorf("%d machines are still asked for", n)
	}
	if nodes := r.enrolled(); len(nodes) > 0 {
		r.t.Errorf("nodes %v are still enrolled", nodes)
	}
	for what, o := range map[string]client.Object{
		"the authority's Secret": &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: resources.AuthoritySecretName(federationName)}},
		"the Service":            &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: resources.CoordinatorName(federationName)}},
		"quebec's DaemonSet":     &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Name: resources.AgentName(federationName, quebec, v1alpha1.VendorNVIDIA)}},
		"atlanta's DaemonSet":    &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Name: resources.AgentName(federationName, atlanta, v1alpha1.VendorAMD)}},
	} {
		key := types.NamespacedName{Namespace: r.ns, Name: o.GetName()}
		r.until("removed "+what, func() bool { return apierrors.IsNotFound(r.e.Client.Get(ctx, key, o)) })
	}
	claim := types.NamespacedName{Namespace: r.ns, Name: resources.CommitsName(federationName)}
	if err := r.e.Client.Get(ctx, claim, &corev1.PersistentVolumeClaim{}); err != nil {
		r.t.Errorf("the commit log's claim, which is to be retained: %v", err)
	}
	_ = r.operator.Signal(syscall.SIGTERM)
	select {
	case <-r.operator.Done():
		if code := r.operator.ExitCode(); code != 0 {
			r.t.Errorf("the operator ended with code %d", code)
		}
	case <-time.After(patience):
		r.t.Errorf("the operator did not end within %s", patience)
	}
}

// dump keeps what a failed test's processes said.
func (r *rig) dump() {
	keep := filepath.Join(os.TempDir(), "girassol-churn-"+r.ns)
	if err := os.CopyFS(keep, os.DirFS(filepath.Join(r.dir, "logs"))); err != nil && !errors.Is(err, fs.ErrExist) {
		r.t.Log(err)
	}
	r.t.Logf("all logs are in %s; timeline:\n%s\n--- operator\n%s\n%s", keep, r.watch, (&testenv.Process{Log: filepath.Join(r.dir, "logs", "operator.log")}).Tail(6000), r.kubelet.Logs(1500))
}

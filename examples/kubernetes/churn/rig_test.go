package churn

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/internal/wire"
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
	r := &rig{t: t, e: e, ns: e.Namespace(t), dir: dir, clock: s.clock, traces: s.traces}
	config, _ := e.Operator(t, testenv.ScaleTarget{Group: testenv.MachineDeploymentKind.Group, Resource: "machinedeployments"})
	r.kubeconfig = testenv.WriteKubeconfig(t, config)
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

// hardware is the nodes, the machines' provider, the disk of the commit log, and
// the kubelet that runs the pods' processes.
func (r *rig) hardware(s setup) {
	t, e := r.t, r.e
	t.Helper()
	address := testenv.PodAddress(r.ns, resources.CoordinatorName(federationName)+"-0")
	host := resources.CoordinatorName(federationName) + "." + r.ns + ".svc"
	r.kubelet = e.StartKubelet(t, testenv.KubeletOptions{
		Namespace: r.ns, Dir: r.dir, Hosts: map[string]string{host: address},
		Program: func(c *corev1.Container) string {
			// Redis is not run: rounds do without.
			switch name := strings.SplitN(path.Base(c.Image), ":", 2)[0]; name {
			case "girassol-coordinator":
				return program("coordinator")
			case "girassol-agent":
				return program("agent")
			}
			return ""
		},
		Extra: func(_ *corev1.Pod, c *corev1.Container) []string {
			switch c.Name {
			case "coordinator":
				more := []string{"--keep-updates", "--snapshot-every=100000"}
				if r.clock != nil {
					more = append(more, r.clock.args()...)
				}
				return more
			case "agent":
				// The address dialled is this machine's, the certificate the Service's.
				return []string{"--server-name=" + host, "--retry-max=1s"}
			}
			return nil
		},
	})
	labels := func(region string) map[string]string {
		return map[string]string{corev1.LabelTopologyRegion: region, labelBench: r.ns}
	}
	e.Node(t, testenv.PlainNode("frankfurt-"+r.ns, labels("eu-central")))
	r.power = e.Power(t, r.ns)
	for _, name := range r.atlantaNodes() {
		n := testenv.AMDNode(name, 8, labels("us-ga"))
		n.Labels[testenv.LabelPower] = r.ns
		r.text(name)
		e.Node(t, n)
	}
	r.machines = &testenv.Machines{Namespace: r.ns, Name: machinesName, Boot: boot, Driver: s.driver, Gone: r.kubelet.PowerOff,
		Node: func(name string) *corev1.Node {
			name += "-" + r.ns
			r.text(name)
			return testenv.NvidiaNode(name, 8, labels("ca-qc"))
		}}
	e.Provide(t, r.machines)
	r.disk()
}

func (r *rig) atlantaNodes() []string { return []string{"atlanta-1-" + r.ns, "atlanta-2-" + r.ns} }

// text lies on every node's disk; no two have the same.
func (r *rig) text(node string) {
	for folder, text := range map[string]string{
		"train":    strings.Repeat("the node "+node+" has its own words, and says them again and again.\n", 200),
		"held-out": strings.Repeat("a node has its own words, and says them again.\n", 100),
	} {
		dir := r.kubelet.Disk(node, "/srv/girassol/text/"+folder)
		err := os.MkdirAll(dir, 0o755)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, "a.txt"), []byte(text), 0o644)
		}
		if err != nil {
			r.t.Error(err)
		}
	}
}

// store is the folder of the commit log's volume.
func (r *rig) store() string { return filepath.Join(r.dir, "volume") }

// disk is a volume for the commit log, bound to its claim beforehand because
// volumes belong to no namespace, and the cluster's default class.
func (r *rig) disk() {
	immediate := storagev1.VolumeBindingImmediate
	class := &storagev1.StorageClass{
		ObjectMeta:  metav1.ObjectMeta{Name: "bench", Annotations: map[string]string{"storageclass.kubernetes.io/is-default-class": "true"}},
		Provisioner: "kubernetes.io/no-provisioner", VolumeBindingMode: &immediate,
	}
	if err := r.e.Client.Create(context.Background(), class); err != nil && !apierrors.IsAlreadyExists(err) {
		r.t.Fatal(err)
	}
	pv := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "commits-" + r.ns},
		Spec: corev1.PersistentVolumeSpec{
			Capacity:    corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("20Gi")},
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, StorageClassName: class.Name,
			PersistentVolumeSource: corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: r.store()}},
			ClaimRef:               &corev1.ObjectReference{Namespace: r.ns, Name: resources.CommitsName(federationName)},
		},
	}
	r.create(pv)
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

// site as it is now.
func (r *rig) site(name string) *v1alpha1.Site {
	r.t.Helper()
	s := &v1alpha1.Site{}
	if err := r.e.Client.Get(context.Background(), types.NamespacedName{Namespace: r.ns, Name: name}, s); client.IgnoreNotFound(err) != nil {
		r.t.Fatal(err)
	}
	return s
}

func (r *rig) untilPhase(site string, phases ...v1alpha1.SitePhase) *v1alpha1.Site {
	r.t.Helper()
	var s *v1alpha1.Site
	r.until(fmt.Sprintf("brought %s to %v", site, phases), func() bool { s = r.site(site); return slices.Contains(phases, s.Status.Phase) })
	return s
}

// override moves a site where energy is ignored.
func (r *rig) override(site string, o *v1alpha1.OverrideSpec) {
	r.t.Helper()
	s := r.site(site)
	old := s.DeepCopy()
	s.Spec.Override = o
	if err := r.e.Client.Patch(context.Background(), s, client.MergeFrom(old)); err != nil {
		r.t.Fatal(err)
	}
}

func drainNow() *v1alpha1.OverrideSpec {
	return &v1alpha1.OverrideSpec{Action: v1alpha1.OverrideDrain, Until: metav1.NewTime(time.Now().Add(time.Hour)), Reason: "a test"}
}

// status asks the coordinator, as the operator does; nil while it does not answer.
func (r *rig) status() *coordinatorv1.FederationStatus {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	secret := &corev1.Secret{}
	if err := r.e.Client.Get(ctx, types.NamespacedName{Namespace: r.ns, Name: resources.OperatorSecretName(federationName)}, secret); err != nil {
		return nil
	}
	pem := wire.PEM{Certificate: secret.Data[resources.CertificateKey], Key: secret.Data[resources.PrivateKeyKey], CA: secret.Data[resources.AuthorityKey]}
	conn, err := wire.Dial(net(testenv.PodAddress(r.ns, resources.CoordinatorName(federationName)+"-0"), resources.GRPCPort),
		wire.Options{PEM: func() (wire.PEM, error) { return pem, nil }, ServerName: resources.CoordinatorName(federationName)})
	if err != nil {
		return nil
	}
	defer conn.Close()
	st, err := coordinatorv1.NewAdminClient(conn).Status(ctx, &coordinatorv1.StatusRequest{})
	if err != nil {
		return nil
	}
	return st
}

// contributed is how many rounds have an update of the site.
func contributed(s *coordinatorv1.FederationStatus, site string) uint64 {
	for _, x := range s.GetSites() {
		if x.GetName() == site {
			return x.GetRoundsContributed()
		}
	}
	return 0
}

// untilTrained waits for more rounds with updates of the sites.
func (r *rig) untilTrained(sites ...string) *coordinatorv1.FederationStatus {
	r.t.Helper()
	var st *coordinatorv1.FederationStatus
	r.until("had a coordinator that answers", func() bool { st = r.status(); return st != nil })
	before := map[string]uint64{}
	for _, s := range sites {
		before[s] = contributed(st, s)
	}
	r.until(fmt.Sprintf("trained at %v", sites), func() bool {
		st = r.status()
		return st != nil && !slices.ContainsFunc(sites, func(s string) bool { return contributed(st, s) < before[s]+2 })
	})
	return st
}

// replicas of the MachineDeployment's spec.
func (r *rig) replicas() int64 {
	md := &unstructured.Unstructured{}
	md.SetGroupVersionKind(testenv.MachineDeploymentKind)
	if err := r.e.Client.Get(context.Background(), types.NamespacedName{Namespace: r.ns, Name: machinesName}, md); err != nil {
		r.t.Fatal(err)
	}
	n, _, err := unstructured.NestedInt64(md.Object, "spec", "replicas")
	if err != nil {
		r.t.Fatal(err)
	}
	return n
}

// enrolled nodes of this test.
func (r *rig) enrolled() []string {
	nodes := &corev1.NodeList{}
	if err := r.e.Client.List(context.Background(), nodes, client.MatchingLabels{labelBench: r.ns}, client.HasLabels{v1alpha1.LabelAgent}); err != nil {
		r.t.Fatal(err)
	}
	var out []string
	for _, n := range nodes.Items {
		out = append(out, n.Name)
	}
	return out
}

// pods of a component.
func (r *rig) pods(component string) []corev1.Pod {
	pods := &corev1.PodList{}
	if err := r.e.Client.List(context.Background(), pods, client.InNamespace(r.ns), client.MatchingLabels{"app.kubernetes.io/component": component}); err != nil {
		r.t.Fatal(err)
	}
	return pods.Items
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
	for name, err := range map[string]error{
		"the authority's Secret": r.e.Client.Get(ctx, types.NamespacedName{Namespace: r.ns, Name: resources.AuthoritySecretName(federationName)}, &corev1.Secret{}),
		"the Service":            r.e.Client.Get(ctx, types.NamespacedName{Namespace: r.ns, Name: resources.CoordinatorName(federationName)}, &corev1.Service{}),
	} {
		if !apierrors.IsNotFound(err) {
			r.t.Logf("%s is still there: %v", name, err) // the garbage collector comes later
		}
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

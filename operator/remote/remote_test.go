package remote

import (
	"context"
	"encoding/base64"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/operator/membership"
	"girassol.dev/operator/testenv"
)

func TestMain(m *testing.M) { os.Exit(testenv.Main(m)) }

// noLeaks fails a test that leaves goroutines behind.
func noLeaks(t *testing.T) {
	t.Helper()
	before := goleak.IgnoreCurrent()
	t.Cleanup(func() { goleak.VerifyNone(t, before) })
}

// rig is Clusters that run in the shared control plane, with short waits.
type rig struct {
	*testing.T
	e        *testenv.Environment
	ns       string
	clusters *Clusters
}

func newRig(t *testing.T) *rig {
	e := testenv.Shared(t)
	r := &rig{T: t, e: e, ns: e.Namespace(t)}
	noLeaks(t)
	r.clusters = New(Options{Local: e.Client, Timeout: 5 * time.Second, ProbeEvery: 20 * time.Millisecond,
		SecretEvery: 20 * time.Millisecond, FirstWait: 20 * time.Millisecond, LastWait: 100 * time.Millisecond})
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.clusters.Start(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return r
}

// secret writes a kubeconfig.
func (r *rig) secret(name, kubeconfig string) {
	r.Helper()
	s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: r.ns, Name: name}, Data: map[string][]byte{"value": []byte(kubeconfig)}}
	if err := r.e.Client.Create(r.Context(), s.DeepCopy()); err != nil {
		if err := r.e.Client.Update(r.Context(), s); err != nil {
			r.Fatal(err)
		}
	}
}

func (r *rig) site(name, secret string) *v1alpha1.Site {
	return &v1alpha1.Site{ObjectMeta: metav1.ObjectMeta{Namespace: r.ns, Name: name}, Spec: v1alpha1.SiteSpec{
		Cluster: &v1alpha1.ClusterSpec{KubeconfigSecret: v1alpha1.SecretKeyReference{Name: secret, Key: "value"}}}}
}

// until asks again at every change until the answer is as it should be.
func (r *rig) until(s *v1alpha1.Site, what string, right func(client.Client, membership.Cluster, *membership.Fault) bool) client.Client {
	r.Helper()
	limit := time.After(2 * time.Minute)
	for {
		c, state, fault := r.clusters.For(r.Context(), s)
		if right(c, state, fault) {
			return c
		}
		select {
		case <-r.clusters.Changed():
		case <-time.After(time.Second): // the change may have been read for another site
		case <-limit:
			r.Fatalf("site %s is not %s: %+v, fault %v", s.Name, what, state, fault)
		}
	}
}

func reachable(c client.Client, s membership.Cluster, f *membership.Fault) bool {
	return c != nil && s.Remote && s.Reachable == membership.Yes && f == nil
}

func gone(c client.Client, s membership.Cluster, f *membership.Fault) bool {
	return c == nil && s.Reachable == membership.No && f == nil && s.Message != ""
}

func faulty(reason v1alpha1.Reason, says string) func(client.Client, membership.Cluster, *membership.Fault) bool {
	return func(c client.Client, s membership.Cluster, f *membership.Fault) bool {
		return c == nil && s.Reachable == membership.Unknown && f != nil && f.Reason == reason && strings.Contains(f.Message, says)
	}
}

func kubeconfigOf(t *testing.T, e *testenv.Environment) string {
	t.Helper()
	raw, err := os.ReadFile(e.Kubeconfig(t))
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

func nodeNames(t *testing.T, c client.Client) []string {
	t.Helper()
	var l corev1.NodeList
	if err := c.List(t.Context(), &l); err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, n := range l.Items {
		names = append(names, n.Name)
	}
	return names
}

func TestALocalSiteGetsTheOperatorsOwnClient(t *testing.T) {
	local := client.Client(nil)
	c := New(Options{Local: local})
	got, state, fault := c.For(t.Context(), &v1alpha1.Site{})
	if got != local || state.Remote || state.Reachable != membership.Yes || fault != nil {
		t.Errorf("%v %+v %v", got, state, fault)
	}
}

func TestAnotherClusterIsReachedLostAndNeverWaitedFor(t *testing.T) {
	r := newRig(t)
	other, err := testenv.Start()
	if err != nil {
		t.Fatal(err)
	}
	stopped := false
	t.Cleanup(func() {
		if !stopped {
			other.Stop()
		}
	})
	r.secret("here", kubeconfigOf(t, r.e))
	r.secret("there", kubeconfigOf(t, other))
	here, there := r.site("frankfurt", "here"), r.site("quebec", "there")
	r.until(here, "reachable", reachable)
	c := r.until(there, "reachable", reachable)

	// Nodes come from a cache, and their changes are told.
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "gpu-1"}}
	if err := other.Client.Create(t.Context(), node); err != nil {
		t.Fatal(err)
	}
	r.until(there, "told of the node", func(c client.Client, _ membership.Cluster, _ *membership.Fault) bool {
		return c.Get(t.Context(), client.ObjectKey{Name: "gpu-1"}, &corev1.Node{}) == nil
	})
	if names := nodeNames(t, c); len(names) != 1 || names[0] != "gpu-1" {
		t.Errorf("nodes %v", names)
	}
	// All else is read live, and what is written is there.
	if err := c.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "a"}}); err != nil {
		t.Fatal(err)
	}
	if err := c.Get(t.Context(), client.ObjectKey{Namespace: "default", Name: "a"}, &corev1.ConfigMap{}); err != nil {
		t.Error(err)
	}

	other.Stop()
	stopped = true
	r.until(there, "gone", gone)
	// The other one is none the worse.
	r.until(here, "reachable", reachable)
}

func TestAClusterThatComesBackIsReachedAgain(t *testing.T) {
	r := newRig(t)
	var broken atomic.Bool
	proxy := proxyTo(t, r.e, &broken)
	r.secret("there", proxy)
	s := r.site("quebec", "there")
	r.until(s, "reachable", reachable)
	for range 2 {
		broken.Store(true)
		r.until(s, "gone", gone)
		broken.Store(false)
		r.until(s, "reachable", reachable)
	}
}

// proxyTo serves TLS before a control plane and gives its kubeconfig; while it is
// broken it answers 503 and lets watches hang.
func proxyTo(t *testing.T, e *testenv.Environment, broken *atomic.Bool) string {
	t.Helper()
	transport, err := transportOf(e)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if broken.Load() {
			http.Error(w, "broken", http.StatusServiceUnavailable)
			return
		}
		relay(w, req, e.Config.Host, transport)
	}))
	server.StartTLS()
	t.Cleanup(func() { server.CloseClientConnections(); server.Close(); transport.CloseIdleConnections() })
	return kubeconfigFor(server)
}

func kubeconfigFor(server *httptest.Server) string {
	ca := base64.StdEncoding.EncodeToString(pemOf(server.Certificate().Raw))
	return strings.Replace(strings.Replace(good, "https://quebec.example:6443", server.URL, 1), `"}`, `", certificate-authority-data: `+ca+`}`, 1)
}

func TestASilentClusterHoldsUpNoCall(t *testing.T) {
	r := newRig(t)
	silent := make(chan struct{})
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
		select {
		case <-req.Context().Done():
		case <-silent:
		}
	}))
	server.StartTLS()
	t.Cleanup(func() { close(silent); server.CloseClientConnections(); server.Close() })
	r.clusters.o.Timeout = 100 * time.Millisecond
	r.secret("there", kubeconfigFor(server))
	r.secret("here", kubeconfigOf(t, r.e))
	s := r.site("quebec", "there")
	if c, state, fault := r.clusters.For(t.Context(), s); c != nil || state.Reachable != membership.Unknown || fault != nil {
		t.Errorf("before the first answer: %v %+v %v", c, state, fault)
	}
	r.until(s, "gone", func(c client.Client, state membership.Cluster, f *membership.Fault) bool {
		return gone(c, state, f) && state.Message == "it does not answer in time"
	})
}

func TestSecretsAtFaultAreNamedAndTakenWhenPutRight(t *testing.T) {
	r := newRig(t)
	s := r.site("quebec", "there")
	_, _, fault := r.clusters.For(t.Context(), s)
	if fault == nil || fault.Reason != v1alpha1.ReasonSecretNotFound || !strings.Contains(fault.Message, "Secret there") {
		t.Fatalf("the first answer's fault is %v", fault)
	}
	r.secret("there", good+"# other\n")
	wrong := r.site("atlanta", "there")
	wrong.Spec.Cluster.KubeconfigSecret.Key = "kubeconfig"
	if _, _, fault := r.clusters.For(t.Context(), wrong); fault == nil || fault.Reason != v1alpha1.ReasonSecretInvalid || !strings.Contains(fault.Message, "no key kubeconfig") {
		t.Errorf("%v", fault)
	}
	r.secret("there", strings.Replace(good, "token: hunter2", "tokenFile: /etc/passwd", 1))
	r.until(s, "refused", faulty(v1alpha1.ReasonKubeconfigInvalid, "users[girassol].user.tokenFile"))
	r.secret("there", kubeconfigOf(t, r.e))
	r.until(s, "reachable", reachable)

	// Rotation: other credentials are taken without anybody asking for it.
	r.secret("there", kubeconfigOf(t, r.e)+"\n# renewed\n")
	r.until(s, "reachable", reachable)
	r.secret("there", strings.Replace(good, "https://quebec.example:6443", "https://127.0.0.1:1", 1))
	r.until(s, "gone", gone)
	if err := r.e.Client.Delete(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: r.ns, Name: "there"}}); err != nil {
		t.Fatal(err)
	}
	r.until(s, "without a Secret", faulty(v1alpha1.ReasonSecretNotFound, "does not exist"))
}

func TestAUserWithoutRightsIsToldWhichOnesAreMissing(t *testing.T) {
	r := newRig(t)
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		switch {
		case req.URL.Path == "/readyz":
		case strings.HasSuffix(req.URL.Path, "/nodes"):
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusForbidden)
			fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","code":403}`)
		case req.URL.Path == "/api":
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprint(w, `{"kind":"APIVersions","versions":["v1"]}`)
		case req.URL.Path == "/apis":
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprint(w, `{"kind":"APIGroupList","apiVersion":"v1","groups":[]}`)
		case req.URL.Path == "/api/v1":
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprint(w, `{"kind":"APIResourceList","groupVersion":"v1","resources":[{"name":"nodes","kind":"Node","namespaced":false,"verbs":["list"]}]}`)
		default:
			w.WriteHeader(http.StatusNotFound)
		}
	}))
	t.Cleanup(func() { server.CloseClientConnections(); server.Close() })
	r.secret("there", kubeconfigFor(server))
	r.until(r.site("quebec", "there"), "without rights", func(c client.Client, s membership.Cluster, f *membership.Fault) bool {
		return gone(c, s, f) && strings.Contains(s.Message, "may not list nodes")
	})
}

func TestAClusterGoesWithItsLastSite(t *testing.T) {
	r := newRig(t)
	r.secret("there", kubeconfigOf(t, r.e))
	a, b := r.site("a", "there"), r.site("b", "there")
	r.until(a, "reachable", reachable)
	r.until(b, "reachable", reachable)
	count := func() int {
		r.clusters.mu.Lock()
		defer r.clusters.mu.Unlock()
		return len(r.clusters.clusters)
	}
	if n := count(); n != 1 {
		t.Fatalf("%d connections for one Secret", n)
	}
	r.clusters.Forget(client.ObjectKeyFromObject(a))
	if n := count(); n != 1 {
		t.Fatalf("%d connections while a site needs it", n)
	}
	b.Spec.Cluster = nil // its nodes are here now
	if _, state, _ := r.clusters.For(t.Context(), b); state.Remote || count() != 0 {
		t.Errorf("%+v with %d connections", state, count())
	}
	// Sites that are gone without a word are found.
	r.until(a, "reachable", reachable)
	r.clusters.prune(t.Context())
	if n := count(); n != 0 {
		t.Errorf("%d connections though no Site object names a cluster", n)
	}
}

func TestOnlyChangesThatMatterAreTold(t *testing.T) {
	base := func() *corev1.Node {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a", Labels: map[string]string{"x": "y"}},
			Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
				Allocatable: corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("8")}}}
	}
	for name, tc := range map[string]struct {
		change func(*corev1.Node)
		told   bool
	}{
		"heartbeat": {func(n *corev1.Node) { n.Status.Conditions[0].LastHeartbeatTime = metav1.Now() }, false},
		"images":    {func(n *corev1.Node) { n.Status.Images = []corev1.ContainerImage{{SizeBytes: 1}} }, false},
		"version":   {func(n *corev1.Node) { n.ResourceVersion = "2" }, false},
		"lost":      {func(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionUnknown }, true},
		"cordoned":  {func(n *corev1.Node) { n.Spec.Unschedulable = true }, true},
		"tainted": {func(n *corev1.Node) {
			n.Spec.Taints = []corev1.Taint{{Key: "amd-dcm", Effect: corev1.TaintEffectNoExecute}}
		}, true},
		"labelled":    {func(n *corev1.Node) { n.Labels["x"] = "z" }, true},
		"annotated":   {func(n *corev1.Node) { n.Annotations = map[string]string{"a": "b"} }, true},
		"GPUs gone":   {func(n *corev1.Node) { n.Status.Allocatable = nil }, true},
		"being ended": {func(n *corev1.Node) { n.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)} }, true},
	} {
		t.Run(name, func(t *testing.T) {
			told := false
			now := base()
			tc.change(now)
			onNodes(func() { told = true }).OnUpdate(base(), now)
			if told != tc.told {
				t.Errorf("told %v", told)
			}
		})
	}
}

package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/operator/resources"
	"girassol.dev/operator/testenv"
)

func TestMain(m *testing.M) { os.Exit(testenv.Main(m)) }

// operator runs until the test stops it.
type operator struct {
	t        *testing.T
	o        Options
	registry *prometheus.Registry
	stop     context.CancelFunc
	done     chan error
}

func options(t *testing.T, namespace string) Options {
	e := testenv.Shared(t)
	return Options{
		Config: e.Config, Namespaces: []string{namespace}, Images: resources.Images{Coordinator: "coordinator:1", Agent: "agent:1", Redis: "redis:8"},
		Log: slog.New(slog.DiscardHandler),
	}
}

func run(t *testing.T, o Options) *operator {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	p := &operator{t: t, o: o, registry: prometheus.NewRegistry(), stop: stop, done: make(chan error, 1)}
	p.o.Registry = p.registry
	go func() { p.done <- Run(ctx, p.o) }()
	t.Cleanup(func() { p.end() })
	return p
}

// end stops it and waits.
func (p *operator) end() {
	p.t.Helper()
	p.stop()
	select {
	case err := <-p.done:
		if err != nil {
			p.t.Error(err)
		}
		p.done <- nil
	case <-time.After(time.Minute):
		p.t.Fatal("the operator does not end")
	}
}

func eventually(t *testing.T, what string, holds func() error) {
	t.Helper()
	var err error
	for end := time.Now().Add(5 * time.Minute); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if err = holds(); err == nil {
			return
		}
	}
	t.Fatalf("%s does not come about: %v", what, err)
}

func free(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

func create(t *testing.T, o client.Object) {
	t.Helper()
	if err := testenv.Shared(t).Client.Create(context.Background(), o); err != nil {
		t.Fatal(err)
	}
}

func site(namespace, name string) *v1alpha1.Site {
	return &v1alpha1.Site{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
}

func federation(namespace, name string, sites ...string) *v1alpha1.Federation {
	f := &v1alpha1.Federation{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	f.Spec.Energy.Policy = v1alpha1.EnergyIgnore
	for _, s := range sites {
		f.Spec.Sites = append(f.Spec.Sites, v1alpha1.SiteReference{Name: s})
	}
	return f
}

// accepted says when a federation's spec has been acted on.
func accepted(t *testing.T, namespace, name string) func() error {
	return func() error {
		f := &v1alpha1.Federation{}
		if err := testenv.Shared(t).Client.Get(context.Background(), client.ObjectKey{Namespace: namespace, Name: name}, f); err != nil {
			return err
		}
		if f.Status.ObservedGeneration != f.Generation {
			return fmt.Errorf("observed %d of %d; conditions %v", f.Status.ObservedGeneration, f.Generation, f.Status.Conditions)
		}
		return nil
	}
}

func status(url string, header ...string) func() error {
	return func() error {
		r, err := http.NewRequest(http.MethodGet, url, http.NoBody)
		if err != nil {
			return err
		}
		if len(header) > 0 {
			r.Header.Set("Authorization", header[0])
		}
		answer, err := http.DefaultClient.Do(r)
		if err != nil {
			return err
		}
		defer answer.Body.Close()
		b, _ := io.ReadAll(answer.Body)
		if answer.StatusCode != http.StatusOK {
			return fmt.Errorf("%s: %s", answer.Status, b)
		}
		return nil
	}
}

func TestAnOperatorServesAndLeavesNothingBehind(t *testing.T) {
	e := testenv.Shared(t)
	namespace := e.Namespace(t)
	create(t, site(namespace, "lisboa"))
	create(t, federation(namespace, "gpt", "lisboa"))
	before := goleak.IgnoreCurrent()
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("sesame\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	o := options(t, namespace)
	o.HealthListen, o.MetricsListen, o.WebhookListen, o.ProvisioningListen, o.ScalerListen = free(t), free(t), free(t), free(t), free(t)
	o.ProvisioningToken = token
	p := run(t, o)
	eventually(t, "acceptance", accepted(t, namespace, "gpt"))
	for _, url := range []string{"http://" + o.HealthListen + "/healthz", "http://" + o.HealthListen + "/readyz", "http://" + o.MetricsListen + "/metrics"} {
		eventually(t, url, status(url))
	}
	wishes := "http://" + o.ProvisioningListen + "/v1/provisioning"
	eventually(t, wishes, status(wishes, "Bearer sesame"))
	if err := status(wishes, "Bearer open")(); err == nil || !strings.Contains(err.Error(), "401") {
		t.Errorf("a wrong token: %v", err)
	}
	explain := "http://" + o.ProvisioningListen + "/v1/explain/" + namespace + "/gpt/lisboa"
	if err := status(explain)(); err == nil || !strings.Contains(err.Error(), "401") {
		t.Errorf("no token: %v", err)
	}
	if err := status("http://" + o.WebhookListen + "/v1/explain/" + namespace + "/gpt/lisboa")(); err == nil || !strings.Contains(err.Error(), "404") {
		t.Errorf("explanations on the webhook: %v", err)
	}
	conn, err := net.Dial("tcp", o.ScalerListen)
	if err != nil {
		t.Fatal(err)
	}
	conn.Close()
	if _, err := p.registry.Gather(); err != nil {
		t.Error(err)
	}
	p.end()
	http.DefaultClient.CloseIdleConnections()
	goleak.VerifyNone(t, before,
		// Shared by all clients of the process, for the next one.
		goleak.IgnoreTopFunction("net/http.(*persistConn).readLoop"), goleak.IgnoreTopFunction("net/http.(*persistConn).writeLoop"),
		goleak.IgnoreTopFunction("internal/poll.runtime_pollWait"),
		goleak.IgnoreAnyFunction("golang.org/x/net/http2.(*ClientConn).readLoop"), goleak.IgnoreAnyFunction("net/http.(*http2ClientConn).readLoop"))
}

func TestOneOfTwoOperatorsLeadsAndTheOtherTakesOver(t *testing.T) {
	e := testenv.Shared(t)
	own, namespace := e.Namespace(t), e.Namespace(t)
	create(t, site(namespace, "lisboa"))
	pod := func(name string) *corev1.Pod {
		p := &corev1.Pod{}
		if err := e.Client.Get(context.Background(), client.ObjectKey{Namespace: own, Name: name}, p); err != nil {
			t.Fatal(err)
		}
		return p
	}
	leads := func(name string) func() error {
		return func() error {
			if pod(name).Labels[labelRole] != roleLeader {
				return errors.New("not labelled")
			}
			return nil
		}
	}
	start := func(name string) *operator {
		o := options(t, namespace)
		o.LeaderElect, o.PodName, o.PodNamespace = true, name, own
		return run(t, o)
	}
	for _, name := range []string{"operator-a", "operator-b"} {
		create(t, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: own, Name: name, Labels: map[string]string{
				"app.kubernetes.io/name": "girassol", "app.kubernetes.io/instance": "test", "pod-template-hash": "x",
			}},
			Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "operator", Image: "operator:1"}}},
		})
	}
	// A label that a crashed container left behind was somebody else's to set.
	for _, name := range []string{"operator-a", "operator-b"} {
		p := pod(name)
		if err := e.Client.Apply(context.Background(), roleOf(p.Namespace, p.Name, roleLeader), client.FieldOwner(roleOwner), client.ForceOwnership); err != nil {
			t.Fatal(err)
		}
	}
	a := start("operator-a")
	eventually(t, "the lead of a", leads("operator-a"))
	start("operator-b")
	eventually(t, "b without the label", func() error {
		if leads("operator-b")() == nil {
			return errors.New("labelled")
		}
		return nil
	})
	create(t, federation(namespace, "first", "lisboa"))
	eventually(t, "a acts", accepted(t, namespace, "first"))
	a.end()
	if leads("operator-a")() == nil {
		t.Error("a keeps the label after its end")
	}
	eventually(t, "the lead of b", leads("operator-b"))
	create(t, federation(namespace, "second", "lisboa"))
	eventually(t, "b acts", accepted(t, namespace, "second"))
}

func TestNetworkPoliciesLetInThePodsOfTheOperatorsDeployment(t *testing.T) {
	e := testenv.Shared(t)
	own := e.Namespace(t)
	for name, c := range map[string]struct {
		labels map[string]string
		want   int
		fails  bool
	}{
		"chart":     {map[string]string{"app.kubernetes.io/name": "girassol", "app.kubernetes.io/instance": "x", "pod-template-hash": "y"}, 2, false},
		"unlabeled": {map[string]string{"pod-template-hash": "y"}, 0, true},
	} {
		create(t, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: own, Name: name, Labels: c.labels}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "o", Image: "o"}}}})
		peer, err := self(t.Context(), e.Client, Options{PodName: name, PodNamespace: own})
		if (err != nil) != c.fails || len(peer.Labels) != c.want {
			t.Errorf("%s: %v, %v", name, peer, err)
		}
	}
}

func TestTheCacheKeepsWhatIsReadAndNoMore(t *testing.T) {
	fields := func(managers ...string) (out []metav1.ManagedFieldsEntry) {
		for _, m := range managers {
			out = append(out, metav1.ManagedFieldsEntry{Manager: m})
		}
		return out
	}
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{ManagedFields: fields("kubelet", v1alpha1.FieldOwner, "kubectl")}}
	n.Status.Images = []corev1.ContainerImage{{Names: []string{"x"}}}
	n.Status.Allocatable = corev1.ResourceList{"nvidia.com/gpu": {}}
	if _, err := slim(n); err != nil || len(n.Status.Images) != 0 || len(n.Status.Allocatable) != 1 || len(n.ManagedFields) != 1 || n.ManagedFields[0].Manager != v1alpha1.FieldOwner {
		t.Errorf("node %v %v", n, err)
	}
	p := &corev1.Pod{Spec: corev1.PodSpec{Volumes: []corev1.Volume{{}}, Containers: []corev1.Container{{Env: []corev1.EnvVar{{}}}}, NodeName: "n"}}
	if _, err := slim(p); err != nil || len(p.Spec.Volumes)+len(p.Spec.Containers[0].Env) != 0 || p.Spec.NodeName != "n" {
		t.Errorf("pod %v %v", p, err)
	}
	if _, err := slim("no object"); err != nil {
		t.Error(err)
	}
}

func TestBearersAreLetInWithTheTokenOnly(t *testing.T) {
	ok := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {})
	for _, c := range []struct {
		token, header string
		want          int
	}{{"s", "Bearer s", 200}, {"s", "Bearer x", 401}, {"s", "s", 401}, {"s", "", 401}, {"", "Bearer ", 401}, {"", "", 401}} {
		r := httptest.NewRequest(http.MethodGet, "/", http.NoBody)
		r.Header.Set("Authorization", c.header)
		w := httptest.NewRecorder()
		bearer(func() string { return c.token }, ok).ServeHTTP(w, r)
		if w.Code != c.want {
			t.Errorf("token %q, header %q: %d, want %d", c.token, c.header, w.Code, c.want)
		}
	}
}

func TestFlagsThatCannotWorkSayHowTheyWould(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"--log-format", "xml"}, "text nor json"},
		{[]string{"--log-level", "loud"}, "debug, info"},
		{[]string{"--clock-start", "noon"}, "2026-01-31T00:00:00Z"},
		{[]string{"--clock-anchor", "noon"}, "--clock-anchor"},
		{[]string{"--clock-speed", "0"}, "speed"},
		{[]string{"--resolve", "a=b"}, "HOST:PORT=ADDRESS:PORT"},
		{[]string{"--kubeconfig", "/nowhere"}, "/nowhere"},
		{[]string{"--leader-elect", "--kubeconfig", kubeconfig(t)}, "--pod-namespace"},
		{[]string{"stray"}, "stray"},
	} {
		cmd := Command()
		cmd.SetArgs(c.args)
		cmd.SetErr(io.Discard)
		if err := cmd.Execute(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: %v, want %q", c.args, err, c.want)
		}
	}
	all, err := parseResolve([]string{"a.b.svc:7465=127.0.0.1:1"})
	if err != nil || all["a.b.svc:7465"] != "127.0.0.1:1" {
		t.Errorf("%v %v", all, err)
	}
}

func kubeconfig(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kubeconfig")
	const minimal = `{"apiVersion":"v1","kind":"Config","current-context":"x","clusters":[{"name":"x","cluster":{"server":"https://127.0.0.1:1"}}],"contexts":[{"name":"x","context":{"cluster":"x","user":"x"}}],"users":[{"name":"x"}]}`
	if err := os.WriteFile(path, []byte(minimal), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

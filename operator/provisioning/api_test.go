package provisioning

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	api "girassol.dev/api/provisioning"
)

func pointer[T any](v T) *T { return &v }

const token = "reader-token"

// world is what the API reads.
type world struct {
	mu      sync.Mutex
	sites   map[types.NamespacedName]*v1alpha1.Site
	secrets map[types.NamespacedName]string
	err     error
	reads   int // of Secrets
}

func (w *world) Get(_ context.Context, key client.ObjectKey, o client.Object, _ ...client.GetOption) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err != nil {
		return w.err
	}
	switch o := o.(type) {
	case *v1alpha1.Site:
		if s := w.sites[key]; s != nil {
			s.DeepCopyInto(o)
			return nil
		}
	case *corev1.Secret:
		w.reads++
		if text, ok := w.secrets[key]; ok {
			o.Data = map[string][]byte{"key": []byte(text)}
			return nil
		}
	}
	return apierrors.NewNotFound(schema.GroupResource{}, key.Name)
}

func (w *world) List(_ context.Context, l client.ObjectList, opts ...client.ListOption) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err != nil {
		return w.err
	}
	o := client.ListOptions{}
	o.ApplyOptions(opts)
	for key, s := range w.sites {
		if o.Namespace == "" || o.Namespace == key.Namespace {
			l.(*v1alpha1.SiteList).Items = append(l.(*v1alpha1.SiteList).Items, *s.DeepCopy())
		}
	}
	return nil
}

type rig struct {
	*testing.T
	*world
	api      *API
	server   *httptest.Server
	now      time.Time
	reported []api.Result
}

func newRig(t *testing.T) *rig {
	before := goleak.IgnoreCurrent()
	t.Cleanup(func() { goleak.VerifyNone(t, before) })
	r := &rig{T: t, world: &world{sites: map[types.NamespacedName]*v1alpha1.Site{}, secrets: map[types.NamespacedName]string{}}, now: time.Now()}
	r.api = New(Options{Sites: r.world, Secrets: r.world, Token: func() string { return token + "\n" }, Now: func() time.Time { return r.now },
		Report: func(site types.NamespacedName, result api.Result) {
			if site != (types.NamespacedName{Namespace: "team", Name: "quebec"}) {
				t.Errorf("reported %s", site)
			}
			r.reported = append(r.reported, result)
		}})
	r.server = httptest.NewServer(r.api.Handler())
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.api.Start(ctx) }()
	t.Cleanup(func() {
		stop()
		<-done
		r.server.CloseClientConnections()
		r.server.Close()
		http.DefaultClient.CloseIdleConnections()
	})
	return r
}

func wished(namespace, name, key string) *v1alpha1.Site {
	return &v1alpha1.Site{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: v1alpha1.SiteSpec{Priority: 3, Nodes: &v1alpha1.NodesSpec{Vendor: v1alpha1.VendorAMD, MinGPUs: pointer(int32(4))},
			Capacity: v1alpha1.CapacitySpec{Mode: v1alpha1.CapacityWebhook, Webhook: &v1alpha1.ProvisionerSpec{
				URL: "https://p.example", Secret: v1alpha1.SecretKeyReference{Name: "p", Key: "key"}}}},
		Status: v1alpha1.SiteStatus{Federation: "gpt", Provisioning: &v1alpha1.ProvisioningStatus{
			Wish: v1alpha1.WishProvision, State: v1alpha1.ProvisioningAsked, Key: key, Reason: v1alpha1.ReasonProvisioning, Message: "waits",
			Since: metav1.Unix(100, 0), Deadline: pointer(metav1.Unix(1000, 0)), RetryAt: pointer(metav1.Unix(2000, 0))}}}
}

// put makes the world have a site, and tells the API as an informer does.
func (r *rig) put(s *v1alpha1.Site) {
	key := client.ObjectKeyFromObject(s)
	r.mu.Lock()
	before := r.sites[key]
	r.sites[key] = s
	r.mu.Unlock()
	if before == nil {
		r.api.OnAdd(s, false)
	} else {
		r.api.OnUpdate(before, s)
	}
}

func (r *rig) get(query, bearer string) (*http.Response, string) {
	r.Helper()
	req, err := http.NewRequestWithContext(r.Context(), http.MethodGet, r.server.URL+"/v1/provisioning"+query, http.NoBody)
	if err != nil {
		r.Fatal(err)
	}
	if bearer != "" {
		req.Header.Set("Authorization", bearer)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		r.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		r.Fatal(err)
	}
	return resp, string(body)
}

func TestTheListShowsEachWishInOrder(t *testing.T) {
	r := newRig(t)
	r.put(wished("team", "quebec", "k1"))
	r.put(wished("team", "atlanta", "k2"))
	r.put(wished("other", "oslo", "k3"))
	r.put(&v1alpha1.Site{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "quiet"}})
	resp, body := r.get("", "Bearer "+token)
	var l api.List
	if err := json.Unmarshal([]byte(body), &l); err != nil || resp.StatusCode != http.StatusOK || l.APIVersion != api.Version {
		t.Fatalf("%d %s %v", resp.StatusCode, body, err)
	}
	if len(l.Items) != 3 || l.Items[0].Site != "oslo" || l.Items[1].Site != "atlanta" || l.Items[2].Site != "quebec" {
		t.Fatalf("%+v", l.Items)
	}
	i := l.Items[2]
	if i.Namespace != "team" || i.Federation != "gpt" || i.Wish != api.Provision || i.State != api.Asked || i.Reason != "Provisioning" || i.Message != "waits" ||
		i.By == nil || i.By.Unix() != 1000 || i.Since.Unix() != 100 || i.RetryAt.Unix() != 2000 || i.Key != "k1" || i.Vendor != "AMD" || i.MinGPUs != 4 || i.Priority != 3 || i.Mode != "Webhook" {
		t.Errorf("%+v", i)
	}
	if _, body := r.get("?namespace=other", "bearer "+token); strings.Contains(body, "team") || !strings.Contains(body, "oslo") {
		t.Error(body)
	}
	if _, body := r.get("?namespace=none", "Bearer "+token); !strings.Contains(body, `"items":[]`) {
		t.Error(body)
	}
	if resp, _ := r.get("?watch=maybe", "Bearer "+token); resp.StatusCode != http.StatusBadRequest {
		t.Error(resp.Status)
	}
	r.err = errors.New("no cache")
	if resp, body := r.get("", "Bearer "+token); resp.StatusCode != http.StatusServiceUnavailable || strings.Contains(body, "no cache") {
		t.Error(resp.Status, body)
	}
}

func TestOnlyTheTokenReads(t *testing.T) {
	r := newRig(t)
	for _, bearer := range []string{"", "Bearer", "Bearer ", "Bearer wrong", "Basic " + token, token, "Bearer " + token + "x"} {
		for _, query := range []string{"", "?watch=true"} {
			if resp, body := r.get(query, bearer); resp.StatusCode != http.StatusUnauthorized || !strings.Contains(body, "Unauthorized") {
				t.Errorf("%q: %s", bearer, resp.Status)
			}
		}
	}
	r.api.o.Token = func() string { return "" }
	if resp, _ := r.get("", "Bearer "); resp.StatusCode != http.StatusUnauthorized {
		t.Errorf("without a token: %s", resp.Status)
	}
}

func TestDefaultsOfAnItem(t *testing.T) {
	bare := func(n *v1alpha1.NodesSpec) *v1alpha1.Site {
		return &v1alpha1.Site{Spec: v1alpha1.SiteSpec{Nodes: n}, Status: v1alpha1.SiteStatus{Vendor: v1alpha1.VendorNVIDIA,
			Provisioning: &v1alpha1.ProvisioningStatus{Wish: v1alpha1.WishProvision, Since: metav1.Unix(100, 0)}}}
	}
	for _, tc := range []struct {
		site   *v1alpha1.Site
		mode   string
		vendor string
		gpus   int32
	}{
		{bare(nil), "None", "NVIDIA", 1},
		{bare(&v1alpha1.NodesSpec{}), "NodeLabel", "NVIDIA", 1},
		{bare(&v1alpha1.NodesSpec{Vendor: v1alpha1.VendorCPU}), "NodeLabel", "CPU", 0},
	} {
		i, ok := ItemOf(tc.site)
		w, also := WishOf(tc.site)
		if !ok || !also || i.Mode != tc.mode || i.Vendor != tc.vendor || i.MinGPUs != tc.gpus || i.State != api.Wanted || w.By.Unix() != 1000 {
			t.Errorf("%+v, by %v", i, w.By)
		}
	}
}

// lines of a watch.
type lines struct {
	*rig
	scanner *bufio.Scanner
}

func (r *rig) watch(query string) *lines {
	r.Helper()
	req, err := http.NewRequestWithContext(r.Context(), http.MethodGet, r.server.URL+"/v1/provisioning?watch=true"+query, http.NoBody)
	if err != nil {
		r.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+token)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		r.Fatal(err)
	}
	r.Cleanup(func() { _ = resp.Body.Close() })
	if resp.StatusCode != http.StatusOK || resp.Header.Get("Content-Type") != "application/x-ndjson" {
		r.Fatal(resp.Status, resp.Header)
	}
	return &lines{r, bufio.NewScanner(resp.Body)}
}

func (l *lines) next() api.Event {
	l.Helper()
	if !l.scanner.Scan() {
		l.Fatal("the watch ended: ", l.scanner.Err())
	}
	var e api.Event
	if err := json.Unmarshal(l.scanner.Bytes(), &e); err != nil {
		l.Fatal(err)
	}
	return e
}

func (l *lines) want(t api.EventType, site, key string) {
	l.Helper()
	e := l.next()
	if e.Type != t || (e.Item == nil) != (site == "") || e.Item != nil && (e.Item.Site != site || e.Item.Key != key) {
		l.Fatalf("told %s %+v, want %s %s %s", e.Type, e.Item, t, site, key)
	}
}

func TestAWatchTellsTheListAndThenEachChange(t *testing.T) {
	r := newRig(t)
	r.put(wished("team", "quebec", "k1"))
	l, only := r.watch(""), r.watch("&namespace=other")
	l.want(api.Present, "quebec", "k1")
	l.want(api.Listed, "", "")
	only.want(api.Listed, "", "")

	r.put(wished("team", "quebec", "k1")) // nothing new
	unrelated := wished("team", "quebec", "k1")
	unrelated.Status.GPUs = 16
	r.put(unrelated)
	r.put(wished("team", "quebec", "k2"))
	l.want(api.Present, "quebec", "k2")
	r.put(wished("other", "oslo", "k3"))
	l.want(api.Present, "oslo", "k3")
	only.want(api.Present, "oslo", "k3")
	idle := wished("team", "quebec", "")
	idle.Status.Provisioning = nil
	r.put(idle)
	l.want(api.Gone, "quebec", "")
	r.api.OnDelete(wished("other", "oslo", "k3"))
	l.want(api.Gone, "oslo", "")
	r.api.OnDelete(toolscache.DeletedFinalStateUnknown{Key: "other/oslo"})
	l.want(api.Gone, "oslo", "")
	only.want(api.Gone, "oslo", "")
}

func TestWatchersAreBoundedAndEndWithTheServer(t *testing.T) {
	r := newRig(t)
	for range maxWatchers {
		r.watch("").want(api.Listed, "", "")
	}
	resp, body := r.get("?watch=true", "Bearer "+token)
	if resp.StatusCode != http.StatusServiceUnavailable || resp.Header.Get("Retry-After") == "" || !strings.Contains(body, "TooManyWatchers") {
		t.Errorf("%s %s", resp.Status, body)
	}
	if resp, _ := r.get("", "Bearer "+token); resp.StatusCode != http.StatusOK {
		t.Error("a list is refused, too: ", resp.Status)
	}
}

func TestAWatchEndsWhenTheOperatorDoes(t *testing.T) {
	r := newRig(t)
	l := r.watch("")
	l.want(api.Listed, "", "")
	r.api.once.Do(func() { close(r.api.closed) })
	if l.scanner.Scan() {
		t.Errorf("told %s", l.scanner.Text())
	}
}

// stuck is a writer whose reader does not read: writes wait for the deadline.
type stuck struct {
	http.ResponseWriter
	header http.Header
}

func (s stuck) Header() http.Header              { return s.header }
func (s stuck) WriteHeader(int)                  {}
func (s stuck) Write([]byte) (int, error)        { return 0, context.DeadlineExceeded }
func (s stuck) SetWriteDeadline(time.Time) error { return nil }
func (s stuck) Flush()                           {}

func TestAReaderWhoDoesNotReadIsDroppedAndCostsNoMoreThanTheList(t *testing.T) {
	r := newRig(t)
	r.put(wished("team", "quebec", "k1"))
	req := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/v1/provisioning?watch=true", http.NoBody)
	req.Header.Set("Authorization", "Bearer "+token)
	r.api.Handler().ServeHTTP(stuck{header: http.Header{}}, req) // it returns
	if n := len(r.api.watchers); n != 0 {
		t.Errorf("%d watchers left", n)
	}

	w, _ := r.api.join("")
	for range 1000 {
		r.api.Notify(types.NamespacedName{Namespace: "team", Name: "quebec"}, wished("team", "quebec", "last"))
	}
	if events := w.take(); len(events) != 1 || events[0].Item.Key != "last" {
		t.Errorf("%d events wait", len(events))
	}
}

func TestAQuietWatchSaysThatItIsAlive(t *testing.T) {
	r := newRig(t)
	r.api.alive = time.Millisecond
	l := r.watch("")
	l.want(api.Listed, "", "")
	l.want(api.Alive, "", "")
	l.want(api.Alive, "", "")
}

func TestATokenChangesWithItsFile(t *testing.T) {
	r := newRig(t)
	r.api.o.Token = func() string { return "renewed" }
	if resp, _ := r.get("", "Bearer renewed"); resp.StatusCode != http.StatusOK {
		t.Error(resp.Status)
	}
	if resp, _ := r.get("", "Bearer "+token); resp.StatusCode != http.StatusUnauthorized {
		t.Error(resp.Status)
	}
}

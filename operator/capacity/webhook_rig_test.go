package capacity

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/api/provisioning"
	"girassol.dev/internal/webhooksig"
)

const whsec = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"

// secrets is a client that holds one Secret.
type secrets struct {
	client.Client
	mu   sync.Mutex
	data map[string][]byte // nil: there is none
}

func (s *secrets) Get(_ context.Context, key client.ObjectKey, o client.Object, _ ...client.GetOption) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.data == nil {
		return apierrors.NewNotFound(schema.GroupResource{Resource: "secrets"}, key.Name)
	}
	o.(*corev1.Secret).Name = key.Name
	o.(*corev1.Secret).Data = s.data
	return nil
}

// provisioner is the other side: it checks what is signed and answers as told.
type provisioner struct {
	*httptest.Server
	now    func() time.Time
	mu     sync.Mutex
	answer http.HandlerFunc
	wishes []provisioning.Wish
	polls  int
	ids    map[string]bool
}

func (p *provisioner) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	secret, _ := webhooksig.ParseSecret(whsec)
	signed, err := webhooksig.Verify(r.Header, []webhooksig.Secret{secret}, body, p.now())
	if err != nil {
		http.Error(w, err.Error(), http.StatusTeapot)
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if r.Method == http.MethodGet {
		if p.polls++; p.ids[signed.ID] {
			http.Error(w, "an id twice", http.StatusTeapot)
			return
		}
		p.ids[signed.ID] = true
	} else {
		var wish provisioning.Wish
		if err := json.Unmarshal(body, &wish); err != nil || r.Header.Get(provisioning.HeaderIdempotencyKey) != wish.Key || signed.ID != wish.Key {
			http.Error(w, fmt.Sprint(err), http.StatusTeapot)
			return
		}
		p.wishes = append(p.wishes, wish)
	}
	p.answer(w, r)
}

// will sets the next answers.
func (p *provisioner) will(answer http.HandlerFunc) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.answer = answer
}

func say(status int, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}
}

func (p *provisioner) asked() (wishes []provisioning.Wish, polls int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.wishes, p.polls
}

// hookRig is a site with a provisioner. Its clock stands still unless moved.
type hookRig struct {
	*testing.T
	*provisioner
	secrets *secrets
	keeper  *Keeper
	site    *v1alpha1.Site
	now     time.Time
	options Options
}

func newHookRig(t *testing.T) *hookRig {
	noLeaks(t)
	p := &provisioner{ids: map[string]bool{}, answer: say(http.StatusAccepted, "")}
	p.Server = httptest.NewServer(p)
	r := &hookRig{T: t, provisioner: p, now: time.Now(), secrets: &secrets{data: map[string][]byte{"key": []byte(whsec + "\n")}}}
	t.Cleanup(p.Close)
	r.options = Options{Local: r.secrets, Callback: "https://girassol.example/", Now: func() time.Time { return r.now }}
	p.now = r.options.Now
	r.start()
	r.site = &v1alpha1.Site{
		ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "quebec", Generation: 1},
		Spec: v1alpha1.SiteSpec{
			Priority: 7,
			Nodes:    &v1alpha1.NodesSpec{Vendor: v1alpha1.VendorNVIDIA, MinGPUs: pointer(int32(8))},
			Capacity: v1alpha1.CapacitySpec{Mode: v1alpha1.CapacityWebhook, Webhook: &v1alpha1.ProvisionerSpec{
				URL: p.URL + "/wishes?token=s3cr3t", Secret: v1alpha1.SecretKeyReference{Name: "provisioner", Key: "key"}}},
		},
		Status: v1alpha1.SiteStatus{Federation: "gpt"},
	}
	r.wish(v1alpha1.WishProvision, "k1")
	return r
}

// start makes a keeper, as after a restart.
func (r *hookRig) start() {
	r.keeper = New(r.options)
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func(k *Keeper) { done <- k.Start(ctx) }(r.keeper)
	r.Cleanup(func() { stop(); <-done })
}

func (r *hookRig) wish(w v1alpha1.ProvisioningWish, key string) {
	r.site.Status.Provisioning = &v1alpha1.ProvisioningStatus{Wish: w, State: v1alpha1.ProvisioningWanted, Key: key,
		Since: metav1.NewTime(r.now.Truncate(time.Second)), Reason: v1alpha1.ReasonProvisioning}
}

func (r *hookRig) look() State {
	r.Helper()
	s, err := r.keeper.Look(r.Context(), nil, r.site)
	if err != nil {
		r.Fatal(err)
	}
	return s
}

func (r *hookRig) ask() State {
	r.Helper()
	s, err := r.keeper.Ask(r.Context(), nil, r.site, r.site.Status.Provisioning.Wish == v1alpha1.WishProvision)
	if err != nil {
		r.Fatal(err)
	}
	return s
}

// told asks and waits for what comes of it.
func (r *hookRig) told() State {
	r.Helper()
	r.ask()
	return r.news()
}

func (r *hookRig) news() State {
	r.Helper()
	e := <-r.keeper.Changed()
	if e.Object.GetName() != "quebec" || e.Object.GetNamespace() != "team" {
		r.Fatalf("told of %v", e.Object)
	}
	return r.look()
}

// refused asks and gives the state once the question has ended, news or not.
func (r *hookRig) refused(reason v1alpha1.Reason) State {
	r.Helper()
	r.ask()
	s := r.settled()
	if s.Fault == nil || s.Fault.Reason != reason {
		r.Fatalf("fault is %v, want %s", s.Fault, reason)
	}
	return s
}

// settled waits for the question in flight to end.
func (r *hookRig) settled() State {
	r.keeper.hook.running.Wait()
	return r.look()
}

package provisioning

import (
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/flowcontrol"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	api "girassol.dev/api/provisioning"
)

const (
	// maxWatchers at a time; more are answered 503.
	maxWatchers = 64
	// aliveEvery is between lines of a watch on which nothing changes.
	aliveEvery = 30 * time.Second
	// writeTimeout for one batch of lines; who does not read them is dropped.
	writeTimeout = 10 * time.Second
	// maxResult in bytes, and how long it may take to arrive.
	maxResult   = 64 << 10
	readTimeout = 10 * time.Second
	// Results of all senders in a second, each of which reads a Secret.
	resultsPerSecond, resultsBurst = 20, 40
)

// Options of an API.
type Options struct {
	// Sites reads Sites, from a cache.
	Sites client.Reader
	// Secrets reads the provisioners' secrets.
	Secrets client.Reader
	// Token that readers show as a bearer; asked for at each request, so that its
	// file may change. Empty: nobody reads.
	Token func() string
	// Report takes a result about the present wish.
	Report func(site types.NamespacedName, r api.Result)
	// Now is the clock; nil: the system's.
	Now func() time.Time
	// Log; nil: none.
	Log *slog.Logger
}

// API is the provisioning API. Its methods may be called at once from anywhere.
type API struct {
	o       Options
	mux     *http.ServeMux
	limiter flowcontrol.PassiveRateLimiter
	heard   heard
	alive   time.Duration

	mu       sync.Mutex
	watchers map[*watcher]bool
	closed   chan struct{}
	once     sync.Once
}

// New makes the API.
func New(o Options) *API {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Token == nil {
		o.Token = func() string { return "" }
	}
	if o.Report == nil {
		o.Report = func(types.NamespacedName, api.Result) {}
	}
	a := &API{
		o:        o,
		mux:      http.NewServeMux(),
		limiter:  flowcontrol.NewTokenBucketPassiveRateLimiter(resultsPerSecond, resultsBurst),
		watchers: map[*watcher]bool{},
		closed:   make(chan struct{}),
		alive:    aliveEvery,
	}
	a.mux.HandleFunc("GET /v1/provisioning", a.get)
	a.mux.HandleFunc("POST /v1/provisioning/{namespace}/{site}/result", a.result)
	return a
}

// Handler serves below /v1/provisioning. Watches last: the server that it is
// mounted on must have no write timeout of its own.
func (a *API) Handler() http.Handler { return a.mux }

// Start ends all watches when ctx does.
func (a *API) Start(ctx context.Context) error {
	<-ctx.Done()
	a.once.Do(func() { close(a.closed) })
	return nil
}

// OnAdd tells watchers of a Site; with OnUpdate and OnDelete it makes the API a
// handler of the Sites' informer.
func (a *API) OnAdd(o any, _ bool) {
	if s, ok := o.(*v1alpha1.Site); ok {
		a.Notify(client.ObjectKeyFromObject(s), s)
	}
}

// OnUpdate tells watchers of a Site whose wish has changed.
func (a *API) OnUpdate(was, is any) {
	before, ok := was.(*v1alpha1.Site)
	s, also := is.(*v1alpha1.Site)
	if !ok || !also {
		return
	}
	b, had := ItemOf(before)
	i, has := ItemOf(s)
	if had != has || !same(b, i) {
		a.Notify(client.ObjectKeyFromObject(s), s)
	}
}

// OnDelete tells watchers that a Site is gone.
func (a *API) OnDelete(o any) {
	if missed, ok := o.(toolscache.DeletedFinalStateUnknown); ok {
		namespace, name, _ := strings.Cut(missed.Key, "/")
		a.Notify(types.NamespacedName{Namespace: namespace, Name: name}, nil)
		return
	}
	if s, ok := o.(*v1alpha1.Site); ok {
		a.Notify(client.ObjectKeyFromObject(s), nil)
	}
}

// Notify tells watchers how a Site is now; nil: it is gone.
func (a *API) Notify(key types.NamespacedName, s *v1alpha1.Site) {
	e := api.Event{Type: api.Gone, Item: &api.Item{Namespace: key.Namespace, Site: key.Name}}
	if s != nil {
		if item, ok := ItemOf(s); ok {
			e = api.Event{Type: api.Present, Item: &item}
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for w := range a.watchers {
		w.add(key, e)
	}
	if s == nil {
		a.heard.forget(key)
	}
}

func (a *API) get(w http.ResponseWriter, r *http.Request) {
	if !a.mayRead(r) {
		w.Header().Set("WWW-Authenticate", `Bearer realm="girassol"`)
		problem(w, http.StatusUnauthorized, "Unauthorized", "show the token of the provisioning API as a bearer")
		return
	}
	q := r.URL.Query()
	switch q.Get("watch") {
	case "", "false", "0":
		a.list(w, r, q.Get("namespace"))
	case "true", "1":
		a.watch(w, r, q.Get("namespace"))
	default:
		problem(w, http.StatusBadRequest, "Malformed", "watch is true or false")
	}
}

// mayRead compares in constant time, digests to hide the token's length too.
func (a *API) mayRead(r *http.Request) bool {
	scheme, given, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	want := strings.TrimSpace(a.o.Token())
	g, t := sha256.Sum256([]byte(strings.TrimSpace(given))), sha256.Sum256([]byte(want))
	return subtle.ConstantTimeCompare(g[:], t[:]) == 1 && want != "" && strings.EqualFold(scheme, "Bearer")
}

func (a *API) list(w http.ResponseWriter, r *http.Request, namespace string) {
	items, err := a.items(r.Context(), namespace)
	if err != nil {
		a.o.Log.Error("sites cannot be listed", "error", err)
		problem(w, http.StatusServiceUnavailable, "Unavailable", "the operator cannot read its sites; ask again")
		return
	}
	writeJSON(w, http.StatusOK, api.List{APIVersion: api.Version, Items: items})
}

// items are the wishes of a namespace, or all, in order.
func (a *API) items(ctx context.Context, namespace string) ([]api.Item, error) {
	var sites v1alpha1.SiteList
	if err := a.o.Sites.List(ctx, &sites, client.InNamespace(namespace)); err != nil {
		return nil, err
	}
	items := []api.Item{}
	for i := range sites.Items {
		if item, ok := ItemOf(&sites.Items[i]); ok {
			items = append(items, item)
		}
	}
	slices.SortFunc(items, func(x, y api.Item) int {
		return cmp.Or(cmp.Compare(x.Namespace, y.Namespace), cmp.Compare(x.Site, y.Site))
	})
	return items, nil
}

// same compares what is told, times by their value.
func same(x, y api.Item) bool {
	a, errA := json.Marshal(x)
	b, errB := json.Marshal(y)
	return errA == nil && errB == nil && string(a) == string(b)
}

func writeJSON(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body) // who is gone is told nothing
}

func problem(w http.ResponseWriter, status int, reason, message string) {
	writeJSON(w, status, api.Problem{Reason: reason, Message: message})
}

package provisioning

import (
	"encoding/json"
	"io"
	"net/http"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	api "girassol.dev/api/provisioning"
)

// watcher is one reader of a watch. What it has not been told waits here, each
// site as it is last, so that a slow reader costs no more than the list.
type watcher struct {
	namespace string
	wake      chan struct{} // holds one

	mu    sync.Mutex
	order []types.NamespacedName
	news  map[types.NamespacedName]api.Event
}

func (w *watcher) add(key types.NamespacedName, e api.Event) {
	if w.namespace != "" && w.namespace != key.Namespace {
		return
	}
	w.mu.Lock()
	if _, waits := w.news[key]; !waits {
		w.order = append(w.order, key)
	}
	w.news[key] = e
	w.mu.Unlock()
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

func (w *watcher) take() []api.Event {
	w.mu.Lock()
	defer w.mu.Unlock()
	events := make([]api.Event, 0, len(w.order))
	for _, key := range w.order {
		events = append(events, w.news[key])
	}
	w.order, w.news = nil, map[types.NamespacedName]api.Event{}
	return events
}

// join adds a watcher; false: there are too many.
func (a *API) join(namespace string) (*watcher, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.watchers) >= maxWatchers {
		return nil, false
	}
	w := &watcher{namespace: namespace, wake: make(chan struct{}, 1), news: map[types.NamespacedName]api.Event{}}
	a.watchers[w] = true
	return w, true
}

func (a *API) leave(w *watcher) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.watchers, w)
}

func (a *API) watch(w http.ResponseWriter, r *http.Request, namespace string) {
	// It joins before it lists, so that nothing falls between.
	reader, ok := a.join(namespace)
	if !ok {
		w.Header().Set("Retry-After", "30")
		problem(w, http.StatusServiceUnavailable, "TooManyWatchers", "too many watches are open; close some, or list instead")
		return
	}
	defer a.leave(reader)
	items, err := a.items(r.Context(), namespace)
	if err != nil {
		a.o.Log.Error("sites cannot be listed", "error", err)
		problem(w, http.StatusServiceUnavailable, "Unavailable", "the operator cannot read its sites; ask again")
		return
	}
	events := make([]api.Event, 0, len(items)+1)
	for i := range items {
		events = append(events, api.Event{Type: api.Present, Item: &items[i]})
	}
	events = append(events, api.Event{Type: api.Listed})
	w.Header().Set("Content-Type", "application/x-ndjson")
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Accel-Buffering", "no")
	w.WriteHeader(http.StatusOK)
	alive := time.NewTimer(a.alive)
	defer alive.Stop()
	for a.write(w, events) {
		alive.Reset(a.alive)
		select {
		case <-reader.wake:
			events = reader.take()
		case <-alive.C:
			events = []api.Event{{Type: api.Alive}}
		case <-a.closed:
			return
		case <-r.Context().Done():
			return
		}
	}
}

// write lines; false: the reader is gone, or too slow.
func (a *API) write(w http.ResponseWriter, events []api.Event) bool {
	control := http.NewResponseController(w)
	// Without deadlines (a recorder, a middleware) the connection's own must do.
	_ = control.SetWriteDeadline(time.Now().Add(writeTimeout))
	if encode(w, events) != nil {
		return false
	}
	return control.Flush() == nil
}

func encode(w io.Writer, events []api.Event) error {
	e := json.NewEncoder(w)
	for _, event := range events {
		if err := e.Encode(event); err != nil {
			return err
		}
	}
	return nil
}

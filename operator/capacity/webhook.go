package capacity

import (
	"context"
	"log/slog"
	"net/http"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/api/provisioning"
	"girassol.dev/operator/membership"
)

// webhook asks outside provisioners. Questions run by themselves, one at a time
// for each site, so that a slow provisioner holds up nobody.
type webhook struct {
	secrets  client.Reader
	callback string
	client   *http.Client
	now      func() time.Time
	log      *slog.Logger
	changed  chan event.GenericEvent
	// timeout of one question from the first packet to the last byte.
	timeout time.Duration

	mu      sync.Mutex
	sites   map[types.NamespacedName]*errands
	life    context.Context
	end     context.CancelFunc
	running sync.WaitGroup
}

// errands of one site: the present one, and what is on its way.
type errands struct {
	present *errand
	// cancel ends the question in flight, for an errand that may be present no
	// longer; nil if there is none. The next waits for it, so that wishes arrive in
	// their order.
	cancel context.CancelFunc
	// seen last by Look or Ask.
	seen time.Time
}

func newWebhook(o Options) *webhook {
	h := &webhook{
		secrets:  o.Local,
		callback: o.Callback,
		client: &http.Client{
			Transport:     o.Transport,
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
		now:     o.Now,
		log:     o.Log,
		changed: make(chan event.GenericEvent, 1024),
		timeout: answerTimeout,
		sites:   map[types.NamespacedName]*errands{},
	}
	h.life, h.end = context.WithCancel(context.Background())
	return h
}

func (h *webhook) start(ctx context.Context) error {
	<-ctx.Done()
	h.mu.Lock()
	h.end()
	h.mu.Unlock()
	h.running.Wait()
	h.client.CloseIdleConnections()
	return nil
}

func (h *webhook) look(_ context.Context, _ client.Client, s *v1alpha1.Site) (State, error) {
	return h.attend(s, false), nil
}

func (h *webhook) ask(_ context.Context, _ client.Client, s *v1alpha1.Site, provision bool) (State, error) {
	p := s.Status.Provisioning
	if p != nil && (p.Wish == v1alpha1.WishProvision) != provision {
		// The wish and its key are being stored; asked before that, nobody would
		// remember for what after a crash.
		return State{Capacity: membership.Capacity{Managed: true}, Recheck: remembered}, nil
	}
	if p == nil && provision {
		return State{Capacity: membership.Capacity{Managed: true, Idle: true}, Recheck: remembered}, nil
	}
	return h.attend(s, true), nil
}

// attend gives the state of the present wish and, where it is time, polls for its
// outcome or, if it may, tells the wish.
func (h *webhook) attend(s *v1alpha1.Site, tell bool) State {
	key := client.ObjectKeyFromObject(s)
	p := s.Status.Provisioning
	if s.Spec.Capacity.Webhook == nil || p == nil || p.Key == "" {
		// Nothing was ever wished of the provisioner.
		h.forget(key)
		return State{Capacity: membership.Capacity{Managed: true, Asked: true, Idle: true}}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	now := h.now()
	site := h.sites[key]
	if site == nil {
		h.sweep(now)
		site = &errands{}
		h.sites[key] = site
	}
	site.seen = now
	e := site.present
	if e == nil || e.key != p.Key {
		e = newErrand(s)
		site.present = e
		if site.cancel != nil {
			site.cancel()
		}
	}
	e.wish = p.Wish
	if e.generation != s.Generation { // the spec was put right, perhaps
		e.generation, e.failures = s.Generation, 0
		if e.fault != nil && !e.ended() {
			e.next = now
		}
	}
	e.poll = sameHost(s.Spec.Capacity.Webhook.URL, e.poll)
	polls := e.taken && e.poll != ""
	if !e.ended() && site.cancel == nil && !now.Before(e.next) && (polls || tell) && h.life.Err() == nil {
		h.send(key, site, e, s)
	}
	return e.state(now, site.cancel != nil)
}

// send puts a question on its way; the lock is held.
func (h *webhook) send(key types.NamespacedName, site *errands, e *errand, s *v1alpha1.Site) {
	ctx, cancel := context.WithTimeout(h.life, h.timeout)
	site.cancel = cancel
	q := h.question(s, e)
	pause := pollDefault
	if n := s.Spec.Capacity.Webhook.PollSeconds; n > 0 {
		pause = time.Duration(n) * time.Second
	}
	h.running.Go(func() {
		r := q.ask(ctx)
		cancel()
		h.mu.Lock()
		site.cancel = nil
		news := site.present != e
		if !news && !e.ended() { // a callback may have been faster
			before, fault := e.outcome, e.fault
			e.hear(r, pause, h.now())
			news = e.outcome != before || (e.fault == nil) != (fault == nil) || e.fault != nil && *e.fault != *fault
		}
		fault := e.fault
		h.mu.Unlock()
		if news {
			if fault != nil {
				h.log.Warn("provisioner gave no usable answer", "namespace", key.Namespace, "site", key.Name, "reason", fault.Reason, "error", fault.Message)
			}
			h.tell(key)
		}
	})
}

func (h *webhook) report(key types.NamespacedName, r provisioning.Result) {
	h.mu.Lock()
	site := h.sites[key]
	if site == nil {
		site = &errands{seen: h.now()}
		h.sites[key] = site
	}
	if site.present == nil || site.present.key != r.Key {
		site.present = &errand{key: r.Key}
	}
	site.present.conclude(r.State, r.Message)
	h.mu.Unlock()
	h.tell(key)
}

func (h *webhook) forget(key types.NamespacedName) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if site := h.sites[key]; site != nil {
		if site.cancel != nil {
			site.cancel()
		}
		delete(h.sites, key)
	}
}

// sweep forgets sites that nobody has asked about for long; the lock is held.
func (h *webhook) sweep(now time.Time) {
	for key, site := range h.sites {
		if site.cancel == nil && now.Sub(site.seen) > forgotten {
			delete(h.sites, key)
		}
	}
}

func (h *webhook) tell(key types.NamespacedName) {
	s := &v1alpha1.Site{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}}
	select {
	case h.changed <- event.GenericEvent{Object: s}:
	default: // nobody reads; Recheck finds it
	}
}

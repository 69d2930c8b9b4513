package churn

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/operator/testenv"
)

// seen is a site as the apiserver showed it at a time.
type seen struct {
	at   time.Time
	site *v1alpha1.Site
}

func (s seen) phase() v1alpha1.SitePhase { return s.site.Status.Phase }

// condition is "Status/Reason".
func (s seen) condition(kind string) string {
	c := meta.FindStatusCondition(s.site.Status.Conditions, kind)
	if c == nil {
		return ""
	}
	return string(c.Status) + "/" + c.Reason
}

// recorder keeps every change of the sites of a namespace.
type recorder struct {
	mu      sync.Mutex
	changes map[string][]seen // by site
	paused  bool
}

func watch(t *testing.T, e *testenv.Environment, ns string) *recorder {
	t.Helper()
	c, err := client.NewWithWatch(e.Config, client.Options{Scheme: testenv.Scheme()})
	if err != nil {
		t.Fatal(err)
	}
	r := &recorder{changes: map[string][]seen{}}
	ctx, cancel := context.WithCancel(context.Background())
	var group sync.WaitGroup
	group.Go(func() {
		for ctx.Err() == nil {
			r.follow(ctx, c, ns)
		}
	})
	t.Cleanup(func() { cancel(); group.Wait() })
	return r
}

// follow watches until the watch ends, which the apiserver does now and then.
func (r *recorder) follow(ctx context.Context, c client.WithWatch, ns string) {
	w, err := c.Watch(ctx, &v1alpha1.SiteList{}, client.InNamespace(ns))
	if err != nil {
		select {
		case <-ctx.Done():
		case <-time.After(100 * time.Millisecond):
		}
		return
	}
	defer w.Stop()
	for event := range w.ResultChan() {
		s, ok := event.Object.(*v1alpha1.Site)
		if !ok || event.Type == apiwatch.Deleted {
			continue
		}
		r.mu.Lock()
		last := r.changes[s.Name]
		if r.paused {
			// Nothing is kept any more.
		} else if len(last) == 0 || last[len(last)-1].site.ResourceVersion != s.ResourceVersion {
			r.changes[s.Name] = append(last, seen{time.Now(), s.DeepCopy()})
		}
		r.mu.Unlock()
	}
}

// pause keeps what was seen so far, and nothing of what comes.
func (r *recorder) pause() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.paused = true
}

// of a site, in order.
func (r *recorder) of(site string) []seen {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]seen(nil), r.changes[site]...)
}

// had says whether a site was ever seen so.
func (r *recorder) had(site string, ok func(seen) bool) bool {
	for _, s := range r.of(site) {
		if ok(s) {
			return true
		}
	}
	return false
}

// span of a phase.
type span struct {
	phase    v1alpha1.SitePhase
	from, to time.Time // to is zero for the last
	first    seen
	last     seen
}

func (r *recorder) spans(site string) []span {
	var out []span
	for _, s := range r.of(site) {
		if n := len(out); n == 0 || out[n-1].phase != s.phase() {
			if n > 0 {
				out[n-1].to = s.at
			}
			out = append(out, span{phase: s.phase(), from: s.at, first: s})
		}
		out[len(out)-1].last = s
	}
	return out
}

// String is every phase of every site with its reason, in order.
func (r *recorder) String() string {
	var b strings.Builder
	for _, site := range []string{quebec, atlanta} {
		for _, s := range r.spans(site) {
			fmt.Fprintf(&b, "%s %-8s %-12s %s: %s\n", s.from.Format("15:04:05.000"), site, s.phase, s.last.site.Status.Reason, s.last.site.Status.Message)
		}
	}
	return b.String()
}

package app

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/operator/testenv"
)

// trail is what was changed in the statuses of a namespace's Federations since it
// began: it says what a write that should not have been was about.
type trail struct {
	mu      sync.Mutex
	last    map[string]map[string]string // by Federation and place in its status
	changes []string
}

func follow(t *testing.T, namespace string) *trail {
	t.Helper()
	e := testenv.Shared(t)
	c, err := client.NewWithWatch(e.Config, client.Options{Scheme: testenv.Scheme()})
	if err != nil {
		t.Fatal(err)
	}
	var now v1alpha1.FederationList
	if err := c.List(context.Background(), &now, client.InNamespace(namespace)); err != nil {
		t.Fatal(err)
	}
	tr := &trail{last: map[string]map[string]string{}}
	for i := range now.Items {
		tr.note(&now.Items[i])
	}
	tr.changes = nil
	w, err := c.Watch(context.Background(), &v1alpha1.FederationList{}, client.InNamespace(namespace), &client.ListOptions{Raw: &metav1.ListOptions{ResourceVersion: now.ResourceVersion}})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for news := range w.ResultChan() {
			if f, ok := news.Object.(*v1alpha1.Federation); ok && news.Type == watch.Modified {
				tr.note(f)
			}
		}
	}()
	t.Cleanup(func() { w.Stop(); <-done })
	return tr
}

func (tr *trail) note(f *v1alpha1.Federation) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	old, now := tr.last[f.Name], places(f.Status)
	tr.last[f.Name] = now
	for _, place := range slices.Sorted(maps.Keys(now)) {
		if old[place] != now[place] {
			tr.changes = append(tr.changes, fmt.Sprintf("%s at version %s: %s was %s, is %s", f.Name, f.ResourceVersion, place, old[place], now[place]))
		}
	}
	for _, place := range slices.Sorted(maps.Keys(old)) {
		if _, ok := now[place]; !ok {
			tr.changes = append(tr.changes, fmt.Sprintf("%s at version %s: %s was %s and is gone", f.Name, f.ResourceVersion, place, old[place]))
		}
	}
}

func (tr *trail) since() []string {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	return slices.Clone(tr.changes)
}

// places are the fields of a status, with its conditions and sites one by one.
func places(s v1alpha1.FederationStatus) map[string]string {
	out := map[string]string{}
	for _, c := range s.Conditions {
		out["condition "+c.Type] = text(c)
	}
	for _, site := range s.Sites {
		out["site "+site.Name] = text(site)
	}
	s.Conditions, s.Sites = nil, nil
	var rest map[string]any
	_ = json.Unmarshal([]byte(text(s)), &rest)
	for field, v := range rest {
		out[field] = text(v)
	}
	return out
}

func text(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		return err.Error()
	}
	return string(b)
}

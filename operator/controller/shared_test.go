package controller

import (
	"context"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/operator/membership"
)

func TestTheOldestFederationThatRunsHasASite(t *testing.T) {
	at := func(name string, age int, change func(*v1alpha1.Federation)) v1alpha1.Federation {
		f := v1alpha1.Federation{ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.NewTime(time.Unix(int64(1000-age), 0))}}
		f.Spec.Sites = []v1alpha1.SiteReference{{Name: "lisboa"}}
		if change != nil {
			change(&f)
		}
		return f
	}
	deleted := func(f *v1alpha1.Federation) { f.DeletionTimestamp = new(metav1.Now()) }
	complete := func(f *v1alpha1.Federation) { f.Status.Phase = v1alpha1.FederationCompleted }
	suspended := func(f *v1alpha1.Federation) { f.Spec.State = v1alpha1.StateSuspended }
	elsewhere := func(f *v1alpha1.Federation) { f.Spec.Sites[0].Name = "porto" }
	for name, c := range map[string]struct {
		all  []v1alpha1.Federation
		want string
	}{
		"none":                      {nil, ""},
		"oldest":                    {[]v1alpha1.Federation{at("young", 1, nil), at("old", 2, nil)}, "old"},
		"same age, by name":         {[]v1alpha1.Federation{at("b", 1, nil), at("a", 1, nil)}, "a"},
		"deleting ones are out":     {[]v1alpha1.Federation{at("young", 1, nil), at("old", 2, deleted)}, "young"},
		"ended ones give way":       {[]v1alpha1.Federation{at("young", 1, nil), at("old", 2, complete)}, "young"},
		"and keep it otherwise":     {[]v1alpha1.Federation{at("old", 2, complete)}, "old"},
		"suspended ones keep it":    {[]v1alpha1.Federation{at("young", 1, nil), at("old", 2, suspended)}, "old"},
		"those that do not name it": {[]v1alpha1.Federation{at("young", 1, nil), at("old", 2, elsewhere)}, "young"},
	} {
		got := ""
		if f := Holder("lisboa", c.all); f != nil {
			got = f.Name
		}
		if got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

func TestAFanWakesEveryControllerOnceForEachObject(t *testing.T) {
	var f Fan
	f.Tell(types.NamespacedName{Name: "before"}) // nobody listens yet
	var queues []workqueue.TypedRateLimitingInterface[reconcile.Request]
	for range 2 {
		q := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]())
		defer q.ShutDown()
		queues = append(queues, q)
		if err := f.Source(Itself).Start(t.Context(), q); err != nil {
			t.Fatal(err)
		}
	}
	changes := make(chan event.GenericEvent)
	done := make(chan struct{})
	go func() { defer close(done); _ = f.Follow(context.Background(), changes) }()
	for range 3 {
		for _, name := range []string{"lisboa", "porto"} {
			changes <- event.GenericEvent{Object: &v1alpha1.Site{ObjectMeta: metav1.ObjectMeta{Namespace: "field", Name: name}}}
		}
	}
	close(changes)
	<-done
	for i, q := range queues {
		if q.Len() != 2 {
			t.Errorf("controller %d has %d requests, want 2", i, q.Len())
		}
	}
}

func TestASelectionTellsTheSitesWhoseAnswerChanged(t *testing.T) {
	var s Selection
	q := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]())
	defer q.ShutDown()
	if err := s.Changed.Source(Itself).Start(t.Context(), q); err != nil {
		t.Fatal(err)
	}
	told := func() (names []string) {
		for q.Len() > 0 {
			r, _ := q.Get()
			q.Done(r)
			names = append(names, r.Name)
		}
		slices.Sort(names)
		return names
	}
	key := types.NamespacedName{Namespace: "field", Name: "gpt"}
	full := membership.Fault{Reason: v1alpha1.ReasonHigherPriority, Message: "full"}
	for _, step := range []struct {
		selected map[string]bool
		why      map[string]membership.Fault
		told     []string
	}{
		{map[string]bool{"lisboa": true}, map[string]membership.Fault{"porto": full}, []string{"lisboa", "porto"}},
		{map[string]bool{"lisboa": true}, map[string]membership.Fault{"porto": full}, nil},
		{map[string]bool{"porto": true}, map[string]membership.Fault{"lisboa": full}, []string{"lisboa", "porto"}},
		{map[string]bool{"porto": true}, map[string]membership.Fault{}, []string{"lisboa"}},
		{map[string]bool{"porto": true, "braga": true}, nil, []string{"braga"}},
	} {
		s.Set(key, step.selected, step.why)
		if got := told(); !slices.Equal(got, step.told) {
			t.Errorf("told %v, want %v", got, step.told)
		}
	}
	s.Forget(key)
	if _, _, known := s.Of(key, "porto"); known {
		t.Error("a forgotten federation has an answer")
	}
}

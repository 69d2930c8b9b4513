package apply

import (
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
)

func newSite(t *testing.T, b *bench) *v1alpha1.Site {
	t.Helper()
	s := &v1alpha1.Site{ObjectMeta: metav1.ObjectMeta{Namespace: b.ns, Name: "quebec"}}
	if err := b.Client.Create(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	return s
}

// status checks that a new status is written, or not, in so many requests.
func (b *bench) status(t *testing.T, obj, old client.Object, requests int64) {
	t.Helper()
	before := b.writes.Load()
	changed, err := b.Status(t.Context(), obj, old)
	if err != nil {
		t.Fatal(err)
	}
	if sent := b.writes.Load() - before; changed != (requests > 0) || sent != requests {
		t.Errorf("changed %v in %d writes, want %d", changed, sent, requests)
	}
}

func TestStatusIsWrittenOnlyWhenItMeansSomethingElse(t *testing.T) {
	b := newBench(t)
	old := newSite(t, b)
	next := old.DeepCopy()
	now := time.Date(2026, 3, 2, 1, 2, 3, 456e6, time.FixedZone("", 3600))
	since := metav1.NewTime(now)
	next.Status.Phase, next.Status.PhaseSince, next.Status.Nodes = v1alpha1.SiteJoining, &since, 2
	next.Status.DrainDeadline = &since
	meta.SetStatusCondition(&next.Status.Conditions, metav1.Condition{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue, Reason: "Ready", LastTransitionTime: since})
	b.status(t, next, old, 1)

	seen := &v1alpha1.Site{}
	b.get(t, "quebec", seen)
	if next.ResourceVersion != seen.ResourceVersion {
		t.Errorf("the write made version %s, told was %s", seen.ResourceVersion, next.ResourceVersion)
	}
	if seen.Status.Phase != v1alpha1.SiteJoining || seen.Status.Nodes != 2 || len(seen.Status.Conditions) != 1 || seen.Generation != old.Generation {
		t.Fatalf("kept is %+v", seen.Status)
	}
	b.status(t, next, seen, 0) // fractions of a second and the zone are not kept

	// What it no longer has goes.
	last := seen.DeepCopy()
	last.Status.DrainDeadline, last.Status.Conditions = nil, nil
	b.status(t, last, seen, 1)
	b.get(t, "quebec", seen)
	if seen.Status.DrainDeadline != nil || len(seen.Status.Conditions) != 0 {
		t.Errorf("kept is %+v", seen.Status)
	}
	b.status(t, last, seen, 0)
}

func TestStatusOfAnotherWriterIsTakenOver(t *testing.T) {
	b := newBench(t)
	old := newSite(t, b)
	next := old.DeepCopy()
	next.Status.Phase = v1alpha1.SiteIdle
	b.status(t, next, old, 1)
	seen := &v1alpha1.Site{}
	b.get(t, "quebec", seen)
	seen.Status.Federation, seen.Status.Phase = "someone's", v1alpha1.SiteActive
	if err := b.Client.Status().Update(t.Context(), seen, client.FieldOwner("kubectl-edit")); err != nil {
		t.Fatal(err)
	}
	b.get(t, "quebec", seen)
	b.status(t, next, seen, 2) // an apply leaves their field: the update removes it
	b.get(t, "quebec", seen)
	if next.ResourceVersion != seen.ResourceVersion {
		t.Errorf("the writes made version %s, told was %s", seen.ResourceVersion, next.ResourceVersion)
	}
	if seen.Status.Federation != "" || seen.Status.Phase != v1alpha1.SiteIdle {
		t.Errorf("kept is %+v", seen.Status)
	}
	b.status(t, next, seen, 0)
}

func TestStatusOfAFederationIsWrittenToo(t *testing.T) {
	b := newBench(t)
	old := &v1alpha1.Federation{ObjectMeta: metav1.ObjectMeta{Namespace: b.ns, Name: "f"}, Spec: v1alpha1.FederationSpec{Sites: []v1alpha1.SiteReference{{Name: "quebec"}}}}
	if err := b.Client.Create(t.Context(), old); err != nil {
		t.Fatal(err)
	}
	next := old.DeepCopy()
	next.Status.SiteSummary, next.Status.Sites = "1/2", []v1alpha1.FederationSite{{Name: "quebec", Phase: v1alpha1.SiteActive}}
	b.status(t, next, old, 1)
	seen := &v1alpha1.Federation{}
	b.get(t, "f", seen)
	b.status(t, next, seen, 0)
}

package controller

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
)

func TestASiteBelongsToTheOldestFederationThatRuns(t *testing.T) {
	day := time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)
	fed := func(name string, age int, edit func(*v1alpha1.Federation)) v1alpha1.Federation {
		f := v1alpha1.Federation{
			ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.NewTime(day.AddDate(0, 0, -age))},
			Spec:       v1alpha1.FederationSpec{Sites: []v1alpha1.SiteReference{{Name: "quebec"}}},
		}
		if edit != nil {
			edit(&f)
		}
		return f
	}
	ended := func(f *v1alpha1.Federation) { f.Status.Phase = v1alpha1.FederationCompleted }
	failed := func(f *v1alpha1.Federation) { f.Status.Phase = v1alpha1.FederationFailed }
	deleting := func(f *v1alpha1.Federation) { f.DeletionTimestamp = &metav1.Time{Time: day} }
	others := func(f *v1alpha1.Federation) { f.Spec.Sites[0].Name = "atlanta" }
	feds := func(f ...v1alpha1.Federation) []v1alpha1.Federation { return f }
	for name, tc := range map[string]struct {
		federations []v1alpha1.Federation
		status      v1alpha1.SiteStatus
		has         string
		evicted     v1alpha1.Reason
	}{
		"nobody names it":      {federations: feds(fed("a", 1, others))},
		"the older":            {federations: feds(fed("a", 1, nil), fed("b", 2, nil)), has: "b"},
		"same age, by name":    {federations: feds(fed("b", 1, nil), fed("a", 1, nil)), has: "a"},
		"the older has ended":  {federations: feds(fed("a", 1, nil), fed("b", 2, ended)), has: "a"},
		"the older has failed": {federations: feds(fed("a", 1, nil), fed("b", 2, failed)), has: "a"},
		"the older is going":   {federations: feds(fed("a", 1, nil), fed("b", 2, deleting)), has: "a"},
		"only one that has ended": {
			federations: feds(fed("a", 1, ended)), status: v1alpha1.SiteStatus{Federation: "a", Phase: v1alpha1.SiteActive}, has: "a"},
		"ended, and another waits, but the site works": {
			federations: feds(fed("a", 2, ended), fed("b", 1, nil)), status: v1alpha1.SiteStatus{Federation: "a", Phase: v1alpha1.SiteActive},
			has: "a", evicted: v1alpha1.ReasonCompleted},
		"ended, another waits and the site rests": {
			federations: feds(fed("a", 2, ended), fed("b", 1, nil)), status: v1alpha1.SiteStatus{Federation: "a", Phase: v1alpha1.SiteIdle}, has: "b"},
		"resting, but nodes still carry the label": {
			federations: feds(fed("a", 2, ended), fed("b", 1, nil)), status: v1alpha1.SiteStatus{Federation: "a", Phase: v1alpha1.SiteIdle, EnrolledNodes: 1},
			has: "a", evicted: v1alpha1.ReasonCompleted},
		"going while the site works": {
			federations: feds(fed("a", 2, deleting), fed("b", 1, nil)), status: v1alpha1.SiteStatus{Federation: "a", Phase: v1alpha1.SiteDraining},
			has: "a", evicted: v1alpha1.ReasonDeleting},
		"gone while the site works": {
			federations: feds(fed("b", 1, nil)), status: v1alpha1.SiteStatus{Federation: "a", Phase: v1alpha1.SiteActive},
			has: "a", evicted: v1alpha1.ReasonDeleting},
		"gone, and the site rests": {
			status: v1alpha1.SiteStatus{Federation: "a", Phase: v1alpha1.SiteIdle}},
		"no longer named": {
			federations: feds(fed("a", 1, others)), status: v1alpha1.SiteStatus{Federation: "a", Phase: v1alpha1.SiteActive},
			has: "a", evicted: v1alpha1.ReasonNotReferenced},
		"an older one came to name it": {
			federations: feds(fed("a", 1, nil), fed("b", 2, nil)), status: v1alpha1.SiteStatus{Federation: "a", Phase: v1alpha1.SiteProvisioning},
			has: "a", evicted: v1alpha1.ReasonSiteInUse},
	} {
		t.Run(name, func(t *testing.T) {
			s := &v1alpha1.Site{ObjectMeta: metav1.ObjectMeta{Name: "quebec"}, Status: tc.status}
			got := tenureOf(s, tc.federations)
			var evicted v1alpha1.Reason
			if got.eviction != nil {
				evicted = got.eviction.Reason
			}
			if got.name != tc.has || evicted != tc.evicted {
				t.Errorf("%q has the site, to give it up for %q; want %q and %q", got.name, evicted, tc.has, tc.evicted)
			}
			if got.federation != nil && got.federation.Name != got.name {
				t.Errorf("the federation is %s, its name %s", got.federation.Name, got.name)
			}
		})
	}
}

package controller

import (
	"context"
	"testing"
	"time"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
)

func TestAThousandReconcilesOfAnUnchangedFederationMakeNoWrite(t *testing.T) {
	b := newBench(t)
	b.cached()
	for _, name := range []string{"lisboa", "porto"} {
		b.site(name)
		b.energy.want(name, openWindow)
	}
	b.coordinator.say(v1alpha1.FederationTraining, 7)
	b.federation("gpt", func(s *v1alpha1.FederationSpec) {
		s.Events.Redis = &v1alpha1.RedisSpec{Mode: v1alpha1.RedisTrial}
	}, "lisboa", "porto", "nowhere")
	b.siteIs("lisboa", "gpt", v1alpha1.SiteActive, v1alpha1.ReasonTraining)
	// The cache follows what the first looks write.
	for last := ""; ; {
		f, _ := b.reconcile("gpt")
		seen := &v1alpha1.Federation{}
		if err := b.r.Client.Get(context.Background(), keyOf(f), seen); err != nil {
			t.Fatal(err)
		}
		if seen.ResourceVersion == f.ResourceVersion && last == f.ResourceVersion {
			break
		}
		last = f.ResourceVersion
	}
	before := b.env.Requests(t)
	for i := range 1000 {
		if i == 500 {
			b.restart() // not even a new operator writes
		}
		b.now = b.now.Add(time.Second) // time passes, but no certificate becomes due
		b.reconcile("gpt")
	}
	if made := b.env.Requests(t).Since(before); made.Writes() != 0 {
		t.Errorf("the API server served %v", made)
	}
}

package controller

import (
	"bufio"
	"context"
	"fmt"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
)

var (
	requestTotal = regexp.MustCompile(`^apiserver_request_total\{(.*)\} ([0-9.e+]+)$`)
	metricLabel  = regexp.MustCompile(`(\w+)="([^"]*)"`)
)

// writesServed are the writes that the API server has counted since it started, by
// verb, resource and subresource. The control plane's own (leases, its system
// objects) have kinds of their own.
func writesServed(t *testing.T, config *rest.Config) map[string]float64 {
	t.Helper()
	c, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	response, err := c.Get(strings.TrimSuffix(config.Host, "/") + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		t.Fatal(response.Status)
	}
	out := map[string]float64{}
	for lines := bufio.NewScanner(response.Body); lines.Scan(); {
		m := requestTotal.FindStringSubmatch(lines.Text())
		if m == nil {
			continue
		}
		labels := map[string]string{}
		for _, l := range metricLabel.FindAllStringSubmatch(m[1], -1) {
			labels[l[1]] = l[2]
		}
		switch labels["verb"] {
		case "POST", "PUT", "PATCH", "APPLY", "DELETE", "DELETECOLLECTION":
		default:
			continue
		}
		switch labels["resource"] {
		case "federations", "sites", "statefulsets", "daemonsets", "deployments", "services", "configmaps", "serviceaccounts", "secrets",
			"persistentvolumeclaims", "poddisruptionbudgets", "networkpolicies", "nodes", "events":
		default:
			continue
		}
		n, err := strconv.ParseFloat(m[2], 64)
		if err != nil {
			t.Fatal(err)
		}
		out[fmt.Sprint(labels["verb"], " ", labels["resource"], "/", labels["subresource"])] += n
	}
	return out
}

// noWrites runs f and fails for each write that the API server served meanwhile.
func noWrites(t *testing.T, config *rest.Config, f func()) {
	t.Helper()
	before := writesServed(t, config)
	if len(before) == 0 {
		t.Fatal("the API server counts nothing")
	}
	f()
	after := writesServed(t, config)
	for _, what := range slices.Sorted(maps.Keys(after)) {
		if after[what] != before[what] {
			t.Errorf("%s: %v writes", what, after[what]-before[what])
		}
	}
}

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
	noWrites(t, b.env.Config, func() {
		for i := range 1000 {
			if i == 500 {
				b.restart() // not even a new operator writes
			}
			b.now = b.now.Add(time.Second) // time passes, but no certificate becomes due
			b.reconcile("gpt")
		}
	})
}

package app

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/internal/redislink"
)

const goodConfig = `# the whole thing
apiVersion: girassol.dev/v1alpha1
kind: Federation
metadata: {name: lm}
spec:
  sites: [{name: quebec}, {name: atlanta}]
  algorithm: {strategy: DiLoCo, outerLearningRate: 0.5}
  rounds: {total: 20, minSites: 2, trainSeconds: 30}
  energy: {enterBelowGrams: 100, leaveAboveGrams: 150}
---
apiVersion: girassol.dev/v1alpha1
kind: Site
metadata: {name: quebec}
spec:
  grid: {provider: Replay, region: ca-qc, tracePath: t.csv}
  power: {trainingWatts: 2024, idleWatts: 468, pue: "1.1"}
--- # another
apiVersion: girassol.dev/v1alpha1
kind: Site
metadata: {name: atlanta}
spec: {grid: {provider: Replay, region: us-se, tracePath: t.csv}}
`

func TestConfigurationIsReadWithDefaults(t *testing.T) {
	d, err := parse([]byte(goodConfig), false)
	if err != nil {
		t.Fatal(err)
	}
	s := d.federation.Spec
	if s.Rounds.CollectSeconds != 120 || s.Rounds.JoinSeconds != 300 || s.Drain.GraceSeconds != 60 ||
		s.Energy.Policy != v1alpha1.EnergyRequired || s.Model.Source != v1alpha1.ModelFromSite {
		t.Errorf("defaults: %+v", s)
	}
	c := d.roundConfig()
	if c.Train != 30*time.Second || c.MinSites != 2 || c.Total != 20 || len(c.Sites) != 2 || c.Sites[0] != "quebec" {
		t.Errorf("round: %+v", c)
	}
	if d.federation.Spec.Evaluation.Gate = new(v1alpha1.GateSpec); c.EvaluateVoid || !d.roundConfig().EvaluateVoid {
		t.Error("a gate wants a void round's model evaluated, and nobody else")
	}
}

func TestBadConfigurationNamesTheFieldAndTheWayOut(t *testing.T) {
	for name, tc := range map[string]struct{ old, new, want string }{
		"misspelt field":           {"minSites: 2", "minSite: 2", `minSite`},
		"wrong type":               {"trainSeconds: 30", "trainSeconds: soon", `trainSeconds`},
		"site without document":    {"{name: atlanta}]", "{name: boston}]", `spec.sites[1].name: there is no document of kind Site named "boston"`},
		"site twice":               {"{name: atlanta}]", "{name: quebec}]", `spec.sites[1].name: "quebec" stands there twice`},
		"maxSites below minimum":   {"  rounds:", "  maxSites: 1\n  rounds:", `spec.maxSites: 1 is below rounds.minSites 2`},
		"credentials in a Secret":  {"grid: {provider: Replay, region: us-se, tracePath: t.csv}", "grid: {provider: ElectricityMaps, region: DE, credentials: {secret: {name: s}}}", `spec.grid.credentials.secret: Secrets are for Kubernetes; give files`},
		"sender's key in a Secret": {"leaveAboveGrams: 150}", "leaveAboveGrams: 150, webhook: {sources: [{name: dso, secret: {name: s}, sites: [quebec]}]}}", `sources[0].secret: Secrets are for Kubernetes; give secretFiles`},
		"too many minimum sites":   {"minSites: 2", "minSites: 3", `spec.rounds.minSites: 3 is more than the 2 sites`},
		"negative":                 {"total: 20", "total: -1", `spec.rounds.total: -1 must not be negative`},
		"unknown strategy":         {"strategy: DiLoCo", "strategy: Magic", `strategy`},
		"momentum of one":          {"outerLearningRate: 0.5", "outerMomentum: 1.5", `outerMomentum`},
		"leave below enter":        {"leaveAboveGrams: 150", "leaveAboveGrams: 50", `leaveAboveGrams`},
		"both kinds of threshold":  {"leaveAboveGrams: 150", "leaveAboveGrams: 150, enterBelowPercentile: 20", `Percentile`},
		"no signal":                {"grid: {provider: Replay, region: us-se, tracePath: t.csv}", "prioritise: 1", `prioritise`},
		"required without signal":  {"spec: {grid: {provider: Replay, region: us-se, tracePath: t.csv}}", "spec: {}", `site atlanta: spec.grid.provider: energy policy Required needs a signal`},
		"other provider":           {"provider: Replay, region: us-se", "provider: Oracle, region: us-se", `spec.grid.provider: is "Oracle"`},
		"PUE below one":            {`pue: "1.1"`, `pue: "0.9"`, `pue`},
		"foreign kind":             {"kind: Site\nmetadata: {name: quebec}", "kind: Pod\nmetadata: {name: quebec}", `kind: is "Pod", want Federation or Site`},
		"foreign version":          {"apiVersion: girassol.dev/v1alpha1\nkind: Federation", "apiVersion: v1\nkind: Federation", `apiVersion: is "v1", want "girassol.dev/v1alpha1"`},
		"upper-case name":          {"metadata: {name: lm}", "metadata: {name: LM}", `metadata.name: "LM"`},
	} {
		t.Run(name, func(t *testing.T) {
			text := strings.Replace(goodConfig, tc.old, tc.new, 1)
			if text == goodConfig {
				t.Fatal("the case changes nothing")
			}
			_, err := parse([]byte(text), false)
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want it to say %q", err, tc.want)
			}
		})
	}
}

func TestAFileForKubernetesIsTakenAndWhatCountsForNothingIsNamed(t *testing.T) {
	text := strings.Replace(goodConfig, "spec:\n  sites:", "spec:\n  link: {caSecret: {name: ca}, address: c.example.com:7465}\n  coordinator: {image: i}\n  agent: {image: i}\n  sites:", 1)
	text = strings.Replace(text, "spec: {grid:", "spec: {override: {action: Drain, until: 2026-01-01T00:00:00Z}, nodes: {selector: {}}, capacity: {mode: NodeLabel}, cluster: {kubeconfigSecret: {name: k, key: k}}, grid:", 1)
	d, err := parse([]byte(text), false)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"spec.link.caSecret", "spec.link.address", "spec.coordinator", "spec.agent", "site atlanta: spec.nodes", "site atlanta: spec.capacity", "site atlanta: spec.cluster", "site atlanta: spec.override"}
	if got := d.elsewhere(); !slices.Equal(got, want) {
		t.Errorf("unused fields %q, want %q", got, want)
	}
}

func TestRedisOfKubernetesIsRefusedWithoutAnAddress(t *testing.T) {
	for spec, refused := range map[string]bool{"{mode: Trial}": true, "{urlSecret: {name: s, key: url}}": true, "{url: 'redis://127.0.0.1:1/0'}": false} {
		d, err := parse([]byte(strings.Replace(goodConfig, "spec:\n  sites:", "spec:\n  events: {redis: "+spec+"}\n  sites:", 1)), false)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := redisOptions(d, Options{}); (err != nil) != refused {
			t.Errorf("%s: %v", spec, err)
		}
		// A Secret made from a file ends with the file's last line break.
		if to, err := redisOptions(d, Options{Redis: redislink.Options{URL: "redis://other\n"}}); err != nil || to.URL != "redis://other" {
			t.Errorf("%s with --redis: %+v, %v", spec, to, err)
		}
	}
}

func TestFlagsAndEnvironmentNameARedisToo(t *testing.T) {
	for name, c := range map[string]struct {
		spec, env string
		flags     redislink.Options
		want      *redislink.Options // nil: refused
	}{
		"the environment": {env: "redis://e\n", want: &redislink.Options{URL: "redis://e"}},
		"its address wins over the spec's": {spec: "{addresses: ['s:1'], masterName: m, username: u}", env: "redis://e",
			want: &redislink.Options{URL: "redis://e", Username: "u"}},
		"a flag wins over both": {spec: "{url: 'redis://s', passwordFile: p}", env: "redis://e", flags: redislink.Options{Addresses: []string{"f:1"}},
			want: &redislink.Options{Addresses: []string{"f:1"}, PasswordFile: "p"}},
		"a flag of TLS adds to the spec": {spec: "{url: 'redis://s'}", flags: redislink.Options{CAFile: "ca"},
			want: &redislink.Options{URL: "redis://s", TLS: true, CAFile: "ca"}},
		"how without where": {flags: redislink.Options{Username: "u"}},
	} {
		t.Setenv(redislink.URLVariable, c.env)
		text := goodConfig
		if c.spec != "" {
			text = strings.Replace(text, "spec:\n  sites:", "spec:\n  events: {redis: "+c.spec+"}\n  sites:", 1)
		}
		d, err := parse([]byte(text), false)
		if err != nil {
			t.Fatal(name, err)
		}
		got, err := redisOptions(d, Options{Redis: c.flags, Log: slog.New(slog.DiscardHandler)})
		if (err != nil) != (c.want == nil) || c.want != nil && !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
}

func TestAPasswordAmongTheArgumentsIsWarnedOfOnceAndNotRepeated(t *testing.T) {
	d, err := parse([]byte(goodConfig), false)
	if err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	if _, err := redisOptions(d, Options{Redis: redislink.Options{URL: "redis://u:planted@h"}, Log: slog.New(slog.NewTextHandler(&log, nil))}); err != nil {
		t.Fatal(err)
	}
	if s := log.String(); strings.Count(s, "--redis-password-file") != 1 || strings.Contains(s, "planted") {
		t.Error(s)
	}
}

func TestExternalSignalsNeedNoEnergyHere(t *testing.T) {
	text := strings.ReplaceAll(goodConfig, "  energy: {enterBelowGrams: 100, leaveAboveGrams: 150}\n", "")
	text = strings.ReplaceAll(text, "  grid: {provider: Replay, region: ca-qc, tracePath: t.csv}\n", "")
	text = strings.ReplaceAll(text, "spec: {grid: {provider: Replay, region: us-se, tracePath: t.csv}}", "spec: {grid: {provider: WattTime, region: X, credentials: {secret: {name: s}}}}")
	if _, err := parse([]byte(text), true); err != nil {
		t.Error(err)
	}
	if _, err := parse([]byte(text), false); err == nil {
		t.Error("taken without the operator")
	}
}

func TestNoOrTwoFederationsAreRefused(t *testing.T) {
	for _, text := range []string{"", "---\n---\n", goodConfig + "---\n" + goodConfig} {
		if _, err := parse([]byte(text), false); err == nil {
			t.Errorf("accepted %.40q", text)
		}
	}
}

func TestMissingFileIsNamed(t *testing.T) {
	_, err := readFiles([]string{filepath.Join(t.TempDir(), "none.yaml")}, false)
	if err == nil || !strings.Contains(err.Error(), "none.yaml") || !os.IsNotExist(unwrapAll(err)) {
		t.Error(err)
	}
}

func unwrapAll(err error) error {
	for {
		u, ok := err.(interface{ Unwrap() error })
		if !ok {
			return err
		}
		err = u.Unwrap()
	}
}

// Whatever bytes come in, parse either refuses them or gives a configuration
// that the other parts accept.
func FuzzParseConfiguration(f *testing.F) {
	f.Add([]byte(goodConfig))
	f.Add([]byte("---\n"))
	f.Add([]byte("apiVersion: girassol.dev/v1alpha1\nkind: Site\nmetadata: {name: a}\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		d, err := parse(b, false)
		if err != nil {
			return
		}
		if c := d.roundConfig(); c.MinSites < 1 || c.MinSites > len(c.Sites) || c.Train <= 0 || c.Collect <= 0 {
			t.Errorf("accepted %+v", c)
		}
		if _, err := d.engineConfig(Options{}); err != nil {
			t.Errorf("accepted and then refused: %v", err)
		}
	})
}

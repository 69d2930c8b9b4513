package app

import (
	"strings"
	"testing"

	"girassol.dev/internal/algorithm"
)

const fourSites = `apiVersion: girassol.dev/v1alpha1
kind: Federation
metadata: {name: lm}
spec:
  sites: [{name: a}, {name: b}, {name: c}, {name: d}]
  algorithm: ALGORITHM
`

func withAlgorithm(t *testing.T, text string) (algorithm.Plan, error) {
	t.Helper()
	all := strings.Replace(fourSites, "ALGORITHM", text, 1)
	for _, s := range []string{"a", "b", "c", "d"} {
		all += "---\napiVersion: girassol.dev/v1alpha1\nkind: Site\nmetadata: {name: " + s + "}\n"
	}
	d, err := parse([]byte(all), true)
	if err != nil {
		return algorithm.Plan{}, err
	}
	cfg, err := d.engineConfig(Options{})
	return cfg.Algorithm, err
}

func TestAnAlgorithmArrivesWhole(t *testing.T) {
	p, err := withAlgorithm(t, "{uplink: {keepOneIn: 32, values: OneBit, groupSize: 512, transform: Identity}, schedule: [{fromVersion: 10, uplinkKeepOneIn: 4}]}")
	if err != nil {
		t.Fatal(err)
	}
	want := algorithm.Encoding{Transform: algorithm.Identity, KeepOneIn: 32, Values: algorithm.OneBit, GroupSize: 512}
	if p.Uplink != want || !p.Adaptive || p.ForVersion(10).Uplink.KeepOneIn != 4 {
		t.Errorf("%+v", p)
	}
	p, err = withAlgorithm(t, "{strategy: DiLoCo, robust: {trimFraction: 0.25, clipFactor: 3}}")
	if err != nil || p.Robust != (algorithm.Robust{TrimFraction: 0.25, ClipFactor: 3}) {
		t.Errorf("%+v (%v)", p, err)
	}
}

// A file whose algorithm cannot work is refused before anything starts, with the
// field.
func TestAnAlgorithmThatCannotWorkIsRefusedWithItsField(t *testing.T) {
	for text, field := range map[string]string{
		"{strategy: DiLoCo, robust: {trimFraction: 0.5}}":                          "spec.algorithm.robust.trimFraction: 0.5",
		"{robust: {clipFactor: 3}}":                                                "spec.algorithm.robust: ",
		"{strategy: FedAvg, schedule: [{fromVersion: 1}]}":                         "spec.algorithm.schedule[0]: ",
		"{schedule: [{fromVersion: 5}, {fromVersion: 4}]}":                         "spec.algorithm.schedule[1].fromVersion: ",
		"{uplink: {groupSize: 300}}":                                               "spec.algorithm.uplink.groupSize: ",
		"{uplink: {transform: DCT}, downlink: {transform: Identity}}":              "spec.algorithm.downlink.transform: ",
		"{schedule: [{fromVersion: 5, downlinkKeepOneIn: 4097}]}":                  "spec.algorithm.schedule[0].downlinkKeepOneIn: ",
		"{strategy: DiLoCo, robust: {clipFactor: 0}}":                              "spec.algorithm.robust.clipFactor: ",
		"{strategy: DiLoCo, uplink: {transform: DCT}, downlink: {transform: DCT}}": "spec.algorithm.uplink.transform: ",
	} {
		if _, err := withAlgorithm(t, text); err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%s: %v, want it to name %s", text, err, field)
		}
	}
}

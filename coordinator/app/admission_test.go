package app

import (
	"strings"
	"testing"
)

func admitting(text string) string {
	return `
apiVersion: girassol.dev/v1alpha1
kind: Federation
metadata: {name: fed}
spec:
  sites: [{name: a}]
  model: {source: Site}
  algorithm: {strategy: DiLoCo}
  admission: {` + text + `}
---
apiVersion: girassol.dev/v1alpha1
kind: Site
metadata: {name: a}
`
}

func TestAdmissionComesFromTheSpec(t *testing.T) {
	d, err := parse([]byte(admitting(`maxNormFactor: "7.5", minCosine: "-0.2", quarantineRounds: 3, quotas: {bytesPerRound: 2Gi, members: 4, callsPerMinute: 50}`)), true)
	if err != nil {
		t.Fatal(err)
	}
	c, err := admissionConfig(d.federation.Spec.Admission)
	if err != nil || c.MaxNormFactor != 7.5 || c.MinCosine == nil || *c.MinCosine != -0.2 || c.QuarantineRounds != 3 ||
		c.Quotas.BytesPerRound != 2<<30 || c.Quotas.Members != 4 || c.Quotas.CallsPerMinute != 50 {
		t.Fatalf("%+v, %v", c, err)
	}
	d, err = parse([]byte(admitting("")), true)
	if err != nil {
		t.Fatal(err)
	}
	if c, err := admissionConfig(d.federation.Spec.Admission); err != nil || c.MaxNormFactor != 0 || c.MinCosine != nil || c.Quotas.MostMembers() != 256 {
		t.Fatalf("%+v, %v", c, err)
	}
}

func TestAdmissionThatCannotBeIsRefusedWithItsField(t *testing.T) {
	for text, want := range map[string]string{
		`maxNormFactor: "1"`:           "spec.admission.maxNormFactor",
		`maxNormFactor: "0"`:           "spec.admission.maxNormFactor",
		`minCosine: "1.5"`:             "spec.admission.minCosine",
		`quarantineRounds: -1`:         "spec.admission.quarantineRounds",
		`quotas: {bytesPerRound: "0"}`: "spec.admission.quotas.bytesPerRound",
		`quotas: {members: -1}`:        "spec.admission.quotas",
		`maxNormFactr: "2"`:            "maxNormFactr",
	} {
		if _, err := parse([]byte(admitting(text)), true); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q in it", text, err, want)
		}
	}
}

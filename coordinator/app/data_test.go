package app

import (
	"context"
	"errors"
	"maps"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	"girassol.dev/coordinator/corpus"
)

func TestDataOfASpecBecomesALedger(t *testing.T) {
	for spec, want := range map[string]*corpus.Config{
		"":                       nil,
		"  data: {samples: 900}": {Samples: 900, Lease: 4096},
		"  data: {samples: 900, leaseSamples: 32, passes: 3}": {Samples: 900, Lease: 32, Passes: 3},
	} {
		d, err := parse([]byte(strings.Replace(goodConfig, "  algorithm:", spec+"\n  algorithm:", 1)), false)
		if err != nil {
			t.Fatal(err)
		}
		if got := d.dataConfig(); (got == nil) != (want == nil) || got != nil && *got != *want {
			t.Errorf("%q is %+v, want %+v", spec, got, want)
		}
	}
	for spec, want := range map[string]string{
		"data: {}":                                 "spec.data.samples: 0 is not between 1",
		"data: {samples: 1000000000000001}":        "spec.data.samples: 1000000000000001",
		"data: {samples: 9, leaseSamples: -1}":     "spec.data.leaseSamples: -1",
		"data: {samples: 9, passes: 1000001}":      "spec.data.passes: 1000001",
		"data: {samples: 9, leaseSample: 3}":       "leaseSample",
		"data: {samples: 9, leaseSamples: 2.0e+9}": "spec.data.leaseSamples: 2000000000",
	} {
		_, err := parse([]byte(strings.Replace(goodConfig, "  algorithm:", "  "+spec+"\n  algorithm:", 1)), false)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", spec, err, want)
		}
	}
}

func TestMetricsOfDataAreThoseOfTheStatus(t *testing.T) {
	var data *coordinatorv1.DataStatus
	var failed error
	r := prometheus.NewRegistry()
	r.MustRegister(newDataCollector("lm", func(context.Context) (*coordinatorv1.FederationStatus, error) {
		return &coordinatorv1.FederationStatus{Data: data}, failed
	}))
	gather := func() map[string]float64 {
		t.Helper()
		families, err := r.Gather()
		if err != nil {
			t.Fatal(err)
		}
		out := map[string]float64{}
		for _, f := range families {
			out[f.GetName()] = f.GetMetric()[0].GetGauge().GetValue()
		}
		return out
	}
	if got := gather(); len(got) != 0 {
		t.Errorf("without a ledger: %v", got)
	}
	data = &coordinatorv1.DataStatus{Pass: 2, Samples: 100, Consumed: 61, Leased: 7}
	want := map[string]float64{"girassol_data_pass": 2, "girassol_data_samples": 100, "girassol_data_consumed_samples": 61, "girassol_data_leased_samples": 7}
	if got := gather(); !maps.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if failed = errors.New("stopping"); len(gather()) != 0 {
		t.Error("metrics of a status that cannot be had")
	}
}

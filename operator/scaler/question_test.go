package scaler

import (
	"context"
	"errors"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"pgregory.net/rapid"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"girassol.dev/api/externalscaler"
)

func TestABadTriggerIsToldTheWayOut(t *testing.T) {
	w := &world{objects: []client.Object{federation(nil, "quebec"), site("quebec", open)}}
	for name, tc := range map[string]struct {
		metadata map[string]string
		code     codes.Code
		says     string
	}{
		"no federation":        {nil, codes.InvalidArgument, "<namespace>/<name>"},
		"three parts":          {map[string]string{KeyFederation: "a/b/c"}, codes.InvalidArgument, "<namespace>/<name>"},
		"only a namespace":     {map[string]string{KeyFederation: "a/"}, codes.InvalidArgument, "<namespace>/<name>"},
		"unknown demand":       {map[string]string{KeyFederation: "gpt", KeyDemand: "gpus"}, codes.InvalidArgument, "sites or rounds"},
		"unknown gate":         {map[string]string{KeyFederation: "gpt", KeyGate: ""}, codes.InvalidArgument, "energy or none"},
		"target of zero":       {map[string]string{KeyFederation: "gpt", KeyTarget: "0"}, codes.InvalidArgument, "leave it out for 1"},
		"target not a number":  {map[string]string{KeyFederation: "gpt", KeyTarget: "NaN"}, codes.InvalidArgument, "leave it out for 1"},
		"no such federation":   {map[string]string{KeyFederation: "training/bert"}, codes.NotFound, "correct metadata federation"},
		"of another namespace": {map[string]string{KeyFederation: "else/gpt"}, codes.NotFound, "else/gpt"},
		"not the federation's": {map[string]string{KeyFederation: "gpt", KeySite: "oslo"}, codes.NotFound, "one of quebec"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := New(w, nil).IsActive(context.Background(), reference(tc.metadata))
			if status.Code(err) != tc.code || !strings.Contains(status.Convert(err).Message(), tc.says) {
				t.Errorf("got %v, want %s with %q", err, tc.code, tc.says)
			}
		})
	}
}

func TestTheNamespaceIsTheScaledObjectsUnlessSaid(t *testing.T) {
	w := &world{objects: []client.Object{federation(nil, "quebec"), site("quebec", open)}}
	for _, name := range []string{"gpt", "training/gpt"} {
		if _, active := ask(t, New(w, nil), map[string]string{KeyFederation: name, "scalerAddress": "a:1", "anything": "else"}); !active {
			t.Errorf("federation %s was not found", name)
		}
	}
}

func TestWhatPassesByItselfMayBeAskedAgain(t *testing.T) {
	for _, tc := range []struct {
		err  error
		code codes.Code
	}{
		{errors.New("the cache is not started, can not read objects"), codes.Unavailable},
		{context.DeadlineExceeded, codes.DeadlineExceeded},
		{context.Canceled, codes.Canceled},
	} {
		_, err := New(&world{err: tc.err}, nil).IsActive(context.Background(), reference(map[string]string{KeyFederation: "gpt"}))
		if status.Code(err) != tc.code {
			t.Errorf("%v becomes %v, want %s", tc.err, err, tc.code)
		}
	}
}

func TestAMetricOfAnotherTriggerIsRefused(t *testing.T) {
	w := &world{objects: []client.Object{federation(nil, "quebec"), site("quebec", open)}}
	_, err := New(w, nil).GetMetrics(context.Background(), &externalscaler.GetMetricsRequest{
		ScaledObjectRef: reference(map[string]string{KeyFederation: "gpt"}), MetricName: "girassol-rounds"})
	if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), "girassol-sites") {
		t.Errorf("got %v", err)
	}
}

// TestEveryTriggerIsAnsweredOrRefused draws metadata near and far from what is
// meant. A fuzz target would be compiled with all of Kubernetes' client.
func TestEveryTriggerIsAnsweredOrRefused(t *testing.T) {
	s := New(&world{}, nil)
	near := rapid.SampledFrom([]string{"", "/", "gpt", "training/gpt", "a/b/c", DemandSites, DemandRounds, GateEnergy, GateNone, "1", "0.5", "-1", "1e400", "NaN", "0x1p-2"})
	text := rapid.OneOf(near, rapid.String())
	rapid.Check(t, func(t *rapid.T) {
		metadata := rapid.MapOf(rapid.SampledFrom([]string{KeyFederation, KeySite, KeyDemand, KeyGate, KeyTarget, "else"}), text).Draw(t, "metadata")
		spec, err := s.GetMetricSpec(context.Background(), reference(metadata))
		if err != nil {
			if status.Code(err) != codes.InvalidArgument {
				t.Fatalf("%v", err)
			}
			return
		}
		if m := spec.MetricSpecs[0]; m.MetricName == "" || !(m.TargetSizeFloat > 0) || m.TargetSize < 1 {
			t.Fatalf("%+v", m)
		}
	})
}

package scaler

import (
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"girassol.dev/api/externalscaler"
)

// KEDA passes a trigger's metadata on as somebody has written it.
func FuzzQuestion(f *testing.F) {
	f.Add("ns", "federation", "demo", "site", "porto", "1")
	f.Add("", "federation", "ns/demo", "demand", "rounds", "NaN")
	f.Add("ns", "federation", "a/b/c", "gate", "none", "1e999")
	f.Fuzz(func(t *testing.T, namespace, k1, v1, k2, v2, target string) {
		ref := &externalscaler.ScaledObjectRef{Namespace: namespace, ScalerMetadata: map[string]string{k1: v1, k2: v2, KeyTarget: target}}
		q, err := parse(ref)
		if err != nil {
			if status.Code(err) != codes.InvalidArgument {
				t.Fatal(err)
			}
			return
		}
		if q.federation.Name == "" || q.federation.Namespace == "" || !(q.target >= 0.001 && q.target <= 1e9) {
			t.Fatalf("%+v", q)
		}
		if s := q.spec().GetMetricSpecs()[0]; s.GetTargetSize() < 1 {
			t.Fatalf("a target of %d", s.GetTargetSize())
		}
	})
}

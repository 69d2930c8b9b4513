package engine

import (
	"errors"
	"slices"
	"strings"
	"testing"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/internal/algorithm"
	"girassol.dev/internal/codec"
)

func TestAnAgentThatCannotWriteTheEncodingIsRefusedWithAWayOut(t *testing.T) {
	p := defaults(t, algorithm.DecoupledMomentum)
	p.Uplink.Values = algorithm.EightBit
	r := newRig(t, testConfig(t.TempDir(), p, "a"))
	hello := func(encodings []string) error {
		_, err := r.engine.OpenSession(r.ctx(), &coordinatorv1.Hello{Federation: "fed", Site: "a", Node: "n", Encodings: encodings})
		return err
	}
	all := codec.Encodings()
	for missing, side := range map[string]string{"dct64/8bit": "uplink", "dct64/2bit": "downlink"} {
		err := hello(slices.DeleteFunc(slices.Clone(all), func(e string) bool { return e == missing }))
		var refused *RefusedError
		if !errors.As(err, &refused) || refused.Reason != v1alpha1.ReasonEncodingMismatch ||
			!strings.Contains(refused.Message, missing) || !strings.Contains(refused.Message, "spec.algorithm."+side) {
			t.Errorf("without %s: %v", missing, err)
		}
	}
	if err := hello(all); err != nil {
		t.Error(err)
	}
	if err := hello(nil); err != nil {
		t.Errorf("an agent that says nothing: %v", err)
	}
}

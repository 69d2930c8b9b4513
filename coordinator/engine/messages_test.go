package engine

import (
	"bytes"
	"testing"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	"girassol.dev/internal/algorithm"
	"girassol.dev/internal/codec"
	"girassol.dev/internal/tensor"
)

// ones is an update whose parameters are all v.
func ones(t *testing.T, model *tensor.State, p algorithm.Parameters, v float32) []byte {
	t.Helper()
	d := codec.NewDomain(model.Layout, p.Uplink.Transform)
	x := make([]float32, d.Len())
	for i := range x {
		x[i] = v
	}
	return encode(t, d, p.Uplink, x, codec.Aux{Buffers: model.Buffers, Integers: model.Integers})
}

// A message waits in a session's queue while the engine goes on; what it says
// must stay what was true when it was sent.
func TestMessagesKeepTheVersionAndDigestOfTheirTime(t *testing.T) {
	p := defaults(t, algorithm.DiLoCo)
	r := newRig(t, testConfig(t.TempDir(), p, "a"))
	model := smallModel(t)
	a := r.join("a")
	a.seed(model)
	seeded := a.committed()
	a = r.join("a")
	welcome := a.next(func(m *coordinatorv1.SessionResponse) bool { return m.GetWelcome() != nil }).GetWelcome()
	before := r.status()
	first := bytes.Clone(seeded.GetDigest())
	var granted *coordinatorv1.Grant
	r.round([]*agent{a}, func(_ *agent, g *coordinatorv1.Grant) ([]byte, float64) {
		granted = g
		return ones(t, model, p, 0.5), 1
	})
	for what, got := range map[string][]byte{
		"committed": seeded.GetDigest(), "welcome": welcome.GetModelDigest(), "grant": granted.GetBaseDigest(), "status": before.GetDigest(),
	} {
		if !bytes.Equal(got, first) {
			t.Errorf("%s: digest changed with the next commit", what)
		}
	}
	if welcome.GetModelVersion() != 0 {
		t.Errorf("welcome: version became %d", welcome.GetModelVersion())
	}
}

package engine

import (
	"testing"

	"google.golang.org/protobuf/proto"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
)

// What a member says of itself, whatever it is: what is kept of it is small, and a
// report of it is none that the machine could not take.
func FuzzSessionMessage(f *testing.F) {
	for _, m := range []*coordinatorv1.SessionRequest{
		{Message: &coordinatorv1.SessionRequest_Hello{Hello: &coordinatorv1.Hello{Federation: "fed", Site: "a", Node: "n", AgentVersion: "1",
			Hardware: &coordinatorv1.Hardware{Vendor: "cpu", Devices: []string{"x"}, Problems: []string{"y"}}, Encodings: []string{"dense"}, ModelDigest: make([]byte, 40)}}},
		{Message: &coordinatorv1.SessionRequest_Heartbeat{Heartbeat: &coordinatorv1.Heartbeat{Detail: "d", StepSeconds: new(0.1), Loss: new(1.0), Trainer: map[string]string{"precision": "bf16"},
			Energy: &coordinatorv1.Energy{Joules: 1, Source: "nvml"}, WarmStart: &coordinatorv1.WarmStart{PullSeconds: 1}, Link: &coordinatorv1.Link{Mode: "MTLS"}}}},
	} {
		b, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var m coordinatorv1.SessionRequest
		if proto.Unmarshal(b, &m) != nil {
			return
		}
		if h := m.GetHello(); h != nil {
			trimHello(h)
			if n := proto.Size(h) - len(h.GetFederation()) - len(h.GetSite()) - len(h.GetNode()); n > (8+maxDevices+maxProblems+maxEncodings)*(maxText+8) {
				t.Fatalf("%d bytes of a Hello are kept", n)
			}
		}
		if hb := m.GetHeartbeat(); hb != nil {
			trimHeartbeat(hb)
			if n := proto.Size(hb); n > 1024+4*maxText+maxTrainerEntries*(2*maxTrainerText+16) {
				t.Fatalf("%d bytes of a heartbeat are kept", n)
			}
			if r := report(hb); r.Step < 0 {
				t.Fatalf("a step of %s", r.Step)
			}
		}
	})
}

// A header's numbers and names: what is not refused is within the bounds, and the
// refusal is short whatever it quotes.
func FuzzPushHeader(f *testing.F) {
	b, err := proto.Marshal(&coordinatorv1.PushHeader{UpdateId: "u", Weight: 1, Samples: 2, Steps: 3, TrainingSeconds: 4, EnergyJoules: 5, EnergySource: "nvml",
		Metrics: map[string]float64{"x": 1}, Evaluation: &coordinatorv1.Evaluation{Samples: 1, Metrics: map[string]float64{"y": 2}},
		Tensors: []*coordinatorv1.TensorSection{{Name: "w", Dtype: "F32", Shape: []int64{1, -1}, Offset: 1 << 63, Length: 1 << 63}}, Consumed: []*coordinatorv1.DataRange{{Begin: 5, End: 1}}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		var h coordinatorv1.PushHeader
		if proto.Unmarshal(b, &h) != nil {
			return
		}
		for _, s := range sections(h.GetTensors()) {
			if s.Offset < 0 || s.Length < 0 {
				t.Fatalf("a section of %d bytes at %d", s.Length, s.Offset)
			}
		}
		if len(ranges(h.GetConsumed())) != len(h.GetConsumed()) {
			t.Fatal("ranges are lost")
		}
		for _, res := range []*coordinatorv1.PushResult{checkMeasures(&h), checkMetrics(h.GetMetrics()), checkMetrics(h.GetEvaluation().GetMetrics())} {
			if res == nil {
				continue
			}
			if res.GetReason() == "" || len(res.GetMessage()) > 1000 {
				t.Fatalf("refused with %q, %d bytes", res.GetReason(), len(res.GetMessage()))
			}
		}
		if checkMeasures(&h) == nil && (h.GetSamples() > maxCount || h.GetSteps() > maxCount || !(h.GetTrainingSeconds() >= 0) || len(h.GetEnergySource()) > maxName) {
			t.Fatalf("taken: %v", &h)
		}
	})
}

package statusview

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
)

func TestMembersTellTheirMachineTheirTrainerAndTheirStart(t *testing.T) {
	s := &coordinatorv1.FederationStatus{Sites: []*coordinatorv1.SiteStatus{
		{Name: "porto", FirstStepSeconds: proto.Float64(12.345), Members: []*coordinatorv1.MemberStatus{
			{
				Node: "x", AgentVersion: "v1", StepSeconds: proto.Float64(0.25), Trainer: map[string]string{"precision": "bf16", "batchSize": "32"},
				Hardware:  &coordinatorv1.Hardware{Vendor: "nvidia", Devices: []string{"H100", "H100"}, Driver: "570.86.15", Runtime: "CUDA 12.8", Problems: []string{"fan\x1b[2J stuck"}},
				WarmStart: &coordinatorv1.WarmStart{ProcessSeconds: 0.5, PullSeconds: 2, LoadSeconds: 4, FirstStepSeconds: 7.5, PulledBytes: 12_000, DeltaBytes: 12_000, FromDisk: true},
			},
			{Node: "y", Hardware: &coordinatorv1.Hardware{Vendor: "amd", Devices: []string{"MI250", "MI300X"}}, WarmStart: &coordinatorv1.WarmStart{PulledBytes: 5_000_000, DeltaBytes: 9_000_000}},
			{Node: "z"},
		}},
		{Name: "idle"},
	}}
	var b strings.Builder
	Members(&b, s, 0)
	got := b.String()
	for _, want := range []string{
		"porto: 12.3 s from its admission to its first step\n",
		"porto/x: 2 x H100, 570.86.15, CUDA 12.8; agent v1; trains with batchSize 32, precision bf16; 0.25 s a step; first step after 7.5 s (process 0.5 s, read and pull 2 s, load 4 s) from disk, pulled 12",
		"of deltas; problem: fan", "porto/y: 2 GPUs, the first MI250;", "porto/z: machine unknown\n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
	if strings.Contains(got, "\x1b") || strings.Contains(got, "idle") {
		t.Errorf("what does not belong there:\n%q", got)
	}
	b.Reset()
	Members(&b, s, 40)
	for line := range strings.Lines(b.String()) {
		if n := len(strings.TrimRight(line, "\n")); n > 40 && !strings.Contains(line, "first step after") && !strings.Contains(line, "trains with") {
			t.Errorf("a line of %d bytes: %q", n, line)
		}
	}
}

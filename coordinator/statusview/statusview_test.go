package statusview

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
)

var update = flag.Bool("update", false, "write the golden files anew")

const now = 1_764_525_600_000 // 2025-11-30T18:00:00Z

func training() *coordinatorv1.FederationStatus {
	return &coordinatorv1.FederationStatus{
		Federation: "demo", Phase: "Training", Reason: "Collecting", Message: "waits for 2 of 3 members until 18:00:12", NowUnixMs: now,
		Algorithm: &coordinatorv1.Algorithm{Strategy: "decoupled-momentum", OuterLearningRate: 1, OuterMomentum: 0.45}, Version: proto.Uint64(11), Digest: []byte{0x3f, 0x2a, 0x9c, 0x1e, 0xff}, Parameters: 422_144,
		Round:       &coordinatorv1.RoundStatus{Number: 13, State: "Collecting", StartedUnixMs: now - 8000, StopAtUnixMs: now + 8000, DeadlineUnixMs: now + 12_000, Granted: []string{"lisboa/a", "porto/x", "porto/y"}, Reported: []string{"lisboa/a"}, WaitingFor: []string{"porto/x", "porto/y"}},
		RoundsTotal: 40, RoundsCommitted: 11, RoundsVoid: 1, CommittedSamples: 1_234_567, Agreement: proto.Float64(0.213), BytesUp: 1_204_000, BytesDown: 33_400_000,
		Evaluation: &coordinatorv1.Evaluation{Version: 10, Samples: 4096, Loss: proto.Float64(2.41311)},
		Events:     &coordinatorv1.EventsStatus{State: "Connected", Published: 34},
		Sites: []*coordinatorv1.SiteStatus{
			{
				Name: "lisboa", Phase: "Active", Reason: "WaitingForRound", SinceUnixMs: now - 600_000,
				Signal:  &coordinatorv1.Signal{Kind: "marginal", Unit: "gCO2/kWh", Value: proto.Float64(210.26), Window: "Open", NextChangeUnixMs: now + 3_900_000},
				Members: []*coordinatorv1.MemberStatus{{Node: "a", Connected: true, State: coordinatorv1.MemberState_MEMBER_STATE_READY, Loss: proto.Float64(2.398)}},
				Ledger:  &coordinatorv1.LedgerStatus{EnergyKwh: 0.12345, MarginalKgco2E: proto.Float64(0.02501), EnergySource: "model", Coverage: 1},
			},
			{
				Name: "porto", Phase: "Active", Reason: "Training", Message: "two nodes at work",
				Signal: &coordinatorv1.Signal{Unit: "gCO2/kWh", Value: proto.Float64(0), Window: "Open"},
				Members: []*coordinatorv1.MemberStatus{
					{Node: "x", Connected: true, State: coordinatorv1.MemberState_MEMBER_STATE_TRAINING, Steps: 12, MaxSteps: 40, Samples: 12 * 1024, StepSeconds: proto.Float64(0.5), Loss: proto.Float64(2.5)},
					{Node: "y", Connected: false, State: coordinatorv1.MemberState_MEMBER_STATE_TRAINING, Detail: "last heard of 14s ago"},
				},
				Ledger: &coordinatorv1.LedgerStatus{EnergyKwh: 1.5, MarginalKgco2E: proto.Float64(0.3), AverageKgco2E: proto.Float64(0.25), Coverage: 0.8},
			},
			{
				Name: "kraków", Phase: "Idle", Reason: "WaitingForEnergy", Message: "655 gCO2/kWh is above 400, the threshold to enter; the next clean hours are expected from 02:00",
				Signal: &coordinatorv1.Signal{Unit: "gCO2/kWh", Value: proto.Float64(655), Window: "Closed", NextChangeUnixMs: now + 8*3_600_000},
				Ledger: &coordinatorv1.LedgerStatus{},
			},
			{Name: "void", Phase: "Idle", Reason: "SignalMissing", Signal: &coordinatorv1.Signal{Unit: "gCO2/kWh", Window: "Unknown"}},
		},
	}
}

// wentBack is a federation whose gate has just rolled back.
func wentBack() *coordinatorv1.FederationStatus {
	s := training()
	s.Version = proto.Uint64(13)
	s.LastRollback = &coordinatorv1.RollbackStatus{Version: 13, ToVersion: 9, FromVersion: 12, Reason: "EvaluationWorse", Message: "version 12 has held-out loss 4.2, version 9 had 2.3\n(on porto/x)", UnixMs: now}
	s.Gate = &coordinatorv1.GateStatus{Verdict: "Worse", Message: "version 12 has held-out loss 4.2, version 9 had 2.3 (on porto/x)", Version: 12}
	return s
}

func starting() *coordinatorv1.FederationStatus {
	return &coordinatorv1.FederationStatus{Federation: "demo", Phase: "WaitingForModel", Reason: "WaitingForModel", Message: "no site has offered first weights yet", NowUnixMs: now, RoundsTotal: 40}
}

func withoutRedis() *coordinatorv1.FederationStatus {
	return &coordinatorv1.FederationStatus{
		Federation: "demo", Phase: "Paused", Reason: "Paused", NowUnixMs: now, Version: proto.Uint64(0), Round: &coordinatorv1.RoundStatus{Number: 3, State: "Idle"},
		Events: &coordinatorv1.EventsStatus{State: "Disconnected", Message: "dial tcp 127.0.0.1:6379: connect: connection refused", Pending: 12},
	}
}

// hostile is what a compromised agent would say.
func hostile() *coordinatorv1.FederationStatus {
	return &coordinatorv1.FederationStatus{
		Federation: "demo", Phase: "Training", NowUnixMs: now,
		Sites: []*coordinatorv1.SiteStatus{{Name: "a\x1b[2J\nb", Phase: "Active", Message: "fine\r\n\u202eetorw\x07", Members: []*coordinatorv1.MemberStatus{{Node: "x", Detail: "\x9b31m"}}}},
	}
}

func TestTablesLookAsTheyDid(t *testing.T) {
	for name, c := range map[string]struct {
		status *coordinatorv1.FederationStatus
		width  int
	}{
		"training": {training(), 0}, "training-120": {training(), 120}, "training-80": {training(), 80}, "training-40": {training(), 40},
		"starting": {starting(), 80}, "went-back": {wentBack(), 80}, "without-redis": {withoutRedis(), 100}, "hostile": {hostile(), 80}, "empty": {&coordinatorv1.FederationStatus{}, 80},
	} {
		t.Run(name, func(t *testing.T) {
			var b strings.Builder
			Table(&b, c.status, c.width)
			golden(t, name, b.String())
			for line := range strings.Lines(b.String()) {
				if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); c.width > 0 && n > c.width {
					t.Errorf("%d columns in %q", n, line)
				}
			}
		})
	}
}

func TestChangesLookAsTheyDid(t *testing.T) {
	later := proto.Clone(training()).(*coordinatorv1.FederationStatus)
	later.NowUnixMs += 9000
	later.Version, later.Digest = proto.Uint64(12), []byte{1, 2, 3, 4}
	later.RoundsVoid++
	later.Round = &coordinatorv1.RoundStatus{Number: 14, State: "Collecting", Granted: []string{"lisboa/a", "porto/y"}}
	later.Evaluation.Version, later.Evaluation.Loss = 11, proto.Float64(2.3)
	later.Events = withoutRedis().Events
	later.Sites[1].Members = later.Sites[1].Members[1:]
	later.Sites[1].Members[0].Connected = true
	later.Sites[2].Phase, later.Sites[2].Reason, later.Sites[2].Message, later.Sites[2].Signal.Value = "Joining", "EnergyFavourable", "", proto.Float64(310)
	for name, c := range map[string]struct {
		before, now *coordinatorv1.FederationStatus
	}{
		"changes-first": {nil, training()}, "changes": {training(), later}, "changes-starting": {nil, starting()}, "changes-went-back": {training(), wentBack()},
	} {
		t.Run(name, func(t *testing.T) {
			golden(t, name, strings.Join(Changes(c.before, c.now), "\n")+"\n")
		})
	}
	if lines := Changes(training(), training()); len(lines) > 0 {
		t.Errorf("changes without a change: %q", lines)
	}
	progress := training()
	progress.NowUnixMs += 1000
	progress.Sites[1].Members[0].Steps++
	if lines := Changes(training(), progress); len(lines) > 0 {
		t.Errorf("progress is told as a change: %q", lines)
	}
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name+".golden")
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s differs (run with -update if it is meant to):\n%s\nwant\n%s", path, got, want)
	}
}

func TestNumbersAreShort(t *testing.T) {
	for n, want := range map[float64]string{0: "0", 950: "950", 999.4: "999", 1000: "1.00k", 9994: "9.99k", 9996: "10.0k", 99_960: "100k", 422_144: "422k", 999_600: "1.00M", 1_314_000: "1.31M", 5.6e17: "560000T"} {
		if got := Count(n); got != want {
			t.Errorf("%v: %s, want %s", n, got, want)
		}
	}
	for n, want := range map[uint64]string{0: "0 B", 999: "999 B", 1_204_000: "1.20 MB", 1 << 40: "1.10 TB"} {
		if got := Bytes(n); got != want {
			t.Errorf("%d: %s, want %s", n, got, want)
		}
	}
}

func TestRateNeedsStepsAndTheirTime(t *testing.T) {
	train := coordinatorv1.MemberState_MEMBER_STATE_TRAINING
	for name, m := range map[string]*coordinatorv1.MemberStatus{
		"nothing": nil, "no step": {State: train, StepSeconds: proto.Float64(1)}, "no time": {State: train, Steps: 1, Samples: 9},
		"zero time": {State: train, Steps: 1, Samples: 9, StepSeconds: proto.Float64(0)}, "idle": {Steps: 1, Samples: 9, StepSeconds: proto.Float64(1)},
	} {
		if got := TokensPerSecond(m); got != 0 {
			t.Errorf("%s: %v", name, got)
		}
	}
	if got := TokensPerSecond(&coordinatorv1.MemberStatus{State: train, Steps: 4, Samples: 400, StepSeconds: proto.Float64(0.5)}); got != 200 {
		t.Errorf("got %v, want 200", got)
	}
}

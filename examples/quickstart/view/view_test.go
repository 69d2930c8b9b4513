package view

import (
	"bytes"
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	"girassol.dev/examples/quickstart/timeline"
)

var update = flag.Bool("update", false, "write golden files")

var start = time.Date(2026, 5, 4, 17, 0, 0, 0, time.UTC)

func ptr[T any](v T) *T { return &v }

func fixture() Model {
	at := func(h float64) time.Time { return start.Add(time.Duration(h * float64(time.Hour))) }
	now := at(7)
	site := func(h float64, name, window string, training bool) timeline.Entry {
		return timeline.Entry{Kind: timeline.KindSite, Time: at(h), Site: &timeline.Site{Name: name, Window: window, Training: training}}
	}
	var history []timeline.Entry
	history = append(history,
		site(0.1, "ca-north", "Open", true), site(0, "us-plains", "Closed", false), site(0, "au-south", "Closed", false),
		site(2.1, "ca-north", "Closed", false), site(2.4, "ca-north", "Open", true), site(4.7, "au-south", "Open", false),
		site(5, "au-south", "Open", true), site(6.5, "ca-north", "Closed", false))
	for i := range 14 {
		l := 2.2 + 3*math.Exp(-float64(i)/4)
		history = append(history, timeline.Entry{Kind: timeline.KindEvaluation, Time: at(float64(i) / 2), Evaluation: &timeline.Evaluation{Version: uint64(i), Loss: l}})
	}
	history = append(history, timeline.Entry{Kind: timeline.KindRound, Time: now, Round: &timeline.Round{Version: 14, Loss: ptr(2.311)}})
	ms := now.UnixMilli()
	return Model{
		Start: start, End: at(18), Now: now, Speed: 540, History: history, Note: "Ctrl-C stops cleanly, --resume goes on",
		BytesUp: 812000, BytesDown: 1734000, TokensPerSecond: map[string]float64{"au-south": 4312},
		Status: &coordinatorv1.FederationStatus{
			Federation: "demo", Phase: "Training", Reason: "Collecting", Message: "round 15 takes updates until 00:27", NowUnixMs: ms,
			Algorithm: &coordinatorv1.Algorithm{Strategy: "decoupled-momentum"}, Version: ptr(uint64(14)), Parameters: 115328,
			RoundsCommitted: 14, RoundsVoid: 1, CommittedSamples: 412000, BytesUp: 812000, BytesDown: 1734000,
			Events: &coordinatorv1.EventsStatus{State: "Connected"},
			Round: &coordinatorv1.RoundStatus{Number: 15, State: "Collecting", StartedUnixMs: ms - 900e3, StopAtUnixMs: ms + 600e3,
				Granted: []string{"au-south/node-0", "ca-north/node-0"}, Reported: []string{"ca-north/node-0"}, WaitingFor: []string{"au-south/node-0"}},
			Sites: []*coordinatorv1.SiteStatus{
				{Name: "ca-north", Phase: "Draining", Reason: "WaitingForEnergy", Message: "443 gCO2/kWh is above 100, out by 00:05",
					Signal: &coordinatorv1.Signal{Unit: "gCO2/kWh", Value: ptr(443.2), Window: "Closed"}},
				{Name: "us-plains", Phase: "Idle", Reason: "WaitingForEnergy", Message: "642 gCO2/kWh, opens below 80",
					Signal: &coordinatorv1.Signal{Unit: "gCO2/kWh", Window: "Unknown"}},
				{Name: "au-south", Phase: "Active", Reason: "Training", Message: "",
					Signal: &coordinatorv1.Signal{Unit: "gCO2/kWh", Value: ptr(0.0), Window: "Open"},
					Members: []*coordinatorv1.MemberStatus{{Node: "node-0", Connected: true, State: coordinatorv1.MemberState_MEMBER_STATE_TRAINING,
						Steps: 23, MaxSteps: 80, Samples: 5888, Loss: ptr(2.287), Round: 15}}},
			},
		},
	}
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.MkdirAll("testdata", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s differs; now:\n%s", name, got)
	}
}

func TestFrameLooksAsReviewedAtSeveralWidths(t *testing.T) {
	for _, width := range []int{60, 80, 120} {
		golden(t, fmt.Sprintf("frame-%d.txt", width), strings.Join(Frame(fixture(), width, 40, false), "\n")+"\n")
	}
	golden(t, "frame-starting.txt", strings.Join(Frame(Model{Note: "waiting for the coordinator"}, 80, 24, false), "\n")+"\n")
}

func TestFrameNeverExceedsItsTerminal(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := fixture()
		width, height := rapid.IntRange(1, 200).Draw(t, "width"), rapid.IntRange(0, 60).Draw(t, "height")
		s := m.Status
		s.Message = rapid.String().Draw(t, "message")
		for range rapid.IntRange(0, 13).Draw(t, "more sites") {
			s.Sites = append(s.Sites, &coordinatorv1.SiteStatus{Name: rapid.String().Draw(t, "name"), Phase: "Active", Message: rapid.String().Draw(t, "why")})
		}
		switch rapid.IntRange(0, 4).Draw(t, "bare") {
		case 0:
			m.Status = &coordinatorv1.FederationStatus{}
		case 1:
			m.Status = nil
		case 2:
			m.End = m.Start
		case 3:
			s.Round, s.Algorithm, m.History = nil, nil, nil
		}
		styled := rapid.Bool().Draw(t, "styled")
		lines := Frame(m, width, height, styled)
		if height > 0 && len(lines) > height {
			t.Fatalf("%d lines, the terminal has %d", len(lines), height)
		}
		for _, l := range lines {
			if n := visible(l); n != max(width, 40) {
				t.Fatalf("%d columns instead of %d: %q", n, max(width, 40), l)
			}
			if strings.ContainsAny(l, "\n\r\t\a\x00") || (!styled && strings.Contains(l, "\x1b")) || strings.Contains(l, "NaN") {
				t.Fatalf("control characters or NaN in %q", l)
			}
		}
	})
}

// An erasure behind a line that fills the terminal takes its last column away.
func TestScreenErasesOnlyWhatIsNotWrittenYet(t *testing.T) {
	for _, height := range []int{8, 40} {
		var b bytes.Buffer
		s := NewScreen(&b, func() (int, int) { return 80, height })
		b.Reset()
		s.Draw(fixture())
		lines := strings.Split(strings.TrimPrefix(b.String(), "\x1b[?2026h\x1b[H\x1b[?7l"), "\r\n")
		if len(lines) > height {
			t.Errorf("%d lines on a terminal of %d", len(lines), height)
		}
		for i, l := range lines {
			head := "\x1b[2K"
			if i == len(lines)-1 && height == 40 {
				head = "\x1b[J"
			}
			rest, ok := strings.CutPrefix(l, head)
			if !ok || strings.Contains(rest, "\x1b[K") || strings.Contains(rest, "\x1b[J") || strings.Contains(rest, "\x1b[2K") {
				t.Errorf("line %d of %d: %q", i+1, len(lines), l)
			}
		}
	}
}

func TestLinesSayWhatHappened(t *testing.T) {
	e := func(h float64, e timeline.Entry) timeline.Entry {
		e.Time = start.Add(time.Duration(h * float64(time.Hour)))
		return e
	}
	open := timeline.Site{Name: "ca-north", Phase: "Joining", Window: "Open", Intensity: ptr(73.0), Unit: "gCO2/kWh", Reason: "EnergyFavourable"}
	closed := timeline.Site{Name: "ca-north", Phase: "Idle", Window: "Closed"}
	for _, c := range []struct {
		entry  timeline.Entry
		before *timeline.Site
		want   string
	}{
		{e(0, timeline.Entry{Start: &timeline.Start{Speed: 540}}), nil, "0:00  run started, 1 s stands for 9 min"},
		{e(0.5, timeline.Entry{Site: &open}), &closed, "0:30  ca-north: window opened at 73 gCO2/kWh, joining (EnergyFavourable)"},
		{e(1, timeline.Entry{Site: &timeline.Site{Name: "ca-north", Phase: "Active", Window: "Open"}}), &open, "1:00  ca-north: joined"},
		{e(1, timeline.Entry{Site: &timeline.Site{Name: "ca-north", Phase: "Active", Window: "Open", Training: true}}), &timeline.Site{Phase: "Active", Window: "Open"}, ""},
		{e(2, timeline.Entry{Round: &timeline.Round{Number: 4, Version: 3, Tokens: 20480, Loss: ptr(2.5), BytesUp: 42000, BytesDown: 80000,
			Members: []timeline.Member{{Site: "ca-north"}, {Site: "au-south"}}}}), nil,
			"2:00  round 4 committed as version 3 by ca-north, au-south: 20 k tokens, training loss 2.500, 42.0 kB up, 80.0 kB down"},
		{e(3, timeline.Entry{Round: &timeline.Round{Number: 5, Void: true, Reason: "TooFewUpdates"}}), nil, "3:00  round 5 void (TooFewUpdates)"},
		{e(0, timeline.Entry{Site: &closed}), nil, "0:00  ca-north: window is closed, idle"},
		{e(3, timeline.Entry{Phase: &timeline.Phase{Phase: "Completed", Reason: "Completed", Message: "all is done"}}), nil, "3:00  federation Completed (all is done)"},
		{e(3, timeline.Entry{Phase: &timeline.Phase{Phase: "WaitingForSites", Message: "evil\x1b[2Jname"}}), nil, "3:00  federation WaitingForSites (evil [2Jname)"},
		{e(3, timeline.Entry{Progress: &timeline.Progress{}}), nil, ""},
	} {
		if got := Line(c.entry, start, c.before); got != c.want {
			t.Errorf("got  %q\nwant %q", got, c.want)
		}
	}
}

func TestRatesFollowTheMembersCounts(t *testing.T) {
	status := func(samples uint64) *coordinatorv1.FederationStatus {
		return &coordinatorv1.FederationStatus{Sites: []*coordinatorv1.SiteStatus{{Name: "a", Members: []*coordinatorv1.MemberStatus{
			{State: coordinatorv1.MemberState_MEMBER_STATE_TRAINING, Samples: samples}}}}}
	}
	var r Rates
	if got := r.See(status(0), start); len(got) != 0 {
		t.Errorf("a rate before anything was trained: %v", got)
	}
	got := r.See(status(1000), start.Add(time.Second))
	if got["a"] != 1000 {
		t.Errorf("rate %v, want 1000 a second", got)
	}
	got = r.See(status(100), start.Add(2*time.Second)) // a new round counts from 0
	if got["a"] != 1000 {
		t.Errorf("rate %v after the count began again, want the last one", got)
	}
}

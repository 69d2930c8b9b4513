package timeline

import (
	"bytes"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
)

var start = time.Date(2026, 5, 4, 17, 0, 0, 0, time.UTC)

func at(h float64) time.Time { return start.Add(time.Duration(h * float64(time.Hour))) }

func ptr[T any](v T) *T { return &v }

func kinds(entries []Entry) string {
	var out []string
	for _, e := range entries {
		out = append(out, string(e.Kind))
	}
	return strings.Join(out, " ")
}

func of(entries []Entry, k Kind) []Entry {
	var out []Entry
	for _, e := range entries {
		if e.Kind == k {
			out = append(out, e)
		}
	}
	return out
}

// status is a federation of one site with one member.
func status(version *uint64, tokens, up, down uint64) *coordinatorv1.FederationStatus {
	return &coordinatorv1.FederationStatus{
		Phase: "Training", Reason: "Collecting", Version: version, CommittedSamples: tokens, Digest: []byte{0xab},
		Round: &coordinatorv1.RoundStatus{Number: 7},
		Sites: []*coordinatorv1.SiteStatus{{
			Name: "a", Phase: "Active", Signal: &coordinatorv1.Signal{Window: "Open", Value: ptr(12.0)},
			Members: []*coordinatorv1.MemberStatus{{
				Node: "n", Connected: true, State: coordinatorv1.MemberState_MEMBER_STATE_TRAINING, Round: 7, Steps: 4, Samples: 1024, Loss: ptr(2.5),
				BytesUp: up, BytesDown: down,
			}},
		}},
	}
}

func TestDifferReportsOnlyWhatChanged(t *testing.T) {
	d := NewDiffer(nil, nil)
	if got := kinds(d.Next(status(nil, 0, 0, 0), at(0), start)); got != "phase site progress" {
		t.Errorf("first status gives %q", got)
	}
	if got := kinds(d.Next(status(nil, 0, 10, 10), at(0.01), start)); got != "" {
		t.Errorf("a status without news gives %q", got)
	}
	if got := kinds(d.Next(status(nil, 0, 20, 10), at(0.1), start)); got != "progress" {
		t.Errorf("five minutes later: %q, want the totals", got)
	}
	s := status(nil, 0, 20, 10)
	s.Sites[0].Signal.Window = "Closed"
	if got := kinds(d.Next(s, at(0.11), start)); got != "site progress" {
		t.Errorf("a closed window gives %q", got)
	}
}

func TestDifferTakesRoundsFromStatusWithoutALog(t *testing.T) {
	d := NewDiffer(nil, nil)
	d.Next(status(nil, 0, 0, 0), at(0), start)
	d.Next(status(ptr(uint64(0)), 0, 500, 0), at(0.1), start)
	got := of(d.Next(status(ptr(uint64(1)), 1024, 700, 90), at(0.5), start), KindRound)
	if len(got) != 1 {
		t.Fatalf("%d rounds, want 1", len(got))
	}
	r := got[0].Round
	if r.Number != 7 || r.Version != 1 || r.Tokens != 1024 || r.TokensTotal != 1024 || r.Digest != "ab" ||
		len(r.Members) != 1 || r.Members[0].Name != "a/n" || r.Loss == nil || *r.Loss != 2.5 || r.BytesUp != 700 || r.BytesDown != 90 {
		t.Errorf("round is %+v", r)
	}
}

func TestDifferAsksTheLogForVersionsItMissed(t *testing.T) {
	log := func(v uint64) (Commit, bool) {
		c := Commit{Round: 10 + v, Digest: "d", Tokens: 1000 * v, Time: at(float64(v) / 10),
			Members: []Member{{Name: "a/n", Site: "a", Tokens: 600, Loss: ptr(2.0)}, {Name: "b/n", Site: "b", Tokens: 400, Loss: ptr(3.0)}}}
		if v == 2 {
			c.Evaluation = &Evaluation{Version: 1, Tokens: 100, Loss: 4.5}
		}
		return c, true
	}
	d := NewDiffer(nil, log)
	d.Next(status(ptr(uint64(0)), 0, 0, 0), at(0), start)
	now := status(ptr(uint64(3)), 3000, 900, 30)
	now.Phase = "WaitingForSites"
	got := d.Next(now, at(0.5), start)
	rounds := of(got, KindRound)
	if len(rounds) != 3 {
		t.Fatalf("%d rounds, want 3", len(rounds))
	}
	if !slices.IsSortedFunc(got, func(a, b Entry) int { return a.Time.Compare(b.Time) }) {
		t.Errorf("entries are not in the order of time: %s", kinds(got))
	}
	for i, e := range rounds {
		r := e.Round
		if r.Version != uint64(i+1) || r.Number != uint64(i+11) || r.Tokens != 1000 || math.Abs(*r.Loss-2.4) > 1e-12 || r.BytesUp != 300 || r.BytesDown != 10 || !e.Time.Equal(at(float64(i+1)/10)) {
			t.Errorf("version %d: %+v at %v", i+1, r, e.Time)
		}
	}
	if ev := of(got, KindEvaluation); len(ev) != 1 || ev[0].Evaluation.TokensTotal != 1000 || ev[0].Evaluation.Loss != 4.5 {
		t.Errorf("evaluations %+v", ev)
	}
}

func TestDifferTellsVoidRounds(t *testing.T) {
	d := NewDiffer(nil, nil)
	d.Next(status(ptr(uint64(2)), 10, 0, 0), at(0), start)
	s := status(ptr(uint64(2)), 10, 0, 0)
	s.RoundsVoid, s.Round.Number = 1, 8 // the next one has begun
	s.Round.LastVoid = &coordinatorv1.VoidRound{Number: 7, Reason: "TooFewUpdates", Message: "0 of 1"}
	got := of(d.Next(s, at(0.1), start), KindRound)
	if len(got) != 1 || !got[0].Round.Void || got[0].Round.Number != 7 || got[0].Round.Reason != "TooFewUpdates" || got[0].Round.Message != "0 of 1" {
		t.Errorf("got %+v", got)
	}
}

func TestDifferIgnoresLossesThatAreNoNumber(t *testing.T) {
	d := NewDiffer(nil, nil)
	d.Next(status(ptr(uint64(0)), 0, 0, 0), at(0), start)
	s := status(ptr(uint64(1)), 10, 0, 0)
	s.Evaluation = &coordinatorv1.Evaluation{Version: 1, Loss: ptr(math.NaN())}
	if got := of(d.Next(s, at(0.1), start), KindEvaluation); len(got) != 0 {
		t.Errorf("a NaN became %+v", got[0].Evaluation)
	}
}

func TestBytesSurviveDisconnectsAndRestarts(t *testing.T) {
	d := NewDiffer(nil, nil)
	d.Next(status(nil, 0, 1000, 100), at(0), start)
	gone := status(nil, 0, 0, 0)
	gone.Sites[0].Members = nil
	d.Next(gone, at(0.1), start)
	d.Next(status(nil, 0, 1500, 150), at(0.2), start) // back on the same coordinator
	d.Next(status(nil, 0, 40, 4), at(0.3), start)     // a new coordinator counts from 0
	if up, down := d.Bytes(); up != 1540 || down != 154 {
		t.Errorf("%d up and %d down, want 1540 and 154", up, down)
	}
	past := []Entry{{Kind: KindProgress, Progress: &Progress{BytesUp: 1540, BytesDown: 154, Sites: []SiteTotals{{Name: "a", BytesUp: 1540, BytesDown: 154}}}}}
	d = NewDiffer(past, nil)
	d.Next(status(nil, 0, 60, 6), at(0), start)
	if up, down := d.Bytes(); up != 1600 || down != 160 {
		t.Errorf("after a resume %d up and %d down, want 1600 and 160", up, down)
	}
}

func TestResumedDifferNumbersOn(t *testing.T) {
	past := []Entry{
		{Kind: KindRound, Round: &Round{Version: 4, TokensTotal: 4000}},
		{Kind: KindEvaluation, Evaluation: &Evaluation{Version: 4, Loss: 3}},
	}
	d := NewDiffer(past, nil)
	s := status(ptr(uint64(4)), 4000, 0, 0)
	s.Evaluation = &coordinatorv1.Evaluation{Version: 4, Loss: ptr(3.0)}
	if got := d.Next(s, at(1), start); len(of(got, KindRound))+len(of(got, KindEvaluation)) != 0 {
		t.Errorf("what the timeline has is told again: %s", kinds(got))
	}
	got := of(d.Next(status(ptr(uint64(5)), 4700, 0, 0), at(1.2), start), KindRound)
	if len(got) != 1 || got[0].Round.Version != 5 || got[0].Round.Tokens != 700 {
		t.Errorf("got %+v", got)
	}
}

func TestFileSurvivesATornEndAndGoesOn(t *testing.T) {
	path := filepath.Join(t.TempDir(), "timeline.jsonl")
	w, err := Create(path)
	if err != nil {
		t.Fatal(err)
	}
	entry := Entry{Kind: KindStart, Time: start, Real: start, Start: &Start{Speed: 540}}
	if err := w.Write(entry, entry); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for cut := len(whole) / 2; cut < len(whole); cut++ {
		if err := os.WriteFile(path, whole[:cut], 0o644); err != nil {
			t.Fatal(err)
		}
		w, past, err := Append(path)
		if err != nil || len(past) != 1 {
			t.Fatalf("cut at %d: %d entries, %v", cut, len(past), err)
		}
		if err := w.Write(entry); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(path)
		if err != nil || !bytes.Equal(b, whole) {
			t.Fatalf("cut at %d: the file went on as %q", cut, b)
		}
	}
	if _, _, err := Read(strings.NewReader("rubbish\n" + string(whole))); err == nil {
		t.Error("a bad line in the middle was taken")
	}
}

func FuzzRead(f *testing.F) {
	f.Add([]byte(`{"kind":"start","start":{"speed":1}}` + "\n"))
	f.Add([]byte(`{"kind":"round","round":{"version":1}}` + "\n{"))
	f.Fuzz(func(t *testing.T, b []byte) {
		entries, good, err := Read(bytes.NewReader(b))
		if err != nil {
			return
		}
		again, n, err := Read(bytes.NewReader(b[:good]))
		if err != nil || n != good || len(again) != len(entries) {
			t.Errorf("what was good is %d entries in %d bytes, then %d in %d (%v)", len(entries), good, len(again), n, err)
		}
	})
}

func TestSpansEndWithTheStretch(t *testing.T) {
	site := func(h float64, name string, open bool) Entry {
		w := map[bool]string{true: "Open", false: "Closed"}[open]
		return Entry{Kind: KindSite, Time: at(h), Site: &Site{Name: name, Window: w}}
	}
	entries := []Entry{
		{Kind: KindStart, Time: at(0), Start: &Start{}},
		site(1, "a", true), site(2, "b", true), site(3, "a", false), site(4, "a", true),
		{Kind: KindStop, Time: at(5), Stop: &Stop{}},
		{Kind: KindStart, Time: at(5), Start: &Start{Resumed: true}},
		site(6, "a", true),
		{Kind: KindProgress, Time: at(8), Progress: &Progress{}},
	}
	got := Spans(entries, "a", WindowOpen)
	want := []Span{{at(1), at(3)}, {at(4), at(5)}, {at(6), at(8)}}
	if len(got) != len(want) {
		t.Fatalf("got %v", got)
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("span %d is %v, want %v", i, got[i], want[i])
		}
	}
	if h := Total(got); h != 5 {
		t.Errorf("%v hours, want 5", h)
	}
}

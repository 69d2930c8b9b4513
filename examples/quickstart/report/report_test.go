package report

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"girassol.dev/examples/quickstart/timeline"
)

var update = flag.Bool("update", false, "write golden files")

var start = time.Date(2026, 3, 2, 6, 0, 0, 0, time.UTC)

func ptr[T any](v T) *T { return &v }

// fixture is a run as the field study's three regions would give it.
func fixture(compare bool) (Summary, []timeline.Entry) {
	rng := rand.New(rand.NewPCG(7, 7))
	type region struct {
		name         string
		dirty, clean float64
		windows      [][2]float64
	}
	regions := []region{
		{"ca-north", 443, 73, [][2]float64{{0.1, 2.1}, {2.33, 6.4}}},
		{"us-plains", 642, 22, [][2]float64{{10.1, 16.4}, {16.5, 17.1}}},
		{"au-south", 835, 0.4, [][2]float64{{4.7, 15.2}}},
	}
	at := func(h float64) time.Time { return start.Add(time.Duration(h * float64(time.Hour))) }
	s := Summary{
		Federation: "demo", Seed: 1, Speed: 540, Start: start, End: start.Add(18 * time.Hour), Ended: "The trace's 18 hours were over.",
		Algorithm:  Algorithm{"decoupled-momentum", 1, 0.45, true, "1 in 16 DCT coefficients, 2 bit", "1 in 8 DCT coefficients, 2 bit"},
		Parameters: 421888,
		Corpus:     Corpus{Source: "Go source tree", HeldOutFiles: 24, HeldOutBytes: 262144},
		HeldOut:    HeldOut{Untrained: ptr(5.561), Final: ptr(2.214), Tokens: 65536},
	}
	var entries []timeline.Entry
	entries = append(entries, timeline.Entry{Kind: timeline.KindStart, Time: start, Real: start, Start: &timeline.Start{Speed: 540}})
	open := func(r region, h float64) bool {
		for _, w := range r.windows {
			if h >= w[0] && h < w[1] {
				return true
			}
		}
		return false
	}
	for _, r := range regions {
		site := Site{Name: r.name, Region: r.name, Text: "net, crypto, go", TextBytes: 4 << 20, Power: Power{2024, 468, 1.1}, EnterBelow: ptr(80.0), LeaveAbove: ptr(100.0)}
		for i := range 217 {
			h := float64(i) / 12
			v := r.dirty + 40*math.Sin(h) + 30*rng.NormFloat64()
			if open(r, h) {
				v = math.Max(0, r.clean+4*rng.NormFloat64())
			}
			site.Trace.Marginal = append(site.Trace.Marginal, Point{at(h), ptr(v)})
			site.Trace.Average = append(site.Trace.Average, Point{at(h), ptr(0.6*v + 80)})
		}
		s.Sites = append(s.Sites, site)
	}
	de := Region{Name: "de"}
	for i := range 217 {
		de.Trace.Marginal = append(de.Trace.Marginal, Point{at(float64(i) / 12), ptr(752.0)})
	}
	s.Elsewhere = []Region{de}
	tokens, up, down := uint64(0), uint64(0), uint64(0)
	totals := map[string]*timeline.SiteTotals{}
	for _, r := range regions {
		totals[r.name] = &timeline.SiteTotals{Name: r.name, MarginalKg: ptr(0.0), AverageKg: ptr(0.0), EnergySource: "model", Coverage: 1}
	}
	state := map[string]timeline.Site{}
	version := uint64(0)
	entries = append(entries, timeline.Entry{Kind: timeline.KindEvaluation, Time: at(0.2), Evaluation: &timeline.Evaluation{Version: 0, Tokens: 16384, Loss: 5.561}})
	for h := 0.2; h < 18; h += 0.45 {
		var members []timeline.Member
		for _, r := range regions {
			n := timeline.Site{Name: r.name, Phase: "Idle", Window: "Closed", Reason: "WaitingForEnergy"}
			if open(r, h) {
				n = timeline.Site{Name: r.name, Phase: "Active", Window: "Open", Reason: "Training", Training: true}
				loss := 5.5*math.Exp(-float64(tokens)/90e3) + 2.1 + 0.05*rng.NormFloat64()
				members = append(members, timeline.Member{Name: r.name + "/node-0", Site: r.name, Steps: 40, Tokens: 10240, Loss: &loss, PayloadBytes: 21000})
				t := totals[r.name]
				t.Rounds++
				t.Tokens += 10240
				t.EnergyKWh += 0.45 * 2.2264
				*t.MarginalKg += 0.45 * 2.2264 * r.clean / 1000
				*t.AverageKg += 0.45 * 2.2264 * (r.clean + 100) / 1000
			}
			if state[r.name] != n {
				state[r.name] = n
				entries = append(entries, timeline.Entry{Kind: timeline.KindSite, Time: at(h), Site: &n})
			}
		}
		if len(members) == 0 {
			continue
		}
		n := uint64(len(members))
		version++
		tokens += 10240 * n
		u, d := n*21400, n*39800
		if version == 1 {
			u, d = u+1687552, d+1687552*2
		}
		up, down = up+u, down+d
		var loss float64
		for _, m := range members {
			loss += *m.Loss / float64(n)
		}
		digest := make([]byte, 32)
		for i := range digest {
			digest[i] = byte(rng.Uint32())
		}
		entries = append(entries, timeline.Entry{Kind: timeline.KindRound, Time: at(h + 0.4), Round: &timeline.Round{
			Number: version, Version: version, Members: members, Tokens: 10240 * n, TokensTotal: tokens, Loss: &loss,
			Digest: hex.EncodeToString(digest), BytesUp: u, BytesDown: d,
		}})
		if version%2 == 0 {
			entries = append(entries, timeline.Entry{Kind: timeline.KindEvaluation, Time: at(h + 0.4), Evaluation: &timeline.Evaluation{
				Version: version, Tokens: 16384, TokensTotal: tokens, Loss: 3.35*math.Exp(-float64(tokens)/110e3) + 2.2,
			}})
		}
	}
	p := &timeline.Progress{RoundsCommitted: version, RoundsVoid: 1, Tokens: tokens, BytesUp: up, BytesDown: down, Parameters: s.Parameters}
	for _, r := range regions {
		p.Sites = append(p.Sites, *totals[r.name])
	}
	end := start.Add(18 * time.Hour)
	entries = append(entries,
		timeline.Entry{Kind: timeline.KindRound, Time: end, Round: &timeline.Round{Number: version + 1, Version: version, Void: true, Reason: "TooFewUpdates"}},
		timeline.Entry{Kind: timeline.KindProgress, Time: end, Progress: p},
		timeline.Entry{Kind: timeline.KindStop, Time: end, Real: start.Add(2 * time.Minute), Stop: &timeline.Stop{Complete: true, Why: "end of trace"}})
	if compare {
		s.Comparison = &Comparison{
			Alone:   []Contender{{"ca-north", 150e3, ptr(2.702)}, {"us-plains", 160e3, ptr(2.811)}, {"au-south", 240e3, ptr(2.593)}},
			Central: &Contender{"central", 550e3, ptr(2.142)},
		}
	}
	return s, entries
}

func render(t *testing.T, s Summary) (page, text string) {
	t.Helper()
	var h, x bytes.Buffer
	if err := HTML(&h, s); err != nil {
		t.Fatal(err)
	}
	if err := Text(&x, s); err != nil {
		t.Fatal(err)
	}
	return h.String(), x.String()
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
		t.Errorf("%s differs from what is drawn now; look at it and run with -update", name)
	}
}

func TestReportOfAWholeRunLooksAsReviewed(t *testing.T) {
	s, entries := fixture(true)
	page, text := render(t, Fill(s, entries))
	golden(t, "report.html", page)
	golden(t, "summary.txt", text)
}

func TestReportOfARunWithoutRoundsSaysSo(t *testing.T) {
	s, _ := fixture(false)
	s.HeldOut = HeldOut{}
	page, text := render(t, Fill(s, nil))
	golden(t, "empty.html", page)
	golden(t, "empty.txt", text)
	for _, want := range []string{"no round was committed"} {
		if !strings.Contains(page, want) || !strings.Contains(text, want) {
			t.Errorf("report of nothing lacks %q", want)
		}
	}
}

// TestReportNeverDrawsWhatIsNotANumber feeds it runs in every state of
// undress.
func TestReportNeverDrawsWhatIsNotANumber(t *testing.T) {
	full, entries := fixture(true)
	rapid.Check(t, func(t *rapid.T) {
		s := full
		s.Sites = s.Sites[:rapid.IntRange(0, len(s.Sites)).Draw(t, "sites")]
		n := rapid.IntRange(0, len(entries)).Draw(t, "entries")
		some := entries[:n]
		bad := rapid.SampledFrom([]*float64{nil, ptr(math.NaN()), ptr(math.Inf(1)), ptr(0.0), ptr(2.5), ptr(-1.0)})
		s.HeldOut.Untrained, s.HeldOut.Final = bad.Draw(t, "untrained"), bad.Draw(t, "final")
		if rapid.Bool().Draw(t, "no comparison") {
			s.Comparison = nil
		} else {
			s.Comparison = &Comparison{Alone: []Contender{{"a", 0, bad.Draw(t, "alone")}}, Central: rapid.SampledFrom([]*Contender{nil, {"c", 1, bad.Draw(t, "central")}}).Draw(t, "c")}
		}
		if rapid.Bool().Draw(t, "no parameters") {
			s.Parameters = 0
		}
		if len(s.Sites) > 0 && rapid.Bool().Draw(t, "broken site") {
			s.Sites = append([]Site(nil), s.Sites...)
			s.Sites[0].Trace.Marginal = []Point{{start, bad.Draw(t, "point")}, {start.Add(time.Hour), nil}}
			s.Sites[0].EnterBelow, s.Sites[0].LeaveAbove = nil, nil
			s.Sites[0].Power = Power{}
		}
		var h, x bytes.Buffer
		filled := Fill(s, some)
		if err := HTML(&h, filled); err != nil {
			t.Fatal(err)
		}
		if err := Text(&x, filled); err != nil {
			t.Fatal(err)
		}
		for _, word := range []string{"NaN", "Inf", "%!", "nil", "undefined", "ZgotmplZ"} {
			for _, out := range []string{h.String(), x.String()} {
				if i := strings.Index(out, word); i >= 0 {
					t.Fatalf("%q in ...%s...", word, out[max(0, i-120):min(len(out), i+40)])
				}
			}
		}
	})
}

func TestReportIsOneFileWithoutScripts(t *testing.T) {
	s, entries := fixture(true)
	page, _ := render(t, Fill(s, entries))
	for _, bad := range []string{"<script", "http://", "https://", "@import", "url(", " src="} {
		if strings.Contains(page, bad) {
			t.Errorf("report holds %q: it must load nothing and run nothing", bad)
		}
	}
	s.Federation, s.Sites[0].Name, s.Corpus.Source = `<script>x</script>`, `"><img>`, `<b>`
	page, _ = render(t, Fill(s, entries))
	for _, bad := range []string{"<script", "<img", "<b>&"} {
		if strings.Contains(page, bad) {
			t.Errorf("report lets %q through", bad)
		}
	}
}

func TestFillingTwiceChangesNothing(t *testing.T) {
	s, entries := fixture(true)
	once := Fill(s, entries)
	if twice := Fill(once, entries); !reflect.DeepEqual(once, twice) {
		t.Errorf("seconds %v and then %v, %d and then %d rounds", once.RealSeconds, twice.RealSeconds, len(once.Rounds), len(twice.Rounds))
	}
	if once.RealSeconds != 120 {
		t.Errorf("the run took %v s, want 120", once.RealSeconds)
	}
}

func TestSummaryIsJSONEvenWithUnknownFigures(t *testing.T) {
	s, entries := fixture(true)
	for i, c := range []Summary{Fill(s, entries), Fill(Summary{}, nil)} {
		if _, err := json.Marshal(c); err != nil {
			t.Errorf("case %d: %v", i, err)
		}
	}
}

func TestBaselineHoldsEachPointUntilTheNextAndRepeatsTheTrace(t *testing.T) {
	trace := []Point{{start, ptr(100.0)}, {start.Add(time.Hour), ptr(300.0)}, {start.Add(2 * time.Hour), ptr(0.0)}}
	power := Power{TrainingWatts: 500, PUE: 2}
	for _, c := range []struct {
		hours, want float64
	}{{1, 0.1}, {1.5, 0.25}, {2, 0.4}, {3, 0.4}, {4, 0.5}, {7.5, 1.05}} {
		got := alwaysOn("r", trace, start, c.hours, power)
		if got == nil || math.Abs(*got-c.want) > 1e-9 {
			t.Errorf("%v h at 1 kW: %v kg, want %v", c.hours, fixed(got, 4), c.want)
		}
	}
	if got := alwaysOn("r", []Point{{start, ptr(100.0)}, {start.Add(time.Hour), nil}}, start, 2, power); got != nil {
		t.Errorf("a trace with a gap gives %v kg, want unknown", *got)
	}
	if got := alwaysOn("r", nil, start, 2, power); got != nil {
		t.Errorf("no trace gives %v kg, want unknown", *got)
	}
}

func TestVerdictNamesWhereTheFederationLands(t *testing.T) {
	s, _ := fixture(true)
	for _, c := range []struct {
		final, central, alone float64
		want                  string
	}{
		{2.2, 2.1, 2.6, "closed 80 % of that gap, nearer the central run"},
		{2.5, 2.1, 2.6, "nearer the best site alone"},
		{2.05, 2.1, 2.6, "level with or ahead of the central run"},
		{2.7, 2.1, 2.6, "did not beat the best site alone"},
		{2.5, 2.6, 2.6, "nothing for a federation"},
	} {
		s.HeldOut.Final = ptr(c.final)
		s.Comparison = &Comparison{Alone: []Contender{{"a", 1, ptr(c.alone)}, {"b", 1, ptr(c.alone + 1)}}, Central: &Contender{"c", 2, ptr(c.central)}}
		if got := verdict(s); !strings.Contains(got, c.want) {
			t.Errorf("final %v, central %v, alone %v: %q lacks %q", c.final, c.central, c.alone, got, c.want)
		}
	}
}

func TestNumbersReadWell(t *testing.T) {
	for _, c := range [][2]string{
		{sig(0), "0"}, {sig(1234567), "1\u202f234\u202f567"}, {sig(99.96), "100"}, {sig(9.996), "10.0"}, {sig(0.00049), "5e-04"},
		{ByteSize(999), "999 B"}, {ByteSize(999.6e3), "1.00 MB"}, {ByteSize(21400), "21.4 kB"},
		{kilograms(ptr(0.05)), "0.050 kg"}, {kilograms(ptr(0.0001)), "<0.001 kg"}, {kilograms(nil), "–"}, {kilograms(ptr(0.0)), "0 kg"}, {percent(ptr(0.0513)), "5.1 %"}, {percent(ptr(1.2)), "120 %"},
		{tickLabel(0.25, 0.25), "0.25"}, {tickLabel(0, 0.5), "0.0"}, {tickLabel(1500, 500), "1500"}, {Count(421888), "422 k"},
	} {
		if c[0] != c[1] {
			t.Errorf("got %q, want %q", c[0], c[1])
		}
	}
}

func ExampleByteSize() {
	fmt.Println(ByteSize(1687552))
	// Output: 1.69 MB
}

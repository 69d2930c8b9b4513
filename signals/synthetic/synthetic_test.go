package synthetic

import (
	"bytes"
	"math"
	"testing"
	"time"

	"girassol.dev/signals"
	"girassol.dev/signals/replay"
)

// facts are the field study's, in hours and minutes as published.
var facts = []struct {
	region       string
	windows      [][2]float64
	clean, dirty float64
}{
	{"ca-north", [][2]float64{{0.08, 120}, {2.33, 245}}, 73.5, 443},
	{"us-plains", [][2]float64{{10.08, 10}, {10.33, 365}, {16.5, 35}}, 22.1, 642},
	{"au-south", [][2]float64{{4.67, 630}}, 0.4, 835},
	{"de", nil, 0, 752},
}

// found measures a series: spans below 100 and the means on both sides.
func found(t *testing.T, trace *replay.Trace, region string) (windows [][2]float64, clean, dirty float64) {
	t.Helper()
	s, err := trace.Column(region)
	if err != nil {
		t.Fatal(err)
	}
	var nc, nd float64
	open := false
	for i := range s.Len() {
		at, v := s.Point(i)
		if *v >= 100 {
			open = false
			dirty += *v
			nd++
			continue
		}
		if !open {
			windows = append(windows, [2]float64{at.Sub(trace.Start()).Hours(), 0})
		}
		open = true
		windows[len(windows)-1][1] += trace.Period().Minutes()
		clean += *v
		nc++
	}
	return windows, clean / math.Max(nc, 1), dirty / math.Max(nd, 1)
}

func TestTwinsHaveTheWindowsAndMeansOfTheFieldStudy(t *testing.T) {
	for seed := range uint64(10) {
		twin := Twin(seed)
		if twin.Marginal.Rows() != 217 || twin.Marginal.Period() != 5*time.Minute {
			t.Fatalf("seed %d: %d rows every %s", seed, twin.Marginal.Rows(), twin.Marginal.Period())
		}
		for _, f := range facts {
			windows, clean, dirty := found(t, twin.Marginal, f.region)
			if len(windows) != len(f.windows) {
				t.Fatalf("seed %d %s: windows %v, want %v", seed, f.region, windows, f.windows)
			}
			for i, w := range windows {
				if math.Abs(w[0]-f.windows[i][0]) > 0.005 || w[1] != f.windows[i][1] {
					t.Errorf("seed %d %s window %d: %v, want %v", seed, f.region, i, w, f.windows[i])
				}
			}
			if math.Abs(clean-f.clean) > 0.05 || math.Abs(dirty-f.dirty) > 0.05 {
				t.Errorf("seed %d %s: means %.3f and %.3f, want %v and %v", seed, f.region, clean, dirty, f.clean, f.dirty)
			}
		}
	}
}

func TestMostOfTheSouthernWindowIsExactlyZero(t *testing.T) {
	s, err := Twin(7).Marginal.Column("au-south")
	if err != nil {
		t.Fatal(err)
	}
	zeros := 0
	for i := range s.Len() {
		if _, v := s.Point(i); *v == 0 {
			zeros++
		}
	}
	if zeros != 125 {
		t.Errorf("%d zeros, want 125", zeros)
	}
}

func TestNoValueIsNearTheThreshold(t *testing.T) {
	for seed := range uint64(12) {
		traces, err := Generate(Config{Seed: seed, Sites: MaxSite})
		if err != nil {
			t.Fatal(err)
		}
		for _, region := range traces.Marginal.Regions() {
			s, _ := traces.Marginal.Column(region)
			for i := range s.Len() {
				if at, v := s.Point(i); *v < 0 || (*v > highestClean && *v < lowestDirty) || *v > 1300 {
					t.Fatalf("seed %d %s at %s: %v", seed, region, at, *v)
				}
			}
		}
	}
}

func TestSitesHaveTheirSeededWindows(t *testing.T) {
	for seed := range uint64(8) {
		traces, err := Generate(Config{Seed: seed, Sites: MaxSite})
		if err != nil {
			t.Fatal(err)
		}
		if len(traces.Sites) != MaxSite || len(traces.Baselines) != 1 {
			t.Fatalf("%d sites, %d baselines", len(traces.Sites), len(traces.Baselines))
		}
		for _, r := range traces.Sites {
			windows, clean, dirty := found(t, traces.Marginal, r.Name)
			if len(windows) != len(r.Windows) {
				t.Fatalf("seed %d %s: windows %v, want %v", seed, r.Name, windows, r.Windows)
			}
			for i, w := range r.Windows {
				if windows[i][0] != w.From.Hours() || windows[i][1] != w.Length.Minutes() {
					t.Errorf("seed %d %s: window %v, want %v", seed, r.Name, windows[i], w)
				}
			}
			if math.Abs(clean-r.CleanMean) > 0.05 || math.Abs(dirty-r.DirtyMean) > 0.05 {
				t.Errorf("seed %d %s: means %.3f, %.3f, want %v, %v", seed, r.Name, clean, dirty, r.CleanMean, r.DirtyMean)
			}
		}
	}
}

func TestTheSameSeedGivesTheSameBytesAndAnotherSeedOthers(t *testing.T) {
	write := func(c Config) []byte {
		traces, err := Generate(c)
		if err != nil {
			t.Fatal(err)
		}
		var b bytes.Buffer
		for _, tr := range []*replay.Trace{traces.Marginal, traces.Average} {
			if err := tr.WriteCSV(&b); err != nil {
				t.Fatal(err)
			}
		}
		return b.Bytes()
	}
	a := write(Config{Seed: 1, Sites: 5})
	if !bytes.Equal(a, write(Config{Seed: 1, Sites: 5})) {
		t.Error("the same seed gave other bytes")
	}
	if bytes.Equal(a, write(Config{Seed: 2, Sites: 5})) {
		t.Error("another seed gave the same bytes")
	}
}

func TestARegionDoesNotDependOnTheNumberOfSites(t *testing.T) {
	small, _ := Generate(Config{Seed: 3, Sites: 4})
	big, _ := Generate(Config{Seed: 3, Sites: 12})
	for _, region := range small.Marginal.Regions() {
		a, _ := small.Marginal.Column(region)
		b, err := big.Marginal.Column(region)
		if err != nil {
			t.Fatal(err)
		}
		for i := range a.Len() {
			_, x := a.Point(i)
			_, y := b.Point(i)
			if *x != *y {
				t.Fatalf("%s point %d: %v and %v", region, i, *x, *y)
			}
		}
	}
}

func TestReplayReadsWhatIsWritten(t *testing.T) {
	twin := Twin(1)
	var b bytes.Buffer
	if err := twin.Marginal.WriteCSV(&b); err != nil {
		t.Fatal(err)
	}
	read, err := replay.Read(&b, "twin.csv", signals.Marginal, signals.GramsPerKWh)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range facts {
		windows, clean, dirty := found(t, read, f.region)
		if len(windows) != len(f.windows) || math.Abs(clean-f.clean) > 0.05 || math.Abs(dirty-f.dirty) > 0.05 {
			t.Errorf("%s: %v %v %v", f.region, windows, clean, dirty)
		}
	}
}

func TestAverageStaysBetweenTheMarginalLevels(t *testing.T) {
	for seed := range uint64(10) {
		traces, err := Generate(Config{Seed: seed, Sites: 8})
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range append(traces.Sites, traces.Baselines...) {
			s, _ := traces.Average.Column(r.Name)
			for i := range s.Len() {
				if _, v := s.Point(i); *v <= r.CleanMean || *v >= r.DirtyMean {
					t.Fatalf("seed %d %s point %d: %v is not between %v and %v", seed, r.Name, i, *v, r.CleanMean, r.DirtyMean)
				}
			}
		}
	}
}

func TestTooManySitesAreRefused(t *testing.T) {
	for _, n := range []int{-1, MaxSite + 1} {
		if _, err := Generate(Config{Sites: n}); err == nil {
			t.Errorf("%d sites were accepted", n)
		}
	}
}

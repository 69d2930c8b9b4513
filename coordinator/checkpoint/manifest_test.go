package checkpoint

import (
	"bytes"
	"fmt"
	"hash/crc32"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"girassol.dev/coordinator/corpus"
	"girassol.dev/coordinator/gate"
)

// fullManifest has every field set, so that a golden file shows them all.
func fullManifest() Manifest {
	m := testManifest(7, KindCommit)
	m.Term = 3
	m.Agreement = ptr(0.25)
	m.Members = []ManifestMember{
		{
			Member: "lund/a", Site: "lund", UpdateID: "01-7", Weight: 8192, Steps: 32, Samples: 8192, Loss: ptr(2.5),
			TrainingSeconds: 31.5, EnergyJoules: 9450, EnergySource: "nvml", PayloadBytes: 40960, Agreement: ptr(-0.125),
		},
		{Member: "porto/b", Site: "porto", UpdateID: "02-7", Weight: 0.5, Steps: 1, Samples: 1, PayloadBytes: 512},
	}
	m.CommittedSamples, m.RoundsVoid = 65536, 2
	m.SiteStats = map[string]SiteStats{"porto": {Rounds: 1, Samples: 1}, "lund": {Rounds: 5, Samples: 65535, TrainingSeconds: 160.25}}
	m.Ledger = map[string]LedgerEntry{
		"porto": {EnergyJoules: 12},
		"lund":  {EnergyJoules: 47250, MarginalGrams: ptr(3.5), AverageGrams: ptr(1.25), CoveredJoules: 47000},
	}
	m.Evaluation = &Evaluation{
		Version: 6, Samples: 1000, Loss: ptr(2.75), Metrics: map[string]float64{"accuracy": 0.5},
		Members: []gate.Measure{{Member: "lund/a", Site: "lund", Samples: 1000, Loss: ptr(2.75)}}, RoundsCommitted: 4,
	}
	m.Gate = &gate.State{
		Best:      &gate.Result{Version: 2, Measures: []gate.Measure{{Member: "lund/a", Site: "lund", Samples: 1000, Loss: ptr(2.5)}}},
		Rollbacks: 1,
		Last:      &gate.Verdict{Kind: gate.Passed, Message: "within the margin", Version: 6, Loss: ptr(2.75), Reference: 2, ReferenceLoss: ptr(2.5)},
	}
	m.Rollback = &Rollback{Version: 5, To: 2, From: 4, Reason: "EvaluationWorse", Message: "version 4 was worse", UnixMilli: 1e12}
	m.Members[0].Consumed = corpus.Ranges{{Pass: 2, Begin: 0, End: 4096}, {Pass: 2, Begin: 5000, End: 6000}}
	m.Data = &corpus.Position{Samples: 10_000, Pass: 2, Consumed: corpus.Ranges{{Pass: 2, Begin: 0, End: 6000}, {Pass: 3, Begin: 0, End: 9}}}
	m.DeltaBytes, m.DeltaCRC32C = 1234, 0xdeadbeef
	m.Updates = []UpdateFile{{"lund/a", FileSum{40960, 1}}, {"porto/b", FileSum{512, 2}}}
	return m
}

// TestManifestFormatIsStable fails when an older store could no longer be read,
// or the order of fields changed.
func TestManifestFormatIsStable(t *testing.T) {
	path := filepath.Join("testdata", "manifest.json")
	b := must(fullManifest().encode())(t)
	if os.Getenv("UPDATE_GOLDEN") != "" {
		ok(t, os.WriteFile(path, b, 0o644))
	}
	golden := must(os.ReadFile(path))(t)
	if !bytes.Equal(b, golden) {
		t.Errorf("encoding differs from %s (UPDATE_GOLDEN=1 rewrites it):\n%s", path, b)
	}
	if m := must(ParseManifest(golden))(t); !reflect.DeepEqual(m, fullManifest()) {
		t.Errorf("%s reads as %+v", path, m)
	}
}

func TestUnmeasuredValuesAreMissingNeverZero(t *testing.T) {
	m := fullManifest()
	m.Agreement = ptr(math.NaN())
	m.Members[0].Loss = ptr(math.Inf(1))
	m.Members[1].Agreement = ptr(math.NaN())
	m.Ledger["lund"] = LedgerEntry{MarginalGrams: ptr(math.NaN())}
	m.Evaluation.Loss = ptr(math.Inf(-1))
	m.Evaluation.Metrics["perplexity"] = math.Inf(1)
	got := must(ParseManifest(must(m.encode())(t)))(t)
	if got.Agreement != nil || got.Members[0].Loss != nil || got.Members[1].Agreement != nil ||
		got.Ledger["lund"].MarginalGrams != nil || got.Ledger["porto"].AverageGrams != nil || got.Evaluation.Loss != nil {
		t.Errorf("a value that is no number was kept: %+v", got)
	}
	if want := map[string]float64{"accuracy": 0.5}; !reflect.DeepEqual(got.Evaluation.Metrics, want) {
		t.Errorf("metrics %v", got.Evaluation.Metrics)
	}
	if _, kept := m.Evaluation.Metrics["perplexity"]; !kept || m.Members[0].Loss == nil {
		t.Error("encoding changed the caller's manifest")
	}
	zero := fullManifest()
	zero.Members[0].Loss = ptr(0)
	if got := must(ParseManifest(must(zero.encode())(t)))(t); got.Members[0].Loss == nil || *got.Members[0].Loss != 0 {
		t.Error("a measured zero was lost")
	}
}

func TestImpossibleManifestsAreRefusedWithTheField(t *testing.T) {
	for want, change := range map[string]func(*Manifest){
		"kind":                     func(m *Manifest) { m.Kind = "merge" },
		"digest":                   func(m *Manifest) { m.Digest = m.Digest[:62] },
		"layoutDigest":             func(m *Manifest) { m.LayoutDigest = strings.Repeat("x", 64) },
		"weight NaN":               func(m *Manifest) { m.Members[1].Weight = math.NaN() },
		"weight 0":                 func(m *Manifest) { m.Members[1].Weight = 0 },
		"weight -1":                func(m *Manifest) { m.Members[1].Weight = -1 },
		"weight +Inf":              func(m *Manifest) { m.Members[1].Weight = math.Inf(1) },
		"twice":                    func(m *Manifest) { m.Members[1].Member = m.Members[0].Member },
		"training seconds":         func(m *Manifest) { m.Members[0].TrainingSeconds = math.NaN() },
		"ledger of site x":         func(m *Manifest) { m.Ledger["x"] = LedgerEntry{EnergyJoules: math.Inf(1)} },
		"site x has":               func(m *Manifest) { m.SiteStats["x"] = SiteStats{TrainingSeconds: math.NaN()} },
		"payload bytes":            func(m *Manifest) { m.Members[0].PayloadBytes = -1 },
		"samples of member lund/a": func(m *Manifest) { m.Members[0].Consumed[0].End = 0 },
		"neither pass 2":           func(m *Manifest) { m.Data.Consumed[1].Pass = 4 },
		"-5 delta bytes":           func(m *Manifest) { m.DeltaBytes = -5 },
		"update of porto/b":        func(m *Manifest) { m.Updates[1].Bytes = -1 },
		"file of -2 bytes":         func(m *Manifest) { m.State = &FileSum{Bytes: -2} },
		"manifest of versio":       func(m *Manifest) { m.Algorithm.OuterLearningRate = math.NaN() },
	} {
		m := fullManifest()
		change(&m)
		if _, err := m.encode(); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "version 7") {
			t.Errorf("%s: %v", want, err)
		}
	}
}

func TestEveryChangedBitOfAManifestIsNoticed(t *testing.T) {
	b := must(fullManifest().encode())(t)
	for i := range b {
		c := bytes.Clone(b)
		c[i] ^= 1
		if _, err := ParseManifest(c); err == nil {
			t.Fatalf("a changed byte %d was not noticed", i)
		}
	}
	for n := range b {
		if _, err := ParseManifest(b[:n]); err == nil {
			t.Fatalf("%d of %d bytes were taken", n, len(b))
		}
	}
}

func seal(body []byte) []byte {
	return append(fmt.Appendf(nil, sealFormat, crc32.Checksum(body, castagnoli)), body...)
}

func FuzzParseManifest(f *testing.F) {
	b, err := fullManifest().encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add(b[sealLength:])
	f.Add([]byte(`"version": 18446744073709551616}`))
	f.Add([]byte(`"members": [{"member": "a", "weight": 1e999}]}`))
	f.Add([]byte(`}{`))
	f.Fuzz(func(t *testing.T, b []byte) {
		// As it is, and as a body with the right checksum.
		for _, b := range [][]byte{b, seal(b)} {
			m, err := ParseManifest(b)
			if err != nil {
				continue
			}
			once, err := m.encode()
			if err != nil {
				t.Fatalf("what was read cannot be written: %v", err)
			}
			again, err := ParseManifest(once)
			if err != nil {
				t.Fatalf("what was written cannot be read: %v", err)
			}
			if twice, err := again.encode(); err != nil || !bytes.Equal(once, twice) {
				t.Fatalf("not stable: %v\n%s\n%s", err, once, twice)
			}
		}
	})
}

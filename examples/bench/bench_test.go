package main

import (
	"bytes"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"girassol.dev/internal/algorithm"
)

// The test binary is its own coordinator, as the command is.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && slices.Contains([]string{roleCoordinator, roleAgent, roleTrainer, roleSink}, os.Args[1]) {
		os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
	}
	goleak.VerifyTestMain(m)
}

// bench runs the command and reads its JSON. It checks that nothing is left.
func bench[T any](t *testing.T, args ...string) T {
	t.Helper()
	dir := t.TempDir()
	var out, log bytes.Buffer
	if code := run(append(args, "-o", "json", "--dir", dir), &out, &log); code != 0 {
		t.Fatalf("bench %v: exit code %d\n%s", args, code, log.String())
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left in the folder: %v %v", left, err)
	}
	var report T
	if err := json.Unmarshal(out.Bytes(), &report); err != nil {
		t.Fatalf("%v in %s", err, out.String())
	}
	return report
}

func needsProc(t *testing.T) {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("reads /proc, which only Linux has")
	}
}

// Dense uploads of 12 MB each, 48 MB for the added sites: a coordinator that
// held them in memory would be far above the bound.
func TestMemoryDoesNotGrowWithSites(t *testing.T) {
	needsProc(t)
	const params, few, many = 3_000_000, 1, 5
	r := bench[memoryReport](t, "memory", "--params", "3000000", "--sites", "1,5", "--rounds", "1", "--snapshot-every", "1")
	if len(r.Runs) != 2 || r.Runs[0].Sites != few || r.Runs[1].Sites != many {
		t.Fatalf("runs: %+v", r.Runs)
	}
	for _, m := range r.Runs {
		if m.ModelBuffers != 8*params || m.UpdateBytes < 4*params || m.DeltaBytes < 4*params {
			t.Errorf("%d sites: model buffers %d, update %d, delta %d bytes", m.Sites, m.ModelBuffers, m.UpdateBytes, m.DeltaBytes)
		}
		if m.Started.HighWater > m.Peak.HighWater || m.Peak.Anon < m.ModelBuffers || m.Peak.Shmem > 1<<20 {
			t.Errorf("%d sites: loaded %+v, peak %+v", m.Sites, m.Started, m.Peak)
		}
		if m.Recovery.HighWater < m.ModelBuffers || m.Recovery.HighWater > m.Peak.HighWater {
			t.Errorf("%d sites: recovery %+v, peak %+v", m.Sites, m.Recovery, m.Peak)
		}
		if len(m.Rounds) != 1 || m.Rounds[0].Push.Bytes != int64(m.Sites)*m.UpdateBytes {
			t.Errorf("%d sites: rounds %+v", m.Sites, m.Rounds)
		}
	}
	if raceDetector {
		t.Skip("the growth per site is not judged: the race detector's shadow is many times what is measured")
	}
	// Buffers of a connection and of an upload, and what the collector leaves, are
	// about 5 MB; an upload in memory is 12 MB and as much again as it grows.
	if g := r.Runs[1].GrowthPerSite; g == nil || *g > float64(r.Runs[1].UpdateBytes) {
		t.Errorf("the peak grows by more than an update per added site: %+v", r.Runs)
	}
}

func TestSparseUpdatesNeedOneResidualMore(t *testing.T) {
	needsProc(t)
	r := bench[memoryReport](t, "memory", "--params", "300000", "--sites", "2", "--rounds", "2", "--algorithm", algorithm.DecoupledMomentum)
	m := r.Runs[0]
	if m.ModelBuffers < 12*300_000 || m.ModelBuffers > 12*300_000*11/10 || m.UpdateBytes*30 > 4*300_000 {
		t.Errorf("model buffers %d, update %d bytes", m.ModelBuffers, m.UpdateBytes)
	}
}

func TestDecoupledMomentumSendsFarFewerBytes(t *testing.T) {
	r := bench[wireReport](t, "wire", "--sites", "1,3", "--rounds", "2", "--train", "0")
	sum := map[string]float64{}
	for _, m := range r.Runs {
		all := m.Join.plus(m.Mean.Socket.times(2)).times(float64(m.Sites))
		if len(m.Rounds) != 2 || math.Abs(all.Up-m.Total.Up) > 1 || math.Abs(all.Down-m.Total.Down) > 1 {
			t.Errorf("%s, %d sites: join and rounds are %+v in all: %+v", m.Algorithm, m.Sites, all, m)
		}
		for i, round := range m.Rounds {
			if round.Socket.Up <= round.Payload.Up || round.Socket.Down <= round.Payload.Down || round.Socket.sum() > round.Payload.sum()+8<<10 {
				t.Errorf("%s, %d sites, round %d: %+v is no payload with its framing", m.Algorithm, m.Sites, i+1, round)
			}
		}
		sum[m.Algorithm] = max(sum[m.Algorithm], m.Mean.Socket.sum())
	}
	dense, sparse := sum[algorithm.DiLoCo], sum[algorithm.DecoupledMomentum]
	if dense < 2*float64(r.Dense) || dense > 2.02*float64(r.Dense) {
		t.Errorf("dense rounds take %.0f bytes, want 2 x %d and little more", dense, r.Dense)
	}
	if sparse == 0 || dense < 25*sparse {
		t.Errorf("decoupled momentum takes %.0f bytes of dense rounds' %.0f, want at most a 25th", sparse, dense)
	}
}

func TestTablesShowEveryRun(t *testing.T) {
	growth := 1.5e6
	var out bytes.Buffer
	memory := memoryReport{Runs: []memoryRun{{Algorithm: "diloco", Sites: 2}, {Algorithm: "diloco", Sites: 4, GrowthPerSite: &growth,
		Rounds: []phases{{Push: cost{Bytes: 2e9, Wall: 3, CPU: 1}}}}}}
	if err := memory.table(&out); err != nil {
		t.Fatal(err)
	}
	wire := wireReport{Dense: 100, Runs: []wireRun{{Algorithm: "fedavg", Sites: 8, Mean: roundTraffic{Socket: traffic{50, 25}}}}}
	if err := wire.table(&out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"per added site", "1.5", "0.50", "fedavg", "2.00", "4.00"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
}

func TestSyntheticModelHasExactlyTheParameters(t *testing.T) {
	for _, n := range []int{20_000, 115_328, 1_000_003, 100_000_000, 561_000_000} {
		l, err := syntheticLayout(n)
		if err != nil {
			t.Fatal(err)
		}
		if l.Parameters() != n || len(l.Tensors()) < 50 {
			t.Errorf("%d parameters in %d tensors, want %d", l.Parameters(), len(l.Tensors()), n)
		}
	}
	if _, err := syntheticLayout(100); err == nil {
		t.Error("100 parameters made a model of eight layers")
	}
}

func TestBadFlagsAreRefused(t *testing.T) {
	for _, tc := range []struct{ args, want string }{
		{"memory --sites 0", "--sites"},
		{"memory --rounds 0", "--rounds"},
		{"memory --algorithm demo", "--algorithm"},
		{"memory -o yaml", "--output"},
		{"memory --params 0", "--params"},
		{"memory --params 100", "--params"},
		{"memory --snapshot-every 0", "--snapshot-every"},
		{"wire --sites 1000", "--sites"},
		{"wire --heartbeat 1ms", "--heartbeat"},
		{"mixed --slow 1", "--slow"},
		{"mixed --slow 1,0", "--slow"},
		{"mixed --step 1us", "--step"},
		{"mixed --noise 2", "--noise"},
		{"mixed --local-steps 0", "--local-steps"},
		{"mixed --rounds 2 --warm-up 2", "--rounds"},
		{"mixed -o yaml", "--output"},
		{"watch", "unknown command"},
	} {
		var out, log bytes.Buffer
		if code := run(append(strings.Fields(tc.args), "--dir", t.TempDir()), &out, &log); code == 0 || !strings.Contains(log.String(), tc.want) {
			t.Errorf("%s: exit code %d, %q; want it to name %s", tc.args, code, log.String(), tc.want)
		}
	}
}

func TestProblemsOfTheCoordinatorAreTold(t *testing.T) {
	dir := t.TempDir()
	config := filepath.Join(dir, "federation.yaml")
	if err := writeFederation(config, algorithm.DiLoCo, filepath.Join(dir, "absent"), 1); err != nil {
		t.Fatal(err)
	}
	_, err := startCoordinator(t.Context(), "--config", config, "--data", filepath.Join(dir, "data"))
	if err == nil || !strings.Contains(err.Error(), "spec.model.path") {
		t.Errorf("a coordinator without its model: %v", err)
	}
}

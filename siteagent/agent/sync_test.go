package agent

import (
	"bytes"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	"girassol.dev/internal/algorithm"
	"girassol.dev/internal/tensor"
	"girassol.dev/internal/wire"
	"girassol.dev/internal/wire/wiretest"
	"girassol.dev/siteagent/replica"
)

const (
	snapshotKind = coordinatorv1.PullRequest_KIND_SNAPSHOT
	deltaKind    = coordinatorv1.PullRequest_KIND_DELTA
)

// pulled is what was asked for, as "S" and the versions of deltas.
func (c *coordinator) pulled() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []string
	for _, p := range c.pulls {
		if p.GetKind() == snapshotKind {
			out = append(out, "S")
			continue
		}
		out = append(out, string(rune('0'+p.GetVersion())))
	}
	return strings.Join(out, " ")
}

// holds stops the agent and reads its replica from disk.
func (c *coordinator) holds(t *testing.T, r *rig) {
	t.Helper()
	r.stop()
	store, err := replica.Open(filepath.Join(r.dir, "replica"), "lm", slog.New(slog.DiscardHandler))
	must(t, err)
	defer store.Close()
	version, digest, ok := store.Held()
	if !ok || version != c.version || digest != c.digest {
		t.Fatalf("replica at version %d (ok %v) with digest %x, want version %d with %x", version, ok, digest, c.version, c.digest)
	}
}

func TestMissedCommitsAreReplayedInOrder(t *testing.T) {
	c := newCoordinator(t, algorithm.DecoupledMomentum, small)
	r := launch(t, c, "", &person{t: t})
	c.waitReady(0)
	r.stop()
	for range 3 {
		c.commit()
	}
	r = launch(t, c, r.dir, &person{t: t})
	c.waitReady(3)
	if h := c.newest().hello; h.GetModelVersion() != 0 || h.ModelVersion == nil || len(h.GetModelDigest()) != 32 {
		t.Fatalf("hello %v", h)
	}
	c.holds(t, r)
	if got := c.pulled(); got != "S 1 2 3" {
		t.Fatalf("pulled %q", got)
	}
}

func TestAPrunedDeltaLeadsToAFullPull(t *testing.T) {
	c := newCoordinator(t, algorithm.DecoupledMomentum, small)
	launch(t, c, "", &person{t: t})
	c.waitReady(0)
	c.commit()
	c.commit()
	c.do(func() { delete(c.deltas, 1) })
	c.tell(c.committed(2))
	c.waitReady(2)
	if got := c.pulled(); got != "S 1 S" && got != "S S" {
		t.Fatalf("pulled %q", got)
	}
}

func TestAnotherDigestLeadsToAFullPull(t *testing.T) {
	c := newCoordinator(t, algorithm.DecoupledMomentum, small)
	launch(t, c, "", &person{t: t})
	c.waitReady(0)
	c.commit()
	c.do(func() {
		c.deltas[1].manifest.Digest = make([]byte, 32)
	})
	c.tell(c.committed(1))
	c.waitReady(1)
	if got := c.pulled(); got != "S 1 S" {
		t.Fatalf("pulled %q", got)
	}
}

func TestARolledBackVersionIsPulledInFull(t *testing.T) {
	c := newCoordinator(t, algorithm.DecoupledMomentum, small)
	launch(t, c, "", &person{t: t})
	c.waitReady(0)
	c.commit()
	c.tell(c.committed(1))
	c.waitReady(1)
	c.do(func() { // version 1 is another state now
		c.state.Theta[0]++
		c.takeSnapshot()
	})
	c.tell(c.committed(1))
	c.wait("a second full pull", func() bool { return len(c.pulls) == 3 })
	if got := c.pulled(); got != "S 1 S" {
		t.Fatalf("pulled %q", got)
	}
}

func TestABrokenDownloadResumesAtItsOffset(t *testing.T) {
	c := newCoordinator(t, algorithm.DiLoCo, large)
	c.breakPull = 2
	launch(t, c, "", &person{t: t})
	c.waitReady(0)
	if len(c.pulls) != 3 || c.pulls[1].GetOffset() == 0 || c.pulls[2].GetOffset() <= c.pulls[1].GetOffset() {
		t.Fatalf("pulls %v", c.pulls)
	}
}

// The coordinator sends whichever is shorter; a broken download of the state that
// came in a delta's place goes on as what it is.
func TestAShorterStateTakesTheDeltasPlace(t *testing.T) {
	c := newCoordinator(t, algorithm.DiLoCo, large)
	r := launch(t, c, "", &person{t: t})
	c.waitReady(0)
	r.stop()
	for range 3 {
		c.commit()
	}
	c.do(func() { c.shorter, c.breakPull, c.pulls = true, 1, nil })
	r = launch(t, c, r.dir, &person{t: t})
	c.waitReady(3)
	c.holds(t, r)
	if got := c.pulled(); got != "1 S" {
		t.Fatalf("pulled %q", got)
	}
	if p := c.pulls; p[0].GetCatchUpTo() != 3 || p[1].GetOffset() == 0 {
		t.Fatalf("pulls %v", p)
	}
}

// The line is cut half-way, for the session too: a new one resumes, and what has
// arrived does not cross the line again.
func TestACutConnectionResumesDownloadAndUpload(t *testing.T) {
	c := newCoordinator(t, algorithm.DiLoCo, []tensor.Spec{{Name: "weight", DType: tensor.F32, Shape: []int64{2048, 2048}, Role: tensor.Parameter}})
	line := wiretest.New(t, c.address)
	near := &wire.Counter{}
	size := int64(len(c.snapshot.data))
	line.CutDown(size / 2)
	r := launch(t, c, "", &person{t: t}, func(cfg *Config) {
		cfg.Dial = func() (*grpc.ClientConn, error) { return wire.Dial(line.Addr(), wire.Options{Counter: near}) }
	})
	c.waitReady(0)
	up, down, cuts := line.Passed()
	in, _ := near.Total()
	// What was in flight at the cut comes twice.
	if most := size + 4*wire.ChunkSize; cuts != 1 || down > most || int64(in) > most || c.pulls[len(c.pulls)-1].GetOffset() == 0 {
		t.Fatalf("a state of %d bytes: %d passed, %d arrived, %d cuts, last pull %v", size, down, in, cuts, c.pulls[len(c.pulls)-1])
	}
	size = int64(4 * c.state.Layout.Parameters())
	line.CutUp(size / 2)
	c.tell(c.grant(1, 2, long))
	u := c.waitPushes(1)[0]
	after, _, cuts := line.Passed()
	if int64(len(u.payload)) < size || u.from == 0 || cuts != 2 || after-up > size+4*wire.ChunkSize {
		t.Fatalf("an update of %d bytes from byte %d: %d passed, %d cuts", len(u.payload), u.from, after-up, cuts)
	}
	r.stop()
}

func TestAGrantBringsItsBaseVersion(t *testing.T) {
	c := newCoordinator(t, algorithm.DecoupledMomentum, small)
	r := launch(t, c, "", &person{t: t})
	c.waitReady(0)
	c.commit() // and nobody is told
	c.tell(c.grant(3, 1, long))
	u := c.waitPushes(1)[0].header
	if u.GetBaseVersion() != 1 {
		t.Fatalf("header %v", u)
	}
	c.waitReady(1)
	r.stop()
}

func TestFirstWeightsComeFromTheTrainer(t *testing.T) {
	for _, first := range []bool{true, false} {
		c := newCoordinator(t, algorithm.DecoupledMomentum, small)
		path := filepath.Join(t.TempDir(), "model.safetensors")
		must(t, tensor.WriteFileAtomic(path, func(w io.Writer) error { return tensor.SaveState(w, c.state, false) }))
		model, err := os.ReadFile(path)
		must(t, err)
		c.hasModel = false
		c.answer = func(h *coordinatorv1.PushHeader) *coordinatorv1.PushResult {
			if h.GetKind() != coordinatorv1.PushHeader_KIND_SEED {
				t.Errorf("pushed %v", h)
			}
			c.hasModel = true
			if !first {
				return &coordinatorv1.PushResult{Status: coordinatorv1.PushResult_STATUS_REFUSED, Reason: "AlreadySeeded"}
			}
			return &coordinatorv1.PushResult{Status: coordinatorv1.PushResult_STATUS_ACCEPTED}
		}
		p := &person{t: t, seed: path}
		r := launch(t, c, "", p)
		c.waitBeat("idle without a model", func(h *coordinatorv1.Heartbeat) bool {
			return h.GetState() == coordinatorv1.MemberState_MEMBER_STATE_IDLE
		})
		c.tell(&coordinatorv1.SeedRequest{})
		if u := c.waitPushes(1)[0]; !bytes.Equal(u.payload, model) {
			t.Fatal("the payload is not the model that was offered")
		}
		c.waitReady(0)
		c.holds(t, r)
	}
}

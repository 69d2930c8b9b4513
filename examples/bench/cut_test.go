package main

import (
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/internal/algorithm"
	"girassol.dev/internal/wire"
	"girassol.dev/internal/wire/wiretest"
)

// A real agent and a real coordinator with one line between them, which is cut when
// half of the first weights have come down, and again when half of an update has gone
// up. The cut takes the session with it. What crosses the line in all says that both
// went on where they stopped, and the replica's digest that they fitted together.
func TestOverALineThatIsCutAtHalfBothWaysGoOn(t *testing.T) {
	needsProc(t)
	for _, tc := range []struct {
		strategy string
		uplink   *v1alpha1.EncodingSpec
		// bytes per parameter of an update
		least, most float64
	}{
		{algorithm.DiLoCo, nil, 4, 4.01},
		// So dense that half an update is many chunks.
		{algorithm.DecoupledMomentum, &v1alpha1.EncodingSpec{KeepOneIn: 2, Values: v1alpha1.ValuesFP32}, 2, 2.5},
	} {
		t.Run(tc.strategy, func(t *testing.T) {
			const params = 12_000_000
			dir := t.TempDir()
			l, err := syntheticLayout(params)
			if err != nil {
				t.Fatal(err)
			}
			model, config := filepath.Join(dir, "model.safetensors"), filepath.Join(dir, "federation.yaml")
			if err := writeModel(model, l); err != nil {
				t.Fatal(err)
			}
			err = writeFederationWith(config, tc.strategy, model, 1, func(s *v1alpha1.FederationSpec) {
				s.Algorithm.Uplink = tc.uplink
				s.Rounds.LocalSteps = 3
			})
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			log := filepath.Join(dir, "data")
			c, err := startCoordinator(ctx, "--config", config, "--data", log, "--heartbeat", "500ms", "--snapshot-every", "1000")
			if err != nil {
				t.Fatal(err)
			}
			defer c.kill()
			conn, err := wire.Dial(c.addr, wire.Options{})
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = conn.Close() }()
			admin := coordinatorv1.NewAdminClient(conn)

			line := wiretest.New(t, c.addr)
			first := biggestFile(t, log)
			line.CutDown(first / 2)
			update := int64(tc.least * params)
			line.CutUp(update / 2)
			// Not t.TempDir: a Unix socket's path may have 107 bytes.
			data, err := os.MkdirTemp("", "cut-")
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = os.RemoveAll(data) }()
			agents, end := context.WithCancelCause(ctx)
			a, err := startAgent(agents, line.Addr(), siteName(0), data, end, "20ms", "0", "1")
			if err != nil {
				t.Fatal(err)
			}
			defer a.kill()
			until := func(what string, ok func(*coordinatorv1.FederationStatus) bool) *coordinatorv1.FederationStatus {
				t.Helper()
				w, err := admin.Watch(agents, &coordinatorv1.WatchRequest{IntervalMs: 20})
				for err == nil {
					var st *coordinatorv1.FederationStatus
					if st, err = w.Recv(); err == nil && ok(st) {
						return st
					}
				}
				t.Fatalf("it never %s: %v, %v\n%s", what, err, context.Cause(agents), c.log())
				return nil
			}
			until("granted a round", func(st *coordinatorv1.FederationStatus) bool { return st.GetRound().GetState() == "Collecting" })
			up, down, cuts := line.Passed()
			if cuts != 1 || down < first || down > first+first/4 {
				t.Errorf("%d bytes came down for first weights of %d, %d cuts: did not go on where it stopped", down, first, cuts)
			}
			until("committed", func(st *coordinatorv1.FederationStatus) bool { return st.GetVersion() >= 1 })
			after, _, cuts := line.Passed()
			if sent, most := after-up, int64(tc.most*params); cuts != 2 || sent < update || sent > most+most/4 {
				t.Errorf("%d bytes went up for an update of %d to %d, %d cuts: did not go on where it stopped", sent, update, most, cuts)
			}
			// A second round begins with a replica that has the first one's digest.
			if st := until("committed again", func(st *coordinatorv1.FederationStatus) bool { return st.GetVersion() >= 2 }); st.GetRoundsVoid() != 0 {
				t.Errorf("%d void rounds", st.GetRoundsVoid())
			}
		})
	}
}

// biggestFile of a commit log that has first weights only: them.
func biggestFile(t *testing.T, dir string) (size int64) {
	t.Helper()
	err := filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		fi, err := e.Info()
		if err == nil {
			size = max(size, fi.Size())
		}
		return err
	})
	if err != nil || size < 1<<20 {
		t.Fatalf("%d bytes of first weights: %v", size, err)
	}
	return size
}

package engine

import (
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/coordinator/checkpoint"
	"girassol.dev/internal/algorithm"
)

// A real file system without a byte left: the run pauses, and goes on where it
// stood once somebody has made room.
func TestARealDiskThatIsFullPausesTheRun(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=8m"); err != nil {
		t.Skipf("no small file system to fill: mount: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	p := defaults(t, algorithm.DecoupledMomentum)
	cfg := testConfig(filepath.Join(dir, "data"), p, "a", "b")
	store, err := checkpoint.Open(cfg.DataDir, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	r := newRigOn(t, cfg, store, func(e *Engine) { e.roomEvery = time.Millisecond })
	agents := r.joinAll("a", "b")
	model := smallModel(t)
	agents[0].seed(model)
	for _, a := range agents {
		a.committed()
	}
	r.round(agents, work(t, model, p))
	for _, a := range agents {
		a.heartbeat(coordinatorv1.MemberState_MEMBER_STATE_READY, 1)
	}
	var payloads [][]byte
	var headers []*coordinatorv1.PushHeader
	for _, a := range agents {
		payload, weight := work(t, model, p)(a, a.grant())
		h := a.header(&coordinatorv1.Grant{Round: 2, BaseVersion: 1}, "second", payload)
		h.Weight = weight
		payloads, headers = append(payloads, payload), append(headers, h)
	}
	filler := filepath.Join(dir, "filler")
	fill(t, filler)
	for i, a := range agents {
		a.mustAccept(headers[i], payloads[i])
	}
	st := r.until("paused", func(st *coordinatorv1.FederationStatus) bool {
		return st.GetReason() == string(v1alpha1.ReasonDiskFull)
	})
	if st.GetVersion() != 1 || st.GetRoundsVoid() != 0 {
		t.Errorf("status %v", st)
	}
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	for _, a := range agents {
		if c := a.committed(); c.GetVersion() != 2 || c.GetVoid() {
			t.Fatalf("told %v", c)
		}
	}
	for range 4 { // past a snapshot
		r.round(agents, work(t, model, p))
	}
	want := r.status()
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	if got := newRig(t, cfg).status(); !slices.Equal(got.GetDigest(), want.GetDigest()) || got.GetVersion() != 6 {
		t.Errorf("recovered %v", got)
	}
}

// fill writes until nothing more fits.
func fill(t *testing.T, path string) {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for size := 64 << 10; size > 0; {
		if _, err := f.Write(make([]byte, size)); errors.Is(err, syscall.ENOSPC) {
			size /= 16
		} else if err != nil && !errors.Is(err, io.ErrShortWrite) {
			t.Fatal(err)
		}
	}
}

package agent

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	"girassol.dev/internal/vectored"
	"girassol.dev/internal/wire"
	"girassol.dev/siteagent/replica"
)

// sync brings the replica to the target: by the deltas that it has missed, or by
// the whole state where that is shorter, or where they are pruned or lead elsewhere.
func (a *Agent) sync(ctx context.Context, t target) error {
	defer a.observeReplica()
	begin := time.Now()
	defer func() { a.pulledFor(time.Since(begin)) }()
	full := 0
	for !a.holds(t) {
		version, _, ok := a.cfg.Replica.Held()
		if ok && !t.newest && version < t.version {
			err := a.pullDelta(ctx, version+1, t.version)
			if err == nil {
				continue
			}
			if status.Code(err) != codes.NotFound && !errors.Is(err, replica.ErrDiverged) {
				return err
			}
			a.log.Info("a delta is not to be had, pulling the whole state", "version", version+1, "error", err)
		}
		if full++; full > 2 {
			return fmt.Errorf("agent: two full pulls did not lead to version %d", t.version)
		}
		if err := a.pullSnapshot(ctx); err != nil {
			return err
		}
		if version, _, ok = a.cfg.Replica.Held(); ok && !t.newest && version > t.version {
			return fmt.Errorf("agent: the coordinator is at version %d, past the %d that was asked for", version, t.version)
		}
	}
	return nil
}

// pullDelta brings the next version, or a later one up to the target in full.
func (a *Agent) pullDelta(ctx context.Context, version, target uint64) error {
	d, err := a.pull(ctx, &download{kind: coordinatorv1.PullRequest_KIND_DELTA, version: version, target: target})
	if err != nil {
		return err
	}
	defer discard(d.file)
	m := d.manifest
	if d.kind == coordinatorv1.PullRequest_KIND_SNAPSHOT {
		if m.Version < version {
			return fmt.Errorf("agent: asked for version %d, got the state of %d", version, m.Version)
		}
		return a.install(ctx, d)
	}
	if m.Version != version {
		return fmt.Errorf("agent: asked for delta %d, got %d", version, m.Version)
	}
	if err := a.cfg.Replica.Apply(m, d.file.Name()); err != nil {
		return err
	}
	a.log.Debug("delta applied", "version", m.Version, "round", m.Round)
	return nil
}

func (a *Agent) pullSnapshot(ctx context.Context) error {
	d, err := a.pull(ctx, &download{kind: coordinatorv1.PullRequest_KIND_SNAPSHOT})
	if err != nil {
		return err
	}
	defer discard(d.file)
	return a.install(ctx, d)
}

func (a *Agent) install(ctx context.Context, d *download) error {
	m := d.manifest
	if err := a.settlePassedOver(ctx, m); err != nil {
		return err
	}
	before, _, held := a.cfg.Replica.Held()
	if err := a.cfg.Replica.Install(m, d.file.Name()); err != nil {
		return err
	}
	if held && before < m.RolledBack {
		a.forgive()
	}
	a.metrics.fullPulls.Inc()
	a.log.Info("whole state pulled", "version", m.Version, "round", m.Round, "digest", hex.EncodeToString(m.Digest[:6]))
	return nil
}

// recall is for how many versions past its base an update is asked about. The
// coordinator knows merged ones for twice as many, for the state that is pulled may
// lag behind it.
const recall = 64

// settlePassedOver asks the coordinator what became of the pending update before a
// whole state is taken over that does not tell: it may have been accepted and its round
// void, or merged, while nobody told us.
func (a *Agent) settlePassedOver(ctx context.Context, m replica.Manifest) error {
	u := a.cfg.Replica.Pending()
	if u == nil || m.Version <= u.BaseVersion+1 || m.Version > u.BaseVersion+recall || slices.Contains(m.UpdateIDs, u.UpdateID) {
		return nil
	}
	outcome, err := a.push(ctx)
	if err == nil {
		a.log.Info("asked about an update that a whole state passes over", "update", u.UpdateID, "version", m.Version, "taken", outcome == "")
	}
	return err
}

func discard(f *os.File) {
	_ = f.Close()
	_ = os.Remove(f.Name())
}

// pull downloads to a file beside the replica, over as many sessions as it takes.
// NotFound is an answer, not a failure of the transfer.
func (a *Agent) pull(ctx context.Context, d *download) (_ *download, err error) {
	d.file, err = a.cfg.Replica.Incoming()
	if err != nil {
		return nil, err
	}
	b := a.cfg.newBackOff()
	var dead *session
	for {
		s, err := a.session(ctx, dead)
		if err == nil {
			err = d.once(ctx, s)
		}
		if err == nil {
			a.pulledBytes(d.kind, d.offset)
			return d, nil
		}
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		if ctx.Err() != nil || status.Code(err) == codes.NotFound {
			discard(d.file)
			return nil, err
		}
		if status.Code(err) == codes.Unauthenticated {
			dead = s
		}
		a.log.Info("download broke, resuming", "kind", d.kind, "version", d.version, "offset", d.offset, "error", err)
		if !pause(ctx, b.NextBackOff()) {
			discard(d.file)
			return nil, context.Cause(ctx)
		}
	}
}

// download is one file on its way in.
type download struct {
	// kind becomes a snapshot's where that was sent in a delta's place.
	kind     coordinatorv1.PullRequest_Kind
	version  uint64
	target   uint64 // that a delta leads to, further ones included
	file     *os.File
	offset   int64
	manifest replica.Manifest
}

// once goes on from the offset. A snapshot that is another one by now, or any
// download whose bytes do not fit, starts anew.
func (d *download) once(ctx context.Context, s *session) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := s.client.Pull(ctx, &coordinatorv1.PullRequest{
		SessionToken: s.token, Kind: d.kind, Version: d.version, Offset: uint64(d.offset), CatchUpTo: d.target,
	})
	if err != nil {
		return err
	}
	first, err := stream.Recv()
	if status.Code(err) == codes.OutOfRange {
		return errors.Join(d.restart(), err)
	}
	if err != nil {
		return err
	}
	h := first.GetHeader()
	if h == nil {
		return errors.New("agent: a pull begins without its header")
	}
	m, err := replica.ParseManifest(h)
	if err != nil {
		return err
	}
	if d.offset > 0 && (m.Version != d.manifest.Version || m.Digest != d.manifest.Digest) {
		if err := d.restart(); err != nil {
			return err
		}
		return fmt.Errorf("agent: version %d has taken the place of the download", m.Version)
	}
	d.manifest = m
	if h.GetSnapshot() {
		d.kind, d.target = coordinatorv1.PullRequest_KIND_SNAPSHOT, 0
	}
	if h.GetPayloadBytes() > 1<<62 {
		return fmt.Errorf("agent: a pull of %d bytes", h.GetPayloadBytes())
	}
	rx := wire.NewFrameReceiver(d, int64(h.GetPayloadBytes()), d.offset)
	var c wire.PullFrames
	for {
		err := stream.RecvMsg(&c)
		if errors.Is(err, io.EOF) {
			return rx.Finish()
		}
		if err != nil {
			return err
		}
		if err := rx.TakeFrames(&c.Frames); err != nil {
			return err
		}
	}
}

// Append writes the bytes that follow to the file.
func (d *download) Append(pieces [][]byte) error {
	if err := vectored.WriteAt(d.file, pieces, d.offset); err != nil {
		return err
	}
	for _, p := range pieces {
		d.offset += int64(len(p))
	}
	return nil
}

func (d *download) restart() error {
	d.offset = 0
	return d.file.Truncate(0)
}

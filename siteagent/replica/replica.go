package replica

import (
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"girassol.dev/api/federation/v1alpha1"
	"girassol.dev/internal/algorithm"
	"girassol.dev/internal/codec"
	"girassol.dev/internal/replica"
	"girassol.dev/internal/tensor"
)

// compactAfter is how many deltas lie beside a model file before both become a
// new one, or earlier once they are as large as it: it bounds the disk's share of a
// commit, the time of a restart and the folder's size.
const compactAfter = 16

// ErrDiverged says that a delta led to another digest than the coordinator's, or
// does not belong behind the replica's version: the state must be pulled in full.
var ErrDiverged = errors.New("replica differs from the coordinator's")

// Replica is not safe for concurrent use.
type Replica struct {
	root, federation string
	log              *slog.Logger
	lock             *os.File

	// Of the newest generation.
	dir string
	rec record

	// state is nil without a usable one.
	state  *tensor.State
	digest [32]byte
	// modelStale: the files of the newest generation do not make state.
	modelStale bool

	residual      *replica.Residual
	residualStale bool
	lastNorm      float64
}

// Open reads the newest sound generation under dir, which it locks. Damage is
// logged and leads to the generation before or to an empty replica; an error is
// something that a person has to mend.
func Open(dir, federation string, log *slog.Logger) (*Replica, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("replica: %w", err)
	}
	lock, err := os.OpenFile(filepath.Join(dir, "LOCK"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("replica: %w", err)
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = lock.Close()
		return nil, fmt.Errorf("replica: %s is in use by another agent: give each agent a data folder of its own (%w)", dir, err)
	}
	r := &Replica{root: dir, federation: federation, log: log, lock: lock}
	r.tidy()
	if err := r.loadNewest(); err != nil {
		_ = r.Close()
		return nil, err
	}
	return r, nil
}

func (r *Replica) loadNewest() error {
	all := generations(r.root)
	for i, g := range all {
		err := r.load(g.dir)
		var foreign *foreignError
		if errors.As(err, &foreign) {
			return err
		}
		if err != nil {
			r.log.Warn("replica on disk is damaged, falling back to the generation before or to a full pull", "generation", g.dir, "error", err)
			continue
		}
		for _, damaged := range all[:i] {
			_ = os.RemoveAll(damaged.dir)
		}
		break
	}
	if len(all) > 0 {
		r.rec.Sequence = all[0].sequence
	}
	return nil
}

// tidy removes what a crash left unfinished.
func (r *Replica) tidy() {
	left, _ := filepath.Glob(filepath.Join(r.root, "incoming-*"))
	for _, path := range append(left, filepath.Join(r.root, building)) {
		if err := os.RemoveAll(path); err != nil {
			r.log.Warn("cannot remove an unfinished file", "error", err)
		}
	}
}

type foreignError struct{ dir, has, want string }

func (e *foreignError) Error() string {
	return fmt.Sprintf("replica: %s belongs to federation %q, not %q: choose another data folder", e.dir, e.has, e.want)
}

// Close gives memory and lock back.
func (r *Replica) Close() error {
	r.forget()
	if r.residual != nil {
		r.residual.Close()
		r.residual = nil
	}
	return r.lock.Close()
}

func (r *Replica) forget() {
	if r.state != nil {
		r.state.Close()
		r.state = nil
	}
}

// load takes a generation over whole or not at all.
func (r *Replica) load(dir string) (err error) {
	b, err := os.ReadFile(filepath.Join(dir, recordName))
	if err != nil {
		return err
	}
	rec, err := readRecord(b)
	if err != nil {
		return fmt.Errorf("%s: %w", recordName, err)
	}
	if rec.Federation != r.federation {
		return &foreignError{r.root, rec.Federation, r.federation}
	}
	if rec.Model == nil {
		return errors.New("no model")
	}
	st, err := loadState(dir, rec)
	if err != nil {
		return err
	}
	var res *replica.Residual
	defer func() {
		if err != nil {
			st.Close()
			if res != nil {
				res.Close()
			}
		}
	}()
	digest := st.Digest()
	if got := hex.EncodeToString(digest[:]); got != rec.Digest {
		return fmt.Errorf("model and deltas make digest %s, the record says %s", got, rec.Digest)
	}
	if rec.Residual != nil {
		if res, err = loadResidual(dir, rec, st.Layout); err != nil {
			return err
		}
	}
	r.lastNorm = 0
	if rec.Residual != nil {
		r.lastNorm = rec.Residual.LastNorm
	}
	r.dir, r.rec, r.state, r.digest, r.residual = dir, rec, st, digest, res
	return nil
}

func loadState(dir string, rec record) (*tensor.State, error) {
	if err := rec.Model.check(dir); err != nil {
		return nil, err
	}
	f, err := tensor.OpenFile(filepath.Join(dir, rec.Model.Name))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	st, err := tensor.LoadState(f)
	if err != nil {
		return nil, err
	}
	for _, d := range rec.Deltas {
		if err := d.check(dir); err != nil {
			st.Close()
			return nil, err
		}
		err := withPayload(filepath.Join(dir, d.Name), codec.NewDomain(st.Layout, d.Algorithm.Downlink.Transform), d.Algorithm.Downlink,
			func(dom *codec.Domain, p *codec.Payload) error { return replica.Step(st, dom, d.Algorithm, p) })
		if err != nil {
			st.Close()
			return nil, fmt.Errorf("delta of version %d: %w", d.Version, err)
		}
	}
	return st, nil
}

func loadResidual(dir string, rec record, l *tensor.Layout) (*replica.Residual, error) {
	if err := rec.Residual.check(dir); err != nil {
		return nil, err
	}
	f, err := tensor.OpenFile(filepath.Join(dir, rec.Residual.Name))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	res := replica.NewResidual(codec.NewDomain(l, rec.Residual.Transform))
	err = f.ReadFloats(residualTensor, res.Vector())
	if err == nil && rec.Update != nil {
		if err = rec.Update.check(dir); err == nil && rec.Update.Settled {
			err = withPayload(filepath.Join(dir, rec.Update.Name), res.Domain(), rec.Update.Encoding,
				func(_ *codec.Domain, p *codec.Payload) error { return res.Settle(p) })
		}
	}
	if err != nil {
		res.Close()
		return nil, err
	}
	return res, nil
}

// residualTensor is the name of u in its file.
const residualTensor = "girassol.residual"

// withPayload opens and parses a payload file.
func withPayload(path string, d *codec.Domain, enc algorithm.Encoding, use func(*codec.Domain, *codec.Payload) error) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return err
	}
	p, err := codec.Parse(d, enc, f, fi.Size(), nil)
	if err != nil {
		return err
	}
	return use(d, p)
}

// Held is the version and digest that the replica holds, ok false without one.
func (r *Replica) Held() (version uint64, digest [32]byte, ok bool) {
	return r.rec.Version, r.digest, r.state != nil
}

// State is the replica's state, nil without one. It is good until the next
// Install or Apply; do not change it.
func (r *Replica) State() *tensor.State { return r.state }

// ResidualNorm is |u|, 0 without a residual.
func (r *Replica) ResidualNorm() float64 {
	if r.residual == nil {
		return 0
	}
	return r.residual.Norm()
}

// Pending is the update that no commit has settled yet, nil without one.
func (r *Replica) Pending() *Update {
	if r.rec.Update == nil || r.rec.Update.Settled {
		return nil
	}
	u := *r.rec.Update
	return &u
}

// OpenPending opens the pending update's payload.
func (r *Replica) OpenPending() (*os.File, error) {
	if r.Pending() == nil {
		return nil, errors.New("replica: no update is pending")
	}
	f, err := os.Open(filepath.Join(r.dir, r.rec.Update.Name))
	if err != nil {
		return nil, fmt.Errorf("replica: %w", err)
	}
	return f, nil
}

// Agreement is the cosine of the last applied delta and u where the delta has
// what this member did not send; nil without one.
func (r *Replica) Agreement() *float64 { return r.rec.Agreement }

// persist writes rec and its files as the next generation.
func (r *Replica) persist(rec record, c changes) error {
	rec.Format, rec.Federation = recordFormat, r.federation
	rec.Sequence = r.rec.Sequence + 1
	b, err := newBuilder(r.root, r.dir)
	if err != nil {
		return err
	}
	if err := r.fill(b, &rec, c); err != nil {
		return err
	}
	dir, err := b.finish(rec)
	if err != nil {
		return err
	}
	r.dir, r.rec = dir, rec
	r.log.Debug("replica on disk", "generation", rec.Sequence, "version", rec.Version)
	return nil
}

// diverged logs why the state is given up, once, under the vocabulary's word.
func (r *Replica) diverged(m Manifest, why string) error {
	r.forget()
	r.log.Error("replica gives its state up and pulls it in full", "reason", v1alpha1.ReasonReplicaDiverged,
		"version", m.Version, "round", m.Round, "why", why)
	return fmt.Errorf("replica: version %d: %w: %s", m.Version, ErrDiverged, why)
}

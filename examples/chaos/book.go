//go:build linux

package main

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"girassol.dev/coordinator/checkpoint"
	"girassol.dev/internal/codec"
	"girassol.dev/internal/replica"
	"girassol.dev/internal/tensor"
)

// book follows the commit log from outside: it holds a replica of its own and never
// forgets a version or an update.
type book struct {
	dir     string
	state   *tensor.State
	version uint64
	round   uint64
	digests map[uint64]string
	updates map[string]uint64
	// Commits followed, Merged updates in them.
	commits, merged int
	doubles, lost   int
}

func newBook(dir string) *book {
	return &book{dir: dir, digests: map[uint64]string{}, updates: map[string]uint64{}}
}

// follow reads what is new: versions grow by one, rounds grow, each update counts
// once, and each delta leads to its digest.
func (b *book) follow() error {
	r, err := checkpoint.Read(b.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // the first coordinator makes it
	}
	if err != nil {
		return err
	}
	if b.state == nil {
		if err := b.begin(r); err != nil || b.state == nil {
			return err
		}
	}
	manifests, err := r.Manifests(b.version)
	if err != nil {
		return fmt.Errorf("the commit log cannot be read: %w", err)
	}
	for _, m := range manifests {
		if m.Version != b.version+1 {
			return fmt.Errorf("version %d follows version %d", m.Version, b.version)
		}
		if err := b.take(r, m); err != nil {
			return err
		}
	}
	return nil
}

func (b *book) begin(r *checkpoint.Reader) error {
	f, size, m, err := r.OpenSnapshot()
	if errors.Is(err, checkpoint.ErrNotKept) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	file, err := tensor.ParseFile(f, size)
	if err != nil {
		return err
	}
	if b.state, err = tensor.LoadState(file); err != nil {
		return err
	}
	b.version, b.round = m.Version, m.Round
	b.digests[m.Version] = m.Digest
	return b.same(m)
}

func (b *book) same(m checkpoint.Manifest) error {
	if d := b.state.Digest(); hex.EncodeToString(d[:]) != m.Digest {
		return fmt.Errorf("version %d has digest %x here, its manifest says %s", m.Version, d[:6], m.Digest[:12])
	}
	return nil
}

func (b *book) take(r *checkpoint.Reader, m checkpoint.Manifest) error {
	f, size, _, err := r.OpenDelta(m.Version)
	if err != nil {
		return err
	}
	defer f.Close()
	d := codec.NewDomain(b.state.Layout, m.Algorithm.Downlink.Transform)
	p, err := codec.Parse(d, m.Algorithm.Downlink, f, size, nil)
	if err != nil {
		return fmt.Errorf("the delta of version %d: %w", m.Version, err)
	}
	if err := replica.Step(b.state, d, m.Algorithm, p); err != nil {
		return err
	}
	if err := b.same(m); err != nil {
		return err
	}
	if m.Round <= b.round {
		return fmt.Errorf("version %d is of round %d, the one before of round %d", m.Version, m.Round, b.round)
	}
	for _, u := range m.Members {
		if v, ok := b.updates[u.UpdateID]; ok {
			b.doubles++
			return fmt.Errorf("update %s of %s counts in version %d and in version %d", u.UpdateID, u.Member, v, m.Version)
		}
		b.updates[u.UpdateID] = m.Version
		b.merged++
		if !(u.Weight > 0) || u.Steps == 0 {
			return fmt.Errorf("update %s of %s has weight %g of %d steps", u.UpdateID, u.Member, u.Weight, u.Steps)
		}
	}
	b.version, b.round = m.Version, m.Round
	b.digests[m.Version] = m.Digest
	b.commits++
	return nil
}

// kept: what was committed once is there, whatever died since.
func (b *book) kept(version uint64) error {
	if version < b.version {
		b.lost++
		return fmt.Errorf("the coordinator is at version %d, version %d was committed", version, b.version)
	}
	return nil
}

// replicaAt is what an agent's disk holds.
func replicaAt(data string) (version uint64, digest string, ok bool) {
	records, _ := filepath.Glob(filepath.Join(data, "replica", "gen-*", "record.json"))
	var newest uint64
	for _, path := range records {
		var r struct {
			Sequence, Version uint64
			Digest            string
		}
		b, err := os.ReadFile(path)
		if err == nil && json.Unmarshal(b, &r) == nil && r.Sequence >= newest {
			newest, version, digest, ok = r.Sequence, r.Version, r.Digest, true
		}
	}
	return version, digest, ok
}

// replicas: what every site holds has the digest of its version.
func (b *book) replicas(f *federation) error {
	for _, s := range f.sites {
		v, digest, ok := replicaAt(f.data(s))
		if !ok {
			continue // pruned while it was read
		}
		if want, known := b.digests[v]; known && want != digest {
			return fmt.Errorf("the replica of %s at version %d has digest %.12s, the commit log says %.12s", s, v, digest, want)
		}
	}
	return nil
}

// overrun is the longest that a trainer went on after a stop time, in seconds, and
// the number of steps that were told.
func overrun(f *federation) (worst float64, lines int) {
	for _, s := range f.sites {
		b, _ := os.ReadFile(f.spied(s))
		for line := range strings.Lines(string(b)) {
			var x seen
			if json.Unmarshal([]byte(line), &x) == nil {
				lines++
				worst = max(worst, x.Late)
			}
		}
	}
	return worst, lines
}

// metric reads one number of a program's metrics.
func metric(address, name string) (float64, error) {
	client := http.Client{Timeout: 3 * time.Second}
	r, err := client.Get("http://" + address + "/metrics")
	if err != nil {
		return 0, err
	}
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, name+" "); ok {
			return strconv.ParseFloat(strings.TrimSpace(rest), 64)
		}
	}
	return 0, fmt.Errorf("%s has no metric %s", address, name)
}

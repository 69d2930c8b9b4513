package checkpoint

import (
	"bytes"
	"cmp"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"maps"
	"math"
	"slices"

	"girassol.dev/coordinator/corpus"
	"girassol.dev/coordinator/gate"
	"girassol.dev/internal/algorithm"
	"girassol.dev/internal/codec"
	"girassol.dev/internal/tensor"
)

// The kinds of versions.
const (
	// KindSeed is the first model: a state that came whole. It has a snapshot and no
	// delta.
	KindSeed = "seed"
	// KindCommit is a merge on top of the version before.
	KindCommit = "commit"
	// KindRollback is the state of an older version again. It has a snapshot and no
	// delta.
	KindRollback = "rollback"
)

// Manifest says what a version is. Pointers are nil where nothing was measured;
// a missing value is never zero.
type Manifest struct {
	Version uint64 `json:"version"`
	// Round that made the version, counting void rounds.
	Round uint64 `json:"round"`
	Kind  string `json:"kind"`
	// Term of the coordinator that wrote it; a term is one Open of the store.
	Term      uint64 `json:"term"`
	UnixMilli int64  `json:"unixMilli"`
	// Digest of the state after this version and of its layout, in hex.
	Digest string `json:"digest"`
	// DigestForm is how states are digested; the store fills it in.
	DigestForm   string               `json:"digestForm"`
	LayoutDigest string               `json:"layoutDigest"`
	Algorithm    algorithm.Parameters `json:"algorithm"`
	Members      []ManifestMember     `json:"members,omitempty"`
	// Agreement is the moving mean that the next grants carry.
	Agreement *float64 `json:"agreement,omitempty"`

	// Totals since the first version.
	CommittedSamples uint64                 `json:"committedSamples"`
	RoundsCommitted  uint64                 `json:"roundsCommitted"`
	RoundsVoid       uint64                 `json:"roundsVoid"`
	SiteStats        map[string]SiteStats   `json:"siteStats,omitempty"`
	Ledger           map[string]LedgerEntry `json:"ledger,omitempty"`
	// Evaluation is the newest held-out result; its version may be older.
	Evaluation *Evaluation `json:"evaluation,omitempty"`
	// Gate is what the gate remembers, nil without one.
	Gate *gate.State `json:"gate,omitempty"`
	// Rollback is the newest one up to this version, nil before the first; of a
	// KindRollback it is the version itself.
	Rollback *Rollback `json:"rollback,omitempty"`

	// Data is what is consumed of the shared corpus, nil where none is counted.
	Data *corpus.Position `json:"data,omitempty"`

	// What lies beside the manifest; the store fills these in.
	DeltaBytes  int64        `json:"deltaBytes,omitempty"`
	DeltaCRC32C uint32       `json:"deltaCRC32C,omitempty"`
	Updates     []UpdateFile `json:"updates,omitempty"`
	State       *FileSum     `json:"state,omitempty"`
	Residual    *FileSum     `json:"residual,omitempty"`
}

// ManifestMember is one accepted update.
type ManifestMember struct {
	Member   string `json:"member"`
	Site     string `json:"site"`
	UpdateID string `json:"updateID"`
	// Weight before it is divided by the sum of weights.
	Weight          float64  `json:"weight"`
	Steps           uint64   `json:"steps"`
	Samples         uint64   `json:"samples"`
	Loss            *float64 `json:"loss,omitempty"`
	TrainingSeconds float64  `json:"trainingSeconds"`
	// EnergyJoules says nothing where EnergySource is empty.
	EnergyJoules float64  `json:"energyJoules"`
	EnergySource string   `json:"energySource,omitempty"`
	PayloadBytes int64    `json:"payloadBytes"`
	Agreement    *float64 `json:"agreement,omitempty"`
	// Metrics as the trainer gave them.
	Metrics map[string]float64 `json:"metrics,omitempty"`
	// Consumed are the samples of the shared corpus that it used.
	Consumed corpus.Ranges `json:"consumed,omitempty"`
	// Sections place the payload's tensors when it does not follow the layout's order.
	Sections []codec.Section `json:"sections,omitempty"`
}

// LedgerEntry is a site's energy and emissions since the first version.
type LedgerEntry struct {
	EnergyJoules  float64  `json:"energyJoules"`
	MarginalGrams *float64 `json:"marginalGrams,omitempty"`
	AverageGrams  *float64 `json:"averageGrams,omitempty"`
	// CoveredJoules is the part of the energy that the grams account for.
	CoveredJoules float64 `json:"coveredJoules"`
	// MeteredJoules is the part that counters measured; Source names all that the
	// energy rests on, joined by "+". It is right to within UncertaintyJoules.
	MeteredJoules     float64 `json:"meteredJoules,omitempty"`
	UncertaintyJoules float64 `json:"uncertaintyJoules,omitempty"`
	Source            string  `json:"source,omitempty"`
}

// SiteStats is a site's accepted work since the first version.
type SiteStats struct {
	Rounds          uint64  `json:"rounds"`
	Samples         uint64  `json:"samples"`
	TrainingSeconds float64 `json:"trainingSeconds"`
}

// Evaluation is a held-out result: means over the members, weighted by samples.
type Evaluation struct {
	Version uint64             `json:"version"`
	Samples uint64             `json:"samples"`
	Loss    *float64           `json:"loss,omitempty"`
	Metrics map[string]float64 `json:"metrics,omitempty"`
	// Members are the parts, by name.
	Members []gate.Measure `json:"members,omitempty"`
	// RoundsCommitted when it was made, from which the next one is counted.
	RoundsCommitted uint64 `json:"roundsCommitted"`
}

// Rollback is a return to the state of an older version.
type Rollback struct {
	// Version that was made, To the one whose state it has, From the one it left.
	Version   uint64 `json:"version"`
	To        uint64 `json:"to"`
	From      uint64 `json:"from"`
	Reason    string `json:"reason"`
	Message   string `json:"message,omitempty"`
	UnixMilli int64  `json:"unixMilli"`
}

// UpdateFile is one archived payload.
type UpdateFile struct {
	Member string `json:"member"`
	FileSum
}

// FileSum is how a file is known to be whole.
type FileSum struct {
	Bytes  int64  `json:"bytes"`
	CRC32C uint32 `json:"crc32c"`
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// ErrDigestForm says that a store was written by a release whose digests have
// another form: nothing in it is damaged, but nothing can be compared either.
var ErrDigestForm = errors.New("digests have another form")

// maxManifest is the most bytes that a manifest may have.
const maxManifest = 64 << 20

// sealFormat begins a manifest file: the CRC-32C of all that follows it.
// The file as a whole is JSON.
const sealFormat = `{"crc32c": "%08x",`

var sealLength = len(fmt.Sprintf(sealFormat, 0))

// encode gives the bytes of a manifest file. Optional measurements that are not
// finite count as missing: JSON has no word for them.
func (m Manifest) encode() ([]byte, error) {
	m = m.withoutNonFinite()
	m.DigestForm = tensor.DigestForm
	if err := m.validate(); err != nil {
		return nil, err
	}
	body, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("manifest of version %d: %w", m.Version, err)
	}
	body = append(body[1:], '\n') // the brace stands in the seal
	seal := fmt.Appendf(nil, sealFormat, crc32.Checksum(body, castagnoli))
	return append(seal, body...), nil
}

// ParseManifest reads a manifest file and refuses one that is not what was
// written.
func ParseManifest(b []byte) (Manifest, error) {
	if len(b) < sealLength {
		return Manifest{}, fmt.Errorf("%d bytes are no manifest", len(b))
	}
	body := b[sealLength:]
	if want := fmt.Appendf(nil, sealFormat, crc32.Checksum(body, castagnoli)); !bytes.Equal(want, b[:sealLength]) {
		return Manifest{}, errors.New("manifest's checksum does not fit its content")
	}
	dec := json.NewDecoder(io.MultiReader(bytes.NewReader([]byte{'{'}), bytes.NewReader(body)))
	var m Manifest
	if err := dec.Decode(&m); err != nil {
		return Manifest{}, fmt.Errorf("manifest: %w", err)
	}
	if _, err := dec.Token(); err != io.EOF {
		return Manifest{}, errors.New("manifest has bytes behind its end")
	}
	return m, m.validate()
}

func (m Manifest) validate() error {
	fail := func(format string, args ...any) error {
		return fmt.Errorf("manifest of version %d: "+format, append([]any{m.Version}, args...)...)
	}
	switch r := m.Rollback; {
	case m.Kind != KindSeed && m.Kind != KindCommit && m.Kind != KindRollback:
		return fail("kind is %q, want %q, %q or %q", m.Kind, KindSeed, KindCommit, KindRollback)
	case m.Kind == KindRollback && (r == nil || r.Version != m.Version):
		return fail("a rollback does not say which")
	case r != nil && (r.Version > m.Version || r.From+1 != r.Version || r.To >= r.From):
		return fail("rollback %d from %d to %d makes no sense", r.Version, r.From, r.To)
	}
	for _, d := range []struct{ field, value string }{{"digest", m.Digest}, {"layoutDigest", m.LayoutDigest}} {
		if raw, err := hex.DecodeString(d.value); err != nil || len(raw) != 32 {
			return fail("%s is %.80q, want 64 hex digits", d.field, d.value)
		}
	}
	if m.DigestForm != tensor.DigestForm {
		return fail("%w: %q, want %q: go on with the release that wrote it, or begin in an empty folder with the model as first weights",
			ErrDigestForm, cmp.Or(m.DigestForm, "sha-256/1MiB"), tensor.DigestForm)
	}
	seen := map[string]bool{}
	for _, u := range m.Members {
		if u.Member == "" || seen[u.Member] {
			return fail("member %q is empty or listed twice", u.Member)
		}
		seen[u.Member] = true
		if !(u.Weight > 0) || math.IsInf(u.Weight, 0) {
			return fail("member %s has weight %g, want finite and above 0", u.Member, u.Weight)
		}
		if !finite(u.TrainingSeconds) || !finite(u.EnergyJoules) {
			return fail("member %s has %g training seconds and %g joules", u.Member, u.TrainingSeconds, u.EnergyJoules)
		}
		if err := u.Consumed.Check(); err != nil {
			return fail("samples of member %s: %w", u.Member, err)
		}
		if u.PayloadBytes < 0 {
			return fail("member %s has %d payload bytes", u.Member, u.PayloadBytes)
		}
	}
	for _, site := range slices.Sorted(maps.Keys(m.Ledger)) {
		if e := m.Ledger[site]; !finite(e.EnergyJoules) || !finite(e.CoveredJoules) {
			return fail("ledger of site %s has %g joules, %g covered", site, e.EnergyJoules, e.CoveredJoules)
		}
	}
	for _, site := range slices.Sorted(maps.Keys(m.SiteStats)) {
		if s := m.SiteStats[site]; !finite(s.TrainingSeconds) {
			return fail("site %s has %g training seconds", site, s.TrainingSeconds)
		}
	}
	if m.Data != nil {
		if err := m.Data.Check(); err != nil {
			return fail("data: %w", err)
		}
	}
	if m.DeltaBytes < 0 {
		return fail("%d delta bytes", m.DeltaBytes)
	}
	for _, f := range m.Updates {
		if f.Bytes < 0 {
			return fail("update of %s has %d bytes", f.Member, f.Bytes)
		}
	}
	for _, f := range []*FileSum{m.State, m.Residual} {
		if f != nil && f.Bytes < 0 {
			return fail("file of %d bytes", f.Bytes)
		}
	}
	return nil
}

func (m Manifest) withoutNonFinite() Manifest {
	m.Agreement = orNil(m.Agreement)
	m.Members = slices.Clone(m.Members)
	for i := range m.Members {
		m.Members[i].Loss = orNil(m.Members[i].Loss)
		m.Members[i].Agreement = orNil(m.Members[i].Agreement)
	}
	m.Ledger = maps.Clone(m.Ledger)
	for site, e := range m.Ledger {
		e.MarginalGrams, e.AverageGrams = orNil(e.MarginalGrams), orNil(e.AverageGrams)
		m.Ledger[site] = e
	}
	if m.Evaluation != nil {
		e := *m.Evaluation
		e.Loss = orNil(e.Loss)
		e.Metrics = maps.Clone(e.Metrics)
		maps.DeleteFunc(e.Metrics, func(_ string, v float64) bool { return !finite(v) })
		e.Members = slices.Clone(e.Members)
		for i := range e.Members {
			e.Members[i].Loss = orNil(e.Members[i].Loss)
		}
		m.Evaluation = &e
	}
	return m
}

func orNil(v *float64) *float64 {
	if v == nil || !finite(*v) {
		return nil
	}
	return v
}

func finite(v float64) bool { return !math.IsNaN(v) && !math.IsInf(v, 0) }

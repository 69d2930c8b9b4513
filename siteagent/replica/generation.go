package replica

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"girassol.dev/internal/algorithm"
)

// The names inside a replica's folder.
const (
	generationPrefix = "gen-"
	building         = "building"
	recordName       = "record.json"
	modelName        = "model.safetensors"
	residualName     = "residual.safetensors"
	updateName       = "update.bin"

	// keepGenerations on disk: the current one and the one before.
	keepGenerations = 2
	// recordFormat is raised when older code could misread a record. 2: digests of
	// states by XXH3.
	recordFormat = 2
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// record is a generation's table of contents, written last.
type record struct {
	Format     int    `json:"format"`
	Federation string `json:"federation"`
	Sequence   uint64 `json:"sequence"`
	// Version, Round and Digest of the state that Model and Deltas make.
	Version uint64     `json:"version"`
	Round   uint64     `json:"round"`
	Digest  string     `json:"digest"`
	Model   *fileRef   `json:"model,omitempty"`
	Deltas  []deltaRef `json:"deltas,omitempty"`
	// Residual u with the part in Update not subtracted, unless Settled.
	Residual *residualRef `json:"residual,omitempty"`
	Update   *Update      `json:"update,omitempty"`
	// Agreement measured at the last commit.
	Agreement *float64 `json:"agreement,omitempty"`
}

// outgrown says whether the deltas are to become part of the model's file.
func (r *record) outgrown() bool {
	var bytes int64
	for _, d := range r.Deltas {
		bytes += d.Bytes
	}
	return len(r.Deltas) >= compactAfter || bytes >= r.Model.Bytes
}

type fileRef struct {
	Name   string `json:"name"`
	Bytes  int64  `json:"bytes"`
	CRC32C uint32 `json:"crc32c"`
}

type deltaRef struct {
	fileRef
	Version   uint64               `json:"version"`
	Algorithm algorithm.Parameters `json:"algorithm"`
}

type residualRef struct {
	fileRef
	Transform algorithm.Transform `json:"transform"`
	// LastNorm is the norm of the last round's local work.
	LastNorm float64 `json:"lastNorm"`
}

// builder collects the files of the next generation in a folder of its own,
// which one rename makes the current one.
type builder struct {
	root, dir, previous string
}

func newBuilder(root, previous string) (*builder, error) {
	b := &builder{root: root, dir: filepath.Join(root, building), previous: previous}
	if err := os.RemoveAll(b.dir); err != nil {
		return nil, fmt.Errorf("replica: %w", err)
	}
	if err := os.Mkdir(b.dir, 0o700); err != nil {
		return nil, fmt.Errorf("replica: %w", err)
	}
	return b, nil
}

// write makes a new file and waits for the disk.
func (b *builder) write(name string, fill func(io.Writer) error) (fileRef, error) {
	f, err := os.OpenFile(filepath.Join(b.dir, name), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fileRef{}, fmt.Errorf("replica: %w", err)
	}
	defer f.Close()
	buffered := bufio.NewWriterSize(f, 1<<20)
	sum := &summer{w: buffered}
	if err := fill(sum); err != nil {
		return fileRef{}, fmt.Errorf("replica: write %s: %w", name, err)
	}
	if err := buffered.Flush(); err != nil {
		return fileRef{}, fmt.Errorf("replica: write %s: %w", name, err)
	}
	if err := f.Sync(); err != nil {
		return fileRef{}, fmt.Errorf("replica: write %s: %w", name, err)
	}
	return fileRef{Name: name, Bytes: sum.n, CRC32C: sum.crc}, nil
}

// adopt links a complete file of the same file system into the generation.
func (b *builder) adopt(name, path string) (fileRef, error) {
	if err := linkOrCopy(path, filepath.Join(b.dir, name)); err != nil {
		return fileRef{}, fmt.Errorf("replica: %s: %w", name, err)
	}
	f, err := os.Open(filepath.Join(b.dir, name))
	if err != nil {
		return fileRef{}, fmt.Errorf("replica: %w", err)
	}
	defer f.Close()
	sum := &summer{w: io.Discard}
	if _, err := io.Copy(sum, f); err != nil {
		return fileRef{}, fmt.Errorf("replica: read %s: %w", name, err)
	}
	if err := f.Sync(); err != nil {
		return fileRef{}, fmt.Errorf("replica: write %s: %w", name, err)
	}
	return fileRef{Name: name, Bytes: sum.n, CRC32C: sum.crc}, nil
}

// keep links an unchanged file of the generation before.
func (b *builder) keep(name string) error {
	if err := linkOrCopy(filepath.Join(b.previous, name), filepath.Join(b.dir, name)); err != nil {
		return fmt.Errorf("replica: keep %s: %w", name, err)
	}
	return nil
}

// finish writes the record, makes the folder current and removes those that are
// older than the one before.
func (b *builder) finish(rec record) (dir string, err error) {
	body, err := json.Marshal(rec)
	if err != nil {
		return "", fmt.Errorf("replica: %w", err)
	}
	line := fmt.Appendf(body, "\n%08x\n", crc32.Checksum(body, castagnoli))
	if _, err := b.write(recordName, func(w io.Writer) error { _, err := w.Write(line); return err }); err != nil {
		return "", err
	}
	if err := syncDir(b.dir); err != nil {
		return "", err
	}
	dir = filepath.Join(b.root, fmt.Sprintf("%s%016d", generationPrefix, rec.Sequence))
	if err := os.Rename(b.dir, dir); err != nil {
		return "", fmt.Errorf("replica: %w", err)
	}
	if err := syncDir(b.root); err != nil {
		return "", err
	}
	for i, g := range generations(b.root) {
		if i >= keepGenerations {
			// What stays behind here goes with the next generation.
			_ = os.RemoveAll(g.dir)
		}
	}
	return dir, nil
}

type generation struct {
	dir      string
	sequence uint64
}

// generations on disk, newest first.
func generations(root string) []generation {
	entries, err := os.ReadDir(root)
	if err != nil {
		return nil
	}
	var out []generation
	for _, e := range entries {
		digits, ok := strings.CutPrefix(e.Name(), generationPrefix)
		if !ok || !e.IsDir() {
			continue
		}
		if n, err := strconv.ParseUint(digits, 10, 64); err == nil {
			out = append(out, generation{filepath.Join(root, e.Name()), n})
		}
	}
	slices.SortFunc(out, func(a, b generation) int {
		if a.sequence > b.sequence {
			return -1
		}
		return 1
	})
	return out
}

// readRecord parses and checks a generation's record.
func readRecord(b []byte) (record, error) {
	var rec record
	body, sum, ok := bytes.Cut(b, []byte("\n"))
	if !ok || string(sum) != fmt.Sprintf("%08x\n", crc32.Checksum(body, castagnoli)) {
		return rec, errors.New("checksum does not fit")
	}
	if err := json.Unmarshal(body, &rec); err != nil {
		return rec, err
	}
	if rec.Format != recordFormat {
		return rec, fmt.Errorf("format %d, this agent reads %d", rec.Format, recordFormat)
	}
	return rec, nil
}

// check compares a file with what its record says.
func (f fileRef) check(dir string) error {
	if f.Name != filepath.Base(f.Name) {
		return fmt.Errorf("file name %q leaves its folder", f.Name)
	}
	file, err := os.Open(filepath.Join(dir, f.Name))
	if err != nil {
		return err
	}
	defer file.Close()
	sum := &summer{w: io.Discard}
	if _, err := io.CopyBuffer(sum, file, make([]byte, 1<<20)); err != nil {
		return fmt.Errorf("%s: %w", f.Name, err)
	}
	if sum.n != f.Bytes || sum.crc != f.CRC32C {
		return fmt.Errorf("%s is damaged: %d bytes with CRC32C %08x, written were %d with %08x", f.Name, sum.n, sum.crc, f.Bytes, f.CRC32C)
	}
	return nil
}

// summer counts and sums what passes.
type summer struct {
	w   io.Writer
	n   int64
	crc uint32
}

func (s *summer) Write(p []byte) (int, error) {
	n, err := s.w.Write(p)
	s.n += int64(n)
	s.crc = crc32.Update(s.crc, castagnoli, p[:n])
	return n, err
}

func linkOrCopy(from, to string) error {
	if os.Link(from, to) == nil {
		return nil
	}
	src, err := os.Open(from)
	if err != nil {
		return err
	}
	defer src.Close()
	dst, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer dst.Close()
	if _, err := io.Copy(dst, src); err != nil {
		return err
	}
	return dst.Sync()
}

func syncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("replica: %w", err)
	}
	defer f.Close()
	if err := f.Sync(); err != nil {
		return fmt.Errorf("replica: sync %s: %w", dir, err)
	}
	return nil
}

package store

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"girassol.dev/signals/webhook"
)

// PushedRetention is how long a delivery is remembered by default: senders repeat
// theirs for three days and more.
const PushedRetention = 8 * 24 * time.Hour

const leastRetention = 24 * time.Hour

// PushedFiles keeps what was pushed by webhook in a directory per source: a log of
// deliveries, to which each appends a line, and a file per stream with its newest
// message. One process at a time may use a directory.
type PushedFiles struct {
	dir       string
	retention time.Duration

	mu      sync.Mutex
	sources map[string]*deliveries
}

// deliveries of one source. Ids and digests are kept as 16 bytes of their SHA-256.
type deliveries struct {
	mu   sync.Mutex
	seen map[short]delivery
	// log is opened with the first append; lines is what is in it. With more than
	// most, or after damage to its end, it is written anew.
	log         *os.File
	lines, most int
	damaged     bool
}

type (
	short    [16]byte
	delivery struct {
		digest string
		at     int64 // Unix seconds
	}
)

const (
	logName     = "deliveries.log"
	entrySuffix = ".entry.json"
	// spare lines that a log may have beyond twice what was remembered when it was
	// last written anew.
	spare      = 1024
	digestSize = 64
)

// OpenPushedFiles makes the directory if need be. Retention 0 is the default; the
// least is a day.
func OpenPushedFiles(dir string, retention time.Duration) (*PushedFiles, error) {
	if retention == 0 {
		retention = PushedRetention
	}
	if retention < leastRetention {
		return nil, fmt.Errorf("store: pushed messages: retention %s, the least is %s", retention, leastRetention)
	}
	if _, err := OpenFiles(dir); err != nil { // the same checks
		return nil, fmt.Errorf("store: pushed messages: %w", err)
	}
	return &PushedFiles{dir: dir, retention: retention, sources: map[string]*deliveries{}}, nil
}

// Close closes the logs.
func (f *PushedFiles) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	var errs []error
	for _, d := range f.sources {
		d.mu.Lock()
		if d.log != nil {
			errs = append(errs, d.log.Close())
			d.log = nil
		}
		d.mu.Unlock()
	}
	return errors.Join(errs...)
}

// source reads a source's log once.
func (f *PushedFiles) source(name string) (*deliveries, error) {
	if !siteName(name) {
		return nil, fmt.Errorf("store: source %q: the name cannot be a directory's", name)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if d := f.sources[name]; d != nil {
		return d, nil
	}
	d := &deliveries{seen: map[short]delivery{}}
	if err := d.read(filepath.Join(f.dir, name, logName)); err != nil {
		return nil, fmt.Errorf("store: deliveries of source %s: %w", name, err)
	}
	f.sources[name] = d
	return d, nil
}

// read takes the lines that are whole. A crash may have left the last one short:
// that delivery was never answered, so its sender will repeat it.
func (d *deliveries) read(path string) error {
	file, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		d.most = spare
		return nil
	}
	if err != nil {
		return err
	}
	defer file.Close()
	lines := bufio.NewReader(file)
	for {
		line, err := lines.ReadString('\n')
		if errors.Is(err, io.EOF) {
			if line != "" {
				d.damaged = true
			}
			d.most = 2*len(d.seen) + spare
			return nil
		}
		if err != nil {
			return err
		}
		d.lines++
		if id, taken, ok := parseLine(line); ok {
			d.seen[id] = taken
		}
	}
}

func line(id short, t delivery) string {
	return strconv.FormatInt(t.at, 10) + " " + hex.EncodeToString(id[:]) + " " + t.digest + "\n"
}

func parseLine(s string) (id short, t delivery, ok bool) {
	fields := strings.Split(strings.TrimSuffix(s, "\n"), " ")
	if len(fields) != 3 || len(fields[1]) != 2*len(id) || len(fields[2]) != digestSize {
		return id, t, false
	}
	at, err := strconv.ParseInt(fields[0], 10, 64)
	if err != nil {
		return id, t, false
	}
	if _, err := hex.Decode(id[:], []byte(fields[1])); err != nil {
		return id, t, false
	}
	return id, delivery{fields[2], at}, true
}

func shorten(s string) (id short) {
	sum := sha256.Sum256([]byte(s))
	copy(id[:], sum[:])
	return id
}

// Seen implements webhook.Store.
func (f *PushedFiles) Seen(_ context.Context, source, id string, now time.Time) (string, bool, error) {
	d, err := f.source(source)
	if err != nil {
		return "", false, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	t, ok := d.seen[shorten(id)]
	if !ok || now.Sub(time.Unix(t.at, 0)) > f.retention {
		return "", false, nil
	}
	return t.digest, true, nil
}

// Commit implements webhook.Store.
func (f *PushedFiles) Commit(_ context.Context, c webhook.Commit) error {
	d, err := f.source(c.Source)
	if err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := f.commit(d, c); err != nil {
		return fmt.Errorf("store: pushed messages of source %s: %w", c.Source, err)
	}
	return nil
}

func (f *PushedFiles) commit(d *deliveries, c webhook.Commit) error {
	dir := filepath.Join(f.dir, c.Source)
	if err := os.Mkdir(dir, 0o755); err == nil {
		if err := syncDir(f.dir); err != nil {
			return err
		}
	} else if !errors.Is(err, fs.ErrExist) {
		return err
	}
	for _, e := range c.Entries {
		raw, err := json.Marshal(entry{Version: version, Source: e.Source, Stream: e.Stream,
			Received: e.Received, GeneratedAt: e.GeneratedAt, Message: e.Message})
		if err != nil {
			return err
		}
		if err := replace(dir, entryFile(e.Stream), append(raw, '\n')); err != nil {
			return err
		}
	}
	for _, stream := range c.Drop {
		if err := os.Remove(filepath.Join(dir, entryFile(stream))); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return f.remember(d, dir, c)
}

// remember appends to the log, and writes it anew when most of it is past.
func (f *PushedFiles) remember(d *deliveries, dir string, c webhook.Commit) error {
	var added bytes.Buffer
	fresh := map[short]delivery{}
	for _, v := range c.Deliveries {
		if len(v.Digest) != digestSize {
			return fmt.Errorf("a digest of %d characters, want %d", len(v.Digest), digestSize)
		}
		id, t := shorten(v.ID), delivery{v.Digest, c.At.Unix()}
		fresh[id] = t
		added.WriteString(line(id, t))
	}
	if d.damaged || d.lines > d.most {
		for id, t := range d.seen {
			if c.At.Sub(time.Unix(t.at, 0)) > f.retention {
				delete(d.seen, id)
			}
		}
		if err := d.rewrite(dir); err != nil {
			return err
		}
	}
	if d.log == nil {
		log, err := os.OpenFile(filepath.Join(dir, logName), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
		if err != nil {
			return err
		}
		if err := syncDir(dir); err != nil {
			return errors.Join(err, log.Close())
		}
		d.log = log
	}
	_, err := d.log.Write(added.Bytes())
	if err == nil {
		err = d.log.Sync()
	}
	if err != nil {
		d.damaged = true
		return err
	}
	d.lines += len(fresh)
	for id, t := range fresh {
		d.seen[id] = t
	}
	return nil
}

func (d *deliveries) rewrite(dir string) error {
	if d.log != nil {
		if err := d.log.Close(); err != nil {
			return err
		}
		d.log = nil
	}
	var all bytes.Buffer
	for id, t := range d.seen {
		all.WriteString(line(id, t))
	}
	if err := replace(dir, logName, all.Bytes()); err != nil {
		return err
	}
	d.lines, d.most, d.damaged = len(d.seen), 2*len(d.seen)+spare, false
	return nil
}

// entry is a stream's file.
type entry struct {
	Version     int             `json:"version"`
	Source      string          `json:"source"`
	Stream      string          `json:"stream"`
	Received    time.Time       `json:"received"`
	GeneratedAt time.Time       `json:"generatedAt"`
	Message     json.RawMessage `json:"message"`
}

func entryFile(stream string) string {
	id := shorten(stream)
	return hex.EncodeToString(id[:]) + entrySuffix
}

// Load implements webhook.Store.
func (f *PushedFiles) Load(context.Context) ([]webhook.Entry, error) {
	files, err := filepath.Glob(filepath.Join(f.dir, "*", "*"+entrySuffix))
	if err != nil {
		return nil, fmt.Errorf("store: pushed messages: %w", err)
	}
	out := []webhook.Entry{} // not nil: it could be looked
	var damage []error
	for _, path := range files {
		e, err := readEntry(path)
		if err == nil && (e.Source != filepath.Base(filepath.Dir(path)) || entryFile(e.Stream) != filepath.Base(path)) {
			err = errors.New("it belongs elsewhere")
		}
		if err != nil {
			damage = append(damage, fmt.Errorf("store: pushed message %s: %w (remove it to start without)", path, err))
			continue
		}
		out = append(out, webhook.Entry{Source: e.Source, Stream: e.Stream, Received: e.Received, GeneratedAt: e.GeneratedAt, Message: e.Message})
	}
	return out, errors.Join(damage...)
}

func readEntry(path string) (entry, error) {
	info, err := os.Stat(path)
	if err != nil {
		return entry{}, err
	}
	if !info.Mode().IsRegular() || info.Size() > maxFile {
		return entry{}, fmt.Errorf("no regular file of at most %d bytes", maxFile)
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		return entry{}, err
	}
	var e entry
	if err := json.Unmarshal(raw, &e); err != nil {
		return entry{}, err
	}
	if e.Version != version {
		return entry{}, fmt.Errorf("version %d, this program reads %d", e.Version, version)
	}
	return e, nil
}

package transformer

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
)

// DefaultCorpusLimit is how much text is read at most, in bytes.
const DefaultCorpusLimit = 64 << 20

// sniff is how much of a file is searched for a NUL, the mark of binaries.
const sniff = 8 << 10

// Corpus is text in memory.
type Corpus struct {
	data []byte
	// Files that were read and those skipped: binaries, symlinks, the empty
	// and the unreadable, and what came after the limit.
	Files, Skipped int
}

// NewCorpus takes text as it is.
func NewCorpus(text []byte) *Corpus { return &Corpus{data: text, Files: 1} }

// Len in bytes.
func (c *Corpus) Len() int { return len(c.data) }

// ReadFolder reads all regular text files below dir in the order of their
// paths, up to limit bytes in all (0: DefaultCorpusLimit). The order, and so
// the corpus, is the same on every machine that has the same files.
func ReadFolder(dir string, limit int64) (*Corpus, error) {
	var c Corpus
	root, err := filepath.EvalSymlinks(dir) // dir itself may be a link
	if err != nil {
		return nil, fmt.Errorf("transformer: data folder: %w", err)
	}
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil && path == root:
			return err
		case err != nil:
			c.Skipped++
			return nil //nolint:nilerr // what cannot be read is counted as skipped
		case d.IsDir():
			return nil
		}
		c.add(path, orDefault(limit))
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("transformer: data folder %s: %w", dir, err)
	}
	return c.check(dir)
}

// ReadList reads the text files that list names, one path a line, relative
// ones seen from the list's folder; empty lines and # comments are passed over.
func ReadList(list string, limit int64) (*Corpus, error) {
	f, err := os.Open(list)
	if err != nil {
		return nil, fmt.Errorf("transformer: file list: %w", err)
	}
	defer func() { _ = f.Close() }()
	paths, err := parseList(f)
	if err != nil {
		return nil, fmt.Errorf("transformer: file list %s: %w", list, err)
	}
	var c Corpus
	for _, p := range paths {
		if !filepath.IsAbs(p) {
			p = filepath.Join(filepath.Dir(list), p)
		}
		c.add(p, orDefault(limit))
	}
	return c.check(list)
}

func parseList(r io.Reader) ([]string, error) {
	var paths []string
	s := bufio.NewScanner(r)
	for n := 1; s.Scan(); n++ {
		line := strings.TrimSpace(s.Text())
		if line == "" || line[0] == '#' {
			continue
		}
		if strings.IndexByte(line, 0) >= 0 {
			return nil, fmt.Errorf("line %d is no path", n)
		}
		paths = append(paths, line)
	}
	return paths, s.Err()
}

func orDefault(limit int64) int64 {
	if limit <= 0 {
		return DefaultCorpusLimit
	}
	return limit
}

func (c *Corpus) check(source string) (*Corpus, error) {
	if len(c.data) == 0 {
		return nil, fmt.Errorf("transformer: no text in %s (%d files skipped)", source, c.Skipped)
	}
	return c, nil
}

// add appends one file's text, and a newline if it lacks one.
func (c *Corpus) add(path string, limit int64) {
	room := limit - int64(len(c.data))
	text, err := readText(path, room)
	if err != nil || len(text) == 0 {
		c.Skipped++
		return
	}
	c.Files++
	c.data = append(c.data, text...)
	if text[len(text)-1] != '\n' && int64(len(c.data)) < limit {
		c.data = append(c.data, '\n')
	}
}

var errNoText = errors.New("no regular text file")

func readText(path string, room int64) ([]byte, error) {
	if room <= 0 {
		return nil, nil
	}
	// Lstat first: opening a named pipe would block.
	if fi, err := os.Lstat(path); err != nil || !fi.Mode().IsRegular() {
		return nil, errNoText
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	text, err := io.ReadAll(io.LimitReader(f, room))
	if err != nil {
		return nil, err
	}
	if bytes.IndexByte(text[:min(len(text), sniff)], 0) >= 0 {
		return nil, errNoText
	}
	return text, nil
}

// sample fills inputs and targets with random windows of length context; a
// target is the byte after its input.
func (c *Corpus) sample(rng *rand.Rand, inputs, targets []byte, context int) {
	for at := 0; at < len(inputs); at += context {
		start := rng.IntN(len(c.data) - context)
		c.window(start, inputs[at:at+context], targets[at:at+context])
	}
}

func (c *Corpus) window(start int, inputs, targets []byte) {
	n := len(inputs)
	copy(inputs, c.data[start:start+n])
	copy(targets, c.data[start+1:start+n+1])
}

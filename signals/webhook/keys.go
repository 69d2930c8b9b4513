package webhook

import (
	"bytes"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"sync"
	"time"

	"girassol.dev/internal/webhooksig"
)

// watched is a file that is read anew when it changes. It is looked at whenever
// its content is wanted, so that a rotation needs no signal and no waiting.
type watched[T any] struct {
	path  string
	parse func([]byte) ([]T, error)

	mu    sync.Mutex
	info  fs.FileInfo
	fresh bool // false while the file may have changed within its time stamp
	value []T
	// err of the last look, nil while value is what the file says.
	err error
}

// settled is how old a file must be for its time stamp to tell a change.
const settled = 2 * time.Second

const maxKeyFile = 64 << 10

// look gives what the file says now. changed: the outcome, or the error, is not
// that of the last look.
func (w *watched[T]) look() (value []T, changed bool, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	info, statErr := os.Stat(w.path)
	if statErr == nil && w.fresh && w.info != nil && os.SameFile(info, w.info) && info.ModTime().Equal(w.info.ModTime()) && info.Size() == w.info.Size() {
		return w.value, false, w.err
	}
	before := w.err
	value, err = w.read(info, statErr)
	w.info, w.fresh = info, statErr == nil && time.Since(info.ModTime()) > settled
	switch {
	case err == nil, errors.Is(err, fs.ErrNotExist):
		w.value = value
	default: // keep what was good
	}
	w.err = err
	return w.value, (before == nil) != (err == nil) || err != nil && before.Error() != err.Error(), err
}

func (w *watched[T]) read(info fs.FileInfo, err error) ([]T, error) {
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || info.Size() > maxKeyFile {
		return nil, fmt.Errorf("%s is no regular file of at most %d bytes", w.path, maxKeyFile)
	}
	text, err := os.ReadFile(w.path)
	if err != nil {
		return nil, err
	}
	value, err := w.parse(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", w.path, err)
	}
	return value, nil
}

// keyFiles are all files of one source, and keys that are in none.
type keyFiles[T any] struct {
	files []*watched[T]
	given []T
	equal func(a, b T) bool
}

type (
	secretFiles = keyFiles[webhooksig.Secret]
	bearerFiles = keyFiles[[sha256.Size]byte]
)

func openSecrets(paths []string, given []byte) (*secretFiles, error) {
	return open(paths, given, webhooksig.ParseSecrets, webhooksig.Secret.Equal)
}

// openBearers keeps digests of the tokens, so that they compare in constant time
// whatever their length.
func openBearers(paths []string, given []byte) (*bearerFiles, error) {
	return open(paths, given, parseBearers, func(a, b [sha256.Size]byte) bool { return subtle.ConstantTimeCompare(a[:], b[:]) == 1 })
}

const leastToken = 16

func parseBearers(text []byte) ([][sha256.Size]byte, error) {
	var tokens [][sha256.Size]byte
	for i, line := range bytes.Split(text, []byte("\n")) {
		line = bytes.TrimSpace(line)
		if len(line) == 0 {
			continue
		}
		if len(line) < leastToken {
			return nil, fmt.Errorf("line %d: a token of %d bytes, want at least %d", i+1, len(line), leastToken)
		}
		tokens = append(tokens, sha256.Sum256(line))
	}
	return tokens, nil
}

// open wants every file to be readable and one key at least: later, files may go.
func open[T any](paths []string, given []byte, parse func([]byte) ([]T, error), equal func(a, b T) bool) (*keyFiles[T], error) {
	k := &keyFiles[T]{equal: equal}
	if len(given) > 0 {
		var err error
		if k.given, err = parse(given); err != nil {
			return nil, fmt.Errorf("secrets: %w", err)
		}
		if len(k.given) == 0 {
			return nil, errors.New("secrets: what is given holds none")
		}
	}
	for _, path := range paths {
		w := &watched[T]{path: path, parse: parse}
		value, _, err := w.look()
		if err != nil {
			return nil, fmt.Errorf("secrets: %w", err)
		}
		if len(value) == 0 {
			return nil, fmt.Errorf("secrets: %s holds none", path)
		}
		k.files = append(k.files, w)
	}
	return k, nil
}

// now gives all keys that are good at the moment; failed is told of each file
// that has begun to fail, or begun to be good again with a nil error.
func (k *keyFiles[T]) now(failed func(path string, err error)) []T {
	all := slices.Clone(k.given)
	for _, w := range k.files {
		value, changed, err := w.look()
		if changed {
			failed(w.path, err)
		}
		all = append(all, value...)
	}
	return all
}

func (k *keyFiles[T]) shares(o *keyFiles[T]) bool {
	ignore := func(string, error) {}
	for _, a := range k.now(ignore) {
		for _, b := range o.now(ignore) {
			if k.equal(a, b) {
				return true
			}
		}
	}
	return false
}

// has says whether token is among the keys; it compares all.
func has(k *bearerFiles, token string, failed func(string, error)) bool {
	digest, fits := sha256.Sum256([]byte(token)), false
	for _, b := range k.now(failed) {
		fits = k.equal(digest, b) || fits
	}
	return fits
}

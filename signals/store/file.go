// Package store keeps the states of windows, verdicts and plans, overrides, and
// what was pushed by webhook, over restarts.
//
// It owns how they lie in files or in Redis. It must not know what they mean or
// when they change.
package store

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"girassol.dev/signals/window"
)

// Files keeps each site's state in a file of its own, so that damage to one
// never touches another: DIR/SITE.json. Saving different sites concurrently is
// safe; one process at a time may use a directory.
type Files struct{ dir string }

const (
	suffix  = ".json"
	version = 1
	maxFile = 16 << 20
)

// document is a file's content.
type document struct {
	Version int          `json:"version"`
	Site    string       `json:"site"`
	State   window.State `json:"state"`
}

// OpenFiles makes the directory if need be and checks that it can be written.
func OpenFiles(dir string) (*Files, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("store: window states: %w", err)
	}
	probe, err := os.CreateTemp(dir, ".probe-*")
	if err != nil {
		return nil, fmt.Errorf("store: window states: %w", err)
	}
	probe.Close()
	if err := os.Remove(probe.Name()); err != nil {
		return nil, fmt.Errorf("store: window states: %w", err)
	}
	return &Files{dir: dir}, nil
}

// Load reads all states. Files that cannot be read are left out and named in the
// error; the others are returned all the same.
func (f *Files) Load() (map[string]window.State, error) {
	entries, err := os.ReadDir(f.dir)
	if err != nil {
		return nil, fmt.Errorf("store: window states: %w", err)
	}
	states := map[string]window.State{}
	var damage []error
	for _, e := range entries {
		site, ok := strings.CutSuffix(e.Name(), suffix)
		if !ok || !siteName(site) {
			continue
		}
		state, err := f.read(site)
		if err != nil {
			damage = append(damage, fmt.Errorf("store: window state of site %s: %w (remove %s to start without it)",
				site, err, f.path(site)))
			continue
		}
		states[site] = state
	}
	return states, errors.Join(damage...)
}

func (f *Files) path(site string) string { return filepath.Join(f.dir, site+suffix) }

func (f *Files) read(site string) (window.State, error) {
	raw, err := readRegular(f.path(site))
	if err != nil {
		return window.State{}, err
	}
	var d document
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&d); err != nil {
		return window.State{}, err
	}
	switch {
	case d.Version != version:
		return window.State{}, fmt.Errorf("version %d, this program reads %d", d.Version, version)
	case d.Site != site:
		return window.State{}, fmt.Errorf("it is the state of site %q", d.Site)
	}
	return d.State, nil
}

// readRegular reads a file of a size that a state can have.
func readRegular(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || info.Size() > maxFile {
		return nil, fmt.Errorf("no regular file of at most %d bytes", maxFile)
	}
	return os.ReadFile(path)
}

// Save replaces a site's state atomically: after a crash either the old or the
// new one is there.
func (f *Files) Save(site string, s window.State) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("store: window state of site %s: %w", site, err)
		}
	}()
	if !siteName(site) {
		return errors.New("the name cannot be a file's: want letters, digits, '-', '_' and '.'")
	}
	raw, err := json.Marshal(document{Version: version, Site: site, State: s})
	if err != nil {
		return err
	}
	return replace(f.dir, site+suffix, append(raw, '\n'))
}

// replace writes a file atomically and durably.
func replace(dir, name string, content []byte) (err error) {
	temp, err := os.CreateTemp(dir, "."+name+"-*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			// After a rename there is none any more.
			if gone := os.Remove(temp.Name()); !errors.Is(gone, fs.ErrNotExist) {
				err = errors.Join(err, gone)
			}
		}
	}()
	_, err = temp.Write(content)
	if err == nil {
		err = temp.Sync()
	}
	if closed := temp.Close(); err == nil {
		err = closed
	}
	if err != nil {
		return err
	}
	if err := os.Rename(temp.Name(), filepath.Join(dir, name)); err != nil {
		return err
	}
	return syncDir(dir)
}

// syncDir makes a rename durable.
func syncDir(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	err = dir.Sync()
	if closed := dir.Close(); err == nil {
		err = closed
	}
	if errors.Is(err, fs.ErrInvalid) {
		return nil // some file systems cannot sync a directory
	}
	return err
}

// siteName accepts names that are safe as a file's.
func siteName(s string) bool {
	if s == "" || len(s) > 200 || s[0] == '.' {
		return false
	}
	for _, r := range s {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '-', r == '_', r == '.':
		default:
			return false
		}
	}
	return true
}

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
	"time"

	"girassol.dev/signals/planner"
	"girassol.dev/signals/sanity"
	"girassol.dev/signals/window"
)

// What Files keeps besides window states lies in folders of its own:
// DIR/sanity/SITE.json, DIR/overrides/SITE.json and DIR/plan/plan.json.
const (
	sanityDir    = "sanity"
	overridesDir = "overrides"
	planDir      = "plan"
	planName     = "plan"
)

// memo is the content of such a file.
type memo[T any] struct {
	Version int    `json:"version"`
	Name    string `json:"name"`
	State   T      `json:"state"`
}

// LoadSanity reads what verdicts remember, as Load does.
func (f *Files) LoadSanity() (map[string]sanity.State, error) {
	return loadMemos[sanity.State](f.dir, sanityDir)
}

// SaveSanity replaces a site's, as Save does.
func (f *Files) SaveSanity(site string, s sanity.State) error {
	return saveMemo(f.dir, sanityDir, site, s)
}

// LoadOverrides reads the overrides, ended ones included, as Load does.
func (f *Files) LoadOverrides() (map[string]window.Override, error) {
	return loadMemos[window.Override](f.dir, overridesDir)
}

// SaveOverride replaces a site's override, as Save does; nil removes it.
func (f *Files) SaveOverride(site string, o *window.Override) error {
	if o != nil {
		return saveMemo(f.dir, overridesDir, site, *o)
	}
	if !siteName(site) {
		return saveMemo(f.dir, overridesDir, site, window.Override{}) // says why
	}
	dir := filepath.Join(f.dir, overridesDir)
	err := os.Remove(filepath.Join(dir, site+suffix))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err == nil:
		err = syncDir(dir)
	}
	if err != nil {
		return fmt.Errorf("store: override of site %s: %w", site, err)
	}
	return nil
}

// planned is what is kept of plans.
type planned struct {
	Planner planner.State        `json:"planner"`
	Moved   map[string]time.Time `json:"moved,omitempty"`
}

// LoadPlan reads what the planner remembers and when sites last came in or went
// out; the zero state and nil if nothing was kept.
func (f *Files) LoadPlan() (planner.State, map[string]time.Time, error) {
	all, err := loadMemos[planned](f.dir, planDir)
	return all[planName].Planner, all[planName].Moved, err
}

// SavePlan replaces both, as Save does.
func (f *Files) SavePlan(s planner.State, moved map[string]time.Time) error {
	return saveMemo(f.dir, planDir, planName, planned{s, moved})
}

func loadMemos[T any](root, kind string) (map[string]T, error) {
	dir := filepath.Join(root, kind)
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("store: %s: %w", kind, err)
	}
	out := map[string]T{}
	var damage []error
	for _, e := range entries {
		name, ok := strings.CutSuffix(e.Name(), suffix)
		if !ok || !siteName(name) {
			continue
		}
		path := filepath.Join(dir, e.Name())
		m, err := readMemo[T](path, name)
		if err != nil {
			damage = append(damage, fmt.Errorf("store: %s of %s: %w (remove %s to start without it)", kind, name, err, path))
			continue
		}
		out[name] = m
	}
	return out, errors.Join(damage...)
}

func readMemo[T any](path, name string) (state T, err error) {
	raw, err := readRegular(path)
	if err != nil {
		return state, err
	}
	var m memo[T]
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&m); err != nil {
		return state, err
	}
	switch {
	case m.Version != version:
		return state, fmt.Errorf("version %d, this program reads %d", m.Version, version)
	case m.Name != name:
		return state, fmt.Errorf("it is that of %q", m.Name)
	}
	return m.State, nil
}

func saveMemo[T any](root, kind, name string, state T) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("store: %s of %s: %w", kind, name, err)
		}
	}()
	if !siteName(name) {
		return errors.New("the name cannot be a file's: want letters, digits, '-', '_' and '.'")
	}
	raw, err := json.Marshal(memo[T]{Version: version, Name: name, State: state})
	if err != nil {
		return err
	}
	dir := filepath.Join(root, kind)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	return replace(dir, name+suffix, append(raw, '\n'))
}

package identity

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// fileName below the coordinator's data folder.
const fileName = "identities.json"

// form of the file.
const form = 1

type file struct {
	Form     int       `json:"form"`
	Registry *Registry `json:"registry"`
}

// Store keeps a registry in a folder. Whoever opens it holds the folder's lock.
type Store struct {
	path string

	mu       sync.Mutex
	registry *Registry
}

// OpenStore reads what is kept in a folder. A damaged file is an error: without it
// who was revoked would be let in again.
func OpenStore(folder string) (*Store, error) {
	s := &Store{path: filepath.Join(folder, fileName), registry: &Registry{}}
	b, err := os.ReadFile(s.path)
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	if err != nil {
		return nil, fmt.Errorf("identities: %w", err)
	}
	if s.registry, err = parse(b); err != nil {
		return nil, fmt.Errorf("identities: %s: %w: restore it from a copy; deleting it lets in again who was revoked, so make a new authority then", s.path, err)
	}
	return s, nil
}

func parse(b []byte) (*Registry, error) {
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	var f file
	if err := d.Decode(&f); err != nil {
		return nil, fmt.Errorf("damaged: %w", err)
	}
	if f.Form != form || f.Registry == nil {
		return nil, fmt.Errorf("is of form %d, this version reads form %d", f.Form, form)
	}
	return f.Registry, nil
}

// Do changes the registry: what change has done is on disk when Do returns nil, and
// undone when it returns an error.
func (s *Store) Do(change func(*Registry) error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	next := s.registry.clone()
	if err := change(next); err != nil {
		return err
	}
	if err := s.write(next); err != nil {
		return fmt.Errorf("identities: nothing was changed: %w", err)
	}
	s.registry = next
	return nil
}

// Look reads the registry; read must not keep it.
func (s *Store) Look(read func(*Registry)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	read(s.registry)
}

// Check is the registry's.
func (s *Store) Check(serial, site string, notBefore time.Time) (err error) {
	s.Look(func(r *Registry) { err = r.Check(serial, site, notBefore) })
	return err
}

// CheckSite is the registry's.
func (s *Store) CheckSite(site string, now time.Time) (err error) {
	s.Look(func(r *Registry) { err = r.CheckSite(site, now) })
	return err
}

// write replaces the file, durably.
func (s *Store) write(r *Registry) (err error) {
	b, err := json.Marshal(file{form, r})
	if err != nil {
		return err
	}
	next := s.path + ".new"
	f, err := os.OpenFile(next, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Rename(next, s.path); err != nil {
		return err
	}
	d, err := os.Open(filepath.Dir(s.path))
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

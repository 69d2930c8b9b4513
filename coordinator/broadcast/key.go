package broadcast

import (
	"crypto/ed25519"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// KeyFile in a coordinator's data folder holds the key that signs its events.
const KeyFile = "events.key"

const keyBlock = "PRIVATE KEY"

// Key reads the key that signs events from a folder, or makes it at the first start,
// mode 0600. Agents get the public one with each session, so that a lost one is
// replaced by the next start.
func Key(folder string, random io.Reader) (ed25519.PrivateKey, error) {
	path := filepath.Join(folder, KeyFile)
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return createKey(path, random)
	}
	if err != nil {
		return nil, fmt.Errorf("broadcast: the key of events: %w", err)
	}
	if block, _ := pem.Decode(b); block != nil && block.Type == keyBlock {
		if k, err := x509.ParsePKCS8PrivateKey(block.Bytes); err == nil {
			if k, ok := k.(ed25519.PrivateKey); ok {
				return k, nil
			}
		}
	}
	return nil, fmt.Errorf("broadcast: %s is no Ed25519 key in PEM: delete it, and the next start makes another; agents learn it with their next session", path)
}

func createKey(path string, random io.Reader) (_ ed25519.PrivateKey, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("broadcast: a key for events: %w", err)
		}
	}()
	_, key, err := ed25519.GenerateKey(random)
	if err != nil {
		return nil, err
	}
	b, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	// Whole or not at all: a half-written key would stop every later start.
	f, err := os.CreateTemp(filepath.Dir(path), "."+KeyFile+".*") // mode 0600
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.Remove(f.Name()) }()
	_, err = f.Write(pem.EncodeToMemory(&pem.Block{Type: keyBlock, Bytes: b}))
	err = errors.Join(err, f.Sync(), f.Close())
	if err != nil {
		return nil, err
	}
	return key, os.Rename(f.Name(), path)
}

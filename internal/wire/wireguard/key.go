package wireguard

import (
	"crypto/ecdh"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// KeySize of public and private keys, in bytes.
const KeySize = 32

// PublicKey names an end of a tunnel.
type PublicKey [KeySize]byte

// String is base64, as wg's tools write it.
func (k PublicKey) String() string { return base64.StdEncoding.EncodeToString(k[:]) }

// MarshalText is String, for YAML and JSON.
func (k PublicKey) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

// UnmarshalText is ParsePublicKey.
func (k *PublicKey) UnmarshalText(b []byte) (err error) {
	*k, err = ParsePublicKey(string(b))
	return err
}

// ParsePublicKey reads base64 or hexadecimal digits.
func ParsePublicKey(s string) (PublicKey, error) {
	b, err := decode(s)
	if err != nil {
		return PublicKey{}, fmt.Errorf("wireguard: %.60q is not a public key: %w", s, err)
	}
	return NewPublicKey(b)
}

// probe is any private key: what it agrees on with a point of low order is zero.
var probe = must(ecdh.X25519().NewPrivateKey(append(make([]byte, KeySize-1), 64)))

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// NewPublicKey takes 32 bytes that can be somebody's key.
func NewPublicKey(b []byte) (PublicKey, error) {
	var k PublicKey
	if len(b) != KeySize {
		return k, fmt.Errorf("wireguard: a public key has %d bytes, not %d", KeySize, len(b))
	}
	if b[KeySize-1]&0x80 != 0 {
		return k, errors.New("wireguard: a public key's highest bit is never set")
	}
	remote, err := ecdh.X25519().NewPublicKey(b)
	if err == nil {
		_, err = probe.ECDH(remote)
	}
	if err != nil {
		return k, errors.New("wireguard: this public key (of low order) belongs to nobody")
	}
	copy(k[:], b)
	return k, nil
}

// PrivateKey is one end's secret. It does not print itself.
type PrivateKey struct{ key *ecdh.PrivateKey }

// NewPrivateKey draws a key from random, which is crypto/rand's Reader but in tests.
func NewPrivateKey(random io.Reader) (PrivateKey, error) {
	var b [KeySize]byte
	if _, err := io.ReadFull(random, b[:]); err != nil {
		return PrivateKey{}, fmt.Errorf("wireguard: %w", err)
	}
	return privateKey(b[:])
}

func privateKey(b []byte) (PrivateKey, error) {
	c := [KeySize]byte(b)
	c[0] &= 248
	c[31] = c[31]&127 | 64
	key, err := ecdh.X25519().NewPrivateKey(c[:])
	if err != nil {
		return PrivateKey{}, errors.New("wireguard: not a private key")
	}
	return PrivateKey{key}, nil
}

// Public is what the other end is told.
func (k PrivateKey) Public() PublicKey { return PublicKey(k.key.PublicKey().Bytes()) }

// String tells nothing.
func (PrivateKey) String() string { return "(private key)" }

// GoString tells nothing.
func (PrivateKey) GoString() string { return "(private key)" }

func (k PrivateKey) hex() string { return hex.EncodeToString(k.key.Bytes()) }

// maxKeyFile in bytes.
const maxKeyFile = 1 << 10

// LoadKey reads a key file.
func LoadKey(path string) (PrivateKey, error) {
	f, err := os.Open(path)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return PrivateKey{}, fmt.Errorf("wireguard: %w; `girassol wireguard key %s` makes one", err, path)
		}
		return PrivateKey{}, fmt.Errorf("wireguard: %w", err)
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return PrivateKey{}, fmt.Errorf("wireguard: %w", err)
	}
	// The group may read: that is how Kubernetes mounts Secrets.
	if fi.Mode().IsRegular() && fi.Mode().Perm()&0o007 != 0 {
		return PrivateKey{}, fmt.Errorf("wireguard: the key %s is open to everybody on this machine (mode %04o): make a new one, or chmod 600 it if nobody else has been here", path, fi.Mode().Perm())
	}
	b, err := io.ReadAll(io.LimitReader(f, maxKeyFile+1))
	if err != nil {
		return PrivateKey{}, fmt.Errorf("wireguard: %w", err)
	}
	raw, err := decode(string(b))
	if err != nil {
		return PrivateKey{}, fmt.Errorf("wireguard: %s does not hold a private key: %w", path, err)
	}
	return privateKey(raw)
}

// CreateKey makes a key file; one that is there stays as it is and is an error.
func CreateKey(path string, random io.Reader) (PublicKey, error) {
	k, err := NewPrivateKey(random)
	if err != nil {
		return PublicKey{}, err
	}
	// Under another name first: a kill or a full disk leaves no half of a key, which
	// nothing would overwrite.
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*") // 0600
	if err != nil {
		return PublicKey{}, fmt.Errorf("wireguard: %w", err)
	}
	defer func() { _ = os.Remove(f.Name()) }()
	_, err = f.WriteString(base64.StdEncoding.EncodeToString(k.key.Bytes()) + "\n")
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return PublicKey{}, fmt.Errorf("wireguard: %w", err)
	}
	if err := nameNew(f.Name(), path); err != nil {
		return PublicKey{}, fmt.Errorf("wireguard: %w", err)
	}
	return k.Public(), nil
}

// nameNew gives a file a name that nothing has.
func nameNew(from, path string) error {
	err := os.Link(from, path)
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("%s exists; a key that is lost is lost, so nothing overwrites it", path)
	}
	if err != nil { // a file system without links
		if _, there := os.Lstat(path); !errors.Is(there, fs.ErrNotExist) {
			return err
		}
		if err := os.Rename(from, path); err != nil {
			return err
		}
	}
	return syncFolder(filepath.Dir(path))
}

func syncFolder(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// decode reads 32 bytes in base64 or hexadecimal digits; its errors do not quote
// what may be a secret.
func decode(s string) ([]byte, error) {
	if len(s) > maxKeyFile {
		return nil, errors.New("it is too long")
	}
	s = strings.TrimSpace(s)
	b, err := base64.StdEncoding.Strict().DecodeString(s)
	if len(s) == 2*KeySize {
		b, err = hex.DecodeString(s)
	}
	if err != nil || len(b) != KeySize {
		return nil, fmt.Errorf("want %d bytes in base64, 44 characters, or in hexadecimal digits", KeySize)
	}
	return b, nil
}

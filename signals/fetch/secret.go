package fetch

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"
	"time"
)

// maxSecret is the longest credential that is read from a file.
const maxSecret = 64 << 10

// Secret is one credential: given, or in a file that may change. However it is
// printed, logged or marshalled, it shows "[redacted]" only.
type Secret struct {
	path string

	mu      sync.Mutex
	value   string
	modTime time.Time
	size    int64
	read    bool
}

// Value is a secret that does not change.
func Value(s string) *Secret { return &Secret{value: s} }

// File is a secret in a file, which is read again when it changes. White space
// around it is not part of it.
func File(path string) *Secret { return &Secret{path: path} }

// Reveal is the secret itself. An empty one is an error.
func (s *Secret) Reveal() (string, error) {
	if s == nil {
		return "", errors.New("no credential is configured")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.path != "" {
		if err := s.load(); err != nil {
			return "", err
		}
	}
	if s.value == "" {
		if s.path != "" {
			return "", fmt.Errorf("the credential in %s is empty", s.path)
		}
		return "", errors.New("the credential is empty")
	}
	return s.value, nil
}

// load reads the file if it is new. Mounted Kubernetes secrets are links, whose
// target changes: Stat follows them.
func (s *Secret) load() error {
	info, err := os.Stat(s.path)
	if err != nil {
		return fmt.Errorf("credential: %w", err)
	}
	if s.read && info.ModTime().Equal(s.modTime) && info.Size() == s.size {
		return nil
	}
	if info.Size() > maxSecret {
		return fmt.Errorf("credential: %s has %d bytes, which is no credential", s.path, info.Size())
	}
	f, err := os.Open(s.path)
	if err != nil {
		return fmt.Errorf("credential: %w", err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxSecret))
	if err != nil {
		return fmt.Errorf("credential: %w", err)
	}
	s.value, s.modTime, s.size, s.read = string(bytes.TrimSpace(b)), info.ModTime(), info.Size(), true
	return nil
}

const redacted = "[redacted]"

// String implements fmt.Stringer.
func (*Secret) String() string { return redacted }

// GoString implements fmt.GoStringer.
func (*Secret) GoString() string { return redacted }

// Format implements fmt.Formatter, for all verbs.
func (*Secret) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, redacted) }

// LogValue implements slog.LogValuer.
func (*Secret) LogValue() slog.Value { return slog.StringValue(redacted) }

// MarshalText implements encoding.TextMarshaler.
func (*Secret) MarshalText() ([]byte, error) { return []byte(redacted), nil }

// salt makes identities useless outside this process.
var salt = func() [32]byte {
	var b [32]byte
	_, _ = rand.Read(b[:]) // never fails
	return b
}()

// Identity is the same for the same secrets in this process and tells nothing
// about them. It changes when one of them does.
func Identity(secrets ...string) string {
	h := sha256.New()
	h.Write(salt[:])
	for _, s := range secrets {
		fmt.Fprintf(h, "%d:%s", len(s), s)
	}
	return hex.EncodeToString(h.Sum(nil)[:12])
}

// Package identity has the agent's own certificate: made at its enrolment with a
// one-time token, kept beside its data, renewed before it expires.
//
// It owns the files and the key, which is made here and never leaves the machine.
// It must not know sessions or rounds, nor where the agent's other files are.
package identity

import (
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"girassol.dev/internal/certs"
	"girassol.dev/internal/wire"
)

// Names below the folder. Certificate and key are one file, so that they are
// replaced together, whatever happens in between.
const (
	agentFile = "agent.pem"
	caFile    = "ca.pem"
	// nextKeyFile has the key of a request under way: after a lost answer the same
	// key asks again.
	nextKeyFile = "next-key.pem"
)

// tokenLine begins the agent's file: the id of the token that it goes back to, which
// is no secret.
const tokenLine = "token "

// Files of an agent's identity.
type Files struct{ folder string }

// Open makes the folder, which is for its owner only.
func Open(folder string) (*Files, error) {
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return nil, fmt.Errorf("identity: %w", err)
	}
	// It may have been made by someone else.
	if err := os.Chmod(folder, 0o700); err != nil {
		return nil, fmt.Errorf("identity: %w", err)
	}
	return &Files{folder}, nil
}

// Link has a link use the identity.
func (f *Files) Link(o *wire.Options) {
	o.CertFile, o.KeyFile, o.CAFile = f.path(agentFile), f.path(agentFile), f.path(caFile)
}

func (f *Files) path(name string) string { return filepath.Join(f.folder, name) }

// Certificate is the present one; nil without an error: never enrolled.
func (f *Files) Certificate() (*x509.Certificate, error) {
	b, err := os.ReadFile(f.path(agentFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("identity: %w", err)
	}
	c, err := certs.ParseCertificate(b)
	if err != nil {
		return nil, fmt.Errorf("identity: %s: %w: enrol again with a new token", f.path(agentFile), err)
	}
	return c, nil
}

// usedToken is the id of the token that the present certificate goes back to.
func (f *Files) usedToken() string {
	b, err := os.ReadFile(f.path(agentFile))
	if err != nil {
		return ""
	}
	first, _, _ := strings.Cut(string(b), "\n")
	id, ok := strings.CutPrefix(first, tokenLine)
	if !ok {
		return ""
	}
	return id
}

// nextKey is the key of a request under way; a new one where there is none.
func (f *Files) nextKey(newKey func() ([]byte, error)) ([]byte, error) {
	b, err := os.ReadFile(f.path(nextKeyFile))
	if err == nil {
		if _, bad := certs.NewRequest(b); bad == nil {
			return b, nil
		}
	} else if !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("identity: %w", err)
	}
	key, err := newKey()
	if err != nil {
		return nil, fmt.Errorf("identity: %w", err)
	}
	return key, f.replace(nextKeyFile, key, 0o600)
}

// install puts a new certificate with the key under way in force; an empty token is
// the one of the certificate before.
func (f *Files) install(certificate, key, ca []byte, token string) error {
	c, err := certs.ParseCertificate(certificate)
	if err != nil {
		return fmt.Errorf("identity: the coordinator's answer: certificate: %w", err)
	}
	if !certs.Belongs(c, key) {
		return errors.New("identity: the coordinator's answer: the certificate is for another key")
	}
	authority, err := certs.ParseCertificate(ca)
	if err != nil {
		return fmt.Errorf("identity: the coordinator's answer: CA: %w", err)
	}
	if err := c.CheckSignatureFrom(authority); err != nil {
		return fmt.Errorf("identity: the coordinator's answer: the certificate is not of its CA: %w", err)
	}
	if err := f.replace(caFile, ca, 0o644); err != nil {
		return err
	}
	if token == "" {
		token = f.usedToken()
	}
	whole := slices.Concat([]byte(tokenLine+token+"\n"), certificate, key)
	if err := f.replace(agentFile, whole, 0o600); err != nil {
		return err
	}
	if err := os.Remove(f.path(nextKeyFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("identity: %w", err)
	}
	return nil
}

// replace exchanges a file's content at once and for good.
func (f *Files) replace(name string, b []byte, mode os.FileMode) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("identity: %w", err)
		}
	}()
	t, err := os.CreateTemp(f.folder, "."+name+".*") // 0600
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(t.Name())
		}
	}()
	_, err = t.Write(b)
	if err = errors.Join(err, t.Chmod(mode), t.Sync(), t.Close()); err != nil {
		return err
	}
	if err := os.Rename(t.Name(), f.path(name)); err != nil {
		return err
	}
	d, err := os.Open(f.folder)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

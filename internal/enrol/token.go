// Package enrol has what agent and coordinator say to each other when a site
// enrols: the token, the request and its answer, one HTTPS exchange in JSON.
//
// It must not know who may enrol nor where anything is kept.
package enrol

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"strings"
)

// Token lets an agent enrol once, and names the authority that it may trust. In
// text: gst1.<id>.<secret>.<SHA-256 of the authority's certificate>, base64url.
type Token struct {
	// ID is public.
	ID string
	// Secret is known to whoever holds the token; the coordinator keeps its hash.
	Secret string
	// Authority is the hash of the authority's certificate.
	Authority string
}

const (
	prefix      = "gst1"
	idBytes     = 9
	secretBytes = 32
)

// maxToken is more than a token has, in bytes.
const maxToken = 256

// NewToken draws one for an authority's fingerprint.
func NewToken(authority string, random io.Reader) (Token, error) {
	b := make([]byte, idBytes+secretBytes)
	if _, err := io.ReadFull(random, b); err != nil {
		return Token{}, fmt.Errorf("draw a token: %w", err)
	}
	e := base64.RawURLEncoding
	return Token{ID: e.EncodeToString(b[:idBytes]), Secret: e.EncodeToString(b[idBytes:]), Authority: authority}, nil
}

// Text is what a person copies. It is a secret.
func (t Token) Text() string {
	return strings.Join([]string{prefix, t.ID, t.Secret, t.Authority}, ".")
}

// String leaves the secret out, for logs.
func (t Token) String() string { return prefix + "." + t.ID + ".***" }

// GoString is String.
func (t Token) GoString() string { return t.String() }

// Hash is what is kept of a token: SHA-256 of its secret, hexadecimal. The secret
// has 256 random bits, so that nothing slower is needed.
func (t Token) Hash() string {
	sum := sha256.Sum256([]byte(t.Secret))
	return hex.EncodeToString(sum[:])
}

// Proves says whether the token is the one with a hash, in constant time.
func (t Token) Proves(hash string) bool {
	return subtle.ConstantTimeCompare([]byte(t.Hash()), []byte(hash)) == 1
}

// ParseToken reads a token. Its errors do not show it.
func ParseToken(s string) (Token, error) {
	s = strings.TrimSpace(s)
	if s == "" {
		return Token{}, errors.New("the enrolment token is empty")
	}
	if len(s) > maxToken {
		return Token{}, fmt.Errorf("the enrolment token has %d bytes, at most %d: give the line that girassol token create has shown", len(s), maxToken)
	}
	part := strings.Split(s, ".")
	if len(part) != 4 || part[0] != prefix {
		return Token{}, errors.New("the enrolment token is not of the form gst1.ID.SECRET.HASH: give the whole line that girassol token create has shown")
	}
	for i, n := range map[int]int{1: idBytes, 2: secretBytes, 3: sha256.Size} {
		if b, err := base64.RawURLEncoding.Strict().DecodeString(part[i]); err != nil || len(b) != n {
			return Token{}, fmt.Errorf("part %d of the enrolment token is damaged: give the whole line that girassol token create has shown", i+1)
		}
	}
	return Token{ID: part[1], Secret: part[2], Authority: part[3]}, nil
}

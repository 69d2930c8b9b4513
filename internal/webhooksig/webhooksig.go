// Package webhooksig signs and checks HTTP messages as Standard Webhooks 1.0 does
// (HMAC-SHA256 over "id.timestamp.body") and posts them with patience.
//
// It owns the headers, the secrets and the retries. It must not know what a body
// says, nor where secrets lie.
package webhooksig

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// The headers of a signed message.
const (
	HeaderID        = "webhook-id"
	HeaderTimestamp = "webhook-timestamp"
	HeaderSignature = "webhook-signature"
)

// Tolerance is how far a timestamp may lie from the receiver's clock, both ways.
const Tolerance = 5 * time.Minute

const (
	prefix        = "whsec_"
	leastSecret   = 24
	mostSecret    = 64
	maxID         = 256
	maxSignatures = 16
	version       = "v1"
)

// Secret is a key shared by sender and receiver: 24 to 64 bytes. It prints as
// nothing, so that it cannot end in a log.
type Secret struct{ key []byte }

// ParseSecret reads "whsec_" and base64.
func ParseSecret(s string) (Secret, error) {
	encoded, ok := strings.CutPrefix(s, prefix)
	if !ok {
		return Secret{}, fmt.Errorf("webhooksig: a secret starts with %q", prefix)
	}
	key, err := base64.StdEncoding.DecodeString(encoded)
	if err != nil {
		// The error of base64 would quote the secret's place only, but say nothing more useful.
		return Secret{}, fmt.Errorf("webhooksig: what follows %q in a secret is base64", prefix)
	}
	if len(key) < leastSecret || len(key) > mostSecret {
		return Secret{}, fmt.Errorf("webhooksig: a secret of %d bytes, want %d to %d", len(key), leastSecret, mostSecret)
	}
	return Secret{key}, nil
}

// ParseSecrets reads a file of secrets: one a line, newest first; empty lines and
// lines that start with # do not count. No secret at all is no error: it is how
// keys are withdrawn.
func ParseSecrets(text []byte) ([]Secret, error) {
	var secrets []Secret
	for i, line := range bytes.Split(text, []byte("\n")) {
		line = bytes.TrimSpace(line)
		if len(line) == 0 || line[0] == '#' {
			continue
		}
		s, err := ParseSecret(string(line))
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", i+1, err)
		}
		secrets = append(secrets, s)
	}
	return secrets, nil
}

// Equal says whether two secrets are the same, in constant time.
func (s Secret) Equal(o Secret) bool { return hmac.Equal(s.key, o.key) }

// String hides the secret.
func (Secret) String() string { return prefix + "…" }

// GoString hides the secret.
func (s Secret) GoString() string { return s.String() }

// Sign gives the signature header's value for one secret.
func (s Secret) Sign(id string, at time.Time, body []byte) string {
	return version + "," + base64.StdEncoding.EncodeToString(s.mac(id, strconv.FormatInt(at.Unix(), 10), body))
}

func (s Secret) mac(id, timestamp string, body []byte) []byte {
	h := hmac.New(sha256.New, s.key)
	h.Write([]byte(id + "." + timestamp + "."))
	h.Write(body)
	return h.Sum(nil)
}

// Set puts the three headers of a message that is signed with every secret.
func Set(h http.Header, secrets []Secret, id string, at time.Time, body []byte) {
	signatures := make([]string, len(secrets))
	for i, s := range secrets {
		signatures[i] = s.Sign(id, at, body)
	}
	h.Set(HeaderID, id)
	h.Set(HeaderTimestamp, strconv.FormatInt(at.Unix(), 10))
	h.Set(HeaderSignature, strings.Join(signatures, " "))
}

// The errors of reading and checking. ErrHeaders is the caller's mistake; the
// other two mean that the message must not be believed.
var (
	ErrHeaders   = errors.New("webhooksig: bad headers")
	ErrSignature = errors.New("webhooksig: no signature fits")
	ErrTimestamp = errors.New("webhooksig: timestamp too far from this clock")
)

// Signed is what the headers say.
type Signed struct {
	ID        string
	Timestamp time.Time
	// timestamp as it came: that is what was signed.
	timestamp  string
	signatures [][]byte
}

// Read takes the headers of a message; its errors wrap ErrHeaders. Signatures of
// other versions than v1 are passed over.
func Read(h http.Header) (Signed, error) {
	var s Signed
	for _, f := range []struct {
		name string
		to   *string
	}{{HeaderID, &s.ID}, {HeaderTimestamp, &s.timestamp}} {
		values := h.Values(f.name)
		if len(values) != 1 || values[0] == "" {
			return Signed{}, fmt.Errorf("%w: want %s once", ErrHeaders, f.name)
		}
		*f.to = values[0]
	}
	if err := CheckID(s.ID); err != nil {
		return Signed{}, err
	}
	seconds, err := strconv.ParseInt(s.timestamp, 10, 64)
	if err != nil || seconds < 0 || seconds > 1<<35 {
		return Signed{}, fmt.Errorf("%w: %s is in Unix seconds", ErrHeaders, HeaderTimestamp)
	}
	s.Timestamp = time.Unix(seconds, 0)
	given := strings.Fields(strings.Join(h.Values(HeaderSignature), " "))
	if len(given) == 0 || len(given) > maxSignatures {
		return Signed{}, fmt.Errorf("%w: %s holds %d signatures, want 1 to %d", ErrHeaders, HeaderSignature, len(given), maxSignatures)
	}
	for _, g := range given {
		v, encoded, ok := strings.Cut(g, ",")
		if !ok {
			return Signed{}, fmt.Errorf("%w: %s is a list of \"v1,BASE64\"", ErrHeaders, HeaderSignature)
		}
		if v != version {
			continue
		}
		mac, err := base64.StdEncoding.DecodeString(encoded)
		if err != nil || len(mac) != sha256.Size {
			return Signed{}, fmt.Errorf("%w: a v1 signature is the base64 of %d bytes", ErrHeaders, sha256.Size)
		}
		s.signatures = append(s.signatures, mac)
	}
	return s, nil
}

// CheckID refuses ids that are empty, long or not of visible ASCII.
func CheckID(id string) error {
	if id == "" || len(id) > maxID {
		return fmt.Errorf("%w: an id of %d characters, want 1 to %d", ErrHeaders, len(id), maxID)
	}
	for i := range len(id) {
		if id[i] <= ' ' || id[i] > '~' {
			return fmt.Errorf("%w: an id of other characters than visible ASCII", ErrHeaders)
		}
	}
	return nil
}

// By says whether one of the secrets signed the body as it came, byte for byte.
// It compares all, in constant time.
func (s Signed) By(secrets []Secret, body []byte) bool {
	fits := false
	for _, secret := range secrets {
		mac := secret.mac(s.ID, s.timestamp, body)
		for _, given := range s.signatures {
			fits = hmac.Equal(mac, given) || fits
		}
	}
	return fits
}

// Timely refuses a message from too long ago or from the future.
func (s Signed) Timely(now time.Time) error {
	if d := now.Sub(s.Timestamp); d > Tolerance || d < -Tolerance {
		return fmt.Errorf("%w: it says %s and here it is %s, the most is %s", ErrTimestamp,
			s.Timestamp.UTC().Format(time.RFC3339), now.UTC().Format(time.RFC3339), Tolerance)
	}
	return nil
}

// Verify reads and checks a message.
func Verify(h http.Header, secrets []Secret, body []byte, now time.Time) (Signed, error) {
	s, err := Read(h)
	if err != nil {
		return Signed{}, err
	}
	if !s.By(secrets, body) {
		return Signed{}, ErrSignature
	}
	return s, s.Timely(now)
}

package events

import (
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
)

// The other fields of a stream entry: who has signed its Field, and the signature.
const (
	KeyField       = "key"
	SignatureField = "signature"
)

// MaxSize of an event's JSON; a coordinator writes less than a hundredth of it.
const MaxSize = 64 << 10

// Why an entry is not taken for the coordinator's.
var (
	ErrUnsigned  = errors.New("events: the entry is not signed")
	ErrOtherKey  = errors.New("events: the entry is signed by another key than this coordinator's")
	ErrForged    = errors.New("events: the signature is not of this entry")
	ErrMalformed = errors.New("events: the entry is malformed")
	ErrElsewhere = errors.New("events: the entry is of another federation")
)

// KeyID names a public key: the first 8 bytes of its SHA-256, hexadecimal.
func KeyID(key ed25519.PublicKey) string {
	sum := sha256.Sum256(key)
	return hex.EncodeToString(sum[:8])
}

// SignedBytes are what the signature covers: a text that says what is signed, then
// federation, term, sequence, key id and the event's JSON as it goes out. Strings
// go with their length before them and numbers are 64 bits, big endian, so that no
// two entries have the same bytes.
func SignedBytes(federation string, term, sequence uint64, keyID, payload string) []byte {
	b := []byte("girassol event v1\n")
	text := func(s string) {
		b = binary.BigEndian.AppendUint64(b, uint64(len(s)))
		b = append(b, s...)
	}
	text(federation)
	b = binary.BigEndian.AppendUint64(b, term)
	b = binary.BigEndian.AppendUint64(b, sequence)
	text(keyID)
	text(payload)
	return b
}

// Sign returns the values of a stream entry for an event's JSON.
func Sign(key ed25519.PrivateKey, federation string, term, sequence uint64, payload string) []string {
	id := KeyID(key.Public().(ed25519.PublicKey))
	signature := ed25519.Sign(key, SignedBytes(federation, term, sequence, id, payload))
	return []string{Field, payload, KeyField, id, SignatureField, base64.StdEncoding.EncodeToString(signature)}
}

// Verify returns the event of a stream entry that the holder of key has signed for
// federation, and else one of the errors above. It says nothing of whether the
// event is new.
func Verify(key ed25519.PublicKey, federation string, entry map[string]any) (Event, error) {
	payload, _ := entry[Field].(string)
	id, _ := entry[KeyField].(string)
	text, _ := entry[SignatureField].(string)
	switch {
	case payload == "":
		return Event{}, fmt.Errorf("%w: it has no field %q", ErrMalformed, Field)
	case len(payload) > MaxSize:
		return Event{}, fmt.Errorf("%w: its %d bytes are more than %d", ErrMalformed, len(payload), MaxSize)
	case id == "" || text == "":
		return Event{}, ErrUnsigned
	}
	e, err := Parse(payload)
	switch {
	case err != nil:
		return Event{}, fmt.Errorf("%w: %w", ErrMalformed, err)
	case e.Federation != federation:
		return Event{}, fmt.Errorf("%w, %.64q", ErrElsewhere, e.Federation)
	case len(key) != ed25519.PublicKeySize || id != KeyID(key):
		return Event{}, fmt.Errorf("%w, %.16q", ErrOtherKey, id)
	case len(text) != base64.StdEncoding.EncodedLen(ed25519.SignatureSize):
		return Event{}, ErrForged
	}
	signature, err := base64.StdEncoding.Strict().DecodeString(text)
	if err != nil || !ed25519.Verify(key, SignedBytes(federation, e.Term, e.Sequence, id, payload), signature) {
		return Event{}, ErrForged
	}
	return e, nil
}

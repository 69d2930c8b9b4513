package events

import (
	"bytes"
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"errors"
	"maps"
	"strings"
	"testing"
)

// keyOf is a key that a test names by a letter.
func keyOf(letter string) ed25519.PrivateKey {
	return ed25519.NewKeyFromSeed(bytes.Repeat([]byte(letter), ed25519.SeedSize))
}

func public(k ed25519.PrivateKey) ed25519.PublicKey { return k.Public().(ed25519.PublicKey) }

// entryOf is a stream entry as a coordinator writes it.
func entryOf(t testing.TB, k ed25519.PrivateKey, e Event) map[string]any {
	t.Helper()
	b, err := json.Marshal(e)
	if err != nil {
		t.Fatal(err)
	}
	return entry(Sign(k, e.Federation, e.Term, e.Sequence, string(b)))
}

func entry(values []string) map[string]any {
	m := map[string]any{}
	for i := 0; i < len(values); i += 2 {
		m[values[i]] = values[i+1]
	}
	return m
}

func TestOnlyWhatTheCoordinatorHasSignedIsBelieved(t *testing.T) {
	right, other := keyOf("r"), keyOf("o")
	stop := Event{Type: RoundStopped, Federation: "fed", Term: 3, Sequence: 7, Round: 4, Reason: "Drain"}
	genuine := entryOf(t, right, stop)
	if e, err := Verify(public(right), "fed", genuine); err != nil || e != stop {
		t.Fatalf("%+v, %v", e, err)
	}
	change := func(field string, to any) map[string]any {
		m := maps.Clone(genuine)
		if to == nil {
			delete(m, field)
		} else {
			m[field] = to
		}
		return m
	}
	payload, signature := genuine[Field].(string), genuine[SignatureField].(string)
	elsewhere := stop
	elsewhere.Federation = "vision"
	// Signed for one federation, said to be of another.
	crossed := entry(Sign(right, "vision", 3, 7, payload))
	later := entry(Sign(right, "fed", 3, 7, strings.Replace(payload, `"sequence":7`, `"sequence":8`, 1)))
	for name, c := range map[string]struct {
		entry map[string]any
		want  error
	}{
		"without a signature":              {change(SignatureField, nil), ErrUnsigned},
		"without a key":                    {change(KeyField, nil), ErrUnsigned},
		"with an empty signature":          {change(SignatureField, ""), ErrUnsigned},
		"with a signature of another kind": {change(SignatureField, 7), ErrUnsigned},
		"signed by another key":            {entryOf(t, other, stop), ErrOtherKey},
		"another's under the right name":   {withField(entryOf(t, other, stop), KeyField, KeyID(public(right))), ErrForged},
		"the right one's under another":    {change(KeyField, KeyID(public(other))), ErrOtherKey},
		"with another round":               {change(Field, strings.Replace(payload, `"round":4`, `"round":5`, 1)), ErrForged},
		"with a later sequence":            {change(Field, strings.Replace(payload, `"sequence":7`, `"sequence":8`, 1)), ErrForged},
		"with another term":                {change(Field, strings.Replace(payload, `"term":3`, `"term":4`, 1)), ErrForged},
		"with a space more":                {change(Field, payload+" "), ErrForged},
		"signed under another sequence":    {later, ErrForged},
		"signed for another federation":    {crossed, ErrForged},
		"of another federation":            {entryOf(t, right, elsewhere), ErrElsewhere},
		"with a changed signature":         {change(SignatureField, "A"+signature[1:]), ErrForged},
		"with a shorter signature":         {change(SignatureField, signature[:40]), ErrForged},
		"with a longer signature":          {change(SignatureField, signature+signature), ErrForged},
		"with a signature that is garbage": {change(SignatureField, strings.Repeat("*", len(signature))), ErrForged},
		"with trailing bits set":           {change(SignatureField, trailingBits(signature)), ErrForged},
		"empty":                            {map[string]any{}, ErrMalformed},
		"with an event that is garbage":    {change(Field, "garbage"), ErrMalformed},
		"with an event of another kind":    {change(Field, 7), ErrMalformed},
		"of an unknown type":               {change(Field, `{"type":"Explode","federation":"fed"}`), ErrMalformed},
		"of enormous size":                 {change(Field, strings.Repeat(" ", MaxSize)+payload), ErrMalformed},
	} {
		if c.entry[SignatureField] == signature && c.entry[Field] == payload && c.entry[KeyField] == genuine[KeyField] {
			t.Fatalf("an entry %s is the true one", name)
		}
		if e, err := Verify(public(right), "fed", c.entry); !errors.Is(err, c.want) || e != (Event{}) {
			t.Errorf("an entry %s: %+v, %v; want %v", name, e, err, c.want)
		}
	}
	if _, err := Verify(nil, "fed", genuine); !errors.Is(err, ErrOtherKey) {
		t.Errorf("without a key to compare: %v", err)
	}
}

func withField(m map[string]any, field, to string) map[string]any {
	m[field] = to
	return m
}

// trailingBits is the same signature written otherwise: base64 of 64 bytes has four
// bits to spare.
func trailingBits(signature string) string {
	const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
	body := strings.TrimRight(signature, "=")
	last := strings.IndexByte(alphabet, body[len(body)-1])
	return body[:len(body)-1] + string(alphabet[last|1]) + signature[len(body):]
}

// The bytes that are signed are of one entry only: parts cannot be moved from one
// to the next.
func TestSignedBytesTellTheirPartsApart(t *testing.T) {
	seen := map[string]bool{}
	for _, b := range [][]byte{
		SignedBytes("fed", 1, 2, "id", "p"), SignedBytes("fe", 1, 2, "did", "p"), SignedBytes("fed", 2, 1, "id", "p"),
		SignedBytes("fed", 1, 2, "i", "dp"), SignedBytes("", 1, 2, "fedid", "p"), SignedBytes("fed", 1, 2, "", "idp"),
	} {
		if seen[string(b)] {
			t.Errorf("%q is of two entries", b)
		}
		seen[string(b)] = true
	}
}

// FuzzVerify holds that nothing but what was signed is believed, whatever an entry's
// fields hold.
func FuzzVerify(f *testing.F) {
	k := keyOf("r")
	genuine := entryOf(f, k, Event{Type: Shutdown, Federation: "fed", Term: 1, Sequence: 2})
	payload, id, signature := genuine[Field].(string), genuine[KeyField].(string), genuine[SignatureField].(string)
	f.Add(payload, id, signature)
	f.Add(payload+" ", id, signature)
	f.Add(`{"type":"Shutdown","federation":"fed","term":9}`, id, signature)
	f.Add(payload, "", "")
	f.Add("[]", id, base64.StdEncoding.EncodeToString(make([]byte, 64)))
	f.Fuzz(func(t *testing.T, p, i, s string) {
		_, err := Verify(public(k), "fed", map[string]any{Field: p, KeyField: i, SignatureField: s})
		if own := p == payload && i == id && s == signature; (err == nil) != own {
			t.Fatalf("%q %q %q: %v", p, i, s, err)
		}
	})
}

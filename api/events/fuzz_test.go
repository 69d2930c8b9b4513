package events

import (
	"encoding/json"
	"testing"
)

// Whoever can write to Redis can write anything: what is taken for an event is one
// that a coordinator could have written.
func FuzzEvent(f *testing.F) {
	f.Add(`{"type":"RoundCommitted","federation":"fed","term":1,"sequence":2,"unixMilli":3,"round":4,"version":5,"digest":"00"}`)
	f.Add(`{"type":"Quarantined","federation":"fed","site":"a","reason":"NormTooLarge"}`)
	f.Add(`{"type":"Evaluated","federation":"fed","loss":1e999}`)
	f.Add(`{"type":"Shutdown"}`)
	f.Add(`[]`)
	f.Fuzz(func(t *testing.T, s string) {
		e, err := Parse(s)
		if err != nil {
			return
		}
		if e.Federation == "" || e.Type == "" {
			t.Fatalf("%+v", e)
		}
		b, err := json.Marshal(e)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Parse(string(b)); err != nil {
			t.Fatalf("%s: %v", b, err)
		}
	})
}

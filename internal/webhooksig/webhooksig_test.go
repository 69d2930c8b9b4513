package webhooksig

import (
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"
)

var t0 = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func secret(t testing.TB, fill byte) Secret {
	t.Helper()
	s, err := ParseSecret("whsec_" + base64.StdEncoding.EncodeToString([]byte(strings.Repeat(string(rune(fill)), 32))))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestTheStandardsExampleIsSignedAsItSays(t *testing.T) {
	s, err := ParseSecret("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
	if err != nil {
		t.Fatal(err)
	}
	got := s.Sign("msg_p5jXN8AQM9LWM0D4loKWxJek", time.Unix(1614265330, 0), []byte(`{"test": 2432232314}`))
	if want := "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

func TestSecretsHave24To64BytesAndStayHidden(t *testing.T) {
	for size, ok := range map[int]bool{0: false, 23: false, 24: true, 32: true, 64: true, 65: false} {
		_, err := ParseSecret("whsec_" + base64.StdEncoding.EncodeToString(make([]byte, size)))
		if (err == nil) != ok {
			t.Errorf("%d bytes: %v", size, err)
		}
	}
	for _, s := range []string{"", "whsec_", "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "whsec_not*base64", "whpk_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"} {
		if _, err := ParseSecret(s); err == nil || len(s) > 6 && strings.Contains(err.Error(), s[6:]) {
			t.Errorf("%q: %v", s, err)
		}
	}
	s := secret(t, 'k')
	if text := fmt.Sprintf("%v %+v %#v %s", s, s, s, s); strings.Contains(text, "kkk") || strings.Contains(text, "107") {
		t.Error("a secret can be printed: " + text)
	}
}

func TestAFileOfSecretsHasOneALine(t *testing.T) {
	got, err := ParseSecrets([]byte("# new\nwhsec_" + strings.Repeat("A", 32) + "\r\n\n  whsec_" + strings.Repeat("B", 32) + "  \n"))
	if err != nil || len(got) != 2 || got[0].Equal(got[1]) {
		t.Errorf("%d secrets, %v", len(got), err)
	}
	if got, err := ParseSecrets([]byte("# none\n")); err != nil || len(got) != 0 {
		t.Errorf("%d secrets, %v", len(got), err)
	}
	if _, err := ParseSecrets([]byte("\nwhsec_short\n")); err == nil || !strings.Contains(err.Error(), "line 2") {
		t.Errorf("%v", err)
	}
}

func TestOnlyTheSignedBytesFit(t *testing.T) {
	old, young, other := secret(t, 'o'), secret(t, 'y'), secret(t, 'x')
	body := []byte(`{"a": 1}`)
	for name, c := range map[string]struct {
		signers, known []Secret
		change         func(h http.Header)
		body           string
		at             time.Duration
		want           error
	}{
		"good":                      {signers: []Secret{old}, known: []Secret{old}},
		"both keys, one known":      {signers: []Secret{old, young}, known: []Secret{young}},
		"one key, both known":       {signers: []Secret{old}, known: []Secret{young, old}},
		"other key":                 {signers: []Secret{other}, known: []Secret{young, old}, want: ErrSignature},
		"no key known":              {signers: []Secret{other}, want: ErrSignature},
		"body written anew":         {signers: []Secret{old}, known: []Secret{old}, body: `{"a":1}`, want: ErrSignature},
		"id changed":                {signers: []Secret{old}, known: []Secret{old}, change: func(h http.Header) { h.Set(HeaderID, "msg_2") }, want: ErrSignature},
		"timestamp changed":         {signers: []Secret{old}, known: []Secret{old}, change: func(h http.Header) { h.Set(HeaderTimestamp, "1772366401") }, want: ErrSignature},
		"timestamp spelt otherwise": {signers: []Secret{old}, known: []Secret{old}, change: func(h http.Header) { h.Set(HeaderTimestamp, "0"+h.Get(HeaderTimestamp)) }, want: ErrSignature},
		"other version only":        {signers: []Secret{old}, known: []Secret{old}, change: func(h http.Header) { h.Set(HeaderSignature, "v1a,AAAA") }, want: ErrSignature},
		"other version, too":        {signers: []Secret{old}, known: []Secret{old}, change: func(h http.Header) { h.Set(HeaderSignature, "v1a,AAAA "+h.Get(HeaderSignature)) }},
		"five minutes late":         {signers: []Secret{old}, known: []Secret{old}, at: 5 * time.Minute},
		"five minutes early":        {signers: []Secret{old}, known: []Secret{old}, at: -5 * time.Minute},
		"later":                     {signers: []Secret{old}, known: []Secret{old}, at: 5*time.Minute + time.Second, want: ErrTimestamp},
		"earlier":                   {signers: []Secret{old}, known: []Secret{old}, at: -5*time.Minute - time.Second, want: ErrTimestamp},
		"no id":                     {signers: []Secret{old}, known: []Secret{old}, change: func(h http.Header) { h.Del(HeaderID) }, want: ErrHeaders},
		"two ids":                   {signers: []Secret{old}, known: []Secret{old}, change: func(h http.Header) { h.Add(HeaderID, "b") }, want: ErrHeaders},
		"long id":                   {signers: []Secret{old}, known: []Secret{old}, change: func(h http.Header) { h.Set(HeaderID, strings.Repeat("a", 257)) }, want: ErrHeaders},
		"id of other characters":    {signers: []Secret{old}, known: []Secret{old}, change: func(h http.Header) { h.Set(HeaderID, "a b") }, want: ErrHeaders},
		"no timestamp":              {signers: []Secret{old}, known: []Secret{old}, change: func(h http.Header) { h.Del(HeaderTimestamp) }, want: ErrHeaders},
		"timestamp in words":        {signers: []Secret{old}, known: []Secret{old}, change: func(h http.Header) { h.Set(HeaderTimestamp, "now") }, want: ErrHeaders},
		"timestamp beyond time":     {signers: []Secret{old}, known: []Secret{old}, change: func(h http.Header) { h.Set(HeaderTimestamp, "9223372036854775807") }, want: ErrHeaders},
		"no signature":              {signers: []Secret{old}, known: []Secret{old}, change: func(h http.Header) { h.Del(HeaderSignature) }, want: ErrHeaders},
		"signature cut short":       {signers: []Secret{old}, known: []Secret{old}, change: func(h http.Header) { h.Set(HeaderSignature, h.Get(HeaderSignature)[:20]) }, want: ErrHeaders},
		"signature without version": {signers: []Secret{old}, known: []Secret{old}, change: func(h http.Header) { h.Set(HeaderSignature, "AAAA") }, want: ErrHeaders},
		"too many signatures":       {signers: []Secret{old}, known: []Secret{old}, change: func(h http.Header) { h.Set(HeaderSignature, strings.Repeat(h.Get(HeaderSignature)+" ", 17)) }, want: ErrHeaders},
	} {
		t.Run(name, func(t *testing.T) {
			h := http.Header{}
			Set(h, c.signers, "msg_1", t0, body)
			if c.change != nil {
				c.change(h)
			}
			got := body
			if c.body != "" {
				got = []byte(c.body)
			}
			if _, err := Verify(h, c.known, got, t0.Add(c.at)); !errors.Is(err, c.want) {
				t.Errorf("%v, want %v", err, c.want)
			}
		})
	}
}

func FuzzRead(f *testing.F) {
	h := http.Header{}
	Set(h, []Secret{secret(f, 'k'), secret(f, 'l')}, "msg_1", t0, nil)
	f.Add("msg_1", h.Get(HeaderTimestamp), h.Get(HeaderSignature), []byte("{}"))
	f.Add("", "-1", "v1,", []byte(nil))
	f.Add("a", "34359738368", "v1a,x v1,y", []byte("x"))
	f.Fuzz(func(t *testing.T, id, timestamp, signature string, body []byte) {
		k := secret(t, 'k')
		h := http.Header{}
		for name, value := range map[string]string{HeaderID: id, HeaderTimestamp: timestamp, HeaderSignature: signature} {
			h.Set(name, value)
		}
		signed, err := Verify(h, []Secret{k}, body, t0)
		if err != nil {
			return
		}
		again := http.Header{}
		Set(again, []Secret{k}, signed.ID, signed.Timestamp, body)
		if !strings.Contains(h.Get(HeaderSignature), again.Get(HeaderSignature)) {
			t.Errorf("believed %q", h)
		}
	})
}

package enrol

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

func fingerprint() string {
	sum := sha256.Sum256([]byte("authority"))
	return base64.RawURLEncoding.EncodeToString(sum[:])
}

func token(t testing.TB) Token {
	t.Helper()
	k, err := NewToken(fingerprint(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func TestATokenSurvivesBeingCopied(t *testing.T) {
	k := token(t)
	for _, text := range []string{k.Text(), k.Text() + "\n", "  " + k.Text() + "\r\n"} {
		if got, err := ParseToken(text); err != nil || got != k {
			t.Errorf("%v, %v", got, err)
		}
	}
	if other := token(t); other.ID == k.ID || other.Secret == k.Secret || other.Proves(k.Hash()) || !k.Proves(k.Hash()) {
		t.Error("two tokens pass for each other")
	}
}

func TestATokenIsNotShownByAccident(t *testing.T) {
	k := token(t)
	for _, s := range []string{fmt.Sprint(k), fmt.Sprintf("%v %+v %#v %s", k, k, k, k), k.Hash()} {
		if strings.Contains(s, k.Secret) {
			t.Errorf("its secret is in %q", s)
		}
	}
}

func TestADamagedTokenIsRefusedWithoutBeingShown(t *testing.T) {
	k := token(t)
	part := strings.Split(k.Text(), ".")
	for name, text := range map[string]string{
		"empty":              "",
		"spaces":             " \n",
		"cut":                k.Text()[:len(k.Text())-1],
		"without hash":       strings.Join(part[:3], "."),
		"one part more":      k.Text() + ".x",
		"another version":    "gst2." + strings.Join(part[1:], "."),
		"short secret":       strings.Join([]string{part[0], part[1], part[2][:20], part[3]}, "."),
		"other base64":       strings.Join([]string{part[0], part[1], strings.Repeat("+", 43), part[3]}, "."),
		"two tokens":         k.Text() + "\n" + k.Text(),
		"a whole other file": strings.Repeat("x", 1<<20),
	} {
		_, err := ParseToken(text)
		if err == nil || strings.Contains(err.Error(), k.Secret[:10]) || len(err.Error()) > 200 {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestAShortSourceOfRandomnessMakesNoToken(t *testing.T) {
	if _, err := NewToken(fingerprint(), strings.NewReader("short")); err == nil {
		t.Error("a token of nothing")
	}
}

func FuzzToken(f *testing.F) {
	f.Add(token(f).Text())
	f.Add("gst1.a.b.c")
	f.Fuzz(func(t *testing.T, s string) {
		if k, err := ParseToken(s); err == nil && k.Text() != strings.TrimSpace(s) {
			t.Errorf("%q is read as %q", s, k.Text())
		}
	})
}

func FuzzRequest(f *testing.F) {
	good, err := json.Marshal(Request{Token: token(f).Text(), CSR: []byte{0x30}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add([]byte(`{"token":{},"csr":[]}`))
	f.Add([]byte(`{}{}`))
	f.Add(bytes.Repeat([]byte("["), 20000))
	f.Fuzz(func(t *testing.T, b []byte) {
		q, err := ReadRequest(bytes.NewReader(b))
		if err == nil && len(b) > MaxBody {
			t.Errorf("%d bytes were taken", len(b))
		}
		if err != nil && q.Token != "" {
			t.Error("something of a refused request is left")
		}
	})
}

func FuzzAnswer(f *testing.F) {
	good, err := json.Marshal(Answer{Federation: "lm", Site: "a", Certificate: []byte("c"), CA: []byte("c")})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Fuzz(func(t *testing.T, b []byte) {
		if a, err := ReadAnswer(bytes.NewReader(b)); err == nil && (a.Site == "" || len(a.Certificate) == 0) {
			t.Error("an answer without its parts")
		}
	})
}

func TestOversizedAndDoubledBodiesAreRefused(t *testing.T) {
	for name, body := range map[string]string{
		"too large": `{"token":"` + strings.Repeat("x", MaxBody) + `"}`,
		"two":       `{"token":"a"} {"token":"b"}`,
		"no JSON":   "hello",
		"bad key":   `{"token":"a","csr":"!!"}`,
		"WireGuard": `{"token":"a","csr":"MA==","wireguardPublicKey":"MA=="}`,
	} {
		if _, err := ReadRequest(strings.NewReader(body)); err == nil || len(err.Error()) > 100 {
			t.Errorf("%s: %v", name, err)
		}
	}
}

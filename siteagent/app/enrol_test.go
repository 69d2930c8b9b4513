package app

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"girassol.dev/internal/certs"
	"girassol.dev/internal/enrol"
	"girassol.dev/internal/wire"
)

func tokenText(t *testing.T) string {
	t.Helper()
	sum := sha256.Sum256(nil)
	k, err := enrol.NewToken(base64.RawURLEncoding.EncodeToString(sum[:]), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return k.Text()
}

func TestATokenComesFromAFileOrTheEnvironmentWhereItDoesNotStay(t *testing.T) {
	text := tokenText(t)
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte(text+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if k, err := (enrolOptions{file: file}).token(); err != nil || k.Text() != text {
		t.Errorf("from a file: %v", err)
	}
	t.Setenv(tokenEnv, text)
	if k, err := (enrolOptions{}).token(); err != nil || k.Text() != text {
		t.Errorf("from the environment: %v", err)
	}
	if _, left := os.LookupEnv(tokenEnv); left {
		t.Error("the trainer would inherit the token")
	}
	if k, err := (enrolOptions{}).token(); k != nil || err != nil {
		t.Errorf("neither: %v, %v", k, err)
	}
}

func TestATokenGivenForAFileIsNotShown(t *testing.T) {
	text := tokenText(t)
	secret := strings.Split(text, ".")[2]
	dir := t.TempDir()
	large, damaged := filepath.Join(dir, "large"), filepath.Join(dir, "damaged")
	if err := os.WriteFile(large, make([]byte, maxTokenFile+1), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(damaged, []byte(text[:len(text)-5]), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, file := range map[string]string{"the token itself": text, "a damaged one": damaged, "a large file": large, "a folder": dir} {
		if _, err := (enrolOptions{file: file}).token(); err == nil || strings.Contains(err.Error(), secret[:10]) || !strings.Contains(err.Error(), "--enrol") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// People delete a token that was used; the machine's next start is to work all the same.
func TestAnEnrolledAgentStartsWithoutTheTokensFile(t *testing.T) {
	now := time.Now()
	a, err := certs.NewAuthority("lm", now, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		from  time.Time
		works bool
	}{"in date": {now, true}, "expired": {now.Add(-365 * 24 * time.Hour), false}} {
		data := t.TempDir()
		folder := filepath.Join(data, identityFolder)
		leaf, err := a.IssueFor(certs.Site("lm", "porto"), time.Hour, tc.from, rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(os.MkdirAll(folder, 0o700), os.WriteFile(filepath.Join(folder, "ca.pem"), a.CertificatePEM, 0o600),
			os.WriteFile(filepath.Join(folder, "agent.pem"), slices.Concat([]byte("token x\n"), leaf.Certificate, leaf.Key), 0o600)); err != nil {
			t.Fatal(err)
		}
		o := options{data: data, enrol: enrolOptions{file: filepath.Join(data, "gone.token"), address: "x:1"}}
		files, err := o.identity(t.Context(), slog.New(slog.DiscardHandler))
		if (err == nil && files != nil) != tc.works {
			t.Errorf("%s: %v, %v", name, files, err)
		}
		if !tc.works && (err == nil || !strings.Contains(err.Error(), "--enrol")) {
			t.Errorf("%s: no way out in %v", name, err)
		}
	}
}

func TestWhereTheCertificateComesFromIsDecidedOnce(t *testing.T) {
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte(tokenText(t)), 0o600); err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	tls := wire.Options{CertFile: "c", KeyFile: "k", CAFile: "a"}
	begun := t.TempDir()
	if err := os.MkdirAll(filepath.Join(begun, identityFolder), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		o    options
		says string // empty: no identity of its own, no error
	}{
		"plaintext":                       {options{data: t.TempDir()}, ""},
		"files by flags":                  {options{data: begun, link: tls}, ""},
		"both":                            {options{data: t.TempDir(), link: tls, enrol: enrolOptions{file: file, address: "x:1"}}, "choose"},
		"no address":                      {options{data: t.TempDir(), enrol: enrolOptions{file: file}}, "--enrol-address"},
		"an enrolment that was not ended": {options{data: begun}, "--enrol again"},
	} {
		tc.o.retryMax = time.Millisecond
		files, err := tc.o.identity(t.Context(), log)
		if tc.says == "" {
			if files != nil || err != nil {
				t.Errorf("%s: %v, %v", name, files, err)
			}
			continue
		}
		if err == nil || !strings.Contains(err.Error(), tc.says) {
			t.Errorf("%s: %v, want %q", name, err, tc.says)
		}
	}
}

package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	"girassol.dev/internal/certs"
)

// runCLI runs a command line without an environment.
func runCLI(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	code = run(context.Background(), args, func(string) string { return "" }, &out, &errs)
	return code, out.String(), errs.String()
}

func TestInitMakesAnAuthorityOnceAndTellsHowToGoOn(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "pki")
	args := []string{"init", dir, "--federation", "lm", "--host", "fed.example.org", "--host", "10.0.0.1"}
	code, out, errs := runCLI(t, args...)
	if code != exitOK {
		t.Fatal(errs)
	}
	for _, want := range []string{"coordinator --config", "--ca-key " + dir + "/ca-key.pem", "token create --site SITE", "agent --coordinator fed.example.org:7465 --federation lm", "--enrol-address fed.example.org:7467"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in %s", want, out)
		}
	}
	read := func(name string) []byte {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	a, err := certs.ParseAuthority(read(caFile), read(caKeyFile), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		file, key, uri string
	}{"coordinator": {coordinatorFile, coordinatorKeyFile, "spiffe://lm/coordinator"}, "admin": {adminFile, adminKeyFile, "spiffe://lm/admin"}} {
		c, err := certs.ParseLeaf(certs.Leaf{Certificate: read(tc.file), Key: read(tc.key), CA: read(caFile)})
		if err != nil || c.URIs[0].String() != tc.uri || !a.Issued(c) {
			t.Errorf("%s: %v, %v", name, c.URIs, err)
		}
	}
	authority, admin := read(caFile), read(adminFile)
	if code, _, errs := runCLI(t, args...); code != exitFailed || !strings.Contains(errs, "not overwritten") {
		t.Errorf("again: %d %s", code, errs)
	}
	if code, _, errs := runCLI(t, append(args, "--renew")...); code != exitOK {
		t.Errorf("--renew: %s", errs)
	}
	if !bytes.Equal(read(caFile), authority) || bytes.Equal(read(adminFile), admin) {
		t.Error("--renew keeps the authority and makes new certificates")
	}
	for _, key := range []string{caKeyFile, coordinatorKeyFile, adminKeyFile} {
		if info, err := os.Stat(filepath.Join(dir, key)); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v", key, info.Mode())
		}
	}
}

// One file that is there is enough, and nothing is written beside it.
func TestInitTouchesNoFolderWithAnythingOfItsOwn(t *testing.T) {
	for _, name := range []string{caFile, caKeyFile, adminKeyFile} {
		dir := t.TempDir()
		if err := os.Symlink("/nonexistent/elsewhere", filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
		if code, _, errs := runCLI(t, "init", dir, "--federation", "lm", "--host", "h"); code != exitFailed || !strings.Contains(errs, name) {
			t.Errorf("%s: %d %s", name, code, errs)
		}
		if left, _ := os.ReadDir(dir); len(left) != 1 {
			t.Errorf("%s: %d files", name, len(left))
		}
	}
}

func TestIdentityCommandsRefuseWhatMakesNoSense(t *testing.T) {
	dir := t.TempDir()
	for name, args := range map[string][]string{
		"no federation":      {"init", dir, "--host", "h"},
		"a bad federation":   {"init", dir, "--federation", "LM", "--host", "h"},
		"no host":            {"init", dir, "--federation", "lm"},
		"a host with a port": {"init", dir, "--federation", "lm", "--host", "h:7465"},
		"no folder":          {"init", "--federation", "lm", "--host", "h"},
		"no site":            {"token", "create"},
		"no life":            {"token", "create", "--site", "a", "--ttl", "0s"},
		"nothing to revoke":  {"revoke"},
		"two to revoke":      {"revoke", "--site", "a", "--serial", "01"},
	} {
		if code, _, errs := runCLI(t, args...); code != exitUsage {
			t.Errorf("%s: %d %s", name, code, errs)
		}
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("files were made: %v, %v", left, err)
	}
}

func TestIdentitiesAreListedWithTheirState(t *testing.T) {
	var b bytes.Buffer
	now := time.Date(2026, 3, 2, 12, 0, 0, 0, time.UTC)
	ms := func(d time.Duration) int64 { return now.Add(d).UnixMilli() }
	err := identitiesTable(&b, &coordinatorv1.ListIdentitiesResponse{
		Tokens: []*coordinatorv1.TokenStatus{{Id: "t1", Site: "quebec", ExpiresUnixMs: ms(time.Hour)}},
		Certificates: []*coordinatorv1.CertificateStatus{
			{Serial: "0a", Site: "quebec", NotAfterUnixMs: ms(time.Hour)},
			{Serial: "0b", Site: "quebec", NotAfterUnixMs: ms(-time.Hour)},
			{Serial: "0c", NotAfterUnixMs: 0, RevokedUnixMs: ms(-time.Minute), Message: "lost"},
			{Serial: "*", Site: "porto", RevokedUnixMs: ms(-time.Minute)},
		},
	}, now)
	if err != nil {
		t.Fatal(err)
	}
	want := `KIND         SITE    ID                     UNTIL                 STATE
token        quebec  t1                     2026-03-02T13:00:00Z  open
certificate  quebec  0a                     2026-03-02T13:00:00Z  in force
certificate  quebec  0b                     2026-03-02T11:00:00Z  ended
certificate  -       0c                     -                     revoked 2026-03-02T11:59:00Z (lost)
certificate  porto   all that began before  -                     revoked 2026-03-02T11:59:00Z
`
	if b.String() != want {
		t.Errorf("got\n%swant\n%s", b.String(), want)
	}
}

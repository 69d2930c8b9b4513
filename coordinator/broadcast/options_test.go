package broadcast

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
)

func TestAPasswordIsReadAgainForEachConnection(t *testing.T) {
	server := miniredis.RunT(t)
	server.RequireUserAuth("coordinator", "first")
	file := filepath.Join(t.TempDir(), "password")
	write := func(s string) {
		if err := os.WriteFile(file, []byte(s), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("first\n")
	c, err := Connect(Options{URL: "redis://" + server.Addr(), Username: "coordinator", PasswordFile: file}, discard)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := c.Ping(ctx).Err(); err != nil {
		t.Fatal(err)
	}
	addr := server.Addr()
	server.Close()
	server.RequireUserAuth("coordinator", "second")
	if err := server.StartAddr(addr); err != nil {
		t.Fatal(err)
	}
	write("second\n")
	for c.Ping(ctx).Err() != nil {
		if ctx.Err() != nil {
			t.Fatal("the new password was not read")
		}
	}
}

func TestRedisThatCannotWorkIsRefusedWithoutQuotingAPassword(t *testing.T) {
	bad := filepath.Join(t.TempDir(), "bad.pem")
	if err := os.WriteFile(bad, []byte("no PEM"), 0o600); err != nil {
		t.Fatal(err)
	}
	for want, o := range map[string]Options{
		"must look like": {URL: "redis://:planted@host:port"},
		"not both":       {URL: "redis://:planted@h", Addresses: []string{"h:1"}},
		"host:port":      {Addresses: []string{"planted"}},
		"url or addr":    {},
		"password file":  {URL: "redis://h", PasswordFile: bad + "none"},
		"in PEM":         {URL: "rediss://h", CAFile: bad},
		"and keyFile":    {URL: "rediss://h", CertFile: bad},
		"need TLS":       {URL: "redis://h", CAFile: bad},
	} {
		if _, err := Connect(o, discard); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "planted") {
			t.Errorf("%q: %v", want, err)
		}
	}
}

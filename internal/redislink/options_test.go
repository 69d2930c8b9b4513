package redislink

import (
	"context"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
)

var discard = slog.New(slog.DiscardHandler)

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
		"and a key file": {URL: "rediss://h", CertFile: bad},
		"need TLS":       {URL: "redis://h", CAFile: bad},
		"of Sentinels":   {URL: "redis://h", MasterName: "m"},
		"one Redis":      {Addresses: []string{"h:1"}, Dial: func(context.Context) (net.Conn, error) { return nil, nil }},
	} {
		if _, err := Connect(o, discard); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "planted") {
			t.Errorf("%q: %v", want, err)
		}
	}
}

func TestBadURLIsRefusedWithoutItsPassword(t *testing.T) {
	for _, url := range []string{"127.0.0.1:6379", "http://x", "redis://user:secret@ho st:1"} {
		_, err := Connect(Options{URL: url}, discard)
		if err == nil || strings.Contains(err.Error(), "secret") || !strings.Contains(err.Error(), "redis://127.0.0.1") {
			t.Errorf("%q: %v", url, err)
		}
	}
}

func TestAPasswordInAnURLIsSeen(t *testing.T) {
	for url, want := range map[string]bool{
		"": false, "redis://h": false, "redis://u@h": false, "redis://u:p@h": true, "redis://:p@h/0\n": true, "rediss://u:@h": true, "redis://a b": false,
	} {
		if got := (Options{URL: url}).PasswordInURL(); got != want {
			t.Errorf("%q: %v", url, got)
		}
	}
}

func TestFlagsWinOverAFederationsSpec(t *testing.T) {
	spec := Options{Addresses: []string{"s:1"}, MasterName: "m", Username: "u", PasswordFile: "p", TLS: true, CAFile: "ca", CertFile: "c", KeyFile: "k"}
	for name, c := range map[string]struct{ flags, want Options }{
		"nothing": {Options{}, spec},
		"a url":   {Options{URL: "redis://h"}, Options{URL: "redis://h", Username: "u", PasswordFile: "p", TLS: true, CAFile: "ca", CertFile: "c", KeyFile: "k"}},
		"nodes":   {Options{Addresses: []string{"n:1"}, Username: "v"}, Options{Addresses: []string{"n:1"}, Username: "v", PasswordFile: "p", TLS: true, CAFile: "ca", CertFile: "c", KeyFile: "k"}},
		"a pair":  {Options{CertFile: "d", KeyFile: "l"}, Options{Addresses: []string{"s:1"}, MasterName: "m", Username: "u", PasswordFile: "p", TLS: true, CAFile: "ca", CertFile: "d", KeyFile: "l"}},
	} {
		if got := c.flags.Over(spec); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %+v", name, got)
		}
	}
	if got := (Options{URL: "redis://h", ServerName: "n"}).Over(Options{}); !got.TLS {
		t.Error("a flag of TLS does not mean TLS")
	}
}

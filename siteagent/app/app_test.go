package app

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/spf13/pflag"

	"girassol.dev/internal/redislink"
	"girassol.dev/siteagent/agent"
	"girassol.dev/siteagent/trainer"
)

func execute(args ...string) error {
	cmd := Command()
	cmd.SetArgs(args)
	cmd.SetOut(&bytes.Buffer{})
	cmd.SetErr(&bytes.Buffer{})
	return cmd.Execute()
}

func TestFlagsThatCannotWorkAreRefusedWithTheWayOut(t *testing.T) {
	dir := t.TempDir()
	base := []string{"--coordinator", "127.0.0.1:1", "--federation", "lm", "--site", "porto", "--data", dir}
	for name, tc := range map[string]struct {
		args []string
		says string
	}{
		"nothing given":         {nil, "federation"},
		"no way to coordinator": {base[2:], "--wireguard-key"},
		"peer without key":      {append(base, "--wireguard-peer", "x"), "need --wireguard-key"},
		"key without peer":      {append(base, "--wireguard-key", filepath.Join(dir, "wg.key")), "--wireguard-peer"},
		"trainer without --":    {append(base, "python"), `behind "--"`},
		"log format":            {append(base, "--log-format", "xml"), "--log-format"},
		"log level":             {append(base, "--log-level", "loud"), "--log-level"},
		"redis URL":             {append(base, "--redis", "http://x"), "--redis"},
		"plaintext off machine": {append(base, "--coordinator", "fed.example:7443"), "plaintext"},
		"socket path too long":  {append(base, "--socket", filepath.Join(dir, strings.Repeat("s", 120))), "socket"},
		"window below HTTP/2's": {append(base, "--window-bytes", "1000"), "window"},
		"half of TLS":           {append(base, "--tls-cert", "a.pem"), "wire"},
	} {
		t.Run(name, func(t *testing.T) {
			if err := execute(tc.args...); err == nil || !strings.Contains(err.Error(), tc.says) {
				t.Fatalf("error %v, want one that says %q", err, tc.says)
			}
		})
	}
}

func TestARedisURLFromASecretIsTakenAsItComesAndNeverShown(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	// A Secret made from a file ends with the file's last line break.
	client, err := connectRedis(redislink.Options{URL: "redis://:s3cret@127.0.0.1:1/0\n"}, nil, log)
	if err != nil {
		t.Fatal(err)
	}
	if err := client.Close(); err != nil {
		t.Error(err)
	}
	for _, url := range []string{"redis://:s3cret@127.0.0.1:port", "redis://:s3cret@a b/0", "redis://:s3\x00cret@a", "http://:s3cret@a"} {
		if _, err := connectRedis(redislink.Options{URL: url}, nil, log); err == nil || strings.Contains(err.Error(), "s3") {
			t.Errorf("%q: %v", url, err)
		}
	}
}

func TestARedisIsNamedByFlagsOrTheEnvironment(t *testing.T) {
	for name, c := range map[string]struct {
		env   string
		flags redislink.Options
		some  bool
		fails string
	}{
		"nothing":              {},
		"the environment":      {env: "redis://:s3cret@h\n", some: true},
		"a bad environment":    {env: "h:1", fails: "must look like"},
		"nodes of a Cluster":   {flags: redislink.Options{Addresses: []string{"a:1", "b:1"}}, some: true},
		"Sentinels":            {flags: redislink.Options{Addresses: []string{"a:1"}, MasterName: "m"}, some: true},
		"flags and no address": {flags: redislink.Options{Username: "u"}, fails: "--redis-address"},
		"both":                 {flags: redislink.Options{URL: "redis://h", Addresses: []string{"a:1"}}, fails: "not both"},
	} {
		t.Setenv(redislink.URLVariable, c.env)
		client, err := connectRedis(c.flags, nil, slog.New(slog.DiscardHandler))
		if (client != nil) != c.some || (err != nil) != (c.fails != "") || err != nil && (!strings.Contains(err.Error(), c.fails) || strings.Contains(err.Error(), "s3cret")) {
			t.Errorf("%s: client %v, %v", name, client != nil, err)
		}
		if client != nil {
			if err := client.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}

func TestAPasswordAmongTheArgumentsIsWarnedOfOnceAndNotRepeated(t *testing.T) {
	var out strings.Builder
	client, err := connectRedis(redislink.Options{URL: "redis://u:planted@127.0.0.1:1"}, nil, slog.New(slog.NewTextHandler(&out, nil)))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if s := out.String(); strings.Count(s, "--redis-password-file") != 1 || strings.Contains(s, "planted") {
		t.Error(s)
	}
}

func TestLongWorkPathGetsAShortPrivateSocket(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	short, err := os.MkdirTemp("", "g")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(short)
	path, remove, err := defaultSocket(short, log)
	if err != nil || path != filepath.Join(short, "run", "trainer.sock") {
		t.Errorf("a short work folder: %s, %v", path, err)
	}
	remove()

	long := filepath.Join(short, strings.Repeat("deep/", 30))
	path, remove, err = defaultSocket(long, log)
	if err != nil || len(path) > trainer.MaxSocketPath || strings.HasPrefix(path, short) {
		t.Fatalf("a long one: %s, %v", path, err)
	}
	if fi, err := os.Stat(filepath.Dir(path)); err != nil || fi.Mode().Perm() != 0o700 {
		t.Errorf("its folder: %v, %v", fi.Mode(), err)
	}
	api, err := trainer.New(trainer.Options{SocketPath: path, WorkDir: long})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- api.Serve(ctx) }()
	cancel()
	if err := <-served; err != nil {
		t.Error(err)
	}
	remove()
	if _, err := os.Stat(filepath.Dir(path)); !os.IsNotExist(err) {
		t.Errorf("its folder is left behind: %v", err)
	}

	t.Setenv("TMPDIR", long)
	if _, _, err := defaultSocket(long, log); err == nil || !strings.Contains(err.Error(), "--socket") {
		t.Errorf("no short folder at all: %v", err)
	}
}

func TestFaultSaysWhyTheTrainerIsDown(t *testing.T) {
	for want, s := range map[string]trainer.State{
		"":                           {Phase: trainer.Running, Reason: "exit status 1"},
		"exit status 1: no such GPU": {Phase: trainer.Backoff, Reason: "exit status 1", Tail: []string{"loading", "no such GPU"}},
		"killed":                     {Phase: trainer.Backoff, Reason: "killed"},
	} {
		if got := fault(s); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	long := fault(trainer.State{Phase: trainer.Backoff, Tail: []string{strings.Repeat("é", 400)}})
	if len(long) > 300 || !utf8.ValidString(long) {
		t.Errorf("%d bytes, valid %v", len(long), utf8.ValidString(long))
	}
}

func TestEachFlagIsExplained(t *testing.T) {
	Command().Flags().VisitAll(func(f *pflag.Flag) {
		if len(f.Usage) < 10 {
			t.Errorf("--%s is explained by %q", f.Name, f.Usage)
		}
	})
}

func TestExitCodeTellsAFencedAgent(t *testing.T) {
	for want, err := range map[int]error{
		0: nil, 1: errors.New("x"), FencedExitCode: fmt.Errorf("session: %w", agent.ErrFenced),
	} {
		if got := ExitCode(err); got != want {
			t.Errorf("ExitCode(%v) = %d, want %d", err, got, want)
		}
	}
}

func TestLongNodeNamesAreCutAndStayApart(t *testing.T) {
	long := strings.Repeat("a", 54) + ".b" + strings.Repeat("c", 190)
	one, other := shortNode(long+".x"), shortNode(long+".y")
	fits := regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$`) // what a coordinator takes
	if one == other || !fits.MatchString(one) || shortNode(long+".x") != one {
		t.Errorf("%q and %q", one, other)
	}
	if got := shortNode("gpu-1.example"); got != "gpu-1.example" {
		t.Error(got)
	}
}

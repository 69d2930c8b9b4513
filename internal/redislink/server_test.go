package redislink

import (
	"bufio"
	"io"
	"net"
	"os/exec"
	"strings"
	"testing"
)

// serve runs a real Redis that ends with the test, and returns its port.
func serve(t *testing.T, args ...string) (port string) {
	t.Helper()
	path, err := exec.LookPath("redis-server")
	if err != nil {
		t.Skip("no redis-server in PATH: install it to run this test against the real thing")
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_, port, _ = net.SplitHostPort(l.Addr().String())
	_ = l.Close()
	for i, a := range args {
		args[i] = strings.ReplaceAll(a, "PORT", port)
	}
	if len(args) == 0 {
		args = []string{"--port", port}
	}
	cmd := exec.CommandContext(t.Context(), path, append(args, "--bind", "127.0.0.1", "--save", "", "--dir", t.TempDir())...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	// The context ends before the cleanups.
	t.Cleanup(func() { _ = cmd.Wait() })
	var said strings.Builder
	for lines := bufio.NewScanner(out); lines.Scan(); {
		if strings.Contains(lines.Text(), "Ready to accept connections") {
			go func() { _, _ = io.Copy(io.Discard, out) }()
			return port
		}
		said.WriteString(lines.Text() + "\n")
	}
	if strings.Contains(said.String(), "tls-port") {
		t.Skip("this redis-server is built without TLS: install one with it to run this test")
	}
	t.Fatalf("redis-server ended before it was ready:\n%s", said.String())
	return ""
}

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestRedisACLPrintsHashesAndNoPassword(t *testing.T) {
	file := filepath.Join(t.TempDir(), "pw")
	if err := os.WriteFile(file, []byte("planted\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	run := func(args ...string) (string, error) {
		var out strings.Builder
		cmd := command(func(string) string { return "" })
		cmd.SetArgs(append([]string{"redis", "acl"}, args...))
		cmd.SetOut(&out)
		cmd.SetErr(&out)
		err := cmd.Execute()
		return out.String(), err
	}
	out, err := run("--federation", "lm", "--coordinator-password-file", file)
	if err != nil || strings.Contains(out, "planted") || strings.Count(out, "ACL SETUSER girassol-lm-") != 2 {
		t.Errorf("%q, %v", out, err)
	}
	if coordinator, agents, _ := strings.Cut(out, "\n"); strings.Contains(coordinator, "SHA256-OF") || !strings.Contains(agents, " #SHA256-OF-THE-AGENTS-PASSWORD ") {
		t.Errorf("%q", out)
	}
	for _, args := range [][]string{{}, {"--federation", "l*"}, {"--federation", "lm", "--agents-password-file", file + "none"}, {"--federation", "lm", "more"}} {
		if out, err := run(args...); err == nil {
			t.Errorf("%q: %q", args, out)
		}
	}
}

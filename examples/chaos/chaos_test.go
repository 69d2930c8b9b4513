//go:build linux

package main

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// chaosFor runs the program as a user does, for a while.
func chaosFor(t *testing.T, span time.Duration, flags ...string) string {
	t.Helper()
	if testing.Short() {
		t.Skip("a minute and more of real processes: run without -short")
	}
	binary := filepath.Join(t.TempDir(), "chaos")
	if out, err := exec.Command("go", "build", "-o", binary, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	args := append([]string{"--for", span.String(), "--loss-for", "5s"}, flags...)
	out, err := exec.Command(binary, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	t.Logf("%s", out)
	return string(out)
}

// Any seed: the one that failed is in the output.
func TestAFederationOutlivesWhatBreaks(t *testing.T) {
	if why := noNamespaces(); why != "" {
		t.Skipf("no network namespaces here (%s): the same on the loopback is tested", why)
	}
	out := chaosFor(t, time.Minute)
	for _, want := range []string{"lost commits 0, double counts 0", "everything held"} {
		if !strings.Contains(out, want) {
			t.Errorf("it does not say %q", want)
		}
	}
}

func TestAFederationOnTheLoopbackOutlivesWhatBreaks(t *testing.T) {
	out := chaosFor(t, 20*time.Second, "--loopback", "--agents", "3")
	if !strings.Contains(out, "everything held") {
		t.Error("it does not say that everything held")
	}
}

package main

import (
	"bytes"
	"context"
	"path/filepath"
	"strings"
	"testing"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	"girassol.dev/internal/wire/wireguard"
)

func (a *admin) LinkTest(_ context.Context, m *coordinatorv1.LinkTestRequest) (*coordinatorv1.LinkTestResponse, error) {
	a.note(m)
	cost, round, age := 9.0, 600.0, 12.0
	return &coordinatorv1.LinkTestResponse{RoundSeconds: &round, Members: []*coordinatorv1.MemberLink{
		{Node: "n1", Result: &coordinatorv1.LinkTestResult{RttSeconds: 0.035, UpBytesPerSecond: 11e6, DownBytesPerSecond: 12e6}, RoundTransferSeconds: &cost,
			Link: &coordinatorv1.Link{Mode: "WireGuard", HandshakeAgeSeconds: &age}},
		{Node: "n2", Result: &coordinatorv1.LinkTestResult{Error: "the session ended\x1b meanwhile"}},
	}}, a.err
}

func shell(t *testing.T, args ...string) (code int, out, errs string) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	code = run(t.Context(), args, func(string) string { return "" }, &stdout, &stderr)
	return code, stdout.String(), stderr.String()
}

func TestALinkTestSaysWhatARoundCosts(t *testing.T) {
	a := &admin{}
	address := a.serve(t)
	code, out, errs := shell(t, "link", "test", "lisboa", "--bytes", "1048576", "--address", address)
	if code != exitOK {
		t.Fatal(code, errs)
	}
	for _, want := range []string{"lisboa/n1: RTT 35.0 ms, up 11.0 MB/s, down 12.0 MB/s", "link encrypted: measured (WireGuard", "9.00 s at most, 1.5 % of a round of 600 s", "lisboa/n2: no result"} {
		if !strings.Contains(out, want) {
			t.Errorf("%q does not say %q", out, want)
		}
	}
	if strings.Contains(out, "\x1b") {
		t.Error("a member's words reach the terminal as they are")
	}
	if m := a.requests[0].(*coordinatorv1.LinkTestRequest); m.GetSite() != "lisboa" || m.GetBytes() != 1<<20 {
		t.Errorf("asked for %v", m)
	}
	if code, _, _ := shell(t, "link", "test"); code != exitUsage {
		t.Errorf("without a site: %d", code)
	}
}

func TestATunnelsKeyIsMadeShownAndNeverOverwritten(t *testing.T) {
	path := filepath.Join(t.TempDir(), "wg.key")
	code, made, errs := shell(t, "wireguard", "key", path)
	if code != exitOK {
		t.Fatal(errs)
	}
	k, err := wireguard.LoadKey(path)
	if err != nil || k.Public().String() != strings.TrimSpace(made) {
		t.Errorf("printed %q, the file's is %s, %v", made, k.Public(), err)
	}
	if code, _, errs := shell(t, "wireguard", "key", path); code != exitFailed || !strings.Contains(errs, "nothing overwrites it") {
		t.Errorf("made again: %d, %s", code, errs)
	}
	if _, shown, _ := shell(t, "wireguard", "key", path, "--show"); shown != made {
		t.Errorf("shown %q, made %q", shown, made)
	}
	_, next, _ := shell(t, "wireguard", "key", path, "--next")
	if k, err := wireguard.LoadKey(wireguard.NextKeyFile(path)); err != nil || k.Public().String() != strings.TrimSpace(next) || next == made {
		t.Errorf("the next key: %q, %v", next, err)
	}
	if code, _, _ := shell(t, "wireguard", "key", path, "--next", "--show"); code != exitUsage {
		t.Errorf("made and shown: %d", code)
	}
}

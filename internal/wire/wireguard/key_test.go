package wireguard

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestAKeyIsMadeOnceForItsOwnerOnlyAndDoesNotPrintItself(t *testing.T) {
	t.Parallel()
	path, public := keyFile(t)
	fi, err := os.Stat(path)
	if err != nil || fi.Mode().Perm() != 0o600 {
		t.Fatalf("mode %v, %v", fi.Mode(), err)
	}
	secret, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	k, err := LoadKey(path)
	if err != nil || k.Public() != public {
		t.Fatalf("read back as %v, %v", k.Public(), err)
	}
	for _, text := range []string{fmt.Sprint(k), fmt.Sprintf("%v %+v %#v %s", k, k, k, k)} {
		if strings.Contains(text, strings.TrimSpace(string(secret))) || strings.Contains(text, k.hex()) {
			t.Errorf("the key prints itself: %s", text)
		}
	}
	if _, err := CreateKey(path, rand.Reader); err == nil || !strings.Contains(err.Error(), "nothing overwrites it") {
		t.Errorf("a key was overwritten: %v", err)
	}
	if left, err := os.ReadDir(filepath.Dir(path)); err != nil || len(left) != 1 {
		t.Errorf("beside the key there are %v, %v", left, err)
	}
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := LoadKey(path); err == nil || !strings.Contains(err.Error(), "chmod 600") {
		t.Errorf("a key for everybody is read: %v", err)
	}
	if _, err := LoadKey(filepath.Join(t.TempDir(), "none")); err == nil || !strings.Contains(err.Error(), "girassol wireguard key") {
		t.Errorf("no key: %v", err)
	}
	bad := filepath.Join(t.TempDir(), "bad")
	if err := os.WriteFile(bad, append([]byte("A"), secret...), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := LoadKey(bad); err == nil || strings.Contains(err.Error(), strings.TrimSpace(string(secret))) {
		t.Errorf("a damaged key: %v", err)
	}
}

func TestPublicKeysThatAreNobodysAreRefused(t *testing.T) {
	t.Parallel()
	one := make([]byte, KeySize)
	one[0] = 1
	high := newKey(t).Public()
	high[31] |= 0x80
	for name, b := range map[string][]byte{"zero": make([]byte, KeySize), "low order": one, "not canonical": high[:], "short": one[:31]} {
		if _, err := NewPublicKey(b); err == nil {
			t.Errorf("%s: taken", name)
		}
	}
	k := newKey(t).Public()
	for _, text := range []string{k.String(), fmt.Sprintf("%x", k[:]), " " + k.String() + "\n"} {
		if got, err := ParsePublicKey(text); err != nil || got != k {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
}

func TestAnAddressFollowsFromTheKeyAndIsAlwaysTheSame(t *testing.T) {
	t.Parallel()
	k, err := ParsePublicKey("hSDwCYkwp1R0i33ctD73Wg2/Og0mOBr066SpjqqbTmo=")
	if err != nil {
		t.Fatal(err)
	}
	// SHA-256 over "girassol wireguard address 1", a zero byte and the key.
	if got := Address(k).String(); got != "fd67:6972:6173:c63d:97a6:28e1:21c2:3550" {
		t.Errorf("address %s", got)
	}
	if Address(k) == Address(newKey(t).Public()) {
		t.Error("two keys have one address")
	}
}

func TestATableOfPeersThatCannotBeMeantIsRefused(t *testing.T) {
	t.Parallel()
	a, b := newKey(t).Public(), newKey(t).Public()
	text := fmt.Sprintf("peers:\n- {site: porto, publicKey: %q}\n- site: lisboa\n  publicKey: %s\n", a, b)
	peers, err := ParsePeers([]byte(text))
	if err != nil || len(peers) != 2 || peers[0] != (Peer{"porto", a}) || peers[1] != (Peer{"lisboa", b}) {
		t.Fatalf("%v, %v", peers, err)
	}
	if out, err := FormatPeers(peers); err != nil {
		t.Error(err)
	} else if again, err := ParsePeers(out); err != nil || len(again) != 2 || again[1] != peers[1] {
		t.Errorf("written and read: %v, %v", again, err)
	}
	for name, tc := range map[string]struct{ text, says string }{
		"same key twice": {fmt.Sprintf("peers: [{site: a, publicKey: %q}, {site: b, publicKey: %q}]", a, a), "each node needs its own"},
		"no site":        {fmt.Sprintf("peers: [{publicKey: %q}]", a), "site"},
		"no key":         {"peers: [{site: a}]", "publicKey"},
		"unknown field":  {"peer: []", "peer"},
		"not a key":      {"peers: [{site: a, publicKey: abc}]", "44 characters"},
		"other site":     {fmt.Sprintf("peers: [{site: ../a, publicKey: %q}]", a), "lower-case"},
	} {
		if _, err := ParsePeers([]byte(tc.text)); err == nil || !strings.Contains(err.Error(), tc.says) {
			t.Errorf("%s: %v, want %q", name, err, tc.says)
		}
	}
	same := func(PublicKey) netip.Addr { return Prefix.Addr() }
	if err := checkPeers(peers, same); err == nil || !strings.Contains(err.Error(), "make another key") {
		t.Errorf("two keys with one address: %v", err)
	}
	if _, err := merge(map[string][]Peer{"x": {{"porto", a}}, "y": {{"lisboa", a}}}); err == nil {
		t.Error("one key for two sites, from two sources")
	}
	if all, err := merge(map[string][]Peer{"x": {{"porto", a}}, "y": {{"porto", a}, {"porto", b}}}); err != nil || len(all) != 2 {
		t.Errorf("the same peer from two sources: %v, %v", all, err)
	}
}

// A site whose stack has another site's address shakes hands with its own key, and
// nothing that it sends from there gets in.
func TestASiteCannotTakeAnotherSitesAddress(t *testing.T) {
	t.Parallel()
	porto, lisboa := newKey(t), newKey(t)
	h := startHub(t, HubConfig{}, Peer{"porto", porto.Public()}, Peer{"lisboa", lisboa.Public()})
	serveSites(t, h)
	stolen, err := newUserspace(Address(porto.Public()), DefaultMTU)
	if err != nil {
		t.Fatal(err)
	}
	thief, err := newEndOn(stolen, endConfig{key: lisboa, mtu: DefaultMTU, device: Userspace, log: testLog(t)})
	if err != nil {
		t.Fatal(err)
	}
	defer thief.close()
	if err := thief.setPeer(h.PublicKey(), local(h.Port()), Keepalive); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	if c, err := thief.network.dial(ctx, netip.AddrPortFrom(h.Address(), FleetPort)); err == nil {
		_ = c.Close()
		t.Fatal("a site got in with another's address")
	}
	if hubStatus(thief).Handshake.IsZero() {
		t.Error("the site has not even shaken hands: the test shows nothing")
	}
}

func FuzzParsePeers(f *testing.F) {
	f.Add([]byte("peers:\n- {site: porto, publicKey: hSDwCYkwp1R0i33ctD73Wg2/Og0mOBr066SpjqqbTmo=}\n"))
	f.Add([]byte(`{"peers": [{"site": "a", "publicKey": "00"}]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		peers, err := ParsePeers(b)
		if err != nil {
			return
		}
		out, err := FormatPeers(peers)
		if err != nil {
			t.Fatal(err)
		}
		again, err := ParsePeers(out)
		if err != nil || len(again) != len(peers) {
			t.Fatalf("%q is written as %q: %v", b, out, err)
		}
	})
}

func FuzzKeys(f *testing.F) {
	f.Add("hSDwCYkwp1R0i33ctD73Wg2/Og0mOBr066SpjqqbTmo=")
	f.Fuzz(func(t *testing.T, s string) {
		k, err := ParsePublicKey(s)
		if err != nil {
			return
		}
		if again, err := ParsePublicKey(k.String()); err != nil || !bytes.Equal(again[:], k[:]) {
			t.Fatalf("%q is written as %s: %v", s, k, err)
		}
	})
}

func FuzzPeerStatus(f *testing.F) {
	f.Add("public_key=" + strings.Repeat("0a", 32) + "\nlast_handshake_time_sec=5\nrx_bytes=1\n")
	f.Fuzz(func(t *testing.T, s string) { _, _, _ = parsePeerStatus(s) })
}

package statusview

import (
	"strings"
	"testing"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
)

func TestALinkIsEncryptedByMeasureDeclarationOrNobodyKnows(t *testing.T) {
	age := func(v float64) *float64 { return &v }
	for name, tc := range map[string]struct {
		link        *coordinatorv1.Link
		how, reason string
		says        []string
	}{
		"certificates":  {&coordinatorv1.Link{Mode: "MTLS", CertificateNotAfterUnixMs: 1e12, RttSeconds: age(0.035)}, "measured", "MutualTLS", []string{"mutual TLS", "2001-09-09", "RTT 0.035 s"}},
		"tunnel":        {&coordinatorv1.Link{Mode: "WireGuard", HandshakeAgeSeconds: age(12), TunnelBytesSent: 5e6}, "measured", "TunnelUp", []string{"handshake 12 s ago", "up and"}},
		"silent tunnel": {&coordinatorv1.Link{Mode: "WireGuard", HandshakeAgeSeconds: age(500)}, "unknown", "TunnelSilent", []string{"500 s ago"}},
		"no handshake":  {&coordinatorv1.Link{Mode: "WireGuard"}, "unknown", "TunnelSilent", []string{"no handshake yet"}},
		"mesh":          {&coordinatorv1.Link{Mode: "Mesh"}, "declared", "MeshDeclared", []string{"declares"}},
		"plaintext":     {&coordinatorv1.Link{Mode: "Plaintext"}, "unknown", "Plaintext", []string{"plaintext"}},
		"older":         {nil, "unknown", "", nil},
		"another mode":  {&coordinatorv1.Link{Mode: "Carrier\x1bPigeon"}, "unknown", "", nil},
	} {
		how, reason := LinkEncrypted(tc.link)
		text := Link(tc.link)
		if how != tc.how || string(reason) != tc.reason || !strings.Contains(text, how) || strings.Contains(text, "\x1b") {
			t.Errorf("%s: %s, %s: %q", name, how, reason, text)
		}
		for _, s := range tc.says {
			if !strings.Contains(text, s) {
				t.Errorf("%s: %q does not say %q", name, text, s)
			}
		}
	}
}

package statusview

import (
	"fmt"
	"time"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	v1alpha1 "girassol.dev/api/federation/v1alpha1"
)

// silentTunnel is the age of a handshake from which on a tunnel may be gone: a new
// one is due each two minutes.
const silentTunnel = 3 * time.Minute

// LinkEncrypted says whether a member's link is encrypted, and whether that is
// measured, declared or unknown, with its reason of v1alpha1.
func LinkEncrypted(l *coordinatorv1.Link) (how string, reason v1alpha1.Reason) {
	switch l.GetMode() {
	case string(v1alpha1.LinkMTLS):
		return "measured", v1alpha1.ReasonMutualTLS
	case string(v1alpha1.LinkWireGuard):
		if l.HandshakeAgeSeconds == nil || l.GetHandshakeAgeSeconds() > silentTunnel.Seconds() {
			return "unknown", v1alpha1.ReasonTunnelSilent
		}
		return "measured", v1alpha1.ReasonTunnelUp
	case string(v1alpha1.LinkMesh):
		return "declared", v1alpha1.ReasonMeshDeclared
	case string(v1alpha1.ReasonPlaintext):
		return "unknown", v1alpha1.ReasonPlaintext
	}
	return "unknown", ""
}

// Link is a member's link in a line.
func Link(l *coordinatorv1.Link) string {
	how, reason := LinkEncrypted(l)
	text := "link encrypted: " + how
	switch reason {
	case v1alpha1.ReasonMutualTLS:
		text += " (mutual TLS"
		if ms := l.GetCertificateNotAfterUnixMs(); ms > 0 {
			text += ", certificate until " + time.UnixMilli(ms).UTC().Format("2006-01-02 15:04Z")
		}
		text += ")"
	case v1alpha1.ReasonTunnelUp, v1alpha1.ReasonTunnelSilent:
		text += " (WireGuard, "
		if l.HandshakeAgeSeconds == nil {
			text += "no handshake yet"
		} else {
			text += "handshake " + seconds(l.GetHandshakeAgeSeconds()) + " ago"
		}
		text += fmt.Sprintf(", %s up and %s down in the tunnel)", Bytes(l.GetTunnelBytesSent()), Bytes(l.GetTunnelBytesReceived()))
	case v1alpha1.ReasonMeshDeclared:
		text += " (plaintext in a mesh that spec.link.mode declares)"
	case v1alpha1.ReasonPlaintext:
		text += " (plaintext here; nobody says what the network does)"
	}
	if l != nil && l.RttSeconds != nil {
		text += ", RTT " + seconds(l.GetRttSeconds())
	}
	return text
}

package membership

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
)

// silentTunnel is the age of a handshake, in seconds, from which on a tunnel may be
// gone: a new one is due each two minutes.
const silentTunnel = 180

// LinkReason is what a member's session goes over: mode as the coordinator tells it,
// and the age of its tunnel's newest handshake, nil without one. It is empty for a
// mode that is not known here.
func LinkReason(mode string, handshakeAgeSeconds *float64) v1alpha1.Reason {
	switch mode {
	case string(v1alpha1.LinkMTLS):
		return v1alpha1.ReasonMutualTLS
	case string(v1alpha1.LinkMesh):
		return v1alpha1.ReasonMeshDeclared
	case string(v1alpha1.ReasonPlaintext):
		return v1alpha1.ReasonPlaintext
	case string(v1alpha1.LinkWireGuard):
		if handshakeAgeSeconds == nil || *handshakeAgeSeconds > silentTunnel {
			return v1alpha1.ReasonTunnelSilent
		}
		return v1alpha1.ReasonTunnelUp
	}
	return ""
}

// linksFromBest orders what LinkReason tells.
var linksFromBest = []v1alpha1.Reason{"", v1alpha1.ReasonMutualTLS, v1alpha1.ReasonTunnelUp, v1alpha1.ReasonMeshDeclared, v1alpha1.ReasonTunnelSilent, v1alpha1.ReasonPlaintext}

// WorseLink is the one of two links that says less about encryption; any says more
// than none.
func WorseLink(a, b v1alpha1.Reason) v1alpha1.Reason {
	if slices.Index(linksFromBest, a) >= slices.Index(linksFromBest, b) {
		return a
	}
	return b
}

// showLinkAs tells measured (True), declared or unknown (Unknown), and False where
// a session is in plaintext and nobody declares anything below it.
func (d *decider) showLinkAs(reason v1alpha1.Reason) {
	status, message := metav1.ConditionTrue, "agents and coordinator prove themselves with certificates"
	switch reason {
	case v1alpha1.ReasonTunnelUp:
		message = "measured: the tunnel's handshakes are recent"
	case v1alpha1.ReasonTunnelSilent:
		status, message = metav1.ConditionUnknown, "a tunnel's newest handshake is old, or there was none"
	case v1alpha1.ReasonMeshDeclared:
		status, message = metav1.ConditionUnknown, "link.mode Mesh declares that a mesh encrypts below; it is not measured"
	case v1alpha1.ReasonPlaintext:
		status, message = metav1.ConditionFalse, "a session of the site is in plaintext, and no mesh is declared below: start coordinator and agent with certificates, or set link.mode Mesh"
	}
	d.condition(v1alpha1.ConditionLinkEncrypted, status, Fault{reason, message})
}

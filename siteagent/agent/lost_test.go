package agent

import (
	"testing"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
)

func TestALostSessionsReasonIsTheOneThatTheCoordinatorNames(t *testing.T) {
	for text, want := range map[string]v1alpha1.Reason{
		"rpc error: code = PermissionDenied desc = CertificateRevoked: certificate revoked: number 1":                   v1alpha1.ReasonCertificateRevoked,
		"rpc error: code = Unavailable desc = CertificateExpired: the certificate of this connection ended":             v1alpha1.ReasonCertificateExpired,
		"connection error: wire: server 10.0.0.1:1 refuses the certificate a.pem: CertificateExpired: it ended at noon": v1alpha1.ReasonCertificateExpired,
		"rpc error: code = PermissionDenied desc = IdentityRevoked: site porto was revoked":                             v1alpha1.ReasonIdentityRevoked,
		"rpc error: code = NotFound desc = UnknownSite: site \"x\" is not declared":                                     v1alpha1.ReasonUnknownSite,
		"rpc error: code = Unavailable desc = connection refused":                                                       v1alpha1.ReasonConnectionLost,
	} {
		if got := lostReason(text); got != want {
			t.Errorf("%s: %s, want %s", text, got, want)
		}
	}
}

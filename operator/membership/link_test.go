package membership

import (
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
)

func TestLinkEncryptedFollowsWhatTheSessionsGoOver(t *testing.T) {
	recent, old := 40.0, 400.0
	mtls, mesh := v1alpha1.LinkMTLS, v1alpha1.LinkMesh
	type link struct {
		mode string
		age  *float64
	}
	for name, c := range map[string]struct {
		declared v1alpha1.LinkMode
		links    []link
		away     bool
		status   metav1.ConditionStatus
		reason   v1alpha1.Reason
	}{
		"nobody is connected, certificates":           {mtls, nil, false, metav1.ConditionTrue, v1alpha1.ReasonMutualTLS},
		"nobody is connected, a mesh":                 {mesh, nil, false, metav1.ConditionUnknown, v1alpha1.ReasonMeshDeclared},
		"certificates, measured":                      {mtls, []link{{"MTLS", nil}, {"MTLS", nil}}, false, metav1.ConditionTrue, v1alpha1.ReasonMutualTLS},
		"certificates where a mesh was declared":      {mesh, []link{{"MTLS", nil}}, false, metav1.ConditionTrue, v1alpha1.ReasonMutualTLS},
		"the mesh, declared":                          {mesh, []link{{"Mesh", nil}}, false, metav1.ConditionUnknown, v1alpha1.ReasonMeshDeclared},
		"one of two is in the mesh":                   {mesh, []link{{"Mesh", nil}, {"MTLS", nil}}, false, metav1.ConditionUnknown, v1alpha1.ReasonMeshDeclared},
		"plaintext, whatever was declared":            {mtls, []link{{"Plaintext", nil}}, false, metav1.ConditionFalse, v1alpha1.ReasonPlaintext},
		"one of two is in plaintext":                  {mtls, []link{{"MTLS", nil}, {"Plaintext", nil}}, false, metav1.ConditionFalse, v1alpha1.ReasonPlaintext},
		"a tunnel":                                    {mtls, []link{{"WireGuard", &recent}}, false, metav1.ConditionTrue, v1alpha1.ReasonTunnelUp},
		"a tunnel that is silent":                     {mtls, []link{{"WireGuard", &old}, {"MTLS", nil}}, false, metav1.ConditionUnknown, v1alpha1.ReasonTunnelSilent},
		"a tunnel without a handshake":                {mtls, []link{{"WireGuard", nil}}, false, metav1.ConditionUnknown, v1alpha1.ReasonTunnelSilent},
		"an old coordinator tells nothing":            {mtls, []link{{"", nil}}, false, metav1.ConditionTrue, v1alpha1.ReasonMutualTLS},
		"what a coordinator said that is away":        {mesh, []link{{"MTLS", nil}}, true, metav1.ConditionUnknown, v1alpha1.ReasonMeshDeclared},
		"a mode of a newer coordinator tells nothing": {mtls, []link{{"Quantum", nil}}, false, metav1.ConditionTrue, v1alpha1.ReasonMutualTLS},
	} {
		t.Run(name, func(t *testing.T) {
			w := at(v1alpha1.SiteActive, time.Hour, func(w *World) {
				w.Federation.Link = c.declared
				for _, l := range c.links {
					w.Coordinator.Link = WorseLink(w.Coordinator.Link, LinkReason(l.mode, l.age))
				}
			})
			if c.away {
				away(&w)
			}
			got := meta.FindStatusCondition(Decide(w).Status.Conditions, v1alpha1.ConditionLinkEncrypted)
			if got == nil || got.Status != c.status || got.Reason != string(c.reason) {
				t.Errorf("%+v, want %s %s", got, c.status, c.reason)
			}
		})
	}
}

package resources

import (
	corev1 "k8s.io/api/core/v1"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/internal/certs"
)

// Keys of a Secret with a certificate.
const (
	CertificateKey = corev1.TLSCertKey       // tls.crt
	PrivateKeyKey  = corev1.TLSPrivateKeyKey // tls.key
	AuthorityKey   = "ca.crt"
)

// AuthoritySecret keeps a federation's own authority. It is created once and never
// applied: another authority would lock everyone out.
func AuthoritySecret(f *v1alpha1.Federation, a *certs.Authority) *corev1ac.SecretApplyConfiguration {
	return secret(f, AuthoritySecretName(f.Name), ComponentOperator, "").
		WithData(map[string][]byte{CertificateKey: a.CertificatePEM, PrivateKeyKey: a.KeyPEM})
}

// CoordinatorSecret is the coordinator's certificate.
func CoordinatorSecret(f *v1alpha1.Federation, leaf certs.Leaf) *corev1ac.SecretApplyConfiguration {
	return secret(f, CoordinatorSecretName(f.Name), ComponentCoordinator, "").WithData(data(leaf))
}

// OperatorSecret is the operator's certificate.
func OperatorSecret(f *v1alpha1.Federation, leaf certs.Leaf) *corev1ac.SecretApplyConfiguration {
	return secret(f, OperatorSecretName(f.Name), ComponentOperator, "").WithData(data(leaf))
}

// SiteSecret is a site's certificate.
func SiteSecret(f *v1alpha1.Federation, site string, leaf certs.Leaf) *corev1ac.SecretApplyConfiguration {
	return secret(f, SiteSecretName(f.Name, site), ComponentAgent, site).WithData(data(leaf))
}

// Leaf reads a certificate out of a Secret's data; what is missing is empty.
func Leaf(secret map[string][]byte) certs.Leaf {
	return certs.Leaf{Certificate: secret[CertificateKey], Key: secret[PrivateKeyKey], CA: secret[AuthorityKey]}
}

func data(l certs.Leaf) map[string][]byte {
	return map[string][]byte{CertificateKey: l.Certificate, PrivateKeyKey: l.Key, AuthorityKey: l.CA}
}

func secret(f *v1alpha1.Federation, name, component, site string) *corev1ac.SecretApplyConfiguration {
	s := corev1ac.Secret(name, f.Namespace).
		WithLabels(Labels(f.Name, component)).
		WithOwnerReferences(owner(f.ObjectMeta, v1alpha1.KindFederation)).
		WithType(corev1.SecretTypeTLS)
	if site != "" {
		s.WithLabels(map[string]string{v1alpha1.LabelSite: site})
	}
	return s
}

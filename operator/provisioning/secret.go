package provisioning

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"girassol.dev/internal/webhooksig"
)

// Secrets are the keys in one field of a Secret, newest first; at least one. Its
// errors name the field and hold nothing of its contents.
func Secrets(s *corev1.Secret, field string) ([]webhooksig.Secret, error) {
	text, ok := s.Data[field]
	if !ok {
		return nil, fmt.Errorf("Secret %s has no key %s: put a Standard Webhooks secret (whsec_...) there", s.Name, field)
	}
	secrets, err := webhooksig.ParseSecrets(text)
	if err != nil {
		return nil, fmt.Errorf("Secret %s, key %s: %w", s.Name, field, err)
	}
	if len(secrets) == 0 {
		return nil, fmt.Errorf("Secret %s, key %s is empty: put a Standard Webhooks secret (whsec_...) there", s.Name, field)
	}
	return secrets, nil
}

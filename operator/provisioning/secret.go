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
		return nil, fmt.Errorf("no key %s in Secret %s: put a Standard Webhooks secret (whsec_...) there", field, s.Name)
	}
	secrets, err := webhooksig.ParseSecrets(text)
	if err != nil {
		return nil, fmt.Errorf("key %s of Secret %s: %w", field, s.Name, err)
	}
	if len(secrets) == 0 {
		return nil, fmt.Errorf("key %s of Secret %s is empty: put a Standard Webhooks secret (whsec_...) there", field, s.Name)
	}
	return secrets, nil
}

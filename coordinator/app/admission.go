package app

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/coordinator/admission"
)

// admissionConfig of a spec; its error names the field.
func admissionConfig(s v1alpha1.AdmissionSpec) (admission.Config, error) {
	c := admission.Config{Quotas: admission.Quotas{Members: int(s.Quotas.Members), CallsPerMinute: int(s.Quotas.CallsPerMinute)}}
	if s.QuarantineRounds < 0 {
		return c, fmt.Errorf("quarantineRounds: %d must not be negative", s.QuarantineRounds)
	}
	c.QuarantineRounds = uint64(s.QuarantineRounds)
	if q := s.MaxNormFactor; q != nil {
		// 0 would be no bound, and NaN cannot be written.
		if c.MaxNormFactor = q.AsApproximateFloat64(); !(c.MaxNormFactor > 1) {
			return c, fmt.Errorf("maxNormFactor: %s must be above 1, such as 10; leave it out for no bound", q)
		}
	}
	if q := s.MinCosine; q != nil {
		c.MinCosine = new(q.AsApproximateFloat64())
	}
	var err error
	if c.Quotas.BytesPerRound, err = wholeBytes(s.Quotas.BytesPerRound); err != nil {
		return c, err
	}
	return c, c.Validate()
}

func wholeBytes(q *resource.Quantity) (int64, error) {
	if q == nil {
		return 0, nil
	}
	n := q.Value()
	if n <= 0 {
		return 0, fmt.Errorf("quotas.bytesPerRound: %s must be above 0, such as 2Gi; leave it out for the default", q)
	}
	return n, nil
}

func validateAdmission(s v1alpha1.AdmissionSpec) []error {
	if _, err := admissionConfig(s); err != nil {
		return []error{fmt.Errorf("spec.admission.%s", strings.TrimPrefix(err.Error(), "spec.admission."))}
	}
	return nil
}

package app

import (
	"fmt"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/coordinator/corpus"
)

// Bounds of spec.data, as the CRD has them.
const (
	maxLease  = 1_000_000_000
	maxPasses = 1_000_000
	// defaultLease is the least lease where none is given.
	defaultLease = 4096
)

func validateData(s *v1alpha1.DataSpec) (errs []error) {
	if s == nil {
		return nil
	}
	if s.Samples < 1 || s.Samples > corpus.MaxSamples {
		errs = append(errs, fmt.Errorf("spec.data.samples: %d is not between 1 and %d: give the number of samples of the corpus, or leave spec.data out where sites train on data of their own", s.Samples, int64(corpus.MaxSamples)))
	}
	if s.LeaseSamples < 0 || s.LeaseSamples > maxLease {
		errs = append(errs, fmt.Errorf("spec.data.leaseSamples: %d is not between 0 (for %d) and %d", s.LeaseSamples, defaultLease, maxLease))
	}
	if s.Passes < 0 || s.Passes > maxPasses {
		errs = append(errs, fmt.Errorf("spec.data.passes: %d is not between 0 (for ever) and %d", s.Passes, maxPasses))
	}
	return errs
}

// dataConfig is the ledger's; nil where none is kept.
func (d *declaration) dataConfig() *corpus.Config {
	s := d.federation.Spec.Data
	if s == nil {
		return nil
	}
	c := &corpus.Config{Samples: uint64(s.Samples), Lease: uint64(s.LeaseSamples), Passes: uint64(s.Passes)}
	if c.Lease == 0 {
		c.Lease = defaultLease
	}
	return c
}

package app

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/coordinator/gate"
)

// Defaults of spec.evaluation.gate.
const (
	defaultMargin       = 0.1
	defaultMaxRollbacks = 3
)

// validateEvaluation checks when and where the model is evaluated.
func validateEvaluation(d *declaration) []error {
	var errs []error
	bad := func(path, format string, args ...any) {
		errs = append(errs, fmt.Errorf("spec.evaluation.%s: %s", path, fmt.Sprintf(format, args...)))
	}
	ev := d.federation.Spec.Evaluation
	if ev.Every < 0 {
		bad("every", "%d must not be negative", ev.Every)
	}
	if ev.Site != "" && !slices.ContainsFunc(d.sites, func(s v1alpha1.Site) bool { return s.Name == ev.Site }) {
		bad("site", "%q is none of spec.sites: name one of them, or leave it out to evaluate on all", ev.Site)
	}
	if g := ev.Gate; g != nil {
		if ev.Every <= 0 {
			bad("every", "the gate needs evaluations: set it to the number of commits between two of them")
		}
		if g.Margin != nil {
			if m := g.Margin.AsApproximateFloat64(); !(m >= 0) || math.IsInf(m, 0) {
				bad("gate.margin", "%s must not be negative: it is a fraction of the best loss, such as 0.1", g.Margin)
			}
		}
		if g.MaxRollbacks < 0 {
			bad("gate.maxRollbacks", "%d must not be negative", g.MaxRollbacks)
		}
	}
	return errs
}

// gateConfig is nil without a gate.
func (d *declaration) gateConfig() *gate.Config {
	g := d.federation.Spec.Evaluation.Gate
	if g == nil {
		return nil
	}
	c := gate.Config{Margin: defaultMargin, MaxRollbacks: defaultMaxRollbacks}
	if g.Margin != nil {
		c.Margin = g.Margin.AsApproximateFloat64()
	}
	if g.MaxRollbacks > 0 {
		c.MaxRollbacks = int(g.MaxRollbacks)
	}
	return &c
}

// evaluation exports a held-out result; nil is none.
func (c *collector) evaluation(ev *coordinatorv1.Evaluation, gauge func(*prometheus.Desc, float64, ...string)) {
	if ev == nil {
		return
	}
	if ev.Loss != nil {
		gauge(c.loss, ev.GetLoss())
	}
	for name, v := range ev.GetMetrics() {
		// Trainers name them: what is no UTF-8 is no label.
		gauge(c.heldOut, v, strings.ToValidUTF8(name, "\uFFFD"))
	}
}

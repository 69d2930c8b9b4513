package engine

import (
	"cmp"
	"maps"
	"math"
	"slices"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/internal/codec"
)

// Limits of an update's header. What it says goes into the commit's manifest,
// and its numbers into sums that must stay finite.
const (
	maxUpdateID = 64
	maxMetrics  = 64
	maxName     = 128 // bytes
	// maxCount of samples and steps: exact in float64.
	maxCount = 1 << 53
	// maxMeasure of seconds and joules.
	maxMeasure = 1e15
)

func (e *Engine) checkHeader(h *coordinatorv1.PushHeader) *coordinatorv1.PushResult {
	m := e.model
	w := h.GetWeight()
	switch {
	case !(w > 0) || w > maxCount:
		return refused(v1alpha1.ReasonInvalidWeight, "weight %v must be above 0 and at most 2^53", w)
	case h.GetBaseVersion() != m.version:
		return stale(v1alpha1.ReasonStaleRound, "the update is based on version %d, the round on %d", h.GetBaseVersion(), m.version)
	case len(h.GetTensors()) == 0 && string(h.GetLayoutDigest()) != string(m.layout[:]):
		return refused(v1alpha1.ReasonShapeMismatch, "the update follows another model layout (digest %.64x, want %x); send the tensor table to learn the difference", h.GetLayoutDigest(), m.layout)
	}
	if limit := codec.MaxSize(m.domain, e.params().Uplink); h.GetPayloadBytes() > uint64(limit) || h.GetPayloadBytes() == 0 {
		return refused(v1alpha1.ReasonTooLarge, "payload of %d bytes; a valid one has 1 to %d", h.GetPayloadBytes(), limit)
	}
	return cmp.Or(checkMeasures(h), checkMetrics(h.GetMetrics()), checkMetrics(h.GetEvaluation().GetMetrics()))
}

// checkMeasures refuses what cannot have been measured.
func checkMeasures(h *coordinatorv1.PushHeader) *coordinatorv1.PushResult {
	for _, c := range []struct {
		field string
		value uint64
	}{{"samples", h.GetSamples()}, {"steps", h.GetSteps()}, {"evaluation.samples", h.GetEvaluation().GetSamples()}} {
		if c.value > maxCount {
			return refused(v1alpha1.ReasonTooLarge, "%s %d is above 2^53", c.field, c.value)
		}
	}
	for _, c := range []struct {
		field string
		value float64
	}{{"training_seconds", h.GetTrainingSeconds()}, {"energy_joules", h.GetEnergyJoules()}} {
		switch {
		case math.IsNaN(c.value) || math.IsInf(c.value, 0):
			return refused(v1alpha1.ReasonNotFinite, "%s is %v", c.field, c.value)
		case c.value < 0 || c.value > maxMeasure:
			return refused(v1alpha1.ReasonMalformed, "%s %g is not in 0 to %g", c.field, c.value, maxMeasure)
		}
	}
	if n := len(h.GetEnergySource()); n > maxName {
		return refused(v1alpha1.ReasonTooLarge, "energy_source has %d bytes, at most %d", n, maxName)
	}
	return nil
}

func checkMetrics(metrics map[string]float64) *coordinatorv1.PushResult {
	if res := checkNames(metrics); res != nil {
		return res
	}
	for _, k := range slices.Sorted(maps.Keys(metrics)) {
		if v := metrics[k]; math.IsNaN(v) || math.IsInf(v, 0) {
			return refused(v1alpha1.ReasonNotFinite, "metric %q is %v", k, v)
		}
	}
	return nil
}

func checkNames(metrics map[string]float64) *coordinatorv1.PushResult {
	if len(metrics) > maxMetrics {
		return refused(v1alpha1.ReasonTooLarge, "%d metrics, at most %d", len(metrics), maxMetrics)
	}
	for _, k := range slices.Sorted(maps.Keys(metrics)) {
		if len(k) > maxName {
			return refused(v1alpha1.ReasonTooLarge, "the name of metric %.40q has %d bytes, at most %d", k, len(k), maxName)
		}
	}
	return nil
}

func sections(in []*coordinatorv1.TensorSection) []codec.Section {
	var out []codec.Section
	for _, t := range in {
		out = append(out, codec.Section{Name: t.GetName(), DType: t.GetDtype(), Shape: t.GetShape(),
			Offset: clampInt64(t.GetOffset()), Length: clampInt64(t.GetLength())})
	}
	return out
}

func clampInt64(v uint64) int64 {
	if v > math.MaxInt64 {
		return math.MaxInt64
	}
	return int64(v)
}

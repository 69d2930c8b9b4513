// Package window decides whether a site's electricity is good enough: open,
// closed or unknown, until when and why. It is pure: a policy, the state of
// before, a reading and the time go in; the new state and a decision come out.
//
// It must not know where readings come from, what time it is, what a membership
// is or where the state is kept.
package window

import (
	"fmt"
	"time"

	"girassol.dev/api/federation/v1alpha1"
)

// Mode is what the thresholds are measured in.
type Mode string

// The modes. With None a policy of EnergyIgnore has nothing to compare with.
const (
	None Mode = ""
	// Grams compares an intensity with thresholds in gCO2/kWh.
	Grams Mode = "grams"
	// Percentile compares the rank of an intensity in its trailing window, or a
	// percentile that the provider gives, with thresholds from 0 to 100.
	Percentile Mode = "percentile"
)

// Defaults of what a spec leaves unset. The leave threshold defaults to the
// enter threshold.
const (
	DefaultConfirmations = 2
	DefaultMaxStale      = 30 * time.Minute
	// DefaultTrailing is the span in which percentile mode ranks a value; at
	// least MinCoverage of it must have been seen.
	DefaultTrailing = 7 * 24 * time.Hour
	MinCoverage     = 0.8
	// DefaultMaxForecastAge is as long as the slowest providers take between two
	// issues.
	DefaultMaxForecastAge = 6 * time.Hour
)

// Policy is an EnergySpec with defaults filled in and checked. A window opens
// after EnterConfirmations consecutive distinct points strictly below Enter and
// closes after LeaveConfirmations strictly above Leave; in between it keeps.
type Policy struct {
	// Ignore admits always; windows are still shown where there are thresholds.
	Ignore       bool
	Mode         Mode
	Enter, Leave float64

	EnterConfirmations, LeaveConfirmations int
	// MinimumOn and MinimumOff hold back a change after the one before. They
	// never hold a site whose signal is unknown, and the first opening waits for
	// no MinimumOff.
	MinimumOn, MinimumOff time.Duration

	// MaxStale is how long an OnStale of Hold keeps an open window.
	MaxStale time.Duration
	OnStale  v1alpha1.StalePolicy

	// Trailing is the span of Percentile mode.
	Trailing time.Duration
	// TrustZero takes a first zero as it is. Otherwise a value of exactly 0
	// opens a window only if another point within 30 days was 0 too: a broken
	// feed looks like perfect electricity.
	TrustZero bool

	// MinWindow is the shortest window worth a start: provisioning and one round.
	// A window that the forecast closes earlier is not opened. 0: any is.
	MinWindow time.Duration
	// LeaveLead is how long before the forecast end of a window it is left: the
	// time to drain. 0: it is left when it has ended.
	LeaveLead time.Duration
	// MaxForecastAge is how old a forecast may be to be used, from its issue;
	// DefaultMaxForecastAge if 0.
	MaxForecastAge time.Duration
	// Cooldown is how long a site that was in is not let in again by its window,
	// whatever ended it. An override does not wait for it.
	Cooldown time.Duration
}

// FieldError names the field of the object that is wrong.
type FieldError struct {
	// Kind is Federation or Site.
	Kind string
	// Path as in the YAML: spec.energy.enterBelowGrams.
	Path    string
	Problem string
}

func (e *FieldError) Error() string { return e.Kind + " " + e.Path + ": " + e.Problem }

// The bounds of what a spec may say.
const (
	maxGrams         = 100_000
	maxConfirmations = 1_000
	maxSeconds       = 30 * 24 * 3600
)

// FromSpec merges a site's spec, which may be nil, over its federation's, field
// by field, fills in the defaults and checks the result. A zero count, duration
// or name is unset. A site that names a threshold in the other unit (grams or
// percentile) replaces both thresholds of its federation. Errors are
// *FieldError.
func FromSpec(federation v1alpha1.EnergySpec, site *v1alpha1.EnergySpec) (Policy, error) {
	if err := checkSpec(v1alpha1.KindFederation, federation); err != nil {
		return Policy{}, err
	}
	s := spec{EnergySpec: federation, kinds: map[string]string{}}
	if site != nil {
		if err := checkSpec(v1alpha1.KindSite, *site); err != nil {
			return Policy{}, err
		}
		s.override(*site)
	}
	p := Policy{
		Ignore:             s.Policy == v1alpha1.EnergyIgnore,
		EnterConfirmations: int(orDefault(s.EnterConfirmations, DefaultConfirmations)),
		LeaveConfirmations: int(orDefault(s.LeaveConfirmations, DefaultConfirmations)),
		MinimumOn:          time.Duration(s.MinimumOnSeconds) * time.Second,
		MinimumOff:         time.Duration(s.MinimumOffSeconds) * time.Second,
		MaxStale:           time.Duration(s.MaxStaleSeconds) * time.Second,
		OnStale:            s.OnStale,
		Trailing:           DefaultTrailing,
	}
	if p.MaxStale == 0 {
		p.MaxStale = DefaultMaxStale
	}
	if p.OnStale == "" {
		p.OnStale = v1alpha1.StaleHold
	}
	return p, s.thresholds(&p)
}

// spec is a merged EnergySpec that remembers which object each threshold is from.
type spec struct {
	v1alpha1.EnergySpec
	kinds map[string]string
}

func (s *spec) override(o v1alpha1.EnergySpec) {
	if o.Policy != "" {
		s.Policy = o.Policy
	}
	if o.EnterBelowGrams != nil || o.LeaveAboveGrams != nil {
		s.EnterBelowPercentile, s.LeaveAbovePercentile = nil, nil
	}
	if o.EnterBelowPercentile != nil || o.LeaveAbovePercentile != nil {
		s.EnterBelowGrams, s.LeaveAboveGrams = nil, nil
	}
	s.threshold(enterGrams, &s.EnterBelowGrams, o.EnterBelowGrams)
	s.threshold(leaveGrams, &s.LeaveAboveGrams, o.LeaveAboveGrams)
	s.threshold(enterPercentile, &s.EnterBelowPercentile, o.EnterBelowPercentile)
	s.threshold(leavePercentile, &s.LeaveAbovePercentile, o.LeaveAbovePercentile)
	s.EnterConfirmations = orDefault(o.EnterConfirmations, s.EnterConfirmations)
	s.LeaveConfirmations = orDefault(o.LeaveConfirmations, s.LeaveConfirmations)
	s.MinimumOnSeconds = orDefault(o.MinimumOnSeconds, s.MinimumOnSeconds)
	s.MinimumOffSeconds = orDefault(o.MinimumOffSeconds, s.MinimumOffSeconds)
	s.MaxStaleSeconds = orDefault(o.MaxStaleSeconds, s.MaxStaleSeconds)
	if o.OnStale != "" {
		s.OnStale = o.OnStale
	}
}

func (s *spec) threshold(field string, to **int32, from *int32) {
	if from != nil {
		*to, s.kinds[field] = from, v1alpha1.KindSite
	}
}

// The fields of the thresholds.
const (
	enterGrams      = "enterBelowGrams"
	leaveGrams      = "leaveAboveGrams"
	enterPercentile = "enterBelowPercentile"
	leavePercentile = "leaveAbovePercentile"
)

// fail names the object that the field came from, the federation if none set it.
func (s *spec) fail(field, format string, args ...any) error {
	kind, ok := s.kinds[field]
	if !ok {
		kind = v1alpha1.KindFederation
	}
	return &FieldError{Kind: kind, Path: "spec.energy." + field, Problem: fmt.Sprintf(format, args...)}
}

func (s *spec) thresholds(p *Policy) error {
	grams := s.EnterBelowGrams != nil || s.LeaveAboveGrams != nil
	percentile := s.EnterBelowPercentile != nil || s.LeaveAbovePercentile != nil
	switch {
	case grams:
		p.Mode = Grams
		return s.pair(p, enterGrams, s.EnterBelowGrams, leaveGrams, s.LeaveAboveGrams)
	case percentile:
		p.Mode = Percentile
		return s.pair(p, enterPercentile, s.EnterBelowPercentile, leavePercentile, s.LeaveAbovePercentile)
	case !p.Ignore:
		return s.fail(enterGrams, "a policy of %s needs enterBelowGrams or enterBelowPercentile; policy %s admits always",
			v1alpha1.EnergyRequired, v1alpha1.EnergyIgnore)
	}
	return nil
}

func (s *spec) pair(p *Policy, enterField string, enter *int32, leaveField string, leave *int32) error {
	if enter == nil {
		return s.fail(enterField, "is required where %s is set", leaveField)
	}
	p.Enter, p.Leave = float64(*enter), float64(*enter)
	if leave != nil {
		p.Leave = float64(*leave)
	}
	if p.Leave < p.Enter {
		// Name the object that brought the pair out of order: the site if it set
		// either.
		field := leaveField
		if _, ok := s.kinds[enterField]; ok {
			field = enterField
		}
		return s.fail(field, "%s %v is below %s %v: a window would open and close on the same value",
			leaveField, p.Leave, enterField, p.Enter)
	}
	return nil
}

// checkSpec checks what can be said of one object alone.
func checkSpec(kind string, s v1alpha1.EnergySpec) error {
	fail := func(field, format string, args ...any) error {
		return &FieldError{Kind: kind, Path: "spec.energy." + field, Problem: fmt.Sprintf(format, args...)}
	}
	switch s.Policy {
	case "", v1alpha1.EnergyRequired, v1alpha1.EnergyIgnore:
	default:
		return fail("policy", "%q is unknown, use %s or %s", s.Policy, v1alpha1.EnergyRequired, v1alpha1.EnergyIgnore)
	}
	switch s.OnStale {
	case "", v1alpha1.StaleHold, v1alpha1.StaleDrain, v1alpha1.StaleAdmit:
	default:
		return fail("onStale", "%q is unknown, use %s, %s or %s", s.OnStale,
			v1alpha1.StaleHold, v1alpha1.StaleDrain, v1alpha1.StaleAdmit)
	}
	if (s.EnterBelowGrams != nil || s.LeaveAboveGrams != nil) && (s.EnterBelowPercentile != nil || s.LeaveAbovePercentile != nil) {
		return fail(enterPercentile, "grams and percentile are both set, use one of the two")
	}
	for _, t := range []struct {
		field string
		value *int32
		max   int32
	}{
		{enterGrams, s.EnterBelowGrams, maxGrams}, {leaveGrams, s.LeaveAboveGrams, maxGrams},
		{enterPercentile, s.EnterBelowPercentile, 100}, {leavePercentile, s.LeaveAbovePercentile, 100},
	} {
		if t.value != nil && (*t.value < 1 || *t.value > t.max) {
			return fail(t.field, "%d is outside 1 to %d", *t.value, t.max)
		}
	}
	for _, n := range []struct {
		field string
		value int32
		max   int32
	}{
		{"enterConfirmations", s.EnterConfirmations, maxConfirmations},
		{"leaveConfirmations", s.LeaveConfirmations, maxConfirmations},
		{"minimumOnSeconds", s.MinimumOnSeconds, maxSeconds},
		{"minimumOffSeconds", s.MinimumOffSeconds, maxSeconds},
		{"maxStaleSeconds", s.MaxStaleSeconds, maxSeconds},
	} {
		if n.value < 0 || n.value > n.max {
			return fail(n.field, "%d is outside 0 to %d", n.value, n.max)
		}
	}
	return nil
}

func orDefault(v, d int32) int32 {
	if v == 0 {
		return d
	}
	return v
}

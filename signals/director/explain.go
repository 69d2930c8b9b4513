package director

import (
	"cmp"
	"time"

	"girassol.dev/api/federation/v1alpha1"
	"girassol.dev/signals"
	"girassol.dev/signals/sanity"
	"girassol.dev/signals/window"
)

// Explanation is a site's last decision and what it was made from. Its JSON has
// stable names: times in RFC 3339, spans in seconds, what is not known left out
// but for values, which are null.
type Explanation struct {
	Federation string `json:"federation"`
	Site       string `json:"site"`
	// Decided is when, in the signals' clock; zero before the first decision.
	Decided time.Time `json:"decided,omitzero"`
	// Admit with its Reason and Message is what the membership is told.
	Admit      bool            `json:"admit"`
	Reason     v1alpha1.Reason `json:"reason,omitempty"`
	Message    string          `json:"message,omitempty"`
	NextChange time.Time       `json:"nextChange,omitzero"`

	Window     WindowView     `json:"window"`
	Thresholds ThresholdsView `json:"thresholds"`
	// Signal is the site's own, Second what it is compared with, Price and Share
	// what may explain a zero. Nil where there is no such source.
	Signal *ReadingView `json:"signal,omitempty"`
	Second *ReadingView `json:"second,omitempty"`
	Price  *ReadingView `json:"price,omitempty"`
	Share  *ReadingView `json:"share,omitempty"`
	// Verdict on Signal; nil without a sanity policy.
	Verdict  *VerdictView  `json:"verdict,omitempty"`
	Forecast *ForecastView `json:"forecast,omitempty"`
	// Override, Curtailment and Budget are nil where there is none. A curtailment
	// that the site's draw fits is none.
	Override    *window.Override `json:"override,omitempty"`
	Curtailment *Curtailed       `json:"curtailment,omitempty"`
	Budget      *BudgetView      `json:"budget,omitempty"`
	Plan        *PlanView        `json:"plan,omitempty"`

	// SourceError, StoreError and MembershipError are the present failures, ""
	// for none.
	SourceError     string `json:"sourceError,omitempty"`
	StoreError      string `json:"storeError,omitempty"`
	MembershipError string `json:"membershipError,omitempty"`
	// Delivered says that the last wish has arrived.
	Delivered bool `json:"delivered"`

	Policy   window.Policy   `json:"-"`
	Decision window.Decision `json:"-"`
	State    window.State    `json:"-"`
	// Reading is the last that the source gave, nil before.
	Reading *signals.Reading `json:"-"`

	judged judgement
}

// WindowView is the window as decided.
type WindowView struct {
	State v1alpha1.WindowState `json:"state,omitempty"`
	Since time.Time            `json:"since,omitzero"`
	// Open is State but for an unknown signal, while a hold lasts.
	Open bool `json:"open"`
	// UnknownSince is when the signal was lost.
	UnknownSince time.Time `json:"unknownSince,omitzero"`
	// ForecastClose is when the forecast closes it.
	ForecastClose time.Time `json:"forecastClose,omitzero"`
}

// ThresholdsView is what the window decides by and how far it has come.
type ThresholdsView struct {
	// Mode is grams or percentile; "" without thresholds.
	Mode               window.Mode          `json:"mode,omitempty"`
	Ignore             bool                 `json:"ignore,omitempty"`
	EnterBelow         float64              `json:"enterBelow"`
	LeaveAbove         float64              `json:"leaveAbove"`
	EnterConfirmations int                  `json:"enterConfirmations"`
	LeaveConfirmations int                  `json:"leaveConfirmations"`
	EnterCount         int                  `json:"enterCount"`
	LeaveCount         int                  `json:"leaveCount"`
	MinimumOnSeconds   float64              `json:"minimumOnSeconds"`
	MinimumOffSeconds  float64              `json:"minimumOffSeconds"`
	CooldownSeconds    float64              `json:"cooldownSeconds"`
	MinWindowSeconds   float64              `json:"minWindowSeconds"`
	LeaveLeadSeconds   float64              `json:"leaveLeadSeconds"`
	MaxStaleSeconds    float64              `json:"maxStaleSeconds"`
	OnStale            v1alpha1.StalePolicy `json:"onStale,omitempty"`
}

// ReadingView is a reading as it was given.
type ReadingView struct {
	Kind   signals.Kind `json:"kind,omitempty"`
	Unit   signals.Unit `json:"unit,omitempty"`
	Region string       `json:"region,omitempty"`
	Source string       `json:"source,omitempty"`
	Model  string       `json:"model,omitempty"`
	// Value is nil for none; it is never 0 for that.
	Value         *float64        `json:"value"`
	Quality       signals.Quality `json:"quality,omitempty"`
	PointTime     time.Time       `json:"pointTime,omitzero"`
	PeriodSeconds float64         `json:"periodSeconds,omitempty"`
	// AgeSeconds since PointTime. Stale says that the value is not a present one.
	AgeSeconds float64 `json:"ageSeconds"`
	Stale      bool    `json:"stale"`
	// Compared says that the verdict was made with it.
	Compared bool `json:"compared,omitempty"`
	// Error is the source's present failure.
	Error string `json:"error,omitempty"`
}

// VerdictView is a verdict without its reading.
type VerdictView struct {
	Class   sanity.Class    `json:"class"`
	Reason  v1alpha1.Reason `json:"reason"`
	Message string          `json:"message"`
}

// ForecastView is the forecast that decisions use.
type ForecastView struct {
	Source string `json:"source,omitempty"`
	// GeneratedAt is zero, and Points 0, if none is used.
	GeneratedAt time.Time `json:"generatedAt,omitzero"`
	AgeSeconds  float64   `json:"ageSeconds"`
	Until       time.Time `json:"until,omitzero"`
	Points      int       `json:"points"`
	// NextOpen and NextClose are when a window opens and closes by it: of an open
	// one the end and the next beginning, otherwise the next one's beginning,
	// which may have been by the forecast, and end. Zero if not within it.
	NextOpen  time.Time `json:"nextOpen,omitzero"`
	NextClose time.Time `json:"nextClose,omitzero"`
	// Verdict on the newest issue.
	Verdict *VerdictView `json:"verdict,omitempty"`
	Error   string       `json:"error,omitempty"`
}

// BudgetView is what may be used and what was; nil is unlimited.
type BudgetView struct {
	Grams      *float64 `json:"grams,omitempty"`
	KWh        *float64 `json:"kWh,omitempty"`
	SpentGrams float64  `json:"spentGrams"`
	SpentKWh   float64  `json:"spentKWh"`
	// Exhausted is which is gone, "" if none is.
	Exhausted string `json:"exhausted,omitempty"`
}

// PlanView is the planner's choice.
type PlanView struct {
	Round uint64    `json:"round"`
	Made  time.Time `json:"made"`
	// Wanted sites at a time; 0: all.
	Wanted int  `json:"wanted"`
	Chosen bool `json:"chosen"`
	// GramsPerToken and KWhPerToken are nil if not known.
	GramsPerToken *float64        `json:"gramsPerToken"`
	KWhPerToken   *float64        `json:"kWhPerToken"`
	LimitGrams    *float64        `json:"limitGramsPerToken,omitempty"`
	AtRisk        bool            `json:"deadlineAtRisk,omitempty"`
	Reason        v1alpha1.Reason `json:"reason,omitempty"`
	Message       string          `json:"message,omitempty"`
	NextChange    time.Time       `json:"nextChange,omitzero"`
}

// Explain says why a site is in or out; an error if there is no such site.
func (d *Director) Explain(name string) (Explanation, error) {
	s, err := d.site(name)
	if err != nil {
		return Explanation{}, err
	}
	now := d.config.Clock.Now()
	s.mu.Lock()
	e := s.shown
	s.mu.Unlock()
	e.Federation, e.Site, e.Policy = d.config.Federation, s.Name, s.Policy
	e.Admit, e.Reason, e.Message, e.NextChange = e.Decision.Admit, e.Decision.Reason, e.Decision.Message, e.Decision.NextChange
	e.Window = WindowView{State: e.Decision.Window, Since: e.State.Since, Open: e.State.Open,
		UnknownSince: e.State.UnknownSince, ForecastClose: e.Decision.ForecastClose}
	e.Thresholds = thresholds(s.Policy, e.State)
	e.Signal = view(e.Reading, e.SourceError, now)
	e.Second = beside(s.second, now)
	if e.Second != nil && e.judged.second != nil {
		e.Second.Compared = e.Second.PointTime.Equal(e.judged.second.PointTime)
	}
	e.Price, e.Share = beside(s.price, now), beside(s.share, now)
	e.Verdict = verdict(e.judged.verdict)
	if v := e.Verdict; v != nil && v.Class == sanity.Good && e.Signal.Stale {
		e.Verdict = &VerdictView{sanity.Stale, v1alpha1.ReasonSignalStale, v.Message + " is stale"}
	}
	if s.forecast != nil {
		e.Forecast = s.foreseen(e.State, e.judged, now)
	}
	e.Override, e.Curtailment = s.overridden(now), e.judged.block
	e.Budget = d.budget()
	if d.plans != nil {
		e.Plan = d.plans.view(s.Name)
	}
	return e, nil
}

func thresholds(p window.Policy, s window.State) ThresholdsView {
	return ThresholdsView{
		Mode: p.Mode, Ignore: p.Ignore, EnterBelow: p.Enter, LeaveAbove: p.Leave,
		EnterConfirmations: p.EnterConfirmations, LeaveConfirmations: p.LeaveConfirmations,
		EnterCount: s.EnterCount, LeaveCount: s.LeaveCount,
		MinimumOnSeconds: p.MinimumOn.Seconds(), MinimumOffSeconds: p.MinimumOff.Seconds(), CooldownSeconds: p.Cooldown.Seconds(),
		MinWindowSeconds: p.MinWindow.Seconds(), LeaveLeadSeconds: p.LeaveLead.Seconds(),
		MaxStaleSeconds: p.MaxStale.Seconds(), OnStale: p.OnStale,
	}
}

func view(r *signals.Reading, problem string, now time.Time) *ReadingView {
	v := &ReadingView{Error: problem, Stale: true}
	if r == nil {
		return v
	}
	v.Kind, v.Unit, v.Region, v.Source, v.Model = r.Kind, r.Unit, r.Region, r.Source, r.Model
	v.Value, v.Quality = r.Value, cmp.Or(r.Quality, signals.Good)
	v.PointTime, v.PeriodSeconds = r.PointTime, r.Period.Seconds()
	v.AgeSeconds, v.Stale = age(now, r.PointTime), !r.Fresh(now)
	return v
}

func beside(e *evidence[signals.Reading], now time.Time) *ReadingView {
	if e == nil {
		return nil
	}
	return view(e.get(), e.failing(), now)
}

func verdict(v *sanity.Verdict) *VerdictView {
	if v == nil {
		return nil
	}
	return &VerdictView{v.Class, v.Reason, v.Message}
}

// foreseen shows the forecast of the window's state.
func (s *site) foreseen(state window.State, judged judgement, now time.Time) *ForecastView {
	v := &ForecastView{Error: s.forecast.failing(), Verdict: verdict(judged.forecast)}
	f := state.Forecast
	if f == nil {
		return v
	}
	if last := s.forecast.get(); last != nil {
		v.Source = last.Source
	}
	v.GeneratedAt, v.AgeSeconds, v.Points = f.GeneratedAt, age(now, f.GeneratedAt), len(f.Points)
	if n := len(f.Points); n > 0 {
		v.Until = f.Points[n-1].Time.Add(f.Points[n-1].Period)
	}
	if s.Policy.Mode == window.Grams || f.Kind == signals.Percentile {
		opens := func(from time.Time) time.Time {
			return row(f.Points, s.Policy.EnterConfirmations, from, func(x float64) bool { return x < s.Policy.Enter })
		}
		closes := func(from time.Time) time.Time {
			return row(f.Points, s.Policy.LeaveConfirmations, from, func(x float64) bool { return x > s.Policy.Leave })
		}
		if state.Open {
			v.NextClose = closes(now)
			v.NextOpen = opens(v.NextClose)
		} else {
			v.NextOpen = opens(now)
			v.NextClose = closes(v.NextOpen)
		}
	}
	return v
}

// age in seconds, to the millisecond.
func age(now, then time.Time) float64 { return now.Sub(then).Round(time.Millisecond).Seconds() }

// row is when the first n consecutive points begin that are as wanted and end
// after now; zero if there are none.
func row(points []window.Sample, n int, now time.Time, is func(float64) bool) time.Time {
	if now.IsZero() {
		return time.Time{}
	}
	count := 0
	var begin time.Time
	for i, pt := range points {
		if !pt.Time.Add(pt.Period).After(now) {
			continue
		}
		gap := i > 0 && pt.Time.After(points[i-1].Time.Add(points[i-1].Period))
		switch {
		case !is(pt.Value):
			count = 0
			continue
		case count == 0 || gap:
			count, begin = 0, pt.Time
		}
		if count++; count >= n {
			return begin
		}
	}
	return time.Time{}
}

func (d *Director) budget() *BudgetView {
	c := d.config
	if c.Spent == nil {
		return nil
	}
	b := &BudgetView{Grams: c.BudgetGrams, KWh: c.BudgetKWh, Exhausted: d.exhausted()}
	b.SpentGrams, b.SpentKWh = c.Spent()
	return b
}

// view is nil before the first plan.
func (p *plans) view(site string) *PlanView {
	p.mu.Lock()
	defer p.mu.Unlock()
	c, ok := p.choices[site]
	if !ok || p.at.IsZero() {
		return nil
	}
	return &PlanView{Round: p.round, Made: p.at, Wanted: p.d.config.Planner.Wanted, Chosen: c.Chosen,
		GramsPerToken: c.GramsPerToken, KWhPerToken: c.KWhPerToken, LimitGrams: p.made.LimitGrams, AtRisk: p.made.AtRisk,
		Reason: c.Reason, Message: c.Message, NextChange: c.next}
}

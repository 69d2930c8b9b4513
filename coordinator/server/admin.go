package server

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"regexp"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/coordinator/engine"
	"girassol.dev/coordinator/identity"
	"girassol.dev/coordinator/round"
)

// Admin serves people, the operator and the signals director.
type Admin struct {
	coordinatorv1.UnimplementedAdminServer
	Engine *engine.Engine
	// Energy answers for the energy decisions; nil without signals.
	Energy Energy
	// Told hears the signal of each energy decision that was taken; may be nil.
	Told func(site string, s *coordinatorv1.Signal)
	// Identities makes tokens; nil without mutual TLS. Revocations ends what stands
	// on a revoked certificate.
	Identities  *identity.Issuer
	Revocations *Revocations
	Log         *slog.Logger
}

// Energy is what the Admin service asks of the energy decisions. An error is
// shown to the person who asked.
type Energy interface {
	Explain(site string) (*coordinatorv1.ExplainResponse, error)
	Override(site string, admit bool, span time.Duration, reason string) (until time.Time, err error)
	ClearOverride(site string) error
	Report() (*coordinatorv1.ReportResponse, error)
}

// Status answers with the present status.
func (a *Admin) Status(ctx context.Context, _ *coordinatorv1.StatusRequest) (*coordinatorv1.FederationStatus, error) {
	if err := a.authorize(ctx); err != nil {
		return nil, err
	}
	st, err := a.Engine.Status(ctx)
	if err != nil {
		return nil, refusal(err)
	}
	return st, nil
}

const (
	defaultWatchInterval = time.Second
	minWatchInterval     = 50 * time.Millisecond
	maxWatchInterval     = time.Minute
)

// Watch sends the status now and after changes, at most once per interval.
func (a *Admin) Watch(req *coordinatorv1.WatchRequest, stream grpc.ServerStreamingServer[coordinatorv1.FederationStatus]) error {
	ctx := stream.Context()
	if err := a.authorize(ctx); err != nil {
		return err
	}
	interval := defaultWatchInterval
	if req.GetIntervalMs() > 0 {
		interval = min(maxWatchInterval, max(minWatchInterval, time.Duration(req.GetIntervalMs())*time.Millisecond))
	}
	for {
		changed := a.Engine.Changed()
		st, err := a.Engine.Status(ctx)
		if err != nil {
			return refusal(err)
		}
		if err := stream.Send(st); err != nil {
			return err
		}
		if err := a.wait(ctx, interval, nil); err != nil {
			return err
		}
		// Time passes even when nothing changes: a status is never older than ten
		// intervals.
		if err := a.wait(ctx, 9*interval, changed); err != nil {
			return err
		}
	}
}

func (a *Admin) wait(ctx context.Context, span time.Duration, changed <-chan struct{}) error {
	timer := time.NewTimer(span)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-changed:
	case <-a.Engine.Stopped():
		return refusal(engine.ErrStopped)
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	}
	return nil
}

// SetMembership takes a wish about a site.
func (a *Admin) SetMembership(ctx context.Context, req *coordinatorv1.SetMembershipRequest) (*coordinatorv1.SetMembershipResponse, error) {
	if err := a.authorize(ctx); err != nil {
		return nil, err
	}
	w := engine.Wish{
		Site: req.GetSite(), Deadline: time.Duration(req.GetDeadlineMs()) * time.Millisecond,
		Reason: v1alpha1.Reason(req.GetReason()), Message: req.GetMessage(), Energy: req.GetSignal() != nil, Signal: req.GetSignal(),
	}
	switch req.GetMembership() {
	case coordinatorv1.Membership_MEMBERSHIP_ADMIT:
		w.Membership = round.Admit
	case coordinatorv1.Membership_MEMBERSHIP_DRAIN:
		w.Membership = round.Drain
	case coordinatorv1.Membership_MEMBERSHIP_EXCLUDE:
		w.Membership = round.Exclude
	default:
		return nil, status.Error(codes.InvalidArgument, "membership must be ADMIT, DRAIN or EXCLUDE")
	}
	if req.GetDeadlineMs() < 0 || req.GetDeadlineMs() > maxDeadline.Milliseconds() {
		return nil, status.Errorf(codes.InvalidArgument, "deadline_ms %d is not in 0 to %d", req.GetDeadlineMs(), maxDeadline.Milliseconds())
	}
	if w.Reason == "" {
		w.Reason = v1alpha1.ReasonRequested
	}
	if !reasonWord.MatchString(string(w.Reason)) {
		return nil, status.Errorf(codes.InvalidArgument, "reason %.80q must be one CamelCase word; what it means goes into message", w.Reason)
	}
	if err := checkSignal(req.GetSignal()); err != nil {
		return nil, status.Errorf(codes.InvalidArgument, "signal: %v", err)
	}
	in, err := a.Engine.SetMembership(ctx, w)
	if err != nil {
		return nil, refusal(err)
	}
	if w.Energy && a.Told != nil {
		a.Told(w.Site, w.Signal)
	}
	return &coordinatorv1.SetMembershipResponse{Changed: in.Changed, Membership: membership(in.Membership), Reason: string(in.Reason), Message: in.Message}, nil
}

// checkSignal refuses figures without meaning; s may be nil.
func checkSignal(s *coordinatorv1.Signal) error {
	for _, i := range []*coordinatorv1.Intensity{s.GetMarginal(), s.GetAverage()} {
		if i == nil {
			continue
		}
		if v := i.GetGramsPerKwh(); math.IsNaN(v) || math.IsInf(v, 0) || v < 0 {
			return fmt.Errorf("%v gCO2/kWh is no intensity; leave it out if it is not known", v)
		}
		if i.GetUntilUnixMs() <= i.GetFromUnixMs() {
			return fmt.Errorf("an intensity until %d that begins at %d", i.GetUntilUnixMs(), i.GetFromUnixMs())
		}
	}
	return nil
}

// maxDeadline of a drain.
const maxDeadline = 30 * 24 * time.Hour

// reasonWord bounds what becomes a label of metrics.
var reasonWord = regexp.MustCompile(`^[A-Z][A-Za-z0-9]{0,63}$`)

func membership(m round.Membership) coordinatorv1.Membership {
	switch m {
	case round.Admit:
		return coordinatorv1.Membership_MEMBERSHIP_ADMIT
	case round.Exclude:
		return coordinatorv1.Membership_MEMBERSHIP_EXCLUDE
	}
	return coordinatorv1.Membership_MEMBERSHIP_DRAIN
}

// Pause lets the round in flight end and grants no other.
func (a *Admin) Pause(ctx context.Context, req *coordinatorv1.PauseRequest) (*coordinatorv1.PauseResponse, error) {
	if err := a.authorize(ctx); err != nil {
		return nil, err
	}
	a.Log.Info("pause requested", "message", req.GetMessage())
	if err := a.Engine.Pause(ctx); err != nil {
		return nil, refusal(err)
	}
	return &coordinatorv1.PauseResponse{}, nil
}

// Resume ends a pause.
func (a *Admin) Resume(ctx context.Context, _ *coordinatorv1.ResumeRequest) (*coordinatorv1.ResumeResponse, error) {
	if err := a.authorize(ctx); err != nil {
		return nil, err
	}
	if err := a.Engine.Resume(ctx); err != nil {
		return nil, refusal(err)
	}
	return &coordinatorv1.ResumeResponse{}, nil
}

// energy authorizes and finds whom to ask.
func (a *Admin) energy(ctx context.Context) (Energy, error) {
	if err := a.authorize(ctx); err != nil {
		return nil, err
	}
	if a.Energy == nil {
		return nil, status.Error(codes.FailedPrecondition, "this coordinator decides by no energy signal")
	}
	return a.Energy, nil
}

// Explain tells what is behind a site's energy decision.
func (a *Admin) Explain(ctx context.Context, req *coordinatorv1.ExplainRequest) (*coordinatorv1.ExplainResponse, error) {
	e, err := a.energy(ctx)
	if err != nil {
		return nil, err
	}
	out, err := e.Explain(req.GetSite())
	if err != nil {
		return nil, status.Error(codes.FailedPrecondition, err.Error())
	}
	return out, nil
}

// SetOverride decides for a site until it expires.
func (a *Admin) SetOverride(ctx context.Context, req *coordinatorv1.SetOverrideRequest) (*coordinatorv1.SetOverrideResponse, error) {
	e, err := a.energy(ctx)
	if err != nil {
		return nil, err
	}
	span := time.Duration(req.GetForMs()) * time.Millisecond
	if span <= 0 {
		return nil, status.Errorf(codes.InvalidArgument, "for_ms %d must be above 0: an override always ends", req.GetForMs())
	}
	until, err := e.Override(req.GetSite(), req.GetAdmit(), span, req.GetReason())
	if err != nil {
		return nil, status.Error(codes.FailedPrecondition, err.Error())
	}
	a.Log.Info("override set", "site", req.GetSite(), "admit", req.GetAdmit(), "until", until, "why", req.GetReason())
	return &coordinatorv1.SetOverrideResponse{UntilUnixMs: until.UnixMilli()}, nil
}

// ClearOverride lets the window decide again.
func (a *Admin) ClearOverride(ctx context.Context, req *coordinatorv1.ClearOverrideRequest) (*coordinatorv1.ClearOverrideResponse, error) {
	e, err := a.energy(ctx)
	if err != nil {
		return nil, err
	}
	if err := e.ClearOverride(req.GetSite()); err != nil {
		return nil, status.Error(codes.FailedPrecondition, err.Error())
	}
	a.Log.Info("override cleared", "site", req.GetSite())
	return &coordinatorv1.ClearOverrideResponse{}, nil
}

// Report is the ledgers.
func (a *Admin) Report(ctx context.Context, _ *coordinatorv1.ReportRequest) (*coordinatorv1.ReportResponse, error) {
	e, err := a.energy(ctx)
	if err != nil {
		return nil, err
	}
	out, err := e.Report()
	if err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	return out, nil
}

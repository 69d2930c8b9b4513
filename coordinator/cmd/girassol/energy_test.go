package main

import (
	"context"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
)

func (a *admin) Explain(_ context.Context, m *coordinatorv1.ExplainRequest) (*coordinatorv1.ExplainResponse, error) {
	a.note(m)
	if a.err != nil {
		return nil, a.err
	}
	return &coordinatorv1.ExplainResponse{Json: `{"site":"lisboa"}`, Facts: []*coordinatorv1.Fact{
		{Name: "decision", Value: "admit, EnergyFavourable"}, {Name: "reading", Value: "42 gCO2/kWh\x1b[2J"},
	}}, nil
}

func (a *admin) SetOverride(_ context.Context, m *coordinatorv1.SetOverrideRequest) (*coordinatorv1.SetOverrideResponse, error) {
	a.note(m)
	return &coordinatorv1.SetOverrideResponse{UntilUnixMs: time.Date(2026, 5, 4, 19, 0, 0, 0, time.UTC).UnixMilli()}, a.err
}

func (a *admin) ClearOverride(_ context.Context, m *coordinatorv1.ClearOverrideRequest) (*coordinatorv1.ClearOverrideResponse, error) {
	a.note(m)
	return &coordinatorv1.ClearOverrideResponse{}, a.err
}

func (a *admin) Report(context.Context, *coordinatorv1.ReportRequest) (*coordinatorv1.ReportResponse, error) {
	return &coordinatorv1.ReportResponse{Csv: "scope,round\nfederation,\n", Json: "{}\n"}, a.err
}

func TestReportIsCSVOrJSON(t *testing.T) {
	addr := (&admin{}).serve(t)
	girassol(t.Context(), nil, "report", "--address", addr).want(t, 0, "scope,round\nfederation,\n", "")
	girassol(t.Context(), nil, "report", "-o", "json", "--address", addr).want(t, 0, "{}\n", "")
}

func TestExplainShowsFactsWithoutSteeringTheTerminal(t *testing.T) {
	addr := (&admin{}).serve(t)
	girassol(t.Context(), nil, "explain", "lisboa", "--address", addr).want(t, 0, "decision  admit, EnergyFavourable\nreading   42 gCO2/kWh [2J\n", "")
	girassol(t.Context(), nil, "explain", "lisboa", "-o", "json", "--address", addr).want(t, 0, `{"site":"lisboa"}`, "")
	sleeping := (&admin{err: status.Error(codes.FailedPrecondition, "site lisboa has no signal")}).serve(t)
	girassol(t.Context(), nil, "explain", "lisboa", "--address", sleeping).want(t, 1, "", "site lisboa has no signal")
}

func TestOverrideNeedsADirectionAndAnEnd(t *testing.T) {
	a := &admin{}
	addr := a.serve(t)
	girassol(t.Context(), nil, "override", "lisboa", "--admit", "--for", "2h", "--reason", "test", "--address", addr).
		want(t, 0, "lisboa: admitted by override until 2026-05-04 19:00:00 UTC\n", "")
	if want := (&coordinatorv1.SetOverrideRequest{Site: "lisboa", Admit: true, ForMs: 7_200_000, Reason: "test"}); !proto.Equal(a.requests[0], want) {
		t.Errorf("sent %v", a.requests[0])
	}
	girassol(t.Context(), nil, "override", "lisboa", "--release", "--for", "1h", "--address", addr).want(t, 0, "lisboa: released by override", "")
	girassol(t.Context(), nil, "override", "lisboa", "--clear", "--address", addr).want(t, 0, "its window decides again", "")
	girassol(t.Context(), nil, "override", "lisboa", "--admit", "--address", addr).want(t, 2, "", "an override needs an end")
	girassol(t.Context(), nil, "override", "lisboa", "--address", addr).want(t, 2, "", "want one of --admit, --release and --clear")
}

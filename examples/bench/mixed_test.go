package main

import (
	"bytes"
	"context"
	"math"
	"strings"
	"testing"
)

// Real agents and trainers. How close they finish on a machine that is busy with
// other tests says nothing; that each does its share does.
func TestMixedRunsRealAgentsWhoseStepsFollowTheirSpeed(t *testing.T) {
	r := bench[mixedReport](t, "mixed", "--slow", "1,8", "--step", "10ms", "--local-steps", "40", "--rounds", "4")
	if len(r.Rounds) != 4 || r.WarmUp != 2 {
		t.Fatalf("report %+v", r)
	}
	for _, round := range r.Rounds {
		if len(round.Finish) != 2 || round.Steps[0] == 0 || round.Steps[1] == 0 || round.Spread < 0 || round.Spread >= 1 {
			t.Errorf("round %+v", round)
		}
	}
	// Nothing is known of the speeds in the first round: the slow one is called back
	// once the other is done.
	if first := r.Rounds[0]; first.Steps[0] != 40 || first.Steps[1] >= 40 {
		t.Errorf("the first round's steps are %v, want all 40 and fewer", first.Steps)
	}
	if last := r.Rounds[3]; last.Steps[0] < 2*last.Steps[1] {
		t.Errorf("sites eight times apart did %v steps", last.Steps)
	}
	if r.Worst < r.Median || r.Equal < 0.3 {
		t.Errorf("median %v, worst %v, with equal steps %v", r.Median, r.Worst, r.Equal)
	}
}

func TestSpreadIsAPartOfTheRoundsLength(t *testing.T) {
	r := mixedRound{Finish: []float64{9, 10}, Steps: []uint64{90, 25}}
	r.finished()
	if math.Abs(r.Spread-0.1) > 1e-12 || math.Abs(r.Equal-0.75) > 1e-12 {
		t.Errorf("%+v", r)
	}
	report := mixedReport{Slow: []float64{1, 4}, WarmUp: 1, Rounds: []mixedRound{{Round: 1, Spread: 0.9}, r, {Spread: 0.02, Equal: 0.7}, {Spread: 0.04, Equal: 0.6}}}
	report.judge()
	if report.Worst != r.Spread || report.Median != 0.04 || report.Equal != 0.7 {
		t.Errorf("%+v", report)
	}
	var out bytes.Buffer
	if err := report.table(&out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"warm-up", "9.00 (90)", "median 4.0 %, worst 10.0 %", "equal steps 70.0 %"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
}

func TestAcceptancesAreReadFromTheCoordinatorsLog(t *testing.T) {
	a, ok := parseAcceptance([]byte(`{"time":"2026-01-01T00:00:01.5Z","level":"INFO","msg":"update accepted","member":"a/n","round":3,"steps":7}`))
	if !ok || a.Member != "a/n" || a.Round != 3 || a.Steps != 7 || a.Time.Nanosecond() != 5e8 {
		t.Errorf("%+v, %v", a, ok)
	}
	for _, line := range []string{"", "plain text", `{"msg":"grant"}`, `{"msg":"site","round":1}`, `{"msg":"grant","round":-1}`, `{"msg":"grant","round":"x"}`} {
		if a, ok := parseAcceptance([]byte(line)); ok {
			t.Errorf("%q became %+v", line, a)
		}
	}
}

func TestAnAgentThatEndsEndsTheRun(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	a, err := startAgent(ctx, "not-an-address", "x", t.TempDir(), cancel)
	if err != nil {
		t.Fatal(err)
	}
	defer a.kill()
	<-ctx.Done()
	if why := context.Cause(ctx).Error(); !strings.Contains(why, "the agent of x ended") || !strings.Contains(why, "not-an-address") {
		t.Errorf("ended by %q", why)
	}
}

func TestTrainerArgumentsAreChecked(t *testing.T) {
	for _, args := range [][]string{nil, {"1s", "0.1"}, {"soon", "0.1", "1"}, {"1s", "x", "1"}, {"1s", "0.1", "-1"}} {
		if _, err := newSlowed(args); err == nil {
			t.Errorf("%v was taken", args)
		}
	}
}

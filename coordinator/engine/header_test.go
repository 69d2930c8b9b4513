package engine

import (
	"fmt"
	"math"
	"strings"
	"testing"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/internal/algorithm"
)

// One site's odd numbers must not spoil the round of the others: what a header
// says is summed over sites and rounds and kept in the manifest.
func TestHeaderWithOddNumbersIsRefusedAndTheOtherSitesRoundCommits(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 1<<20)
	many := map[string]float64{}
	for i := range maxMetrics + 1 {
		many[fmt.Sprint(i)] = 1
	}
	for name, tc := range map[string]struct {
		change func(*coordinatorv1.PushHeader)
		want   v1alpha1.Reason
	}{
		"training seconds NaN":      {func(h *coordinatorv1.PushHeader) { h.TrainingSeconds = math.NaN() }, v1alpha1.ReasonNotFinite},
		"training seconds negative": {func(h *coordinatorv1.PushHeader) { h.TrainingSeconds = -1 }, v1alpha1.ReasonMalformed},
		"training seconds endless":  {func(h *coordinatorv1.PushHeader) { h.TrainingSeconds = math.MaxFloat64 }, v1alpha1.ReasonMalformed},
		"energy infinite":           {func(h *coordinatorv1.PushHeader) { h.EnergyJoules = math.Inf(1) }, v1alpha1.ReasonNotFinite},
		"weight beyond any count":   {func(h *coordinatorv1.PushHeader) { h.Weight = math.MaxFloat64 }, v1alpha1.ReasonInvalidWeight},
		"samples wrap the sum":      {func(h *coordinatorv1.PushHeader) { h.Samples = math.MaxUint64 }, v1alpha1.ReasonTooLarge},
		"energy source of 1 MiB":    {func(h *coordinatorv1.PushHeader) { h.EnergySource = long }, v1alpha1.ReasonTooLarge},
		"metric name of 1 MiB":      {func(h *coordinatorv1.PushHeader) { h.Metrics = map[string]float64{long: 1} }, v1alpha1.ReasonTooLarge},
		"too many metrics":          {func(h *coordinatorv1.PushHeader) { h.Metrics = many }, v1alpha1.ReasonTooLarge},
		"evaluation metric NaN": {func(h *coordinatorv1.PushHeader) {
			h.Evaluation = &coordinatorv1.Evaluation{Samples: 1, Metrics: map[string]float64{"acc": math.NaN()}}
		}, v1alpha1.ReasonNotFinite},
	} {
		t.Run(name, func(t *testing.T) {
			p := defaults(t, algorithm.DiLoCo)
			r, a := seeded(t, testConfig(t.TempDir(), p, "a", "b"))
			b := r.join("b")
			a.heartbeat(coordinatorv1.MemberState_MEMBER_STATE_READY, 0)
			b.heartbeat(coordinatorv1.MemberState_MEMBER_STATE_READY, 0)
			payload := ones(t, smallModel(t), p, 0.5)
			h := a.header(a.grant(), "odd", payload)
			tc.change(h)
			res := a.push(h, payload)
			if res.GetStatus() != coordinatorv1.PushResult_STATUS_REFUSED || res.GetReason() != string(tc.want) || len(res.GetMessage()) > 1000 {
				t.Fatalf("answered %.2000v, want %s", res, tc.want)
			}
			b.mustAccept(b.header(b.grant(), "good", payload), payload)
			if c := b.committed(); c.GetVoid() || c.GetVersion() != 1 {
				t.Fatalf("the round ended with %v", c)
			}
			if st := r.status(); st.GetCommittedSamples() != 1 {
				t.Fatalf("%d samples committed", st.GetCommittedSamples())
			}
		})
	}
}

func TestEvaluationOfNothingIsNoMetric(t *testing.T) {
	p := defaults(t, algorithm.DiLoCo)
	cfg := testConfig(t.TempDir(), p, "a", "b")
	cfg.Round.EvaluateEvery = 1
	r, a := seeded(t, cfg)
	b := r.join("b")
	run := func(evaluation func(a *agent) *coordinatorv1.Evaluation) *coordinatorv1.Evaluation {
		t.Helper()
		for _, x := range []*agent{a, b} {
			x.heartbeat(coordinatorv1.MemberState_MEMBER_STATE_READY, 0)
		}
		payload := ones(t, smallModel(t), p, 0.5)
		for _, x := range []*agent{a, b} {
			g := x.grant()
			if !g.GetEvaluate() {
				t.Fatal("no evaluation asked for")
			}
			h := x.header(g, fmt.Sprint("u", g.GetRound()), payload)
			if h.Evaluation = evaluation(x); h.Evaluation != nil {
				h.Evaluation.Version = g.GetBaseVersion()
			}
			x.mustAccept(h, payload)
		}
		a.committed()
		b.committed()
		return r.status().GetEvaluation()
	}
	nan := math.NaN()
	if ev := run(func(*agent) *coordinatorv1.Evaluation { return &coordinatorv1.Evaluation{Loss: &nan} }); ev != nil {
		t.Fatalf("of no samples: %v", ev)
	}
	ev := run(func(x *agent) *coordinatorv1.Evaluation {
		if x == a {
			return &coordinatorv1.Evaluation{Samples: 3, Loss: new(1.0), Metrics: map[string]float64{"acc": 0.5}}
		}
		return &coordinatorv1.Evaluation{Samples: 1, Loss: new(2.0)}
	})
	if ev.GetSamples() != 4 || ev.GetLoss() != 1.25 || ev.GetMetrics()["acc"] != 0.5 || ev.GetVersion() != 1 {
		t.Fatalf("mean by samples: %v", ev)
	}
	if ev := run(func(*agent) *coordinatorv1.Evaluation { return &coordinatorv1.Evaluation{Samples: 5, Loss: &nan} }); ev == nil || ev.Loss != nil {
		t.Fatalf("a loss that is no number: %v", ev)
	}
}

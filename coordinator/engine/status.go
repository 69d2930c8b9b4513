package engine

import (
	"cmp"
	"context"
	"time"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/coordinator/checkpoint"
	"girassol.dev/coordinator/round"
	"girassol.dev/coordinator/session"
)

// Changed is closed at the next change of status.
func (e *Engine) Changed() <-chan struct{} { return e.changed.next() }

// Status is everything that a person may know.
func (e *Engine) Status(ctx context.Context) (*coordinatorv1.FederationStatus, error) {
	var st *coordinatorv1.FederationStatus
	err := e.do(ctx, func() { st = e.status(time.Now()) })
	return st, err
}

func (e *Engine) status(now time.Time) *coordinatorv1.FederationStatus {
	ms := e.machine.Status()
	st := &coordinatorv1.FederationStatus{
		Federation: e.cfg.Federation, Phase: string(ms.Phase), Reason: string(ms.Reason), Message: ms.Message,
		NowUnixMs: now.UnixMilli(), Algorithm: e.inForce().ToProto(),
		RoundsTotal: e.cfg.Round.Total, RoundsCommitted: ms.Committed, RoundsVoid: ms.Voids,
		CommittedSamples: e.samples, Agreement: e.agreement, Evaluation: evaluationProto(e.evaluated),
		Round: &coordinatorv1.RoundStatus{
			Number: ms.Round, State: roundState(ms.State), StartedUnixMs: milli(ms.Started), StopAtUnixMs: milli(ms.StopAt),
			DeadlineUnixMs: milli(ms.Deadline), Granted: ms.Granted, Reported: ms.Reported, WaitingFor: ms.WaitingFor, LastVoid: e.lastVoid,
		},
		SignalsUnixMs: now.UnixMilli(), Data: e.dataStatus(),
	}
	note := e.evaluationNote(ms.Evaluation)
	for _, also := range []string{note, e.rollbacks.failed} {
		if also != "" {
			st.Message += "; " + also
		}
	}
	st.Gate, st.LastRollback = e.gateStatus(note), e.rollbackStatus()
	if e.cfg.Suspended && ms.Phase == v1alpha1.FederationPaused {
		st.Message = suspended
	}
	if e.hooks.SignalsNow != nil {
		st.SignalsUnixMs = e.hooks.SignalsNow().UnixMilli()
	}
	if m := e.model; m != nil {
		st.Version, st.Digest, st.Parameters = new(m.version), m.digestCopy(), uint64(m.state.Layout.Parameters())
	}
	if e.hooks.Events != nil {
		st.Events = e.hooks.Events()
	}
	var ledger map[string]checkpoint.LedgerEntry
	if e.hooks.Ledger != nil {
		ledger = e.hooks.Ledger()
	}
	sessions := e.sessions.BySite()
	for _, s := range e.machine.Sites() {
		site := e.siteStatus(s, sessions[s.Name])
		if l, ok := ledger[s.Name]; ok {
			site.Ledger = ledgerProto(l)
		}
		for _, m := range site.Members {
			st.BytesUp += m.BytesUp
			st.BytesDown += m.BytesDown
		}
		st.Sites = append(st.Sites, site)
	}
	return st
}

func (e *Engine) siteStatus(s round.SiteStatus, sessions []*session.Session) *coordinatorv1.SiteStatus {
	stats := e.stats[s.Name]
	out := &coordinatorv1.SiteStatus{
		Name: s.Name, Phase: string(s.Phase), Reason: string(s.Reason), Message: s.Message,
		Membership: membershipProto(s.Membership), SinceUnixMs: milli(s.Since), Signal: e.wishes.signals[s.Name],
		FirstStepSeconds:  e.firstStep(s.Name),
		Quarantine:        e.quarantineStatus(s.Name),
		RoundsContributed: stats.Rounds, Samples: stats.Samples, TrainingSeconds: stats.TrainingSeconds,
	}
	for _, ses := range sessions {
		hb := ses.Last
		m := &coordinatorv1.MemberStatus{
			Node: ses.Node, Epoch: ses.Epoch, Connected: true, State: hb.GetState(), Detail: hb.GetDetail(),
			Round: hb.GetRound(), Steps: hb.GetSteps(), MaxSteps: e.machine.MaxSteps(ses.Member), Samples: hb.GetSamples(),
			ModelVersion: hb.GetModelVersion(), LastSeenUnixMs: ses.Seen.UnixMilli(),
			Hardware: ses.Hello.GetHardware(), AgentVersion: ses.Hello.GetAgentVersion(), Link: linkStatus(ses),
		}
		if hb != nil {
			m.Trainer, m.WarmStart = hb.Trainer, hb.WarmStart
			m.Loss, m.StepSeconds = hb.Loss, hb.StepSeconds
			m.Energy = hb.Energy
		}
		if e.hooks.Bytes != nil {
			m.BytesUp, m.BytesDown = e.hooks.Bytes(ses.Member)
		}
		out.Members = append(out.Members, m)
	}
	return out
}

// Activity is what a site's power depends on.
type Activity struct {
	Site string
	// Admitted: its capacity is kept for the federation.
	Admitted bool
	// Members with a session, and those of them that train now.
	Members, Training int
	// Samples of committed updates and the training time behind them.
	Samples         uint64
	TrainingSeconds float64
	// Energies of all members with a session.
	Energies []MemberEnergy
}

// Activities are those of all sites, in the round at work or the last one.
type Activities struct {
	Round uint64
	Sites []Activity
}

// Activities tells every site's activity.
func (e *Engine) Activities(ctx context.Context) (Activities, error) {
	var out Activities
	err := e.do(ctx, func() {
		out.Round = e.machine.Status().Round
		sessions := e.sessions.BySite()
		for _, s := range e.machine.Sites() {
			a := Activity{Site: s.Name, Admitted: s.Membership == round.Admit, Members: len(sessions[s.Name]),
				Samples: e.stats[s.Name].Samples, TrainingSeconds: e.stats[s.Name].TrainingSeconds}
			for _, ses := range sessions[s.Name] {
				training := e.machine.Working(ses.Member)
				if training {
					a.Training++
				}
				a.Energies = append(a.Energies, MemberEnergy{Member: ses.Member, Training: training, Counter: ses.Last.GetEnergy(), Silent: ses.Last == nil})
			}
			out.Sites = append(out.Sites, a)
		}
	})
	return out, err
}

func roundState(s round.State) string {
	switch s {
	case round.Collecting, round.Committing:
		return string(s)
	}
	return "Idle"
}

func membershipProto(m round.Membership) coordinatorv1.Membership {
	switch m {
	case round.Admit:
		return coordinatorv1.Membership_MEMBERSHIP_ADMIT
	case round.Exclude:
		return coordinatorv1.Membership_MEMBERSHIP_EXCLUDE
	}
	return coordinatorv1.Membership_MEMBERSHIP_DRAIN
}

func milli(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMilli()
}

func evaluationProto(ev *checkpoint.Evaluation) *coordinatorv1.Evaluation {
	if ev == nil {
		return nil
	}
	return &coordinatorv1.Evaluation{Version: ev.Version, Samples: ev.Samples, Loss: ev.Loss, Metrics: ev.Metrics}
}

// ledgerProto turns joules and grams into kWh and kilograms.
func ledgerProto(l checkpoint.LedgerEntry) *coordinatorv1.LedgerStatus {
	out := &coordinatorv1.LedgerStatus{EnergyKwh: l.EnergyJoules / 3.6e6, EnergySource: cmp.Or(l.Source, "model"), UncertaintyKwh: l.UncertaintyJoules / 3.6e6}
	if l.MarginalGrams != nil {
		kg := *l.MarginalGrams / 1000
		out.MarginalKgco2E = &kg
	}
	if l.AverageGrams != nil {
		kg := *l.AverageGrams / 1000
		out.AverageKgco2E = &kg
	}
	if l.EnergyJoules > 0 {
		out.Coverage = l.CoveredJoules / l.EnergyJoules
		out.Metered = min(l.MeteredJoules/l.EnergyJoules, 1)
	}
	return out
}

package agent

import (
	"time"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	"girassol.dev/internal/codec"
)

// memberStatus is what heartbeats say. Guarded by Agent.mu.
type memberStatus struct {
	state  coordinatorv1.MemberState
	detail string
	round  uint64
	// steps, samples and loss of the round.
	steps, samples uint64
	loss           *float64
	// stepSeconds as last measured, over rounds.
	stepSeconds *float64
	// report: the next heartbeat says Ready for the round even without a trainer,
	// so that the coordinator stops waiting for the round's update.
	report bool

	// trainer is how it works, in its own words.
	trainer map[string]string
	// warmStart of the newest start that came to a step.
	warmStart *coordinatorv1.WarmStart

	held     bool
	version  uint64
	digest   [32]byte
	training float64
}

// reportNothing says that the member is done with a round and no (more) update
// is to be expected.
func (s *memberStatus) reportNothing(round, steps, samples uint64, detail string) {
	s.state, s.detail = coordinatorv1.MemberState_MEMBER_STATE_READY, detail
	s.round, s.steps, s.samples, s.report = round, steps, samples, true
}

func (a *Agent) hello() *coordinatorv1.Hello {
	f := a.cfg.Hardware
	h := &coordinatorv1.Hello{
		Federation: a.cfg.Federation, Site: a.cfg.Site, Node: a.cfg.Node, AgentVersion: a.cfg.Version,
		Hardware: &coordinatorv1.Hardware{
			Vendor: f.Vendor, Devices: f.Devices, Cpus: uint32(f.CPUs), MemoryBytes: f.MemoryBytes,
			Driver: f.Driver, Runtime: f.Runtime, Problems: f.Problems,
		},
		Encodings: codec.Encodings(),
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.status.held {
		version, digest := a.status.version, a.status.digest // copies: it is sent later
		h.ModelVersion, h.ModelDigest = &version, digest[:]
	}
	return h
}

func (a *Agent) heartbeat(seq uint64) *coordinatorv1.Heartbeat {
	received, sent := a.cfg.Traffic()
	energy, link := a.energy(), a.link(time.Now())
	a.mu.Lock()
	defer a.mu.Unlock()
	s := &a.status
	h := &coordinatorv1.Heartbeat{
		Sequence: seq, State: s.state, Detail: s.detail, Round: s.round,
		Steps: s.steps, Samples: s.samples, Loss: s.loss, StepSeconds: s.stepSeconds,
		ModelVersion: s.version, TrainingSeconds: s.training, BytesSent: sent, BytesReceived: received, Energy: energy,
	}
	h.Trainer, h.WarmStart, h.Link = s.trainer, s.warmStart, link
	// Without a model the trainer is needed for the first weights.
	idle := s.state == coordinatorv1.MemberState_MEMBER_STATE_READY || s.state == coordinatorv1.MemberState_MEMBER_STATE_IDLE
	if why := a.trainerTroubleLocked(); idle && why != "" {
		if s.report {
			poke(a.nudge) // the report goes first
		} else {
			h.State, h.Detail = coordinatorv1.MemberState_MEMBER_STATE_WAITING_FOR_TRAINER, why
		}
	}
	s.report = false
	a.metrics.state.Set(float64(h.State))
	return h
}

// set changes the status; another state or round is told at once.
func (a *Agent) set(change func(*memberStatus)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	state, round := a.status.state, a.status.round
	change(&a.status)
	if a.status.state != state || a.status.round != round || a.status.report {
		poke(a.nudge)
	}
}

// setState is for states outside a round's reports.
func (a *Agent) setState(state coordinatorv1.MemberState, detail string) {
	a.set(func(s *memberStatus) { s.state, s.detail = state, detail })
}

// observeReplica copies what the replica holds into the status.
func (a *Agent) observeReplica() {
	version, digest, ok := a.cfg.Replica.Held()
	norm := a.cfg.Replica.ResidualNorm()
	a.mu.Lock()
	defer a.mu.Unlock()
	a.status.held, a.status.version, a.status.digest = ok, version, digest
	if a.layout = nil; ok {
		a.layout = a.cfg.Replica.State().Layout
	}
	a.metrics.residualNorm.Set(norm)
	if !ok {
		a.status.version = 0
		a.metrics.version.Set(-1)
		return
	}
	a.metrics.version.Set(float64(version))
}

func (a *Agent) observeOffset() {
	if offset, ok := a.clock.estimate(); ok {
		a.metrics.clockOffset.Set(offset.Seconds())
	}
}

// reportSkew says once per run that the clocks differ notably; grants are
// corrected for it.
func (a *Agent) reportSkew() {
	a.observeOffset()
	offset, ok := a.clock.estimate()
	a.mu.Lock()
	defer a.mu.Unlock()
	if !ok || offset.Abs() <= notableSkew || a.skewReported {
		return
	}
	a.skewReported = true
	a.log.Warn("clock skew: stop times are corrected by it", "coordinator_ahead", offset.Round(time.Millisecond))
}

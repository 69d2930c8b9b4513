package protocol

import (
	"bytes"
	"time"

	"girassol.dev/coordinator/round"
	"girassol.dev/internal/algorithm"
	"girassol.dev/internal/codec"
)

// roundOn goes on with the round at work, up to its training.
func (m *member) roundOn() {
	r := m.run
	switch {
	case r.uploading:
		m.endRound(r.steps) // the answer has come, or has not
		return
	case r.training:
		return
	case r.abort:
		m.endRound(0)
		return
	}
	if u := m.kept.pending; u != nil && u.round == r.g.GetRound() && u.base == r.g.GetBaseVersion() {
		r.steps = u.steps
		m.upload()
		return
	}
	base := target{r.g.GetBaseVersion(), [32]byte(r.g.GetBaseDigest())}
	if !m.holds(base) {
		if !m.w.now.Before(r.g.stop) || !r.finishAt.IsZero() && !m.w.now.Before(r.finishAt) {
			m.endRound(0)
			return
		}
		if m.sync(base); !m.holds(base) {
			return
		}
	}
	m.drop("another round begins")
	rho := algorithm.Rho(r.g.Agreement, r.g.GetAlone(), m.kept.lastNorm, m.kept.residual.Norm())
	r.start = make([]float32, m.w.layout.Parameters())
	m.kept.residual.Start(r.start, m.kept.state.Theta, rho)
	r.end = append([]float32(nil), r.start...)
	r.training = true
	m.state = round.MemberWorking
}

// train does a local step, or ends the task when it is time.
func (m *member) train() {
	r := m.run
	if !m.up || r == nil || !r.training {
		return
	}
	now := m.w.now
	past := !now.Before(r.g.stop)
	if m.w.fault == TrainsPastStop && !r.abort && r.finishAt.IsZero() {
		past = now.After(r.g.stop.Add(2 * time.Second))
	}
	switch {
	case r.abort:
		m.endRound(0)
	case past, !r.finishAt.IsZero() && !now.Before(r.finishAt), r.g.GetMaxSteps() > 0 && r.steps >= r.g.GetMaxSteps():
		m.stage()
	default:
		m.w.check.step(m.w, m, r.g)
		r.steps++
		for i := range r.end {
			r.end[i] -= 0.05 * noise(uint64(m.w.ids), uint64(m.index), uint64(i))
		}
		m.w.ids++
		m.steps = r.steps
	}
}

// noise is in -1 to 1, the same for the same numbers.
func noise(a, b, c uint64) float32 {
	x := a*0x9e3779b97f4a7c15 + b*0xbf58476d1ce4e5b9 + c*0x94d049bb133111eb
	x ^= x >> 30
	x *= 0xbf58476d1ce4e5b9
	x ^= x >> 27
	return float32(int64(x)>>40) / (1 << 23)
}

// stage makes an update of what was trained; from then on it is on disk.
func (m *member) stage() {
	r := m.run
	r.training = false
	if r.steps == 0 {
		m.endRound(0)
		return
	}
	m.w.check.work(m, r.start, r.end)
	from := r.start
	if m.w.fault == CountsFromTheta {
		from = m.kept.state.Theta
	}
	norm, err := m.kept.residual.Absorb(from, r.end)
	if err != nil {
		m.w.check.fail("%s: %v", m, err)
		return
	}
	m.kept.lastNorm = norm
	var out bytes.Buffer
	aux := codec.Aux{Buffers: []float32{float32(r.steps), 1}, Integers: []byte{byte(r.steps), 0, 0, 0, 0, 0, 0, 0}}
	if _, err := m.kept.residual.Encode(&out, m.w.params.Uplink, aux); err != nil {
		m.w.check.fail("%s: %v", m, err)
		return
	}
	steps := r.steps
	if m.w.fault == ClaimsFullWeight && r.g.GetMaxSteps() > steps {
		steps = r.g.GetMaxSteps()
	}
	u := &update{id: m.w.newID(m), round: r.g.GetRound(), base: r.g.GetBaseVersion(), steps: steps, weight: float64(steps * uint64(1+m.index)),
		payload: out.Bytes(), agreement: m.kept.measured}
	m.kept.pending = u
	m.w.logf("%s has trained %d steps of round %d on version %d: %s", m, r.steps, u.round, u.base, u.id)
	m.w.check.staged(m.w, m, u, r.steps)
	m.upload()
}

func (m *member) endRound(steps uint64) {
	m.nothing(m.run.g.GetRound(), steps)
	m.run = nil
}

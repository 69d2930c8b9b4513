package merge

import (
	"bytes"
	"fmt"
	"io"
	"math"
	"slices"
	"testing"

	"girassol.dev/internal/algorithm"
	"girassol.dev/internal/codec"
	"girassol.dev/internal/replica"
	"girassol.dev/internal/tensor"
	"pgregory.net/rapid"
)

// lives is a federation of which members come and go: the coordinator with its
// log, and what members hold on their disks.
type lives struct {
	t         *rapid.T
	plan      algorithm.Plan
	d         *codec.Domain
	state     *tensor.State
	residual  []float32
	agreement *float64
	log       []logged
	// snapshot is where a restarted coordinator begins.
	snapshot         *tensor.State
	snapshotResidual []float32
	snapshotAt       int
	members          []*member
	draws            uint64
}

// logged is a commit as the log keeps it.
type logged struct {
	params  algorithm.Parameters
	delta   []byte
	digest  [32]byte
	updates []sent
}

type sent struct {
	member   string
	weight   float64
	payload  []byte
	measured *float64
}

type member struct {
	name     string
	state    *tensor.State // nil before it joins for the first time
	version  int
	u        *replica.Residual
	lastNorm float64
	measured *float64
	present  bool
	// worked and gone are the sums of all local work and of all that was merged.
	worked, gone []float64
}

func (f *lives) close() {
	f.state.Close()
	f.snapshot.Close()
	for _, m := range f.members {
		if m.state != nil {
			m.state.Close()
			m.u.Close()
		}
	}
}

// follow pulls the whole state for a newcomer, and the deltas that a member missed.
func (f *lives) follow(m *member) {
	if m.state == nil {
		m.state, m.u, m.version = clone(f.state), replica.NewResidual(f.d), len(f.log)
		m.worked, m.gone = make([]float64, f.d.Len()), make([]float64, f.d.Len())
		return
	}
	for m.version < len(f.log) {
		c := f.log[m.version]
		delta := parse(f.t, f.d, c.params.Downlink, c.delta)
		m.measured = nil
		var own *codec.Payload
		for _, s := range c.updates {
			if s.member == m.name {
				own = parse(f.t, f.d, c.params.Uplink, s.payload)
			}
		}
		if a, ok := codec.Agreement(f.d, delta, own, m.u.Vector()); ok {
			m.measured = &a
		}
		if err := replica.Step(m.state, f.d, c.params, delta); err != nil {
			f.t.Fatal(err)
		}
		m.version++
		if own != nil {
			if err := m.u.Settle(own); err != nil {
				f.t.Fatal(err)
			}
			x := make([]float32, f.d.Len())
			if err := own.Decode(x); err != nil {
				f.t.Fatal(err)
			}
			for i, v := range x {
				m.gone[i] += float64(v)
			}
		}
	}
}

// work trains and encodes; the update stays in the residual until it is merged.
func (f *lives) work(m *member, alone bool, p algorithm.Parameters) sent {
	start := make([]float32, len(m.state.Theta))
	m.u.Start(start, m.state.Theta, algorithm.Rho(f.agreement, alone, m.lastNorm, m.u.Norm()))
	trained := slices.Clone(start)
	f.draws++
	for i, v := range random(f.draws, len(trained)) {
		trained[i] -= 0.1 * v
	}
	diff, g := make([]float32, len(start)), make([]float32, f.d.Len())
	for i := range diff {
		diff[i] = start[i] - trained[i]
	}
	f.d.Forward(g, diff)
	for i, v := range g {
		m.worked[i] += float64(v)
	}
	var err error
	if m.lastNorm, err = m.u.Absorb(start, trained); err != nil {
		f.t.Fatal(err)
	}
	var b bytes.Buffer
	if _, err := m.u.Encode(&b, p.Uplink, randomAux(f.state.Layout, f.draws)); err != nil {
		f.t.Fatal(err)
	}
	return sent{m.name, float64(1 + f.draws%7), b.Bytes(), m.measured}
}

func (f *lives) updates(p algorithm.Parameters, all []sent) []Update {
	var out []Update
	for _, s := range all {
		out = append(out, Update{Member: s.member, Weight: s.weight, Payload: parse(f.t, f.d, p.Uplink, s.payload), Agreement: s.measured})
	}
	return out
}

// round has every present member work; some are refused, the rest is committed.
func (f *lives) round() {
	var there []*member
	for _, m := range f.members {
		if m.present {
			f.follow(m)
			there = append(there, m)
		}
	}
	p := f.plan.ForVersion(uint64(len(f.log) + 1))
	var taken []sent
	for _, m := range there {
		s := f.work(m, len(there) == 1, p)
		if rapid.IntRange(0, 4).Draw(f.t, "fate") > 0 {
			taken = append(taken, s)
		}
	}
	if len(taken) == 0 {
		return // void: all of it is still in the residuals
	}
	p = p.ForCommit(len(taken), f.agreement)
	var delta bytes.Buffer
	cfg := Config{Params: p, Uplink: f.d, Downlink: f.d}
	res, err := Merge(f.state, f.residual, cfg, f.updates(p, rapid.Permutation(taken).Draw(f.t, "arrival")), &delta)
	if err != nil {
		f.t.Fatal(err)
	}
	if len(there) > 1 {
		f.agreement = algorithm.NextAgreement(f.agreement, res.Measured)
	}
	f.log = append(f.log, logged{p, delta.Bytes(), res.Digest, taken})
	for _, m := range there {
		// Some hear of the commit when they are back.
		if rapid.IntRange(0, 3).Draw(f.t, "hears") > 0 {
			f.follow(m)
		} else {
			m.present = false
		}
	}
}

// restart throws the coordinator's memory away and merges the log again.
func (f *lives) restart() {
	before := slices.Clone(f.residual)
	f.state.CopyFrom(f.snapshot)
	copy(f.residual, f.snapshotResidual)
	for _, c := range f.log[f.snapshotAt:] {
		cfg := Config{Params: c.params, Uplink: f.d, Downlink: f.d}
		if _, err := Merge(f.state, f.residual, cfg, f.updates(c.params, c.updates), io.Discard); err != nil {
			f.t.Fatal(err)
		}
	}
	if !sameBits(f.residual, before) {
		f.t.Fatal("the downlink's residual is another one after a restart")
	}
}

func (f *lives) check() {
	if n := len(f.log); n > 0 && f.state.Digest() != f.log[n-1].digest {
		f.t.Fatal("the coordinator is not at its newest commit")
	}
	for _, m := range f.members {
		if m.state == nil || m.version == 0 {
			continue
		}
		if m.state.Digest() != f.log[m.version-1].digest {
			f.t.Fatalf("%s differs from the coordinator at version %d", m.name, m.version)
		}
		// What was worked was merged or is still there; rounding grows with the rounds.
		for i, u := range m.u.Vector() {
			left := m.worked[i] - m.gone[i]
			if math.Abs(left-float64(u)) > 1e-5*(1+math.Abs(m.worked[i])+math.Abs(m.gone[i])) {
				f.t.Fatalf("%s: %g worked, %g merged, %g in the residual", m.name, m.worked[i], m.gone[i], u)
			}
		}
	}
}

// Members join, leave, are refused, miss commits and restart, the coordinator
// restarts; the density changes by schedule and the outer step by commit. Every
// replica has the coordinator's digest after each commit, and no work is lost or
// counted twice.
func TestReplicasAreEqualAndNoWorkIsLostWhateverMembersDo(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		plan, err := algorithm.Defaults(algorithm.DecoupledMomentum)
		if err != nil {
			t.Fatal(err)
		}
		plan.Adaptive = true
		value := rapid.SampledFrom([]algorithm.Values{algorithm.TwoBit, algorithm.OneBit, algorithm.FourBit, algorithm.EightBit, bf16, fp32})
		plan.Uplink.Values, plan.Downlink.Values = value.Draw(t, "up"), value.Draw(t, "down")
		plan.Uplink.GroupSize = rapid.SampledFrom([]int{0, 256, 1024}).Draw(t, "group")
		l := newLayout(t, spec("a", 7), spec("w", 40, 64), spec("v", 33, 65))
		f := &lives{t: t, plan: algorithm.Plan{Parameters: plan, Schedule: []algorithm.Density{{FromVersion: 3, UplinkKeepOneIn: 4, DownlinkKeepOneIn: 2}}}}
		f.d = codec.NewDomain(l, plan.Uplink.Transform)
		f.state, f.residual = randomState(l, 1), make([]float32, f.d.Len())
		f.snapshot, f.snapshotResidual = clone(f.state), make([]float32, f.d.Len())
		defer f.close()
		for i := range rapid.IntRange(1, 4).Draw(t, "members") {
			f.members = append(f.members, &member{name: fmt.Sprintf("site-%d/node", i)})
		}
		for range rapid.IntRange(1, 20).Draw(t, "steps") {
			m := rapid.SampledFrom(f.members).Draw(t, "who")
			switch rapid.SampledFrom([]string{"join", "join", "leave", "round", "round", "round", "member restarts", "disk lost", "coordinator restarts", "snapshot"}).Draw(t, "what") {
			case "join":
				m.present = true
			case "leave":
				m.present = false
			case "member restarts":
				if m.state != nil {
					restored := replica.NewResidual(f.d)
					copy(restored.Vector(), m.u.Vector())
					m.u.Close()
					m.u, m.lastNorm, m.measured = restored, 0, nil
				}
			case "disk lost":
				if m.state != nil {
					m.state.Close()
					m.u.Close()
					m.state, m.version, m.lastNorm, m.measured = nil, 0, 0, nil
				}
			case "coordinator restarts":
				f.restart()
			case "snapshot":
				f.snapshot.CopyFrom(f.state)
				copy(f.snapshotResidual, f.residual)
				f.snapshotAt = len(f.log)
			case "round":
				f.round()
			}
			f.check()
		}
	})
}

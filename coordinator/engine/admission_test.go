package engine

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/coordinator/admission"
	"girassol.dev/coordinator/round"
	"girassol.dev/internal/algorithm"
	"girassol.dev/internal/codec"
)

// pushing is one round in which some agents send what payload makes; it returns
// the answers by site. A refused member reports that it has nothing more.
func (r *rig) pushing(agents []*agent, payload func(a *agent, g *coordinatorv1.Grant) []byte) map[string]*coordinatorv1.PushResult {
	r.t.Helper()
	for _, a := range agents {
		a.heartbeat(coordinatorv1.MemberState_MEMBER_STATE_READY, 0)
	}
	out := map[string]*coordinatorv1.PushResult{}
	grants := map[*agent]*coordinatorv1.Grant{}
	for _, a := range agents {
		grants[a] = a.grant()
	}
	for _, a := range agents {
		p := payload(a, grants[a])
		out[a.site] = a.push(a.header(grants[a], fmt.Sprint("u", grants[a].GetRound()), p), p)
	}
	return out
}

// toModel is the same seed for every rig of a test.
func (r *rig) toModel(a *agent) {
	r.t.Helper()
	if res := a.seed(smallModel(r.t)); res.GetStatus() != coordinatorv1.PushResult_STATUS_ACCEPTED {
		r.t.Fatal(res)
	}
}

func admitted3(t *testing.T, p algorithm.Parameters, c admission.Config) (*rig, []*agent) {
	t.Helper()
	cfg := testConfig(t.TempDir(), p, "a", "b", "c")
	cfg.Admission = c
	r := newRig(t, cfg)
	agents := r.joinAll("a", "b", "c")
	r.toModel(agents[0])
	return r, agents
}

// vector is an update of a site in a round: a common way, and noise of its own.
func vector(t *testing.T, p algorithm.Parameters, site string, n uint64, size float32) []byte {
	t.Helper()
	model := smallModel(t)
	d := codec.NewDomain(model.Layout, p.Uplink.Transform)
	way := rand.New(rand.NewPCG(n, 1))
	own := rand.New(rand.NewPCG(n, uint64(site[0])))
	x := make([]float32, d.Len())
	for i := range x {
		x[i] = size * float32(way.NormFloat64()+0.5*own.NormFloat64())
	}
	return encode(t, d, p.Uplink, x, codec.Aux{Buffers: model.Buffers, Integers: model.Integers})
}

// The model after a round with garbage of one site is that of a run in which the
// site had no part in that round.
func TestAnUpdateOfGarbageLeavesNoTrace(t *testing.T) {
	t.Parallel()
	for _, name := range []string{algorithm.DiLoCo, algorithm.DecoupledMomentum} {
		for _, bound := range []struct {
			what   string
			config admission.Config
			reason v1alpha1.Reason
		}{
			{"norm", admission.Config{MaxNormFactor: 10}, v1alpha1.ReasonNormTooLarge},
			{"cosine", admission.Config{MinCosine: new(0.1)}, v1alpha1.ReasonDirectionTooFar},
		} {
			t.Run(name+" "+bound.what, func(t *testing.T) {
				p := defaults(t, name)
				run := func(withBad bool) (string, *rig) {
					r, agents := admitted3(t, p, bound.config)
					for range 3 {
						r.pushing(agents, func(a *agent, g *coordinatorv1.Grant) []byte { return vector(t, p, a.site, g.GetRound(), 0.01) })
						for _, a := range agents {
							a.committed()
						}
					}
					who := agents
					if !withBad {
						who = agents[:2]
						r.engine.SetMembership(r.ctx(), Wish{Site: "c", Membership: round.Exclude})
					}
					res := r.pushing(who, func(a *agent, g *coordinatorv1.Grant) []byte {
						if a.site == "c" {
							return vector(t, p, "c", 999, 100) // of no round, and 1e4 times too large
						}
						return vector(t, p, a.site, g.GetRound(), 0.01)
					})
					last := agents[0].committed()
					if last.GetVoid() || last.GetVersion() != 4 {
						t.Fatalf("the round ended with %v", last)
					}
					if withBad {
						switch got := res["c"]; bound.what {
						case "norm":
							if got.GetStatus() != coordinatorv1.PushResult_STATUS_REFUSED || got.GetReason() != string(bound.reason) || !strings.Contains(got.GetMessage(), "median") {
								t.Fatalf("answered %v", got)
							}
						case "cosine": // it is known when all have come
							if c := agents[2].committed(); got.GetStatus() != coordinatorv1.PushResult_STATUS_ACCEPTED || !strings.Contains(c.GetMessage(), "left out") || !strings.Contains(c.GetMessage(), "cosine") {
								t.Fatalf("answered %v, told %v", got, c)
							}
						}
						if agents[0].r.status().GetSites()[2].GetRoundsContributed() != 3 {
							t.Error("the garbage counts as a contribution")
						}
					}
					return fmt.Sprintf("%x", last.GetDigest()), r
				}
				with, _ := run(true)
				without, _ := run(false)
				if with != without {
					t.Errorf("digest %s, without the garbage %s", with, without)
				}
			})
		}
	}
}

func TestQuarantineRefusesBeforeTheBytesAndEndsByItself(t *testing.T) {
	t.Parallel()
	p := defaults(t, algorithm.DiLoCo)
	r, agents := admitted3(t, p, admission.Config{MaxNormFactor: 10, QuarantineRounds: 2})
	fair := func(a *agent, g *coordinatorv1.Grant) []byte { return vector(t, p, a.site, g.GetRound(), 0.01) }
	var c *coordinatorv1.Committed
	all := func() {
		for _, a := range agents {
			c = a.committed()
		}
	}
	for range 3 {
		r.pushing(agents, fair)
		all()
	}
	r.pushing(agents, func(a *agent, g *coordinatorv1.Grant) []byte {
		if a.site == "c" {
			return vector(t, p, "c", 999, 100)
		}
		return fair(a, g)
	})
	all()
	until := c.GetRound() + 3
	q := r.status().GetSites()[2].GetQuarantine()
	if q.GetReason() != string(v1alpha1.ReasonNormTooLarge) || q.GetUntilRound() != until || q.GetMessage() == "" {
		t.Fatalf("status says %v", q)
	}
	for range 2 {
		res := r.pushing(agents, func(a *agent, g *coordinatorv1.Grant) []byte {
			if a.site == "c" { // not a byte is taken
				h := a.header(g, "q", fair(a, g))
				if u, res, err := r.engine.BeginPush(r.ctx(), h); u != nil || res.GetReason() != string(v1alpha1.ReasonQuarantined) || err != nil {
					t.Fatalf("%v, %v, %v", u, res, err)
				}
			}
			return fair(a, g)
		})
		if got := res["c"]; got.GetStatus() == coordinatorv1.PushResult_STATUS_ACCEPTED {
			t.Fatalf("answered %v", got)
		}
		all()
	}
	res := r.pushing(agents, fair)
	if res["c"].GetStatus() != coordinatorv1.PushResult_STATUS_ACCEPTED {
		t.Fatalf("round %d: %v", until, res["c"])
	}
	all()
	if c.GetRound() != until || r.status().GetSites()[2].GetQuarantine() != nil {
		t.Errorf("round %d, %v", c.GetRound(), r.status().GetSites()[2].GetQuarantine())
	}
	types := r.events.types()
	if !slices.Contains(types, "Quarantined") || !slices.Contains(types, "Released") {
		t.Errorf("announced %v", types)
	}
}

func TestQuarantineAndNormsSurviveARestartAndAPersonEndsThem(t *testing.T) {
	t.Parallel()
	p := defaults(t, algorithm.DecoupledMomentum)
	cfg := testConfig(t.TempDir(), p, "a", "b", "c")
	cfg.Admission = admission.Config{MaxNormFactor: 10, QuarantineRounds: 1000}
	r := newRig(t, cfg)
	agents := r.joinAll("a", "b", "c")
	r.toModel(agents[0])
	bad := func(a *agent, g *coordinatorv1.Grant) []byte {
		if a.site == "c" {
			return vector(t, p, "c", 999, 100)
		}
		return vector(t, p, a.site, g.GetRound(), 0.01)
	}
	for range 3 {
		r.pushing(agents, func(a *agent, g *coordinatorv1.Grant) []byte { return vector(t, p, a.site, g.GetRound(), 0.01) })
		for _, a := range agents {
			a.committed()
		}
	}
	r.pushing(agents, bad)
	agents[0].committed()
	killed := r.killed()
	cfg.DataDir = killed
	r = newRig(t, cfg)
	agents = r.joinAll("a", "b", "c")
	if q := r.status().GetSites()[2].GetQuarantine(); q.GetReason() != string(v1alpha1.ReasonNormTooLarge) {
		t.Fatalf("after a restart: %v", q)
	}
	if res := r.pushing(agents, bad); res["c"].GetReason() != string(v1alpha1.ReasonQuarantined) {
		t.Fatalf("after a restart: %v", res["c"])
	}
	agents[0].committed()
	// An energy decision does not end it, a person does.
	if _, err := r.engine.SetMembership(r.ctx(), Wish{Site: "c", Membership: round.Admit, Energy: true, Reason: v1alpha1.ReasonEnergyFavourable}); err != nil {
		t.Fatal(err)
	}
	if r.status().GetSites()[2].GetQuarantine() == nil {
		t.Fatal("the energy decision has ended the quarantine")
	}
	if _, err := r.engine.SetMembership(r.ctx(), Wish{Site: "c", Membership: round.Admit, Reason: v1alpha1.ReasonAdmittedByPolicy}); err != nil {
		t.Fatal(err)
	}
	if q := r.status().GetSites()[2].GetQuarantine(); q != nil {
		t.Fatalf("after a person's admit: %v", q)
	}
	// The norms are known, too: the same garbage is garbage again at once.
	if res := r.pushing(agents, bad); res["c"].GetReason() != string(v1alpha1.ReasonNormTooLarge) {
		t.Fatalf("once more: %v", res["c"])
	}
}

func TestAdmissionFileThatCannotBeReadSaysWhatToDo(t *testing.T) {
	t.Parallel()
	cfg := testConfig(t.TempDir(), defaults(t, algorithm.DiLoCo), "a")
	if err := os.WriteFile(filepath.Join(cfg.DataDir, admissionFile), []byte(`{"norms":[{"norm":-1}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	e := &Engine{cfg: cfg}
	if err := e.openAdmission(); err == nil || !strings.Contains(err.Error(), "remove the file") {
		t.Error(err)
	}
}

// Where too few are left when the outliers are out, the round is void and says why.
func TestTooFewThatGoTheSameWayMakeNoCommit(t *testing.T) {
	t.Parallel()
	p := defaults(t, algorithm.DiLoCo)
	cfg := testConfig(t.TempDir(), p, "a", "b", "c")
	cfg.Admission, cfg.Round.MinSites = admission.Config{MinCosine: new(0.1)}, 3
	r := newRig(t, cfg)
	agents := r.joinAll("a", "b", "c")
	r.toModel(agents[0])
	before := r.status()
	r.pushing(agents, func(a *agent, g *coordinatorv1.Grant) []byte {
		if a.site == "c" {
			return vector(t, p, "c", 999, 0.01)
		}
		return vector(t, p, a.site, g.GetRound(), 0.01)
	})
	c := agents[2].next(func(m *coordinatorv1.SessionResponse) bool { return m.GetCommitted().GetVoid() }).GetCommitted()
	if c.GetReason() != string(v1alpha1.ReasonDirectionTooFar) || !strings.Contains(c.GetMessage(), "minCosine") {
		t.Fatalf("told %v", c)
	}
	if after := r.status(); !bytes.Equal(before.GetDigest(), after.GetDigest()) || after.GetRoundsVoid() != 1 {
		t.Errorf("%d void rounds, digest %x", after.GetRoundsVoid(), after.GetDigest())
	}
}

func TestASiteInQuarantineSaysNothingOfTheModel(t *testing.T) {
	t.Parallel()
	g := newGated(t, algorithm.DiLoCo)
	// Whatever round it says that the result is of.
	for _, said := range []uint64{0, 5, 1 << 60} {
		h := &coordinatorv1.PushHeader{Round: said, Evaluation: &coordinatorv1.Evaluation{Samples: 1, Loss: new(1e9)}}
		var shut, open int
		if err := g.r.engine.do(g.r.ctx(), func() {
			g.r.engine.admitting.Put("a", 4, 10, admission.Breach{Reason: v1alpha1.ReasonNormTooLarge})
			s := g.r.engine.sessions.All()[0]
			g.r.engine.heed(s, h)
			shut = len(g.r.engine.results)
			g.r.engine.admitting.Release("a")
			g.r.engine.heed(s, h)
			open = len(g.r.engine.results)
			g.r.engine.results, g.r.engine.unjudged = nil, false
		}); err != nil || shut != 0 || open != 1 {
			t.Errorf("round %d: %d results, %d without a quarantine (%v)", said, shut, open, err)
		}
	}
}

// Of a site's updates of one round the good one counts, whichever comes first.
func TestWhatCountsDoesNotDependOnWhetherTheBreachCameFirst(t *testing.T) {
	t.Parallel()
	p := defaults(t, algorithm.DiLoCo)
	digests := map[string]bool{}
	for _, badFirst := range []bool{true, false} {
		r, agents := admitted3(t, p, admission.Config{MaxNormFactor: 10, QuarantineRounds: 5})
		fair := func(a *agent, g *coordinatorv1.Grant) []byte { return vector(t, p, a.site, g.GetRound(), 0.01) }
		for range 3 {
			r.pushing(agents, fair)
			for _, a := range agents {
				a.committed()
			}
		}
		s, err := r.engine.OpenSession(r.ctx(), &coordinatorv1.Hello{Federation: "fed", Site: "c", Node: "second"})
		if err != nil {
			t.Fatal(err)
		}
		good := &agent{r, s, "c"}
		agents = append(agents, good)
		for _, a := range agents {
			a.heartbeat(coordinatorv1.MemberState_MEMBER_STATE_READY, 0)
		}
		grants := map[*agent]*coordinatorv1.Grant{}
		for _, a := range agents {
			grants[a] = a.grant()
		}
		order := []*agent{agents[2], good, agents[0], agents[1]}
		if !badFirst {
			order[0], order[1] = order[1], order[0]
		}
		for _, a := range order {
			payload := fair(a, grants[a])
			if a == agents[2] {
				payload = vector(t, p, "c", 999, 100)
			}
			res := a.push(a.header(grants[a], "u4", payload), payload)
			if (res.GetStatus() == coordinatorv1.PushResult_STATUS_ACCEPTED) != (a != agents[2]) {
				t.Fatalf("bad first %v: %s is answered %v", badFirst, a.s.Member, res)
			}
		}
		digests[fmt.Sprintf("%x", agents[0].committed().GetDigest())] = true
		if q := r.status().GetSites()[2].GetQuarantine(); q == nil {
			t.Error("no quarantine")
		}
	}
	if len(digests) != 1 {
		t.Errorf("%d different models", len(digests))
	}
}

// Who was left out hears so at the end of that round, also when it is void and the
// site is no longer admitted, and not again at the end of another one.
func TestWhoWasLeftOutIsToldOnceAndByTheRoundItself(t *testing.T) {
	t.Parallel()
	p := defaults(t, algorithm.DiLoCo)
	cfg := testConfig(t.TempDir(), p, "a", "b", "c")
	cfg.Admission, cfg.Round.MinSites = admission.Config{MinCosine: new(0.1)}, 3
	r := newRig(t, cfg)
	agents := r.joinAll("a", "b", "c")
	r.toModel(agents[0])
	for _, a := range agents {
		a.committed()
	}
	for _, a := range agents {
		a.heartbeat(coordinatorv1.MemberState_MEMBER_STATE_READY, 0)
	}
	grants := []*coordinatorv1.Grant{agents[0].grant(), agents[1].grant(), agents[2].grant()}
	if _, err := r.engine.SetMembership(r.ctx(), Wish{Site: "c", Membership: round.Drain}); err != nil {
		t.Fatal(err)
	}
	for i, a := range []*agent{agents[2], agents[0], agents[1]} {
		g := grants[(i+2)%3]
		payload := vector(t, p, a.site, g.GetRound(), 0.01)
		if a.site == "c" {
			payload = vector(t, p, "c", 999, 0.01)
		}
		a.mustAccept(a.header(g, "u1", payload), payload)
	}
	if c := agents[2].committed(); !c.GetVoid() || !strings.Contains(c.GetMessage(), "left out") {
		t.Fatalf("told %v", c)
	}
	if _, err := r.engine.SetMembership(r.ctx(), Wish{Site: "c", Membership: round.Admit}); err != nil {
		t.Fatal(err)
	}
	// The next round is void without any merge: nobody was left out.
	for _, a := range agents {
		a.heartbeat(coordinatorv1.MemberState_MEMBER_STATE_READY, 1)
	}
	for _, a := range agents {
		n := a.grant().GetRound()
		a.heartbeat(coordinatorv1.MemberState_MEMBER_STATE_TRAINING, n)
		a.heartbeat(coordinatorv1.MemberState_MEMBER_STATE_READY, n)
	}
	if c := agents[2].committed(); !c.GetVoid() || strings.Contains(c.GetMessage(), "left out") {
		t.Fatalf("told %v", c)
	}
}

// What a successor on the same store has learnt is not overwritten by who was fenced.
func TestAFencedCoordinatorKeepsNoQuarantine(t *testing.T) {
	t.Parallel()
	cfg := testConfig(t.TempDir(), defaults(t, algorithm.DiLoCo), "a")
	r := newRig(t, cfg)
	path := filepath.Join(cfg.DataDir, admissionFile)
	if err := errors.Join(os.WriteFile(path, []byte("{}"), 0o600), os.WriteFile(filepath.Join(cfg.DataDir, "TERM"), []byte("1000\n"), 0o600)); err != nil {
		t.Fatal(err)
	}
	if err := r.engine.do(r.ctx(), func() {
		r.engine.admitting.Put("a", 1, 5, admission.Breach{Reason: v1alpha1.ReasonNormTooLarge})
		r.engine.keepAdmission()
	}); err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(path); err != nil || string(b) != "{}" {
		t.Errorf("%s (%v)", b, err)
	}
	if err := os.WriteFile(filepath.Join(cfg.DataDir, "TERM"), []byte("1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestBytesBeyondTheQuotaAreRefusedWithAReasonAndTheRoundGoesOn(t *testing.T) {
	t.Parallel()
	p := defaults(t, algorithm.DiLoCo)
	size := int64(len(vector(t, p, "a", 1, 1)))
	cfg := testConfig(t.TempDir(), p, "a", "b")
	cfg.Admission.Quotas.BytesPerRound = 2*size - 2
	r := newRig(t, cfg)
	a, b := r.join("a"), r.join("b")
	r.toModel(a)
	a.heartbeat(coordinatorv1.MemberState_MEMBER_STATE_READY, 0)
	b.heartbeat(coordinatorv1.MemberState_MEMBER_STATE_READY, 0)
	g := a.grant()
	payload := vector(t, p, "a", g.GetRound(), 0.01)
	// The same update under ever new ids, each broken off at its last byte.
	for i, want := range []v1alpha1.Reason{v1alpha1.ReasonTruncated, v1alpha1.ReasonBytesQuota} {
		h := a.header(g, fmt.Sprint("try", i), payload)
		u, res, err := r.engine.BeginPush(r.ctx(), h)
		if err != nil {
			t.Fatal(err)
		}
		if res == nil {
			if _, err := u.Write(payload[:len(payload)-1]); err != nil {
				t.Fatal(err)
			}
			if res, err = r.engine.FinishPush(r.ctx(), u); err != nil {
				t.Fatal(err)
			}
		}
		if res.GetReason() != string(want) || res.GetStatus() != coordinatorv1.PushResult_STATUS_REFUSED {
			t.Fatalf("try %d: %v, want %s", i, res, want)
		}
	}
	b.mustAccept(b.header(b.grant(), "good", payload), payload)
	if c := b.committed(); c.GetVoid() || c.GetVersion() != 1 {
		t.Fatalf("the round ended with %v", c)
	}
	// A new round, a new quota.
	a.heartbeat(coordinatorv1.MemberState_MEMBER_STATE_READY, 0)
	b.heartbeat(coordinatorv1.MemberState_MEMBER_STATE_READY, 0)
	a.mustAccept(a.header(a.grant(), "next", payload), payload)
}

// What arrives although the header had room, as with two attempts at once, stops at
// the quota.
func TestTheQuotaHoldsWhileBytesArrive(t *testing.T) {
	t.Parallel()
	p := defaults(t, algorithm.DiLoCo)
	payload := vector(t, p, "a", 1, 0.01)
	cfg := testConfig(t.TempDir(), p, "a")
	cfg.Admission.Quotas.BytesPerRound = int64(len(payload))
	r := newRig(t, cfg)
	a := r.join("a")
	r.toModel(a)
	a.heartbeat(coordinatorv1.MemberState_MEMBER_STATE_READY, 0)
	h := a.header(a.grant(), "u", payload)
	first, _, err := r.engine.BeginPush(r.ctx(), h)
	if err != nil || first == nil {
		t.Fatal(err)
	}
	h2 := a.header(&coordinatorv1.Grant{Round: h.GetRound(), BaseVersion: h.GetBaseVersion()}, "v", payload)
	second, res, err := r.engine.BeginPush(r.ctx(), h2)
	if err != nil || second == nil {
		t.Fatal(res, err)
	}
	_, _ = first.Write(payload[:10]) // overtaken, but received
	_, err = second.Write(payload)
	var over *RefusedError
	if !errors.As(err, &over) || over.Reason != v1alpha1.ReasonBytesQuota {
		t.Fatal(err)
	}
	if res, err := r.engine.RefusePush(r.ctx(), second, over); err != nil || res.GetReason() != string(v1alpha1.ReasonBytesQuota) {
		t.Fatal(res, err)
	}
}

func TestCallsBeyondTheQuotaWaitWithoutTheEngine(t *testing.T) {
	t.Parallel()
	cfg := testConfig(t.TempDir(), defaults(t, algorithm.DiLoCo), "a", "b")
	cfg.Admission.Quotas.CallsPerMinute = 5
	r := newRig(t, cfg)
	refused := 0
	for range 20 {
		var q *QuotaError
		if err := r.engine.Call("a"); errors.As(err, &q) {
			refused++
			if q.Reason != v1alpha1.ReasonCallsQuota || q.RetryIn <= 0 || q.RetryIn > 12*time.Second || !strings.Contains(q.Error(), "callsPerMinute") {
				t.Fatal(err)
			}
		}
	}
	if refused < 14 || r.engine.Call("b") != nil {
		t.Errorf("%d of 20 calls refused", refused)
	}
}

package server_test

import (
	"encoding/hex"
	"fmt"
	"testing"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/coordinator/engine"
	"girassol.dev/coordinator/round"
	"girassol.dev/internal/algorithm"
	"girassol.dev/internal/wire"
)

func crc(p []byte) uint32 { return wire.CRC32C(p) }

func TestOrderOfArrivalLeavesTheSameBytes(t *testing.T) {
	run := func(first, second string) string {
		c, a, b, ga := training(t)
		members := map[string]*member{"a": a, "b": b}
		grants := map[string]*coordinatorv1.Grant{"a": ga, "b": b.grant()}
		values := map[string]float32{"a": 0.3, "b": -0.7}
		for _, s := range []string{first, second} {
			p := update(t, values[s])
			h := members[s].header(grants[s], "u-"+s, p)
			h.Weight = map[string]float64{"a": 3, "b": 10}[s]
			members[s].mustPush(h, p)
		}
		return digest(c.until("committed", func(s *coordinatorv1.FederationStatus) bool { return s.GetVersion() == 1 }))
	}
	if ab, ba := run("a", "b"), run("b", "a"); ab != ba {
		t.Fatalf("digests differ: %s and %s", ab, ba)
	}
}

func TestRestartGoesOnWhereTheRunStopped(t *testing.T) {
	for _, strategy := range []string{algorithm.DiLoCo, algorithm.FedAvg} {
		t.Run(strategy, func(t *testing.T) {
			dir := t.TempDir()
			with := func(cfg *engine.Config) { cfg.Algorithm.Parameters = params(t, strategy) }
			rounds := func(c *coordinator, a *member, n int) {
				for range n {
					a.ready()
					g := a.grant()
					p := update(t, 0.1*float32(g.GetRound()))
					a.mustPush(a.header(g, fmt.Sprint("u", g.GetRound()), p), p)
					a.committed()
				}
			}
			c := start(t, dir, with)
			c.admit("a")
			a := c.join("a")
			a.seed()
			a.committed()
			rounds(c, a, 4)
			before := c.status()
			c.stop()

			c = start(t, dir, with)
			after := c.status()
			if digest(after) != digest(before) || after.GetVersion() != 4 || after.GetCommittedSamples() != 40 || after.GetRoundsCommitted() != 4 {
				t.Fatalf("recovered %v, want %v", after, before)
			}
			c.admit("a")
			again := c.join("a")
			if again.welcome.GetModelVersion() != 4 || again.welcome.GetEpoch() <= a.welcome.GetEpoch() {
				t.Fatalf("welcome %v", again.welcome)
			}
			rounds(c, again, 1)
			if st := c.status(); st.GetVersion() != 5 || st.GetRound().GetNumber() != 5 {
				t.Fatalf("after the restart: %v", st)
			}
		})
	}
}

func TestEveryWaitHasAName(t *testing.T) {
	c := start(t, t.TempDir(), func(cfg *engine.Config) { cfg.Round.MinSites = 2 })
	want := func(phase v1alpha1.FederationPhase, reason v1alpha1.Reason) {
		t.Helper()
		st := c.until("reached "+string(reason), func(s *coordinatorv1.FederationStatus) bool {
			return s.GetPhase() == string(phase) && s.GetReason() == string(reason)
		})
		if st.GetMessage() == "" {
			t.Fatalf("%s without a message", reason)
		}
	}
	want(v1alpha1.FederationWaitingForModel, v1alpha1.ReasonWaitingForModel)
	c.admit("a", "b")
	a := c.join("a")
	a.seed()
	want(v1alpha1.FederationWaitingForSites, v1alpha1.ReasonWaitingForSites)
	a.ready()
	b := c.join("b").ready()
	want(v1alpha1.FederationTraining, v1alpha1.ReasonCollecting)
	if err := c.engine.Pause(c.ctx()); err != nil {
		t.Fatal(err)
	}
	p := update(t, 0.5)
	a.mustPush(a.header(a.grant(), "u", p), p)
	b.mustPush(b.header(b.grant(), "u", p), p)
	want(v1alpha1.FederationPaused, v1alpha1.ReasonPaused)
}

func TestAPersonsDrainHoldsAgainstTheEnergyDecisionAndSurvivesRestarts(t *testing.T) {
	dir := t.TempDir()
	c := start(t, dir)
	c.admit("a")
	in, err := c.engine.SetMembership(c.ctx(), engine.Wish{Site: "a", Membership: round.Drain, Reason: v1alpha1.ReasonRequested, Message: "maintenance"})
	if err != nil || !in.Changed {
		t.Fatal(in, err)
	}
	c.admit("a")
	site := func() *coordinatorv1.SiteStatus { return c.status().GetSites()[0] }
	if s := site(); s.GetPhase() != string(v1alpha1.SiteIdle) || s.GetReason() != string(v1alpha1.ReasonRequested) {
		t.Fatalf("the energy decision overrode a person: %v", s)
	}
	c.stop()
	c = start(t, dir)
	c.admit("a")
	if s := site(); s.GetReason() != string(v1alpha1.ReasonRequested) || s.GetMessage() != "maintenance" {
		t.Fatalf("the hold did not survive a restart: %v", s)
	}
	if in, err = c.engine.SetMembership(c.ctx(), engine.Wish{Site: "a", Membership: round.Admit}); err != nil || in.Reason != v1alpha1.ReasonEnergyFavourable {
		t.Fatal(in, err)
	}
	if s := site(); s.GetPhase() != string(v1alpha1.SiteJoining) {
		t.Fatalf("after the hold ended: %v", s)
	}
}

func TestSecondCoordinatorOnTheSameFolderIsRefused(t *testing.T) {
	dir := t.TempDir()
	c := start(t, dir)
	_ = c
	if err := secondStore(dir); err == nil {
		t.Fatal("a second coordinator opened the same folder")
	}
}

func TestSeedIsTakenOnceAndChecked(t *testing.T) {
	c := start(t, t.TempDir())
	c.admit("a")
	a := c.join("a")
	h := &coordinatorv1.PushHeader{SessionToken: a.welcome.GetSessionToken(), Epoch: a.welcome.GetEpoch(),
		Kind: coordinatorv1.PushHeader_KIND_SEED, UpdateId: "s", PayloadBytes: 5}
	if r := a.mustPush(h, []byte("12345")); r.GetStatus() != coordinatorv1.PushResult_STATUS_REFUSED {
		t.Fatalf("garbage as a seed: %v", r)
	}
	h.PayloadBytes = 10 << 30
	if r := a.mustPush(h, nil); r.GetReason() != string(v1alpha1.ReasonTooLarge) {
		t.Fatalf("10 GiB as a seed: %v", r)
	}
	a.seed()
	st := c.status()
	if hex.EncodeToString(st.GetDigest()) == "" || st.Version == nil || st.GetVersion() != 0 {
		t.Fatalf("after the seed: %v", st)
	}
	h.UpdateId, h.PayloadBytes = "again", 5
	if r := a.mustPush(h, []byte("12345")); r.GetReason() != string(v1alpha1.ReasonAlreadySeeded) {
		t.Fatalf("a second seed: %v", r)
	}
}

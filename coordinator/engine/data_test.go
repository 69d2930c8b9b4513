package engine

import (
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/coordinator/checkpoint"
	"girassol.dev/coordinator/corpus"
	"girassol.dev/internal/algorithm"
)

// dataRig is a seeded federation with a data ledger, its members ready.
func dataRig(t *testing.T, cfg Config) (*rig, []*agent) {
	t.Helper()
	r := newRig(t, cfg)
	agents := r.joinAll(cfg.Round.Sites...)
	if r.engine.model == nil {
		agents[0].seed(smallModel(t))
	}
	return r, agents
}

func (a *agent) ready(n uint64) { a.heartbeat(coordinatorv1.MemberState_MEMBER_STATE_READY, n) }

func text(rs []*coordinatorv1.DataRange) string { return ranges(rs).String() }

// sends pushes an update that used these samples, "" for none told.
func (a *agent) sends(g *coordinatorv1.Grant, payload []byte, used string) *coordinatorv1.PushResult {
	a.r.t.Helper()
	var rs corpus.Ranges
	if err := rs.UnmarshalText([]byte(used)); err != nil {
		a.r.t.Fatal(err)
	}
	h := a.header(g, fmt.Sprint("u", g.GetRound()), payload)
	for _, r := range rs {
		h.Consumed = append(h.Consumed, &coordinatorv1.DataRange{Pass: r.Pass, Begin: r.Begin, End: r.End})
	}
	return a.push(h, payload)
}

func (r *rig) manifest() checkpoint.Manifest {
	r.t.Helper()
	var man checkpoint.Manifest
	if err := r.engine.do(r.ctx(), func() { man = r.engine.manifest }); err != nil {
		r.t.Fatal(err)
	}
	return man
}

func TestSamplesAreConsumedByTheCommitThatUsedThem(t *testing.T) {
	t.Parallel()
	p := defaults(t, algorithm.DiLoCo)
	cfg := testConfig(t.TempDir(), p, "a", "b")
	cfg.Data = &corpus.Config{Samples: 1000, Lease: 100, Passes: 1}
	r, agents := dataRig(t, cfg)
	a, b := agents[0], agents[1]
	a.ready(0)
	b.ready(0)
	ga, gb := a.grant(), b.grant()
	if text(ga.GetData()) != "0:0-100" || text(gb.GetData()) != "0:100-200" {
		t.Fatalf("leased %s and %s", text(ga.GetData()), text(gb.GetData()))
	}
	if st := r.status().GetData(); st.GetLeased() != 200 || st.GetSamples() != 1000 {
		t.Errorf("%v", st)
	}
	payload, _ := work(t, smallModel(t), p)(a, ga)
	before := r.status().GetData().String()
	res := b.sends(gb, payload, "0:0-101")
	if res.GetStatus() != coordinatorv1.PushResult_STATUS_REFUSED || res.GetReason() != string(v1alpha1.ReasonDataNotLeased) ||
		!strings.Contains(res.GetMessage(), "0:0-101 is not leased to b/n in this round (it holds 0:100-200)") {
		t.Error(res)
	}
	if after := r.status().GetData().String(); after != before {
		t.Errorf("a refused update changed the ledger from %s to %s", before, after)
	}
	if res := a.sends(ga, payload, "0:0-60"); res.GetStatus() != coordinatorv1.PushResult_STATUS_ACCEPTED {
		t.Fatal(res)
	}
	a.committed()
	man := r.manifest()
	if got := man.Members[0].Consumed.String(); len(man.Members) != 1 || got != "0:0-60" || man.Data.Consumed.String() != "0:0-60" {
		t.Fatalf("%+v", man)
	}
	if st := r.status().GetData(); st.GetConsumed() != 60 || st.GetLeased() != 0 {
		t.Errorf("%v", st)
	}
	// What b had, and the rest of a's lease, is leased again; an update of the round
	// before does not count.
	a.ready(1)
	b.ready(1)
	ga2, gb2 := a.grant(), b.grant()
	if text(ga2.GetData()) != "0:60-160" || text(gb2.GetData()) != "0:160-260" {
		t.Errorf("leased %s and %s", text(ga2.GetData()), text(gb2.GetData()))
	}
	if res := b.sends(gb, payload, "0:100-200"); res.GetStatus() != coordinatorv1.PushResult_STATUS_STALE {
		t.Errorf("an update of an older round: %v", res)
	}
}

func TestAnUpdateThatDoesNotSayWhatItUsedIsRefusedWithTheCure(t *testing.T) {
	t.Parallel()
	p := defaults(t, algorithm.DiLoCo)
	cfg := testConfig(t.TempDir(), p, "a")
	cfg.Data = &corpus.Config{Samples: 1000}
	_, agents := dataRig(t, cfg)
	agents[0].ready(0)
	g := agents[0].grant()
	payload, _ := work(t, smallModel(t), p)(agents[0], g)
	res := agents[0].sends(g, payload, "")
	if res.GetStatus() != coordinatorv1.PushResult_STATUS_REFUSED || res.GetReason() != string(v1alpha1.ReasonDataNotLeased) || !strings.Contains(res.GetMessage(), "round.data") {
		t.Error(res)
	}
}

func TestWithoutALedgerNothingOfItShows(t *testing.T) {
	t.Parallel()
	p := defaults(t, algorithm.DiLoCo)
	r, agents := dataRig(t, testConfig(t.TempDir(), p, "a", "b"))
	r.round(agents, work(t, smallModel(t), p))
	for _, a := range agents {
		a.ready(1)
	}
	g := agents[0].grant()
	if r.status().GetData() != nil || g.GetData() != nil || r.manifest().Data != nil {
		t.Errorf("%v %v %+v", r.status().GetData(), g, r.manifest())
	}
	payload, _ := work(t, smallModel(t), p)(agents[0], g)
	if res := agents[0].sends(g, payload, "0:0-1"); res.GetReason() != string(v1alpha1.ReasonDataNotLeased) {
		t.Error(res)
	}
}

func TestAMemberWithoutDataIsNotWaitedFor(t *testing.T) {
	t.Parallel()
	p := defaults(t, algorithm.DiLoCo)
	cfg := testConfig(t.TempDir(), p, "a", "b", "c")
	cfg.Round.MinSites = 3
	cfg.Data = &corpus.Config{Samples: 2, Passes: 1}
	r, agents := dataRig(t, cfg)
	for _, a := range agents {
		a.ready(0)
	}
	ga, gb := agents[0].grant(), agents[1].grant()
	st := r.status()
	if c := st.GetSites()[2]; c.GetReason() != string(v1alpha1.ReasonDataExhausted) {
		t.Errorf("site c: %v", c)
	}
	payload, _ := work(t, smallModel(t), p)(agents[0], ga)
	agents[0].sends(ga, payload, "0:0-1")
	agents[1].sends(gb, payload, "0:1-2")
	agents[0].committed()
	st = r.until("completed", func(st *coordinatorv1.FederationStatus) bool {
		return st.GetPhase() == string(v1alpha1.FederationCompleted)
	})
	if !strings.Contains(st.GetMessage(), "all 1 passes over the 2 samples") || st.GetData().GetConsumed() != 2 || st.GetRoundsCommitted() != 1 {
		t.Errorf("%v", st)
	}
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	if st := newRig(t, cfg).status(); st.GetPhase() != string(v1alpha1.FederationCompleted) || st.GetData().GetConsumed() != 2 {
		t.Errorf("after a restart: %v", st)
	}
}

func TestACorpusThatShrinksIsRefusedAtTheStart(t *testing.T) {
	t.Parallel()
	p := defaults(t, algorithm.DiLoCo)
	cfg := testConfig(t.TempDir(), p, "a")
	cfg.Data = &corpus.Config{Samples: 1000, Lease: 10}
	r, agents := dataRig(t, cfg)
	agents[0].ready(0)
	g := agents[0].grant()
	payload, _ := work(t, smallModel(t), p)(agents[0], g)
	agents[0].sends(g, payload, text(g.GetData()))
	agents[0].committed()
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	store, err := checkpoint.Open(cfg.DataDir, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	cfg.Data = &corpus.Config{Samples: 999}
	if _, err := New(cfg, store, Hooks{}, slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), "spec.data") || !strings.Contains(err.Error(), "shrink") {
		t.Error(err)
	}
}

func TestARollbackGivesBackWhatWasConsumedSince(t *testing.T) {
	t.Parallel()
	p := defaults(t, algorithm.DiLoCo)
	cfg := testConfig(t.TempDir(), p, "a")
	cfg.Data = &corpus.Config{Samples: 30, Lease: 10, Passes: 1}
	r, agents := dataRig(t, cfg)
	a := agents[0]
	send := func(want string) {
		t.Helper()
		g := a.grant()
		payload, _ := work(t, smallModel(t), p)(a, g)
		if text(g.GetData()) != want {
			t.Fatalf("leased %s, want %s", text(g.GetData()), want)
		}
		if res := a.sends(g, payload, want); res.GetStatus() != coordinatorv1.PushResult_STATUS_ACCEPTED {
			t.Fatal(res)
		}
		a.committed()
		a.ready(g.GetRound())
	}
	a.ready(0)
	send("0:0-10")
	send("0:10-20")
	send("0:20-30")
	r.until("completed", func(st *coordinatorv1.FederationStatus) bool {
		return st.GetPhase() == string(v1alpha1.FederationCompleted)
	})
	if _, err := r.engine.Rollback(r.ctx(), new(uint64(1)), "try again"); err != nil {
		t.Fatal(err)
	}
	if st := r.status(); st.GetData().GetConsumed() != 10 || st.GetPhase() == string(v1alpha1.FederationCompleted) {
		t.Fatalf("%v", st)
	}
	if man := r.manifest(); man.Version != 4 || man.Data.Consumed.String() != "0:0-10" {
		t.Fatalf("%+v", man)
	}
	a.ready(0)
	send("0:10-20")
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	if st := newRig(t, cfg).status(); st.GetData().GetConsumed() != 20 {
		t.Errorf("after a restart: %v", st)
	}
}

// TestEverySampleIsCommittedOncePerPassOverKills runs all passes with updates that
// are lost, refused or partial, and kills the coordinator in between.
func TestEverySampleIsCommittedOncePerPassOverKills(t *testing.T) {
	t.Parallel()
	p := defaults(t, algorithm.DiLoCo)
	const samples, passes = 600, 2
	rng := rand.New(rand.NewPCG(7, 7))
	cfg := testConfig(t.TempDir(), p, "a", "b", "c")
	cfg.ArchiveUpdates = true
	cfg.Data = &corpus.Config{Samples: samples, Lease: 20, Passes: passes}
	model := smallModel(t)
	var r *rig
	var agents []*agent
	start := func() {
		r, agents = dataRig(t, cfg)
	}
	start()
	uses := map[uint64]corpus.Ranges{} // by version
	for n := uint64(0); ; n++ {
		if n > 1000 {
			t.Fatal("the passes do not end")
		}
		for _, a := range agents {
			a.ready(n)
		}
		st := r.until("a round or the end", func(st *coordinatorv1.FederationStatus) bool {
			return st.GetPhase() == string(v1alpha1.FederationCompleted) || len(st.GetRound().GetWaitingFor()) > 0
		})
		if st.GetPhase() == string(v1alpha1.FederationCompleted) {
			break
		}
		version := st.GetVersion()
		for _, name := range st.GetRound().GetGranted() {
			a := agents[slices.IndexFunc(agents, func(a *agent) bool { return a.s.Member == name })]
			if !slices.Contains(st.GetRound().GetWaitingFor(), name) {
				continue // no data for it
			}
			g := a.grant()
			lease := ranges(g.GetData())
			payload, _ := work(t, model, p)(a, g)
			switch rng.IntN(5) {
			case 0: // its trainer failed
				a.heartbeat(coordinatorv1.MemberState_MEMBER_STATE_TRAINING, g.GetRound())
				a.ready(g.GetRound())
			case 1:
				last := lease[len(lease)-1]
				last.End++
				if res := a.sends(g, payload, corpus.Ranges{last}.String()); res.GetReason() != string(v1alpha1.ReasonDataNotLeased) {
					t.Fatal(res)
				}
			default:
				used := lease[:1+rng.IntN(len(lease))]
				used[len(used)-1].End -= rng.Uint64N(used[len(used)-1].End - used[len(used)-1].Begin)
				if res := a.sends(g, payload, used.String()); res.GetStatus() != coordinatorv1.PushResult_STATUS_ACCEPTED {
					t.Fatal(res)
				}
			}
		}
		st = r.until("the round's end", func(now *coordinatorv1.FederationStatus) bool {
			return now.GetRoundsVoid()+now.GetRoundsCommitted() > st.GetRoundsVoid()+st.GetRoundsCommitted()
		})
		if st.GetVersion() > version {
			for _, m := range r.manifest().Members {
				uses[st.GetVersion()] = append(uses[st.GetVersion()], m.Consumed...)
			}
		}
		if rng.IntN(4) == 0 {
			cfg.DataDir = r.killed()
			if err := r.stop(); err != nil {
				t.Fatal(err)
			}
			start()
		}
	}
	counts := map[uint64][]int{}
	for _, rs := range uses {
		for _, x := range rs {
			if counts[x.Pass] == nil {
				counts[x.Pass] = make([]int, samples)
			}
			for i := x.Begin; i < x.End; i++ {
				counts[x.Pass][i]++
			}
		}
	}
	if len(counts) != passes {
		t.Errorf("%d passes", len(counts))
	}
	for pass, c := range counts {
		for i, n := range c {
			if n != 1 {
				t.Fatalf("sample %d of pass %d was committed %d times", i, pass, n)
			}
		}
	}
}

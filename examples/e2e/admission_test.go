package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"testing"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	"girassol.dev/internal/algorithm"
	"girassol.dev/internal/codec"
	"girassol.dev/internal/tensor"
	"girassol.dev/internal/wire"
)

// byHand is a member without an agent: it sends what the test likes.
type byHand struct {
	c       *cluster
	site    string
	fleet   coordinatorv1.FleetClient
	stream  coordinatorv1.Fleet_SessionClient
	welcome *coordinatorv1.Welcome
	layout  *tensor.Layout
	p       algorithm.Parameters
}

func (c *cluster) joinByHand(ctx context.Context, site string, l *tensor.Layout, p algorithm.Parameters) *byHand {
	c.t.Helper()
	conn, err := wire.Dial(c.addr, wire.Options{})
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { conn.Close() })
	m := &byHand{c: c, site: site, fleet: coordinatorv1.NewFleetClient(conn), layout: l, p: p}
	if m.stream, err = m.fleet.Session(ctx); err != nil {
		c.t.Fatal(err)
	}
	m.say(&coordinatorv1.SessionRequest{Message: &coordinatorv1.SessionRequest_Hello{Hello: &coordinatorv1.Hello{Federation: "e2e", Site: site, Node: "n1"}}})
	m.welcome = m.hear(func(r *coordinatorv1.SessionResponse) bool { return r.GetWelcome() != nil }).GetWelcome()
	return m
}

func (m *byHand) say(r *coordinatorv1.SessionRequest) {
	m.c.t.Helper()
	if err := m.stream.Send(r); err != nil {
		m.c.t.Fatal(err)
	}
}

func (m *byHand) hear(want func(*coordinatorv1.SessionResponse) bool) *coordinatorv1.SessionResponse {
	m.c.t.Helper()
	for {
		r, err := m.stream.Recv()
		if err != nil {
			m.c.t.Fatalf("%s: %v", m.site, err)
		}
		if want(r) {
			return r
		}
	}
}

func (m *byHand) ready() {
	m.c.t.Helper()
	m.say(&coordinatorv1.SessionRequest{Message: &coordinatorv1.SessionRequest_Heartbeat{Heartbeat: &coordinatorv1.Heartbeat{State: coordinatorv1.MemberState_MEMBER_STATE_READY}}})
}

func (m *byHand) grant() *coordinatorv1.Grant {
	m.c.t.Helper()
	return m.hear(func(r *coordinatorv1.SessionResponse) bool { return r.GetGrant() != nil }).GetGrant()
}

func (m *byHand) committed() *coordinatorv1.Committed {
	m.c.t.Helper()
	return m.hear(func(r *coordinatorv1.SessionResponse) bool { return r.GetCommitted() != nil }).GetCommitted()
}

func (m *byHand) push(ctx context.Context, h *coordinatorv1.PushHeader, payload []byte) *coordinatorv1.PushResult {
	m.c.t.Helper()
	h.SessionToken, h.Epoch, h.PayloadBytes = m.welcome.GetSessionToken(), m.welcome.GetEpoch(), uint64(len(payload))
	s, err := m.fleet.Push(ctx)
	if err == nil {
		err = s.Send(&coordinatorv1.PushRequest{Header: h})
	}
	if err != nil {
		m.c.t.Fatal(err)
	}
	first, err := s.Recv()
	if err != nil {
		m.c.t.Fatal(err)
	}
	if first.GetResult() != nil {
		return first.GetResult()
	}
	err = wire.SendPayload(func(off uint64, crc uint32, b []byte) error {
		return s.Send(&coordinatorv1.PushRequest{Offset: off, Crc32C: crc, Payload: b})
	}, bytes.NewReader(payload), int64(len(payload)), 0)
	if err == nil {
		err = s.CloseSend()
	}
	if err != nil && !errors.Is(err, io.EOF) {
		m.c.t.Fatal(err)
	}
	last, err := s.Recv()
	if err != nil {
		m.c.t.Fatal(err)
	}
	return last.GetResult()
}

// work is an update of noise of this size, the same for a site and round in each run.
func (m *byHand) work(ctx context.Context, g *coordinatorv1.Grant, size float32) *coordinatorv1.PushResult {
	m.c.t.Helper()
	r := rand.New(rand.NewPCG(g.GetRound(), uint64(m.site[0])))
	d := codec.NewDomain(m.layout, m.p.Uplink.Transform)
	x := make([]float32, d.Len())
	for i := range x {
		x[i] = size * float32(r.NormFloat64())
	}
	var b bytes.Buffer
	if _, err := codec.Encode(&b, d, m.p.Uplink, x, codec.Aux{}); err != nil {
		m.c.t.Fatal(err)
	}
	layout := m.layout.Digest()
	return m.push(ctx, &coordinatorv1.PushHeader{Kind: coordinatorv1.PushHeader_KIND_UPDATE, Round: g.GetRound(), BaseVersion: g.GetBaseVersion(),
		UpdateId: fmt.Sprint(m.site, g.GetRound()), LayoutDigest: layout[:], Weight: 10, Samples: 10, Steps: 10}, b.Bytes())
}

// A real coordinator, three sites, of which one sends values 1e4 times too large:
// the model becomes, bit for bit, the one of a run in which that site had no part in
// the round, and the site is shut out for the rounds that follow.
func TestASiteThatSendsGarbageLeavesTheModelAsIfItHadNotBeenThere(t *testing.T) {
	both(t, func(t *testing.T, strategy string) {
		name := map[string]string{"DiLoCo": algorithm.DiLoCo, "DecoupledMomentum": algorithm.DecoupledMomentum}[strategy]
		p, err := algorithm.Defaults(name)
		if err != nil {
			t.Fatal(err)
		}
		l, err := tensor.NewLayout([]tensor.Spec{{Name: "w", DType: tensor.F32, Shape: []int64{64, 128}, Role: tensor.Parameter}, {Name: "bias", DType: tensor.F32, Shape: []int64{64}, Role: tensor.Parameter}})
		if err != nil {
			t.Fatal(err)
		}
		run := func(garbage bool) []byte {
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			c := newCluster(t, spec{algorithm: strategy, sites: 3, rounds: "trainSeconds: 60, collectSeconds: 10, joinSeconds: 60, minSites: 1"})
			c.edit("federation.yaml", "  evaluation: {every: 2}\n", "  admission: {maxNormFactor: \"10\", quarantineRounds: 2}\n")
			c.startCoordinator("--heartbeat", "30s")
			c.until("served", func(*coordinatorv1.FederationStatus) bool { return true })
			var ms []*byHand
			for _, s := range []string{"a", "b", "c"} {
				ms = append(ms, c.joinByHand(ctx, s, l, p))
			}
			state := tensor.NewState(l)
			defer state.Close()
			var seed bytes.Buffer
			if err := tensor.SaveState(&seed, state, false); err != nil {
				t.Fatal(err)
			}
			layout := l.Digest()
			if res := ms[0].push(ctx, &coordinatorv1.PushHeader{Kind: coordinatorv1.PushHeader_KIND_SEED, UpdateId: "seed", LayoutDigest: layout[:]}, seed.Bytes()); res.GetStatus() != coordinatorv1.PushResult_STATUS_ACCEPTED {
				t.Fatal(res)
			}
			for _, m := range ms {
				m.committed()
			}
			var done *coordinatorv1.Committed
			for n := range 4 {
				who := ms
				if n == 3 && !garbage {
					c.setMembership("c", coordinatorv1.Membership_MEMBERSHIP_EXCLUDE, 0)
					who = ms[:2]
				}
				for _, m := range who {
					m.ready()
				}
				for _, m := range who {
					g := m.grant()
					if m.site == "c" && n == 3 {
						res := m.work(ctx, g, 100)
						if res.GetStatus() != coordinatorv1.PushResult_STATUS_REFUSED || res.GetReason() != "NormTooLarge" || !strings.Contains(res.GetMessage(), "median") {
							t.Fatalf("the garbage was answered %v", res)
						}
					} else if res := m.work(ctx, g, 0.01); res.GetStatus() != coordinatorv1.PushResult_STATUS_ACCEPTED {
						t.Fatal(res)
					}
				}
				for _, m := range who {
					done = m.committed()
				}
			}
			if done.GetVersion() != 4 || done.GetVoid() {
				t.Fatalf("the last round ended with %v", done)
			}
			if garbage {
				if q := site(c.until("told", func(*coordinatorv1.FederationStatus) bool { return true }), "c").GetQuarantine(); q.GetReason() != "NormTooLarge" {
					t.Errorf("status: %v", q)
				}
				if out := c.girassol("status"); !strings.Contains(out, "in quarantine until round 7") {
					t.Errorf("the command shows:\n%s", out)
				}
			}
			c.stop()
			return done.GetDigest()
		}
		with, without := run(true), run(false)
		if !bytes.Equal(with, without) {
			t.Errorf("digest %x, without the garbage %x", with, without)
		}
	})
}

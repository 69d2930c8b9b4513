package simulate

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"girassol.dev/signals"
	"girassol.dev/signals/director"
	"girassol.dev/signals/replay"
	"girassol.dev/signals/synthetic"
	"girassol.dev/signals/window"
)

// listener keeps what a director tells.
type listener struct {
	clock signals.Clock
	told  map[string]chan Change
}

func (l listener) SetMembership(_ context.Context, site string, w director.Wish) error {
	l.told[site] <- Change{At: l.clock.Now(), Admit: w.Admit, Reason: w.Reason, Window: w.Signal.Window}
	return nil
}

// directed are the membership changes of a live director on the same traces,
// under a clock that runs as fast as it can.
func directed(t *testing.T, c Config) map[string][]Change {
	t.Helper()
	out := map[string][]Change{}
	synctest.Test(t, func(t *testing.T) {
		clock, err := signals.NewVirtual(c.Start, 1, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		l := listener{clock, map[string]chan Change{}}
		config := director.Config{Federation: c.Federation, Membership: l, Clock: clock, Random: func() float64 { return 0.5 }}
		for i, s := range c.Sites {
			l.told[s.Name] = make(chan Change, 1<<16)
			config.Sites = append(config.Sites, director.Site{Name: s.Name, Policy: s.Policy, Sanity: &c.Sites[i].Sanity, Source: replay.NewSource(s.Signal, clock, "trace")})
		}
		d, err := director.New(config)
		if err != nil {
			t.Fatal(err)
		}
		// Not a deadline: under the race detector, Go 1.26 crashes at times when a
		// context's timer fires in a bubble of virtual time.
		ctx, cancel := context.WithCancel(t.Context())
		go func() { time.Sleep(c.End.Sub(c.Start) - time.Second); cancel() }()
		if err := d.Run(ctx); err != nil {
			t.Fatal(err)
		}
		for site, told := range l.told {
			close(told)
			admitted := false
			for change := range told {
				if change.Admit != admitted {
					admitted = change.Admit
					out[site] = append(out[site], change)
				}
			}
		}
	})
	return out
}

func TestTheWindowsDecideAsALiveDirectorsDo(t *testing.T) {
	longBubble(t)
	twins := synthetic.Twin(3)
	week := world(t, 4, 3*24*time.Hour)
	traces := map[string]Config{
		"the twins": recorded(t, twins.Marginal, steady, "ca-north", "us-plains", "au-south", "de"),
		"the twins at one point each way": recorded(t, twins.Marginal,
			window.Policy{Mode: window.Grams, Enter: 100, Leave: 100, EnterConfirmations: 1, LeaveConfirmations: 1, OnStale: "Drain"},
			"ca-north", "us-plains", "au-south", "de"),
		"noise and gaps": week,
	}
	for name, c := range traces {
		t.Run(name, func(t *testing.T) {
			live, r := directed(t, c), simulated(t, c)
			changes := 0
			for _, s := range c.Sites {
				simulated := r.Changes(s.Name)
				changes += len(simulated)
				if len(simulated) != len(live[s.Name]) {
					t.Errorf("%s: %d changes, the director made %d", s.Name, len(simulated), len(live[s.Name]))
					continue
				}
				for i, want := range live[s.Name] {
					got := simulated[i]
					if got.Admit != want.Admit || got.Reason != want.Reason || got.Window != want.Window || want.At.Sub(got.At).Abs() > time.Second {
						t.Errorf("%s: change %d is %v %s %s at %s, the director's %v %s %s at %s", s.Name, i,
							got.Admit, got.Window, got.Reason, got.At, want.Admit, want.Window, want.Reason, want.At)
					}
				}
			}
			if changes == 0 {
				t.Error("nothing was decided")
			}
		})
	}
}

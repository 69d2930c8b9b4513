package main

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	"girassol.dev/internal/algorithm"
	"girassol.dev/internal/wire"
	"girassol.dev/siteagent/trainer/transformer"
)

type wireOptions struct {
	common
	Train     time.Duration
	Heartbeat time.Duration
}

func wireCommand() *cobra.Command {
	var o wireOptions
	cmd := &cobra.Command{
		Use:   "wire",
		Short: "Bytes on the socket per site and round, up and down",
		Long: `Run rounds of the built-in byte-level transformer's layout with heavy-tailed
synthetic updates against a real coordinator process, and count the bytes of each
member's connection on both ends: session, heartbeats, HTTP/2 and protobuf
framing included, TCP and IP headers not. Members hold, step and check the
replica as agents do.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.check(); err != nil {
				return err
			}
			report, err := o.run(cmd.Context(), cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			if o.Output == "json" {
				return writeJSON(cmd.OutOrStdout(), report)
			}
			return report.table(cmd.OutOrStdout())
		},
	}
	o.flags(cmd, 4, []int{1, 2, 4, 8}, []string{algorithm.DiLoCo, algorithm.DecoupledMomentum})
	f := cmd.Flags()
	f.DurationVar(&o.Train, "train", 2*time.Second, "time that the members spend training in a round, with heartbeats")
	f.DurationVar(&o.Heartbeat, "heartbeat", time.Second, "time between heartbeats")
	return cmd
}

// wireReport is all runs.
type wireReport struct {
	Parameters int `json:"parameters"`
	// Dense is one way of a round at fp32: 4 bytes per parameter.
	Dense int64     `json:"denseBytes"`
	Runs  []wireRun `json:"runs"`
}

// wireRun is one algorithm and number of sites.
type wireRun struct {
	Algorithm string `json:"algorithm"`
	Sites     int    `json:"sites"`
	// Join is a newcomer's first pull of the whole state with its session.
	Join traffic `json:"join"`
	// Rounds are means over the members.
	Rounds []roundTraffic `json:"rounds"`
	// Mean over rounds and members, and how many times less than dense fp32 both
	// ways that is.
	Mean  roundTraffic `json:"mean"`
	Ratio float64      `json:"ratioToDense"`
	// Total of all members' connections, which both ends counted alike.
	Total traffic `json:"total"`
}

// traffic is bytes from and to the sites.
type traffic struct {
	Up   float64 `json:"up"`
	Down float64 `json:"down"`
}

func (t traffic) sum() float64           { return t.Up + t.Down }
func (t traffic) plus(o traffic) traffic { return traffic{t.Up + o.Up, t.Down + o.Down} }
func (t traffic) times(f float64) traffic {
	return traffic{t.Up * f, t.Down * f}
}

type roundTraffic struct {
	Socket  traffic `json:"socket"`
	Payload traffic `json:"payload"`
}

func (o *wireOptions) run(ctx context.Context, progress io.Writer) (*wireReport, error) {
	l, err := transformer.DefaultConfig().Layout()
	if err != nil {
		return nil, err
	}
	report := &wireReport{Parameters: l.Parameters(), Dense: 4 * int64(l.Parameters())}
	err = inTemp(o.Dir, func(dir string) error {
		model := filepath.Join(dir, "model.safetensors")
		if err := writeModel(model, l); err != nil {
			return err
		}
		for _, name := range o.Algorithms {
			for _, sites := range o.Sites {
				fmt.Fprintf(progress, "%s, %d sites ...\n", name, sites)
				run, err := o.measure(ctx, dir, model, name, sites)
				if err != nil {
					return fmt.Errorf("%s, %d sites: %w", name, sites, err)
				}
				run.Ratio = 2 * float64(report.Dense) / run.Mean.Socket.sum()
				report.Runs = append(report.Runs, *run)
			}
		}
		return nil
	})
	return report, err
}

func (o *wireOptions) measure(ctx context.Context, dir, model, strategy string, sites int) (run *wireRun, err error) {
	data := filepath.Join(dir, "data")
	config := filepath.Join(dir, "federation.yaml")
	if err := writeFederation(config, strategy, model, sites); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(data)) }()
	c, err := startCoordinator(ctx, "--config", config, "--data", data, "--heartbeat", o.Heartbeat.String())
	if err != nil {
		return nil, err
	}
	defer c.kill()
	run = &wireRun{Algorithm: strategy, Sites: sites}
	if err := o.drive(ctx, c, run); err != nil {
		return nil, fmt.Errorf("%w; the coordinator's log ends\n%s", err, c.log())
	}
	return run, nil
}

func (o *wireOptions) drive(ctx context.Context, c *coordinator, run *wireRun) (err error) {
	conn, err := wire.Dial(c.addr, wire.Options{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	admin := coordinatorv1.NewAdminClient(conn)
	members, err := joinAll(ctx, c.addr, run.Sites)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeAll(members)) }()
	share := 1 / float64(run.Sites)
	sites := make([]*site, run.Sites)
	defer func() {
		for _, s := range sites {
			s.close()
		}
	}()
	err = together(members, func(i int, m *member) (err error) {
		sites[i], err = newSite(ctx, m, uint64(i))
		return err
	})
	if err != nil {
		return err
	}
	before, err := settled(ctx, admin, members)
	if err != nil {
		return err
	}
	run.Join = before.times(share)
	for range o.Rounds {
		payloads := make([]traffic, len(members))
		err := together(members, func(i int, _ *member) (err error) {
			payloads[i], err = sites[i].round(ctx, o.Train)
			return err
		})
		if err != nil {
			return err
		}
		now, err := settled(ctx, admin, members)
		if err != nil {
			return err
		}
		r := roundTraffic{Socket: now.plus(before.times(-1)).times(share)}
		for _, p := range payloads {
			r.Payload = r.Payload.plus(p.times(share))
		}
		before = now
		run.Rounds = append(run.Rounds, r)
		part := 1 / float64(o.Rounds)
		run.Mean.Socket = run.Mean.Socket.plus(r.Socket.times(part))
		run.Mean.Payload = run.Mean.Payload.plus(r.Payload.times(part))
	}
	run.Total = before
	return nil
}

// settleTimeout bounds the wait for bytes in flight.
const settleTimeout = 10 * time.Second

// settled waits until both ends have counted the same on all connections, so
// that nothing is in flight, and returns the sums.
func settled(ctx context.Context, admin coordinatorv1.AdminClient, members []*member) (traffic, error) {
	deadline := time.Now().Add(settleTimeout)
	for {
		st, err := admin.Status(ctx, &coordinatorv1.StatusRequest{})
		if err != nil {
			return traffic{}, fmt.Errorf("status: %w", err)
		}
		var here traffic
		for _, m := range members {
			in, out := m.counter.Total()
			here = here.plus(traffic{float64(out), float64(in)})
		}
		if here == (traffic{float64(st.GetBytesUp()), float64(st.GetBytesDown())}) {
			return here, nil
		}
		if time.Now().After(deadline) {
			return traffic{}, fmt.Errorf("members counted %.0f bytes up and %.0f down, the coordinator %d and %d",
				here.Up, here.Down, st.GetBytesUp(), st.GetBytesDown())
		}
		select {
		case <-time.After(2 * time.Millisecond):
		case <-ctx.Done():
			return traffic{}, context.Cause(ctx)
		}
	}
}

func (r *wireReport) table(w io.Writer) error {
	fmt.Fprintf(w, "Bytes on the socket per site and round, model of %d parameters; dense fp32 is %d each way\n\n", r.Parameters, r.Dense)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "algorithm\tsites\tup\tof it payload\tdown\tof it payload\tup+down\tup x less\tdown x less\tboth x less\tjoin down\t")
	for _, m := range r.Runs {
		s, p := m.Mean.Socket, m.Mean.Payload
		fmt.Fprintf(t, "%s\t%d\t%.0f\t%.0f\t%.0f\t%.0f\t%.0f\t%.2f\t%.2f\t%.2f\t%.0f\t\n", m.Algorithm, m.Sites, s.Up, p.Up, s.Down, p.Down, s.sum(),
			float64(r.Dense)/s.Up, float64(r.Dense)/s.Down, m.Ratio, m.Join.Down)
	}
	fmt.Fprintln(t)
	if err := t.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(w, "Both ends counted the same bytes on every connection after every round.")
	return nil
}

var errDiverged = errors.New("the replica's digest is not the committed one")

// checkDigest compares a replica with what the coordinator announced.
func checkDigest(got [32]byte, want []byte) error {
	if !bytes.Equal(got[:], want) {
		return fmt.Errorf("%w: %s, want %s", errDiverged, hex.EncodeToString(got[:6]), hex.EncodeToString(want[:min(6, len(want))]))
	}
	return nil
}

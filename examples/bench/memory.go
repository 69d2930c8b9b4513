package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	"girassol.dev/internal/algorithm"
	"girassol.dev/internal/codec"
	"girassol.dev/internal/tensor"
	"girassol.dev/internal/wire"
)

type memoryOptions struct {
	common
	Params        int
	SnapshotEvery int
	Heartbeat     time.Duration
}

func memoryCommand() *cobra.Command {
	var o memoryOptions
	cmd := &cobra.Command{
		Use:   "memory",
		Short: "Peak memory of a coordinator for a number of sites",
		Long: `Run rounds of a synthetic model with so many synthetic sites, which push all at
once and pull the delta all at once, against a real coordinator process, and read
its peak memory (VmHWM). Then kill it, start it again on the same folder and
read the peak of recovery. Needs Linux, for each site a file of the update's size
below --dir, and four times the model there.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := errors.Join(o.check(), o.checkMemory()); err != nil {
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
	o.flags(cmd, 2, []int{2, 4, 8}, []string{algorithm.DiLoCo})
	f := cmd.Flags()
	f.IntVar(&o.Params, "params", 100_000_000, "parameters of the model, 4 bytes each as fp32")
	f.IntVar(&o.SnapshotEvery, "snapshot-every", 2, "commits between two full snapshots")
	f.DurationVar(&o.Heartbeat, "heartbeat", 10*time.Second, "time between heartbeats; three missed ones end a session")
	return cmd
}

func (o *memoryOptions) checkMemory() error {
	if o.SnapshotEvery < 1 {
		return fmt.Errorf("--snapshot-every: %d is below 1", o.SnapshotEvery)
	}
	if o.Params < 1 || int64(o.Params) > tensor.MaxElements {
		return fmt.Errorf("--params: %d is not 1 to %d", o.Params, tensor.MaxElements)
	}
	return nil
}

// memoryReport is all runs.
type memoryReport struct {
	Parameters int         `json:"parameters"`
	Tensors    int         `json:"tensors"`
	Runs       []memoryRun `json:"runs"`
}

// memoryRun is one algorithm and number of sites. Sizes are in bytes.
type memoryRun struct {
	Algorithm string `json:"algorithm"`
	Sites     int    `json:"sites"`
	// ModelBuffers is what the coordinator must hold: theta, momentum and, when
	// the downlink is lossy, its residual.
	ModelBuffers int64 `json:"modelBuffersBytes"`
	UpdateBytes  int64 `json:"updateBytes"`
	DeltaBytes   int64 `json:"deltaBytes"`
	// Started is the peak with the model loaded, Peak that of all rounds, Recovery
	// that of a start on the folder of the killed coordinator.
	Started  resident `json:"started"`
	Peak     resident `json:"peak"`
	Recovery resident `json:"recovery"`
	// Overhead is Peak less the model buffers, GrowthPerSite the growth of Peak
	// since the run with fewer sites, per added site; unset in the first.
	Overhead      int64    `json:"overheadBytes"`
	GrowthPerSite *float64 `json:"growthPerSiteBytes,omitempty"`
	Rounds        []phases `json:"rounds"`
}

// phases of a round. Push is from the grants to the last answer, with checking;
// merge from there until all know of the commit; pull is all members' download
// of the delta.
type phases struct {
	Push  cost `json:"push"`
	Merge cost `json:"merge"`
	Pull  cost `json:"pull"`
}

// cost of a phase; CPU is the coordinator's alone, Clients that of all sites.
type cost struct {
	Bytes   int64   `json:"bytes"`
	Wall    float64 `json:"wallSeconds"`
	CPU     float64 `json:"cpuSeconds"`
	Clients float64 `json:"clientsCpuSeconds"`
}

func costOf(bytes int64, from, to usage) cost {
	return cost{bytes, to.at.Sub(from.at).Seconds(), (to.cpu - from.cpu).Seconds(), (to.own - from.own).Seconds()}
}

func (c cost) perGB(v float64) float64 { return v / (float64(c.Bytes) / 1e9) }

func (o *memoryOptions) run(ctx context.Context, progress io.Writer) (*memoryReport, error) {
	l, err := syntheticLayout(o.Params)
	if err != nil {
		return nil, err
	}
	report := &memoryReport{Parameters: l.Parameters(), Tensors: len(l.Tensors())}
	err = inTemp(o.Dir, func(dir string) error {
		model := filepath.Join(dir, "model.safetensors")
		if err := writeModel(model, l); err != nil {
			return err
		}
		for _, name := range o.Algorithms {
			p, err := algorithm.Defaults(name)
			if err != nil {
				return err
			}
			b := &memoryBench{o: o, layout: l, params: p, dir: dir, model: model, payload: filepath.Join(dir, "update.bin")}
			if b.size, err = writePayload(b.payload, l, p); err != nil {
				return err
			}
			var before *memoryRun
			for _, sites := range o.Sites {
				fmt.Fprintf(progress, "%s, %d sites ...\n", name, sites)
				run, err := b.run(ctx, sites)
				if err != nil {
					return fmt.Errorf("%s, %d sites: %w", name, sites, err)
				}
				if before != nil && sites > before.Sites {
					growth := float64(run.Peak.HighWater-before.Peak.HighWater) / float64(sites-before.Sites)
					run.GrowthPerSite = &growth
				}
				report.Runs = append(report.Runs, *run)
				before = run
			}
		}
		return nil
	})
	return report, err
}

// memoryBench is what the runs of one algorithm have in common.
type memoryBench struct {
	o              *memoryOptions
	layout         *tensor.Layout
	params         algorithm.Parameters
	dir            string
	model, payload string
	size           int64
	certs          *certificates // nil: plaintext
}

func (b *memoryBench) run(ctx context.Context, sites int) (run *memoryRun, err error) {
	data := filepath.Join(b.dir, "data")
	config := filepath.Join(b.dir, "federation.yaml")
	if err := writeFederation(config, b.params.Strategy, b.model, sites); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(data)) }()
	args := []string{"--config", config, "--data", data,
		"--heartbeat", b.o.Heartbeat.String(), "--snapshot-every", strconv.Itoa(b.o.SnapshotEvery)}
	link, client, err := b.links(sites)
	if err != nil {
		return nil, err
	}
	if link.Secure() {
		args = append(args, "--tls-cert", link.CertFile, "--tls-key", link.KeyFile, "--tls-ca", link.CAFile)
	}
	c, err := startCoordinator(ctx, args...)
	if err != nil {
		return nil, err
	}
	run = &memoryRun{Algorithm: b.params.Strategy, Sites: sites, ModelBuffers: b.modelBuffers(), UpdateBytes: b.size}
	if err := b.drive(ctx, c, run, client); err != nil {
		c.kill()
		return nil, fmt.Errorf("%w; the coordinator's log ends\n%s", err, c.log())
	}
	c.kill()
	if c, err = startCoordinator(ctx, args...); err != nil {
		return nil, fmt.Errorf("recovery: %w", err)
	}
	run.Recovery, err = c.resident()
	c.kill()
	run.Overhead = run.Peak.HighWater - run.ModelBuffers
	return run, err
}

func (b *memoryBench) modelBuffers() int64 {
	n := int64(b.layout.Parameters()) * 2
	if !b.params.Downlink.Lossless() {
		n += int64(codec.NewDomain(b.layout, b.params.Downlink.Transform).Len())
	}
	return 4 * n
}

// drive runs the rounds and reads the peak.
func (b *memoryBench) drive(ctx context.Context, c *coordinator, run *memoryRun, client func(i int) wire.Options) (err error) {
	if run.Started, err = c.resident(); err != nil {
		return err
	}
	payload, err := os.Open(b.payload)
	if err != nil {
		return err
	}
	defer func() { _ = payload.Close() }()
	members, err := joinAllOver(ctx, c.addr, run.Sites, client)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeAll(members)) }()
	for range b.o.Rounds {
		r, delta, err := b.round(ctx, c, members, payload)
		if err != nil {
			return err
		}
		run.Rounds = append(run.Rounds, r)
		run.DeltaBytes = max(run.DeltaBytes, delta)
	}
	run.Peak, err = c.resident()
	return err
}

func (b *memoryBench) round(ctx context.Context, c *coordinator, members []*member, payload io.ReaderAt) (r phases, delta int64, err error) {
	grants := make([]*coordinatorv1.Grant, len(members))
	err = together(members, func(i int, m *member) (err error) {
		if err := m.ready(0); err != nil {
			return err
		}
		grants[i], err = m.grant(ctx)
		return err
	})
	if err != nil {
		return r, 0, err
	}
	var at [4]usage
	if at[0], err = c.usage(); err != nil {
		return r, 0, err
	}
	err = together(members, func(i int, m *member) error {
		return m.push(ctx, grants[i], b.layout.Digest(), payload, b.size, nil)
	})
	if err != nil {
		return r, 0, err
	}
	if at[1], err = c.usage(); err != nil {
		return r, 0, err
	}
	versions := make([]uint64, len(members))
	err = together(members, func(i int, m *member) error {
		done, err := m.committed(ctx)
		versions[i] = done.GetVersion()
		return err
	})
	if err != nil {
		return r, 0, err
	}
	if at[2], err = c.usage(); err != nil {
		return r, 0, err
	}
	sizes := make([]int64, len(members))
	err = together(members, func(i int, m *member) (err error) {
		header, err := m.pull(ctx, coordinatorv1.PullRequest_KIND_DELTA, versions[i], io.Discard)
		sizes[i] = int64(header.GetPayloadBytes())
		return err
	})
	if err != nil {
		return r, 0, err
	}
	if at[3], err = c.usage(); err != nil {
		return r, 0, err
	}
	up, down := b.size*int64(len(members)), sizes[0]*int64(len(members))
	return phases{costOf(up, at[0], at[1]), costOf(up, at[1], at[2]), costOf(down, at[2], at[3])}, sizes[0], nil
}

func writeJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

const mega = 1e6

func (r *memoryReport) table(w io.Writer) error {
	fmt.Fprintf(w, "Coordinator's memory in MB (1e6 bytes), model of %d parameters in %d tensors (%.0f MB as fp32)\n\n",
		r.Parameters, r.Tensors, float64(r.Parameters)*4/mega)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "algorithm\tsites\tupdate\tdelta\tmodel buffers\tloaded\tpeak RSS\tof it anon\tfile\tshmem\toverhead\tper added site\trecovery\t")
	for _, m := range r.Runs {
		growth := "-"
		if m.GrowthPerSite != nil {
			growth = fmt.Sprintf("%.1f", *m.GrowthPerSite/mega)
		}
		mb := func(n int64) string { return fmt.Sprintf("%.1f", float64(n)/mega) }
		fmt.Fprintf(t, "%s\t%d\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t\n", m.Algorithm, m.Sites, mb(m.UpdateBytes), mb(m.DeltaBytes), mb(m.ModelBuffers),
			mb(m.Started.HighWater), mb(m.Peak.HighWater), mb(m.Peak.Anon), mb(m.Peak.File), mb(m.Peak.Shmem), mb(m.Overhead), growth, mb(m.Recovery.HighWater))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	fmt.Fprint(w, "\nCoordinator's time by round: wall s, CPU s and CPU s per GB of payload (push and merge: all updates, pull: all deltas)\n\n")
	t = tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "algorithm\tsites\tround\tpush wall\tCPU\twall/GB\tCPU/GB\tmerge wall\tCPU\twall/GB\tCPU/GB\tpull wall\tCPU\twall/GB\tCPU/GB\t")
	for _, m := range r.Runs {
		for i, p := range m.Rounds {
			fmt.Fprintf(t, "%s\t%d\t%d\t", m.Algorithm, m.Sites, i+1)
			for _, c := range []cost{p.Push, p.Merge, p.Pull} {
				fmt.Fprintf(t, "%.2f\t%.2f\t%.2f\t%.2f\t", c.Wall, c.CPU, c.perGB(c.Wall), c.perGB(c.CPU))
			}
			fmt.Fprintln(t)
		}
	}
	return t.Flush()
}

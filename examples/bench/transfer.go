package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"girassol.dev/internal/algorithm"
	"girassol.dev/internal/tensor"
	"girassol.dev/internal/wire"
)

type transferOptions struct {
	common
	Params []int
	Links  []string
	JSON   string
}

const (
	linkPlain = "plain"
	linkMTLS  = "mtls"
)

func transferCommand() *cobra.Command {
	var o transferOptions
	cmd := &cobra.Command{
		Use:   "transfer",
		Short: "Push, merge and pull against the limits of the same machine in the same run",
		Long: `Run rounds of a synthetic model against a real coordinator process, plain and over
mutual TLS, and beside each run move as many bytes over as many bare connections to a
bare process: TCP, or TLS with the product's own coalesced writes. What counts are the
ratios and the CPU seconds, which other work on the machine changes least. Needs Linux,
and at 561 million parameters 7 GB of memory and 20 GB below --dir.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := errors.Join(o.check(), o.checkTransfer()); err != nil {
				return err
			}
			report, err := o.run(cmd.Context(), cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			if o.JSON != "" {
				if err := writeResults(o.JSON, report); err != nil {
					return err
				}
			}
			if o.Output == "json" {
				return writeJSON(cmd.OutOrStdout(), report)
			}
			return report.table(cmd.OutOrStdout())
		},
	}
	o.flags(cmd, 2, []int{2, 4, 8}, []string{algorithm.DiLoCo, algorithm.DecoupledMomentum})
	f := cmd.Flags()
	f.IntSliceVar(&o.Params, "params", []int{100_000_000}, "`numbers` of parameters")
	f.StringSliceVar(&o.Links, "link", []string{linkPlain, linkMTLS}, "`links`: plain, mtls")
	f.StringVar(&o.JSON, "json", "", "also write the results to `file`")
	return cmd
}

func (o *transferOptions) checkTransfer() error {
	for _, n := range o.Params {
		if n < 1 || int64(n) > tensor.MaxElements {
			return fmt.Errorf("--params: %d is not 1 to %d", n, tensor.MaxElements)
		}
	}
	for _, l := range o.Links {
		if l != linkPlain && l != linkMTLS {
			return fmt.Errorf("--link: %q is neither %s nor %s", l, linkPlain, linkMTLS)
		}
	}
	return nil
}

func writeResults(path string, report *transferReport) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return tensor.WriteFileAtomic(path, func(w io.Writer) error { return writeJSON(w, report) })
}

// transferReport is all runs.
type transferReport struct {
	CPUs int    `json:"cpus"`
	Go   string `json:"go"`
	Time string `json:"time"`
	// Memmove is bytes copied per CPU second on one core, Disk bytes written and synced
	// per second below --dir.
	Memmove float64       `json:"memmoveBytesPerSecond"`
	Disk    float64       `json:"diskBytesPerSecond"`
	Runs    []transferRun `json:"runs"`
}

// transferRun is one size, link, algorithm and number of sites.
type transferRun struct {
	Parameters int    `json:"parameters"`
	Link       string `json:"link"`
	memoryRun
	// Best of the rounds, and what bare connections took for as many bytes, up to
	// rawMost each.
	Push    transfer `json:"push"`
	Merge   transfer `json:"merge"`
	Pull    transfer `json:"pull"`
	RawUp   transfer `json:"rawUp"`
	RawDown transfer `json:"rawDown"`
	// Ratios of bytes per second to the bare connections'.
	PushRatio float64 `json:"pushRatio"`
	PullRatio float64 `json:"pullRatio"`
	// Memmove is bytes copied per CPU second on one core just before; the shares are the
	// phases' bytes per second of it.
	Memmove      float64 `json:"memmoveBytesPerSecond"`
	PushMemmove  float64 `json:"pushMemmoveRatio"`
	MergeMemmove float64 `json:"mergeMemmoveRatio"`
	PullMemmove  float64 `json:"pullMemmoveRatio"`
}

// transfer is bytes and what they took: of the wall's time, of the server's and of
// both ends' CPU time.
type transfer struct {
	Bytes  int64   `json:"bytes"`
	Wall   float64 `json:"wallSeconds"`
	Server float64 `json:"serverCpuSeconds"`
	Both   float64 `json:"bothCpuSeconds"`
}

func transferOf(bytes int64, from, to usage, mine time.Duration) transfer {
	server := (to.cpu - from.cpu).Seconds()
	return transfer{bytes, to.at.Sub(from.at).Seconds(), server, server + mine.Seconds()}
}

func (t transfer) rate() float64           { return float64(t.Bytes) / t.Wall }
func (t transfer) perGB(v float64) float64 { return v / (float64(t.Bytes) / 1e9) }

func best(a, b transfer) transfer {
	if a.Wall == 0 || b.Wall > 0 && b.rate() > a.rate() {
		return b
	}
	return a
}

func (o *transferOptions) run(ctx context.Context, progress io.Writer) (*transferReport, error) {
	report := &transferReport{CPUs: runtime.GOMAXPROCS(0), Go: runtime.Version(), Time: time.Now().UTC().Format(time.RFC3339), Memmove: memmove()}
	var err error
	if report.Disk, err = diskRate(o.Dir); err != nil {
		return nil, err
	}
	for _, n := range o.Params {
		for _, name := range o.Algorithms {
			err := inTemp(o.Dir, func(dir string) error { return o.runAll(ctx, dir, n, name, report, progress) })
			if err != nil {
				return nil, err
			}
		}
	}
	return report, nil
}

// runAll runs all links and numbers of sites of one size and algorithm.
func (o *transferOptions) runAll(ctx context.Context, dir string, n int, name string, report *transferReport, progress io.Writer) error {
	l, err := syntheticLayout(n)
	if err != nil {
		return err
	}
	p, err := algorithm.Defaults(name)
	if err != nil {
		return err
	}
	memory := &memoryOptions{common: o.common, Params: n, SnapshotEvery: 1000, Heartbeat: 10 * time.Second}
	b := &memoryBench{o: memory, layout: l, params: p, dir: dir, model: filepath.Join(dir, "model.safetensors"), payload: filepath.Join(dir, "update.bin")}
	if err := writeModel(b.model, l); err != nil {
		return err
	}
	if b.size, err = writePayload(b.payload, l, p); err != nil {
		return err
	}
	for _, link := range o.Links {
		b.certs = nil
		if link == linkMTLS {
			if b.certs, err = newCertificates(dir); err != nil {
				return err
			}
		}
		for _, sites := range o.Sites {
			fmt.Fprintf(progress, "%d parameters, %s, %s, %d sites ...\n", n, name, link, sites)
			run, err := b.transfers(ctx, sites)
			if err != nil {
				return fmt.Errorf("%d parameters, %s, %s, %d sites: %w", n, name, link, sites, err)
			}
			run.Parameters, run.Link = l.Parameters(), link
			report.Runs = append(report.Runs, *run)
		}
	}
	return nil
}

// rawMost bytes go over each bare connection.
const rawMost = 512 << 20

// transfers measures one number of sites, between two measurements of the limit.
func (b *memoryBench) transfers(ctx context.Context, sites int) (run *transferRun, err error) {
	run = &transferRun{Memmove: memmove()}
	server, client, err := b.links(sites)
	if err != nil {
		return nil, err
	}
	raw := func() error {
		s, err := startSink(ctx, sites, server, client)
		if err != nil {
			return err
		}
		defer s.close()
		each := max(min(b.size, rawMost), 64<<20)
		for range 2 {
			up, err := s.carry(true, each)
			if err != nil {
				return err
			}
			down, err := s.carry(false, each)
			if err != nil {
				return err
			}
			run.RawUp, run.RawDown = best(run.RawUp, up), best(run.RawDown, down)
		}
		return nil
	}
	if err := raw(); err != nil {
		return nil, err
	}
	m, err := b.run(ctx, sites)
	if err != nil {
		return nil, err
	}
	if err := raw(); err != nil {
		return nil, err
	}
	run.memoryRun = *m
	for _, r := range m.Rounds {
		run.Push, run.Merge, run.Pull = best(run.Push, r.Push.transfer()), best(run.Merge, r.Merge.transfer()), best(run.Pull, r.Pull.transfer())
	}
	run.PushRatio, run.PullRatio = run.Push.rate()/run.RawUp.rate(), run.Pull.rate()/run.RawDown.rate()
	run.PushMemmove, run.MergeMemmove, run.PullMemmove = run.Push.rate()/run.Memmove, run.Merge.rate()/run.Memmove, run.Pull.rate()/run.Memmove
	return run, nil
}

func (c cost) transfer() transfer { return transfer{c.Bytes, c.Wall, c.CPU, c.CPU + c.Clients} }

// links are the options of the coordinator's end and of each site's.
func (b *memoryBench) links(sites int) (server wire.Options, client func(i int) wire.Options, err error) {
	if b.certs == nil {
		return wire.Options{}, func(int) wire.Options { return wire.Options{} }, nil
	}
	if server, err = b.certs.server(); err != nil {
		return server, nil, err
	}
	ends := make([]wire.Options, sites)
	for i := range ends {
		if ends[i], err = b.certs.site(siteName(i)); err != nil {
			return server, nil, err
		}
	}
	return server, func(i int) wire.Options { return ends[i] }, nil
}

func (r *transferReport) table(w io.Writer) error {
	fmt.Fprintf(w, "%d CPUs shared by both ends, %s. memmove: %.1f GB/s copied per core. Disk: %.2f GB/s written and synced.\n", r.CPUs, r.Go, r.Memmove/1e9, r.Disk/1e9)
	fmt.Fprint(w, "raw: bare connections in the same run (TCP; TLS with coalesced writes under mtls). mm: memmove on one core in the same run. CPU: seconds per GB of payload, of the coordinator / of both ends.\n\n")
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "Mparams\talgorithm\tlink\tsites\tpush GB\tGB/s\tof raw\tof mm\tCPU s/GB\traw\tpull GB\tGB/s\tof raw\tof mm\tCPU s/GB\traw\tmerge s\tof mm\tCPU s\tround s\t")
	for _, m := range r.Runs {
		fmt.Fprintf(t, "%.0f\t%s\t%s\t%d\t", float64(m.Parameters)/mega, m.Algorithm, m.Link, m.Sites)
		for _, x := range []struct {
			t, raw         transfer
			ratio, memmove float64
		}{{m.Push, m.RawUp, m.PushRatio, m.PushMemmove}, {m.Pull, m.RawDown, m.PullRatio, m.PullMemmove}} {
			if x.t.Bytes < 64*mega*int64(m.Sites) { // too little for a rate
				fmt.Fprintf(t, "%.2f\t-\t-\t-\t%.2f / %.2f\t%.2f / %.2f\t", float64(x.t.Bytes)/1e9,
					x.t.perGB(x.t.Server), x.t.perGB(x.t.Both), x.raw.perGB(x.raw.Server), x.raw.perGB(x.raw.Both))
				continue
			}
			fmt.Fprintf(t, "%.2f\t%.2f\t%.2f\t%.3f\t%.2f / %.2f\t%.2f / %.2f\t", float64(x.t.Bytes)/1e9, x.t.rate()/1e9, x.ratio, x.memmove,
				x.t.perGB(x.t.Server), x.t.perGB(x.t.Both), x.raw.perGB(x.raw.Server), x.raw.perGB(x.raw.Both))
		}
		fmt.Fprintf(t, "%.2f\t%.3f\t%.2f\t%.2f\t\n", m.Merge.Wall, m.MergeMemmove, m.Merge.Server, m.Push.Wall+m.Merge.Wall+m.Pull.Wall)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	fmt.Fprint(w, "\nCoordinator's memory in MB (1e6 bytes)\n\n")
	t = tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "Mparams\talgorithm\tlink\tsites\tmodel buffers\tpeak RSS\tover them\t3 buffers + 100\trecovery\t")
	for _, m := range r.Runs {
		mb := func(n int64) string { return fmt.Sprintf("%.0f", float64(n)/mega) }
		fmt.Fprintf(t, "%.0f\t%s\t%s\t%d\t%s\t%s\t%s\t%s\t%s\t\n", float64(m.Parameters)/mega, m.Algorithm, m.Link, m.Sites,
			mb(m.ModelBuffers), mb(m.Peak.HighWater), mb(m.Overhead), mb(12*int64(m.Parameters)+100e6), mb(m.Recovery.HighWater))
	}
	return t.Flush()
}

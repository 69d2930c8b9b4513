// Command peer sets the merge beside the aggregation of Flower's FedAvg: the same
// updates, one process each, on this machine.
//
// It owns the updates and the comparison. What it compares is the product's merge and
// Flower's own function, unchanged, from the Python package index.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"text/tabwriter"
)

func main() { os.Exit(start()) }

func start() int {
	if len(os.Args) == 2 && os.Args[1] == roleOurs {
		if err := runOurs(os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, "merge:", err)
			return 1
		}
		return 0
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout, os.Stderr); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "peer:", err)
		return 1
	}
	return 0
}

type options struct {
	sites  int
	sizes  []int // MB (1e6 bytes) of an update
	dir    string
	python string
	output string
}

func parse(args []string, stderr io.Writer) (o options, err error) {
	f := flag.NewFlagSet("peer", flag.ContinueOnError)
	f.SetOutput(stderr)
	f.IntVar(&o.sites, "sites", 8, "`number` of updates")
	sizes := f.String("mb", "64,400", "`sizes` of an update in MB, fp32; a run holds sites times that in memory, three times over")
	f.StringVar(&o.dir, "dir", os.TempDir(), "`folder` below which a temporary one takes the updates and Python's packages")
	f.StringVar(&o.python, "python", "", "`interpreter` with flwr; without it a temporary environment gets flwr from PyPI")
	f.StringVar(&o.output, "o", "table", "table or json")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	if o.sites < 1 || o.sites > 64 {
		return o, fmt.Errorf("-sites: %d is not 1 to 64", o.sites)
	}
	for s := range strings.SplitSeq(*sizes, ",") {
		n, err := strconv.Atoi(s)
		if err != nil || n < 1 || n > 4000 {
			return o, fmt.Errorf("-mb: %q is not 1 to 4000", s)
		}
		o.sizes = append(o.sizes, n)
	}
	if o.output != "table" && o.output != "json" {
		return o, fmt.Errorf("-o: %q is neither table nor json", o.output)
	}
	return o, nil
}

// row is one program's aggregation of one set of updates.
type row struct {
	Sites   int     `json:"sites"`
	MB      int     `json:"updateMB"`
	Scope   string  `json:"scope"`
	Who     string  `json:"who"`
	Seconds float64 `json:"wallSeconds"`
	CPU     float64 `json:"cpuSeconds"`
	// Peak is the process's greatest RSS in bytes, updates and interpreter included.
	Peak int64 `json:"peakBytes"`
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) (err error) {
	o, err := parse(args, stderr)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp(o.dir, "girassol-peer-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if o.python == "" {
		if o.python, err = environment(ctx, dir); err != nil {
			fmt.Fprintf(stdout, "skipped: Flower cannot be installed from PyPI here: %v\n", err)
			return nil
		}
	}
	var rows []row
	for _, mb := range o.sizes {
		fmt.Fprintf(stderr, "%d updates of %d MB ...\n", o.sites, mb)
		more, err := compare(ctx, dir, o, mb)
		if err != nil {
			return fmt.Errorf("%d updates of %d MB: %w", o.sites, mb, err)
		}
		rows = append(rows, more...)
	}
	if o.output == "json" {
		e := json.NewEncoder(stdout)
		e.SetIndent("", "  ")
		return e.Encode(rows)
	}
	return table(stdout, rows)
}

// compare runs both programs in both scopes over one set of updates.
func compare(ctx context.Context, dir string, o options, mb int) ([]row, error) {
	j, err := writeUpdates(dir, o.sites, mb)
	if err != nil {
		return nil, err
	}
	defer j.remove()
	var rows []row
	for _, scope := range []string{scopeMemory, scopeFiles} {
		j.Scope = scope
		ours, err := aggregate(ctx, j, ownCommand)
		if err != nil {
			return nil, err
		}
		theirs, err := aggregate(ctx, j, flowerCommand(o.python))
		if err != nil {
			return nil, err
		}
		if !same(ours.Sum, theirs.Sum, ours.Squares) || !same(ours.Squares, theirs.Squares, ours.Squares) {
			return nil, fmt.Errorf("the means differ: sums %g and %g, of squares %g and %g", ours.Sum, theirs.Sum, ours.Squares, theirs.Squares)
		}
		for _, r := range []result{ours, theirs} {
			rows = append(rows, row{Sites: o.sites, MB: mb, Scope: scope, Who: r.Who, Seconds: r.Seconds, CPU: r.CPU, Peak: r.peak})
		}
	}
	return rows, nil
}

// same allows for sums in float32 that round differently.
func same(a, b, scale float64) bool { return math.Abs(a-b) <= 1e-4*(math.Abs(scale)+1) }

func table(w io.Writer, rows []row) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "updates\tMB each\tscope\tprogram\twall s\tCPU s\tGB/s\tpeak RSS MB\t")
	for _, r := range rows {
		fmt.Fprintf(t, "%d\t%d\t%s\t%s\t%.3f\t%.3f\t%.2f\t%.0f\t\n", r.Sites, r.MB, r.Scope, r.Who, r.Seconds, r.CPU,
			float64(r.Sites*r.MB)/1e3/r.Seconds, float64(r.Peak)/1e6)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprint(w, "\nmemory: the clock starts with all updates in memory, and stops with their weighted mean there.\n"+
		"files: it starts with the updates in files (in the page cache); reading and, in ours, checking them is part of it.\n")
	return err
}

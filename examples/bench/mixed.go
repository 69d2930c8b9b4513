package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/internal/algorithm"
)

type mixedOptions struct {
	Slow       []float64
	Step       time.Duration
	Noise      float64
	LocalSteps int64
	Rounds     int
	WarmUp     int
	Dir        string
	Output     string
}

func mixedCommand() *cobra.Command {
	var o mixedOptions
	cmd := &cobra.Command{
		Use:   "mixed",
		Short: "How far apart sites of unequal speed finish their rounds",
		Long: `Run a real coordinator and real agents with trainers whose steps take their time,
each by its own factor and with noise, and take the time at which each site's
update is accepted. The spread is the time between the first and the last of a
round, as a part of the round's length. Beside it stands what it would have been
with the same steps at every site, by the step times that were measured.`,
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
	f := cmd.Flags()
	f.Float64SliceVar(&o.Slow, "slow", []float64{1, 2, 4, 4}, "`factors` on the step time, one site each")
	f.DurationVar(&o.Step, "step", 50*time.Millisecond, "step `time` of a site with factor 1")
	f.Float64Var(&o.Noise, "noise", 0.1, "relative `deviation` of a step's time")
	f.Int64Var(&o.LocalSteps, "local-steps", 100, "spec.rounds.localSteps")
	f.IntVar(&o.Rounds, "rounds", 8, "rounds of the run")
	f.IntVar(&o.WarmUp, "warm-up", 2, "rounds that are left out: the first knows no step times")
	f.StringVar(&o.Dir, "dir", os.TempDir(), "`folder` below which a temporary one takes the agents' and the coordinator's data")
	f.StringVarP(&o.Output, "output", "o", "table", "table or json")
	return cmd
}

func (o *mixedOptions) check() error {
	var errs []error
	if n := len(o.Slow); n < 2 || n > maxSites {
		errs = append(errs, fmt.Errorf("--slow: %d factors, want 2 to %d", n, maxSites))
	}
	for _, v := range o.Slow {
		if !(v > 0) || v > 1000 {
			errs = append(errs, fmt.Errorf("--slow: %v is not above 0 and at most 1000", v))
		}
	}
	if o.Step < time.Millisecond {
		errs = append(errs, fmt.Errorf("--step: %s is below 1ms", o.Step))
	}
	if !(o.Noise >= 0) || o.Noise > 1 {
		errs = append(errs, fmt.Errorf("--noise: %v is not 0 to 1", o.Noise))
	}
	if o.LocalSteps < 1 {
		errs = append(errs, fmt.Errorf("--local-steps: %d is below 1", o.LocalSteps))
	}
	if o.WarmUp < 0 || o.Rounds <= o.WarmUp {
		errs = append(errs, fmt.Errorf("--rounds: %d leaves none after a warm-up of %d", o.Rounds, o.WarmUp))
	}
	if o.Output != "table" && o.Output != "json" {
		errs = append(errs, fmt.Errorf("--output: %q is neither table nor json", o.Output))
	}
	return errors.Join(errs...)
}

// mixedReport is one run.
type mixedReport struct {
	Slow   []float64    `json:"slow"`
	WarmUp int          `json:"warmUp"`
	Rounds []mixedRound `json:"rounds"`
	// Of the rounds after the warm-up, as parts of their lengths: the spread, and
	// what it would have been with equal steps.
	Median float64 `json:"medianSpread"`
	Worst  float64 `json:"worstSpread"`
	Equal  float64 `json:"medianSpreadWithEqualSteps"`
}

// mixedRound lists its sites in order.
type mixedRound struct {
	Round int `json:"round"`
	// Finish from the first grant to the acceptance, in seconds.
	Finish []float64 `json:"finishSeconds"`
	Steps  []uint64  `json:"steps"`
	Spread float64   `json:"spread"`
	Equal  float64   `json:"spreadWithEqualSteps"`
}

// finished judges a round.
func (r *mixedRound) finished() {
	last := slices.Max(r.Finish)
	r.Spread = (last - slices.Min(r.Finish)) / last
	var each []float64 // time of a step with all that goes with it
	for i, at := range r.Finish {
		each = append(each, at/float64(max(1, r.Steps[i])))
	}
	r.Equal = 1 - slices.Min(each)/slices.Max(each)
}

// judge sums the rounds up.
func (r *mixedReport) judge() {
	var spread, equal []float64
	for _, round := range r.Rounds[r.WarmUp:] {
		spread, equal = append(spread, round.Spread), append(equal, round.Equal)
	}
	slices.Sort(spread)
	slices.Sort(equal)
	r.Median, r.Worst, r.Equal = median(spread), spread[len(spread)-1], median(equal)
}

func median(sorted []float64) float64 {
	n := len(sorted)
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

func (r *mixedReport) table(w io.Writer) error {
	fmt.Fprintf(w, "Finish of each site in seconds since the round's grants (steps); step times %v\n\n", r.Slow)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(t, "round\t")
	for i := range r.Slow {
		fmt.Fprintf(t, "%s\t", siteName(i))
	}
	fmt.Fprintln(t, "spread\twith equal steps\t")
	for i, round := range r.Rounds {
		fmt.Fprintf(t, "%d\t", round.Round)
		for j, at := range round.Finish {
			fmt.Fprintf(t, "%.2f (%d)\t", at, round.Steps[j])
		}
		note := ""
		if i < r.WarmUp {
			note = " warm-up"
		}
		fmt.Fprintf(t, "%.1f %%%s\t%.1f %%\t\n", 100*round.Spread, note, 100*round.Equal)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "\nSpread after the warm-up: median %.1f %%, worst %.1f %% of the round; with equal steps %.1f %%.\n", 100*r.Median, 100*r.Worst, 100*r.Equal)
	return err
}

func (o *mixedOptions) run(ctx context.Context, progress io.Writer) (*mixedReport, error) {
	var report *mixedReport
	err := inTemp(o.Dir, func(dir string) error {
		model, config := filepath.Join(dir, "model.safetensors"), filepath.Join(dir, "federation.yaml")
		l, err := syntheticLayout(20_000)
		if err != nil {
			return err
		}
		if err := writeModel(model, l); err != nil {
			return err
		}
		err = writeFederationWith(config, algorithm.DecoupledMomentum, model, len(o.Slow), func(s *v1alpha1.FederationSpec) {
			s.Rounds.LocalSteps = o.LocalSteps
		})
		if err != nil {
			return err
		}
		report, err = o.measure(ctx, dir, config, progress)
		return err
	})
	return report, err
}

func (o *mixedOptions) measure(ctx context.Context, dir, config string, progress io.Writer) (_ *mixedReport, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	lines := make(chan acceptance, 16)
	c, err := startWatchedCoordinator(ctx, func(line []byte) {
		if a, ok := parseAcceptance(line); ok {
			select {
			case lines <- a:
			case <-ctx.Done():
			}
		}
	}, "--config", config, "--data", filepath.Join(dir, "data"), "--heartbeat", "1s")
	if err != nil {
		return nil, err
	}
	defer c.kill()
	defer cancel(nil) // before the kill: it waits for who reads the log
	for i, factor := range o.Slow {
		step := time.Duration(float64(o.Step) * factor)
		a, err := startAgent(ctx, c.addr, siteName(i), filepath.Join(dir, siteName(i)), cancel,
			step.String(), strconv.FormatFloat(o.Noise, 'g', -1, 64), strconv.Itoa(i))
		if err != nil {
			return nil, err
		}
		defer a.kill()
	}
	report := &mixedReport{Slow: o.Slow, WarmUp: o.WarmUp}
	var began time.Time
	finish, steps := map[string]float64{}, map[string]uint64{}
	for len(report.Rounds) < o.Rounds {
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("%w; the coordinator's log ends\n%s", context.Cause(ctx), c.log())
		case <-c.done:
			return nil, fmt.Errorf("the coordinator ended: %w\n%s", c.err, c.log())
		case a := <-lines:
			switch {
			case a.Round != len(report.Rounds)+1:
			case a.Msg == "grant" && (began.IsZero() || len(finish) == 0 && a.Time.Before(began)):
				began = a.Time
			case a.Msg == "update accepted":
				finish[a.Member], steps[a.Member] = a.Time.Sub(began).Seconds(), a.Steps
			case a.Msg == "round committed":
				r := mixedRound{Round: a.Round}
				for i := range o.Slow {
					name := siteName(i) + "/" + node
					if steps[name] == 0 {
						return nil, fmt.Errorf("round %d was committed without %s", a.Round, name)
					}
					r.Finish, r.Steps = append(r.Finish, finish[name]), append(r.Steps, steps[name])
				}
				r.finished()
				report.Rounds = append(report.Rounds, r)
				fmt.Fprintf(progress, "round %d: %.1f s, spread %.1f %%\n", a.Round, slices.Max(r.Finish), 100*r.Spread)
				began = time.Time{}
				clear(finish)
				clear(steps)
			}
		}
	}
	report.judge()
	return report, nil
}

// acceptance is what the coordinator's log tells of a round.
type acceptance struct {
	Time   time.Time
	Msg    string
	Member string
	Round  int
	Steps  uint64
}

func parseAcceptance(line []byte) (acceptance, bool) {
	var a acceptance
	if json.Unmarshal(line, &a) != nil || a.Round < 1 || a.Round > math.MaxInt32 {
		return a, false
	}
	switch a.Msg {
	case "grant", "update accepted", "round committed":
		return a, true
	}
	return a, false
}

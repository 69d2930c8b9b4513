package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"girassol.dev/coordinator/app/simulate"
)

// simulateFlags are the flags of simulate as they are typed.
type simulateFlags struct {
	options                                                    simulate.Options
	twin                                                       uint64
	work, start, report, pictures, traces, forecast            string
	trainingWatts, idleWatts, provisioning, step, tokensPerSec []string
	minWindow, leaveLead                                       time.Duration
	budgetKg, budgetKWh                                        float64
}

func simulateCommand(o *options) *cobra.Command {
	f := &simulateFlags{}
	cmd := &cobra.Command{
		Use:   "simulate -f FEDERATION.yaml (--trace FILE.csv ... | --twin SEED)",
		Short: "Run a federation on recorded electricity, in a moment",
		Long: `Run a federation on recorded electricity, in a moment: the same windows,
choice of sites, rounds and ledgers as a coordinator's, with a model in place of
the sites.

A trace is a CSV file: a column of point times (time, time_utc, point_time, from
or from_utc; RFC 3339 with an offset) and one column per region. An empty cell is
no value, never 0. The unit stands in a header, "region [lb/MWh]", or in --unit.
Sites name their column in spec.grid.region. Without --trace and --twin the files
that the sites name are read.

Forecasts are CSV files as they were published: generated_at, point_time and one
column per region, sorted by both times. Each issue is known from generated_at on.
--forecast trace makes them of the traces.

Values of a site's model are for all sites, or SITE=VALUE for one; spec.power
goes before --training-watts and --idle-watts.`,
		Args: exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.complete(cmd); err != nil {
				return usageError{err}
			}
			c, err := simulate.Load(f.options)
			if err != nil {
				return err
			}
			result, err := simulate.Run(c)
			if err != nil {
				return err
			}
			return f.write(cmd.OutOrStdout(), result, o.json())
		},
	}
	f.register(cmd)
	return cmd
}

func (f *simulateFlags) register(cmd *cobra.Command) {
	p, s := &f.options, cmd.Flags()
	s.StringArrayVarP(&p.Files, "file", "f", nil, "YAML `file` with the Federation and its Sites; may be repeated (required)")
	s.StringArrayVar(&p.Traces, "trace", nil, "CSV `file` of marginal intensity or percentile; may be repeated")
	s.StringArrayVar(&p.Averages, "average", nil, "CSV `file` of average intensity, for the second ledger; may be repeated")
	s.StringVar(&p.Unit, "unit", "g/kWh", "`unit` of files whose header has none: g/kWh, lb/MWh or percentile")
	s.Uint64Var(&f.twin, "twin", 0, "generate the traces of the field study's twins by this `seed`")
	s.StringArrayVar(&p.Forecasts, "forecasts", nil, "CSV `file` of forecasts as published; may be repeated")
	s.StringVar(&f.forecast, "forecast", "none", "none, or trace: make forecasts of the traces where none were recorded")
	s.DurationVar(&p.Made.Every, "forecast-every", time.Hour, "time between two made forecasts")
	s.DurationVar(&p.Made.Horizon, "forecast-horizon", 24*time.Hour, "how far a made forecast reaches")
	s.Float64Var(&p.Made.Error, "forecast-error", 0, "relative deviation of a made forecast a day ahead, for example 0.2")
	s.Uint64Var(&p.Seed, "seed", 1, "`seed` of what is random")
	s.StringVar(&f.start, "start", "", "`time` at which the run begins, RFC 3339 (default the first point)")
	s.DurationVar(&p.For, "for", 0, "the longest that the run lasts (default to the end of the traces)")
	s.StringVar(&f.work, "work", "", "what is to be done: `AMOUNT` kWh (of training), site-hours or tokens, for example 36kWh (default no end)")
	s.Float64Var(&p.Sync, "sync", 0.02, "time to synchronise a round of several sites, as a share of the time trained")
	s.StringArrayVar(&f.trainingWatts, "training-watts", []string{"2024"}, "IT power of a site that trains, in `W`; spec.power goes first")
	s.StringArrayVar(&f.idleWatts, "idle-watts", []string{"468"}, "IT power of a site that is on and does not train, in `W`")
	s.StringArrayVar(&f.provisioning, "provisioning", []string{"240s"}, "`time` that a start takes; spec.energy.provisioningSeconds goes first")
	s.StringArrayVar(&f.step, "step", []string{"3s"}, "`time` of a local step")
	s.StringArrayVar(&f.tokensPerSec, "tokens-per-second", []string{"0"}, "speed of a site that trains; 0 is not known")
	s.DurationVar(&f.minWindow, "min-window", 0, "the shortest window that is opened when there is a forecast (default a start and a round)")
	s.DurationVar(&f.leaveLead, "leave-lead", 0, "how long before the forecast end of a window a site leaves it (default the grace of a drain)")
	s.IntVar(&p.Plan.Wanted, "wanted", 0, "the most sites at a time (default spec.energy.targetSites, or all that are open)")
	s.DurationVar(&p.Plan.Deadline, "deadline", 0, "time after the start by which the work should be done; the run waits for cleaner hours (default it does not)")
	s.Float64Var(&f.budgetKg, "budget-kg", 0, "marginal kgCO2e that may be emitted (default spec.energy.budget)")
	s.Float64Var(&f.budgetKWh, "budget-kwh", 0, "kWh that may be used (default spec.energy.budget)")
	s.StringVar(&f.report, "report", "", "write a report with pictures to this HTML `file`")
	s.StringVar(&f.traces, "save-traces", "", "write the traces of --twin as marginal.csv and average.csv into this `folder`")
	s.StringVar(&f.pictures, "pictures", "", "write the pictures as timeline.svg and emissions.svg into this `folder`")
}

// complete turns what was typed into options.
func (f *simulateFlags) complete(cmd *cobra.Command) error {
	p, s := &f.options, cmd.Flags()
	if len(p.Files) == 0 {
		return fmt.Errorf("--file is missing: name the YAML file with the Federation and its Sites")
	}
	if s.Changed("twin") {
		p.Twin = &f.twin
	}
	if f.traces != "" && p.Twin == nil {
		return fmt.Errorf("--save-traces: only those of --twin are generated")
	}
	switch f.forecast {
	case "none":
		p.Made.Every = 0
	case "trace":
		if p.Made.Every < time.Minute || p.Made.Horizon <= 0 || !(p.Made.Error >= 0 && p.Made.Error <= 10) {
			return fmt.Errorf("--forecast-every %s, --forecast-horizon %s, --forecast-error %v: want at least 1m, more than 0 and 0 to 10",
				p.Made.Every, p.Made.Horizon, p.Made.Error)
		}
		p.Made.Seed = p.Seed
	default:
		return fmt.Errorf("--forecast %q: want none or trace; files are --forecasts", f.forecast)
	}
	if f.start != "" {
		t, err := time.Parse(time.RFC3339, f.start)
		if err != nil {
			return fmt.Errorf("--start: %q is not a time like 2026-01-31T00:00:00Z", f.start)
		}
		p.Start = t.UTC()
	}
	var err error
	if p.Work, err = parseWork(f.work); err != nil {
		return err
	}
	if s.Changed("min-window") {
		p.MinWindow = &f.minWindow
	}
	if s.Changed("leave-lead") {
		p.LeaveLead = &f.leaveLead
	}
	if s.Changed("budget-kg") {
		grams := 1000 * f.budgetKg
		p.Plan.BudgetGrams = &grams
	}
	if s.Changed("budget-kwh") {
		p.Plan.BudgetKWh = &f.budgetKWh
	}
	p.Models, err = f.models()
	return err
}

// models of the sites; "" is of those that are not named.
func (f *simulateFlags) models() (map[string]simulate.Model, error) {
	number := func(to func(*simulate.Model) *float64) func(*simulate.Model, string) error {
		return func(m *simulate.Model, v string) error {
			x, err := strconv.ParseFloat(v, 64)
			if err != nil || !(x >= 0 && x <= 1e15) {
				return fmt.Errorf("%q is no number of at least 0", v)
			}
			*to(m) = x
			return nil
		}
	}
	duration := func(to func(*simulate.Model) *time.Duration) func(*simulate.Model, string) error {
		return func(m *simulate.Model, v string) error {
			d, err := time.ParseDuration(v)
			if err != nil || d < 0 {
				return fmt.Errorf("%q is no time such as 240s", v)
			}
			*to(m) = d
			return nil
		}
	}
	flags := []struct {
		name   string
		values []string
		set    func(*simulate.Model, string) error
	}{
		{"training-watts", f.trainingWatts, number(func(m *simulate.Model) *float64 { return &m.TrainingWatts })},
		{"idle-watts", f.idleWatts, number(func(m *simulate.Model) *float64 { return &m.IdleWatts })},
		{"tokens-per-second", f.tokensPerSec, number(func(m *simulate.Model) *float64 { return &m.TokensPerSecond })},
		{"provisioning", f.provisioning, duration(func(m *simulate.Model) *time.Duration { return &m.Provisioning })},
		{"step", f.step, duration(func(m *simulate.Model) *time.Duration { return &m.Step })},
	}
	defaults := simulate.Model{TrainingWatts: 2024, IdleWatts: 468, Provisioning: 240 * time.Second, Step: 3 * time.Second}
	models := map[string]simulate.Model{}
	// First the values for all sites, then those of one.
	for _, named := range []bool{false, true} {
		for _, flag := range flags {
			for _, text := range flag.values {
				site, value, found := strings.Cut(text, "=")
				if found != named {
					continue
				}
				if !found {
					site, value = "", text
				}
				m, ok := models[site]
				if !ok {
					m = defaults
				}
				if err := flag.set(&m, value); err != nil {
					return nil, fmt.Errorf("--%s: %w", flag.name, err)
				}
				if !named {
					defaults = m
				}
				models[site] = m
			}
		}
	}
	models[""] = defaults
	return models, nil
}

// parseWork reads "36kWh", "17.8 site-hours" or "1e9 tokens"; nothing is no end.
func parseWork(text string) (simulate.Work, error) {
	if text == "" {
		return simulate.Work{Unit: simulate.SiteHours}, nil
	}
	for _, unit := range []simulate.Unit{simulate.SiteHours, simulate.KWh, simulate.Tokens} {
		if amount, ok := strings.CutSuffix(text, string(unit)); ok {
			x, err := strconv.ParseFloat(strings.TrimSpace(amount), 64)
			if err != nil || !(x > 0) {
				return simulate.Work{}, fmt.Errorf("--work: %q is no amount above 0", amount)
			}
			return simulate.Work{Amount: x, Unit: unit}, nil
		}
	}
	return simulate.Work{}, fmt.Errorf("--work: %q: want an amount of %s, %s or %s, for example 36kWh", text, simulate.KWh, simulate.SiteHours, simulate.Tokens)
}

// write puts the result where it was asked for.
func (f *simulateFlags) write(w io.Writer, r *simulate.Result, asJSON bool) error {
	if f.traces != "" {
		err := writeFolder(f.traces, map[string]func(io.Writer) error{
			"marginal.csv": func(w io.Writer) error { return simulate.WriteTwin(w, f.twin, false) },
			"average.csv":  func(w io.Writer) error { return simulate.WriteTwin(w, f.twin, true) },
		})
		if err != nil {
			return fmt.Errorf("--save-traces: %w", err)
		}
	}
	if f.report != "" {
		if err := writeFile(f.report, r.WriteHTML); err != nil {
			return fmt.Errorf("--report: %w", err)
		}
	}
	if f.pictures != "" {
		err := writeFolder(f.pictures, map[string]func(io.Writer) error{"timeline.svg": r.WriteTimeline, "emissions.svg": r.WriteEmissions})
		if err != nil {
			return fmt.Errorf("--pictures: %w", err)
		}
	}
	if asJSON {
		return r.WriteJSON(w)
	}
	return r.WriteTable(w)
}

func writeFolder(folder string, files map[string]func(io.Writer) error) error {
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	for name, write := range files {
		if err := writeFile(filepath.Join(folder, name), write); err != nil {
			return err
		}
	}
	return nil
}

func writeFile(path string, write func(io.Writer) error) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	if err := write(f); err != nil {
		_ = f.Close()
		return err
	}
	return f.Close()
}

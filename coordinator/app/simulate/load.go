package simulate

import (
	"cmp"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"time"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/coordinator/app"
	"girassol.dev/signals"
	"girassol.dev/signals/ledger"
	"girassol.dev/signals/replay"
	"girassol.dev/signals/sanity"
	"girassol.dev/signals/synthetic"
	"girassol.dev/signals/window"
)

// Model is what a spec does not say of a site.
type Model struct {
	// TrainingWatts and IdleWatts of sites whose spec has neither.
	TrainingWatts, IdleWatts float64
	Provisioning, Step       time.Duration
	TokensPerSecond          float64
}

// Options of a simulation, as a command line gives them.
type Options struct {
	// Files with the Federation and its Sites.
	Files []string
	// Traces, Averages and Forecasts are CSV files; Unit is of those whose header
	// does not say it.
	Traces, Averages, Forecasts []string
	Unit                        string
	// Twin generates the traces, by this seed.
	Twin *uint64
	// Made, if its Every is not 0, makes forecasts of the traces.
	Made Made
	Seed uint64
	// Start of the run; the zero time is the start of the traces.
	Start time.Time
	// For is the longest that the run lasts; 0: to the end of the traces.
	For  time.Duration
	Work Work
	Sync float64
	Plan Plan
	// Model by site; "" is of those that are not named.
	Models map[string]Model
	// MinWindow and LeaveLead look ahead where there are forecasts; nil takes
	// the site's provisioning and a round, and the drain's grace.
	MinWindow, LeaveLead *time.Duration
}

// Load reads what o names.
func Load(o Options) (Config, error) {
	d, err := app.ReadDeclaration(o.Files)
	if err != nil {
		return Config{}, err
	}
	t, err := o.traces(d)
	if err != nil {
		return Config{}, err
	}
	recorded, err := o.forecasts()
	if err != nil {
		return Config{}, err
	}
	c := Config{Federation: d.Federation.Name, Round: d.Round, Work: o.Work, Sync: o.Sync, Plan: o.Plan, Seed: o.Seed}
	if o.Twin != nil {
		c.Seed = *o.Twin
	}
	limits(&c.Plan, d.Federation.Spec.Energy)
	for name := range o.Models {
		if name != "" && !declared(d, name) {
			return Config{}, fmt.Errorf("site %q has no document of kind Site in %s", name, strings.Join(o.Files, ", "))
		}
	}
	var decide []*replay.Series
	for _, s := range d.Sites {
		site, err := o.site(d, s, t, recorded)
		if err != nil {
			return Config{}, fmt.Errorf("site %s: %w", s.Name, err)
		}
		if site.Signal != nil {
			decide = append(decide, site.Signal)
		}
		c.Sites = append(c.Sites, site)
	}
	for _, region := range t.regions {
		if g := t.grams(signals.Marginal, region); g != nil {
			c.Regions = append(c.Regions, Region{region, g})
		}
	}
	if err := o.bounds(&c, decide); err != nil {
		return Config{}, err
	}
	goals(&c, d.Federation.Spec.Energy)
	return c, nil
}

// goals of the spec count where the command line has none.
func goals(c *Config, e v1alpha1.EnergySpec) {
	b := e.Budget
	if b == nil {
		return
	}
	if b.Tokens != nil && c.Work.Amount == 0 {
		c.Work = Work{Amount: float64(*b.Tokens), Unit: Tokens}
	}
	if b.Deadline != nil && c.Plan.Deadline == 0 {
		c.Plan.Deadline = max(0, b.Deadline.Sub(c.Start))
	}
}

// limits of the spec count where the command line has none.
func limits(p *Plan, e v1alpha1.EnergySpec) {
	if p.Wanted == 0 {
		p.Wanted = int(e.TargetSites)
	}
	if e.Budget == nil {
		return
	}
	if grams := e.Budget.CarbonGrams; p.BudgetGrams == nil && grams != nil {
		v := float64(*grams)
		p.BudgetGrams = &v
	}
	if kWh := e.Budget.EnergyKWh; p.BudgetKWh == nil && kWh != nil {
		v := float64(*kWh)
		p.BudgetKWh = &v
	}
}

func declared(d app.Declaration, name string) bool {
	for _, s := range d.Sites {
		if s.Name == name {
			return true
		}
	}
	return false
}

// bounds sets the run's start and end.
func (o Options) bounds(c *Config, decide []*replay.Series) error {
	c.Start, c.End = spanOf(decide)
	if len(decide) == 0 {
		c.Start, c.End = o.Start, o.Start.Add(o.For)
		if o.Start.IsZero() || o.For == 0 {
			return fmt.Errorf("no site has a trace: --start and --for say when the run begins and how long it lasts")
		}
		return nil
	}
	if !o.Start.IsZero() {
		if o.Start.Before(c.Start) || !o.Start.Before(c.End) {
			return fmt.Errorf("--start %s is outside the traces (%s to %s)", stamp(o.Start), stamp(c.Start), stamp(c.End))
		}
		c.Start = o.Start
	}
	if o.For > 0 && c.Start.Add(o.For).Before(c.End) {
		c.End = c.Start.Add(o.For)
	}
	return nil
}

// traces of the command line, or else those that the sites name.
func (o Options) traces(d app.Declaration) (*traces, error) {
	t := &traces{}
	unit := o.Unit
	if unit == "" {
		unit = "g/kWh"
	}
	if o.Twin != nil {
		if len(o.Traces) > 0 {
			return nil, fmt.Errorf("--twin and --trace: one of the two")
		}
		twin := synthetic.Twin(*o.Twin)
		if err := t.add(twin.Marginal); err != nil {
			return nil, err
		}
		return t, t.add(twin.Average)
	}
	marginal, average := o.Traces, o.Averages
	if len(marginal) == 0 {
		for _, s := range d.Sites {
			marginal = once(marginal, s.Spec.Grid.TracePath)
			average = once(average, s.Spec.Grid.AverageTracePath)
		}
	}
	for _, path := range marginal {
		if err := t.read(path, unit, false); err != nil {
			return nil, err
		}
	}
	for _, path := range average {
		if err := t.read(path, unit, true); err != nil {
			return nil, err
		}
	}
	return t, nil
}

// WriteTwin writes the traces that a twin of this seed has as CSV.
func WriteTwin(w io.Writer, seed uint64, average bool) error {
	twin := synthetic.Twin(seed)
	if average {
		return twin.Average.WriteCSV(w)
	}
	return twin.Marginal.WriteCSV(w)
}

func once(paths []string, path string) []string {
	if path == "" {
		return paths
	}
	for _, p := range paths {
		if filepath.Clean(p) == filepath.Clean(path) {
			return paths
		}
	}
	return append(paths, path)
}

func (o Options) forecasts() (issues, error) {
	out := issues{}
	unit := o.Unit
	if unit == "" {
		unit = "g/kWh"
	}
	for _, path := range o.Forecasts {
		more, err := readForecasts(path, unit)
		if err != nil {
			return nil, err
		}
		for region, f := range more {
			if len(out[region]) > 0 {
				return nil, fmt.Errorf("forecasts %s: region %s has forecasts in another file already", filepath.Base(path), region)
			}
			out[region] = f
		}
	}
	return out, nil
}

// site joins a spec with the model and the traces of its region.
func (o Options) site(d app.Declaration, s v1alpha1.Site, t *traces, recorded issues) (Site, error) {
	policy, err := window.FromSpec(d.Federation.Spec.Energy, s.Spec.Energy)
	if err != nil {
		return Site{}, err
	}
	model, ok := o.Models[s.Name]
	if !ok {
		model = o.Models[""]
	}
	power, err := ledger.PowerFromSpec(s.Spec.Power)
	if err != nil {
		return Site{}, err
	}
	if power.TrainingWatts == 0 && power.IdleWatts == 0 {
		power.TrainingWatts, power.IdleWatts = model.TrainingWatts, model.IdleWatts
	}
	region := s.Spec.Grid.Region
	fed, own := d.Federation.Spec.Energy, v1alpha1.EnergySpec{}
	if s.Spec.Energy != nil {
		own = *s.Spec.Energy
	}
	policy.Cooldown = time.Duration(cmp.Or(own.CooldownSeconds, fed.CooldownSeconds)) * time.Second
	policy.TrustZero = cmp.Or(own.Zero, fed.Zero) == v1alpha1.ZeroTrust
	if seconds := cmp.Or(own.ProvisioningSeconds, fed.ProvisioningSeconds); seconds > 0 {
		model.Provisioning = time.Duration(seconds) * time.Second
	}
	out := Site{
		Name: s.Name, Region: region, Policy: policy, Power: power, Sanity: sanity.Policy{TrustZero: policy.TrustZero},
		Provisioning: model.Provisioning, Step: model.Step, TokensPerSecond: model.TokensPerSecond,
		Signal: t.series(signals.Marginal, region),
	}
	if p := t.series(signals.Percentile, region); p != nil && policy.Mode == window.Percentile {
		out.Signal = p
	}
	if g := t.grams(signals.Marginal, region); g != nil {
		out.Grid.Marginal = g
	}
	if g := t.grams(signals.Average, region); g != nil {
		out.Grid.Average = g
	}
	if out.Signal == nil && s.Spec.Grid.Provider != "" {
		return Site{}, fmt.Errorf("spec.grid.region: no trace has a column %q; there are %s", region, orNone(t.regions))
	}
	if cmp.Or(own.Forecast, fed.Forecast) == v1alpha1.ForecastIgnore {
		return out, nil
	}
	out.Forecasts = recorded[region]
	if len(out.Forecasts) == 0 && o.Made.Every > 0 && out.Signal != nil {
		out.Forecasts = o.Made.issues(out.Signal)
	}
	if len(out.Forecasts) > 0 {
		o.lookAhead(&out, d)
	}
	return out, nil
}

// lookAhead sets what the window does with a forecast.
func (o Options) lookAhead(s *Site, d app.Declaration) {
	s.Policy.MinWindow, s.Policy.LeaveLead = s.Provisioning+d.Round.Train, d.Round.Grace
	if o.MinWindow != nil {
		s.Policy.MinWindow = *o.MinWindow
	}
	if o.LeaveLead != nil {
		s.Policy.LeaveLead = *o.LeaveLead
	}
}

func orNone(regions []string) string {
	if len(regions) == 0 {
		return "no traces (--trace FILE.csv or --twin SEED)"
	}
	return strings.Join(regions, ", ")
}

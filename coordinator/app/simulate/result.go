package simulate

import (
	"fmt"
	"math"
	"time"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/signals/ledger"
)

// Result is a run's figures. Null is not known, never zero.
type Result struct {
	Federation string    `json:"federation"`
	Seed       uint64    `json:"seed"`
	Start      time.Time `json:"start"`
	End        time.Time `json:"end"`
	// Hours from the start until the work was done, or until the traces or the
	// run ended.
	Hours float64 `json:"hours"`
	Done  bool    `json:"done"`
	Ended string  `json:"ended"`
	Work  Done    `json:"work"`
	// Rounds committed, and void ones.
	Rounds     uint64 `json:"rounds"`
	VoidRounds uint64 `json:"voidRounds"`
	// Tokens processed; null if a site that trained has no stated speed.
	Tokens *float64 `json:"tokens"`
	// KWh of the facilities: IT energy times PUE.
	KWh    float64   `json:"kWh"`
	KgCO2e Kilograms `json:"kgCO2e"`
	// CleanShare of the energy was drawn while the site's signal was below its
	// threshold; null without energy.
	CleanShare *float64              `json:"cleanShare"`
	Sites      map[string]SiteResult `json:"sites"`
	Baselines  map[string]Baseline   `json:"baselines"`
	Bound      *Bound                `json:"bound"`

	config  Config
	picture *picture
	names   []string
	changes map[string][]Change
}

// Done is work as asked for and as committed.
type Done struct {
	Unit Unit `json:"unit"`
	// Asked is null if there was no end.
	Asked *float64 `json:"asked"`
	Done  float64  `json:"done"`
	// Lost was trained but taken by no commit.
	Lost float64 `json:"lost"`
}

// Kilograms of CO2 in the two ledgers, which are never summed; null is unknown.
type Kilograms struct {
	Marginal *float64 `json:"marginal"`
	Average  *float64 `json:"average"`
}

// SiteResult is one site's part.
type SiteResult struct {
	Region string `json:"region,omitempty"`
	// Starts from being switched off; Windows that its electricity had open.
	Starts  int `json:"starts"`
	Windows int `json:"windows"`
	// OpenHours of electricity below the threshold; WindowUse is the share of
	// them in which the site was in, TrainingUse the share in which it trained;
	// null if there were none.
	OpenHours   float64  `json:"openHours"`
	WindowUse   *float64 `json:"windowUse"`
	TrainingUse *float64 `json:"trainingUse"`
	// Energy of the facility in kWh.
	Energy     float64   `json:"energy"`
	KgCO2e     Kilograms `json:"kgCO2e"`
	CleanShare *float64  `json:"cleanShare"`
	// Hours by what the machines did; the rest they were off.
	TrainingHours     float64 `json:"trainingHours"`
	SyncHours         float64 `json:"syncHours"`
	IdleHours         float64 `json:"idleHours"`
	ProvisioningHours float64 `json:"provisioningHours"`
	Work              float64 `json:"work"`
	// OutHours in which it was not let in, by reason.
	OutHours map[v1alpha1.Reason]float64 `json:"outHours,omitempty"`
}

// Baseline is one region's machine, always on from the same start until the
// same work is done.
type Baseline struct {
	Hours  float64  `json:"hours"`
	KWh    float64  `json:"kWh"`
	KgCO2e *float64 `json:"kgCO2e"`
	// Ratio is the run's marginal emissions over the baseline's; null if one of
	// the two is unknown or the baseline has none.
	Ratio *float64 `json:"ratio"`
	// Repeated says that the trace was shorter and begun anew.
	Repeated bool `json:"repeated"`
}

// Bound is the least that any schedule can emit for the same work in the same
// time: it knows the traces and loses nothing.
type Bound struct {
	DeadlineHours float64 `json:"deadlineHours"`
	KWh           float64 `json:"kWh"`
	KgCO2e        float64 `json:"kgCO2e"`
	// Complete says that the work can be done in that time.
	Complete bool `json:"complete"`
}

func (r *run) total() ledger.Account {
	var sum ledger.Account
	for _, s := range r.sites {
		sum = sum.Plus(r.ledger.Account(s.Name))
	}
	return sum
}

func (r *run) result() (*Result, error) {
	total := r.total()
	res := &Result{
		Federation: r.c.Federation, Seed: r.c.Seed, Start: r.c.Start, End: r.now,
		Hours: r.now.Sub(r.c.Start).Hours(), Done: r.over, Ended: r.ended,
		Rounds: r.rounds, VoidRounds: r.voids, KWh: total.KWh(),
		KgCO2e: Kilograms{kilograms(total.MarginalGrams), kilograms(total.AverageGrams)},
		Sites:  map[string]SiteResult{}, config: r.c, picture: r.picture, changes: map[string][]Change{},
		Work: Done{Unit: r.c.Work.Unit, Done: r.committed},
	}
	if r.ended == "" {
		res.Ended = "the traces end"
	}
	if r.c.Work.Amount > 0 {
		asked := r.c.Work.Amount
		res.Work.Asked = &asked
	}
	var clean, joules, tokens float64
	tokensKnown := true
	for _, s := range r.sites {
		res.names = append(res.names, s.Name)
		res.changes[s.Name] = s.changes
		res.Sites[s.Name] = s.result(r.ledger.Account(s.Name))
		res.Work.Lost += s.lost
		clean += s.cleanJoules
		joules += s.joules
		if s.done > 0 {
			tokens += s.done / s.rate * s.TokensPerSecond
			tokensKnown = tokensKnown && s.TokensPerSecond > 0
		}
	}
	if tokensKnown {
		res.Tokens = &tokens
	}
	res.CleanShare = share(clean, joules)
	return res, r.compare(res)
}

func (s *site) result(a ledger.Account) SiteResult {
	out := SiteResult{
		Region: s.Region, Starts: s.starts, Windows: s.windows, OpenHours: s.open / 3600,
		WindowUse: share(s.used, s.open), TrainingUse: share(s.productive, s.open),
		Energy: a.KWh(), KgCO2e: Kilograms{kilograms(a.MarginalGrams), kilograms(a.AverageGrams)},
		CleanShare:    share(s.cleanJoules, s.joules),
		TrainingHours: s.seconds[training] / 3600, SyncHours: s.seconds[syncing] / 3600,
		IdleHours: s.seconds[idle] / 3600, ProvisioningHours: s.seconds[provisioning] / 3600,
		Work: s.done, OutHours: map[v1alpha1.Reason]float64{},
	}
	for reason, seconds := range s.reasons {
		out.OutHours[reason] = seconds / 3600
	}
	return out
}

// compare adds the baselines and the bound for the work that was done.
func (r *run) compare(res *Result) error {
	res.Baselines = map[string]Baseline{}
	typical, n := 0.0, 0
	byRegion := map[string]*site{}
	for _, s := range r.sites {
		if s.rate > 0 {
			typical += s.rate
			n++
		}
		if byRegion[s.Region] == nil {
			byRegion[s.Region] = s
		}
	}
	if n == 0 || r.committed == 0 {
		return nil
	}
	typical /= float64(n)
	for _, region := range r.c.Regions {
		// A region without a site gets the machine of the first one.
		model, rate := r.sites[0], typical
		if s := byRegion[region.Name]; s != nil && s.rate > 0 {
			model, rate = s, s.rate
		}
		d, err := span(r.committed / rate)
		if err != nil {
			return err
		}
		b, err := alwaysOn(region, r.c.Start, d, model.Power)
		if err != nil {
			return err
		}
		res.Baselines[region.Name] = Baseline{
			Hours: b.Duration.Hours(), KWh: b.Joules / ledger.JoulesPerKWh, KgCO2e: kilograms(b.Grams),
			Ratio: ratio(res.KgCO2e.Marginal, kilograms(b.Grams)), Repeated: b.Repeated,
		}
	}
	return r.bound(res)
}

// alwaysOn is ledger.AlwaysOn, with whole laps of the trace counted once: the
// work of many sites takes one of them many laps.
func alwaysOn(region Region, start time.Time, d time.Duration, p ledger.Power) (ledger.Baseline, error) {
	lap := region.Trace.End().Sub(region.Trace.Start())
	laps := d / lap
	b, err := ledger.AlwaysOn(region.Name, region.Trace, start, d-laps*lap, p.TrainingWatts, p.PUE)
	if err != nil || laps == 0 {
		return b, err
	}
	whole, err := ledger.AlwaysOn(region.Name, region.Trace, start, lap, p.TrainingWatts, p.PUE)
	if err != nil {
		return b, err
	}
	b.Duration, b.Repeated = d, true
	b.Joules += float64(laps) * whole.Joules
	b.CoveredJoules += float64(laps) * whole.CoveredJoules
	if whole.Grams != nil {
		grams := float64(laps) * *whole.Grams
		if b.Grams != nil {
			grams += *b.Grams
		}
		b.Grams = &grams
	}
	return b, nil
}

// bound needs sites of one speed, whose useful hours are alike.
func (r *run) bound(res *Result) error {
	var places []ledger.Place
	rate := r.sites[0].rate
	for _, s := range r.sites {
		trace, ok := s.Grid.Marginal.(ledger.Trace)
		if !ok || s.rate != rate || rate == 0 || s.Power.TrainingWatts == 0 {
			return nil
		}
		places = append(places, ledger.Place{Site: s.Name, Trace: trace, Watts: s.Power.TrainingWatts, PUE: s.Power.PUE})
	}
	d, err := span(r.committed / rate)
	if err != nil {
		return err
	}
	b, err := ledger.Clairvoyant(places, r.c.Start, r.now, d)
	if err != nil {
		return err
	}
	res.Bound = &Bound{DeadlineHours: r.now.Sub(r.c.Start).Hours(), KWh: b.Joules / ledger.JoulesPerKWh, KgCO2e: b.Grams / 1000, Complete: b.Complete}
	return nil
}

func span(seconds float64) (time.Duration, error) {
	if !(seconds >= 0 && seconds < math.MaxInt64/1e9) {
		return 0, fmt.Errorf("the work takes %v seconds at one site", seconds)
	}
	return time.Duration(math.Round(seconds * 1e9)), nil
}

func share(part, whole float64) *float64 {
	if whole <= 0 {
		return nil
	}
	v := part / whole
	return &v
}

func ratio(a, b *float64) *float64 {
	if a == nil || b == nil || *b == 0 {
		return nil
	}
	v := *a / *b
	return &v
}

func kilograms(grams *float64) *float64 {
	if grams == nil {
		return nil
	}
	v := *grams / 1000
	return &v
}

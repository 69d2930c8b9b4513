package ledger

import (
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Report is a ledger for people and spreadsheets.
type Report struct {
	Federation string    `json:"federation,omitempty"`
	From       time.Time `json:"from,omitzero"`
	To         time.Time `json:"to,omitzero"`
	// Rows: one of scope "federation", then those of "site", "round", "baseline"
	// and "bound".
	Rows []Row `json:"rows"`
}

// Row is one line of a report. The two ledgers have columns of their own; there
// is none for their sum.
type Row struct {
	Scope string     `json:"scope"`
	Round *uint64    `json:"round,omitempty"`
	Site  string     `json:"site,omitempty"`
	From  *time.Time `json:"from,omitempty"`
	To    *time.Time `json:"to,omitempty"`
	KWh   float64    `json:"kWh"`
	// MeasuredShare of the energy; the rest is a power model's.
	MeasuredShare float64 `json:"measuredShare"`
	// UncertaintyKWh: the true energy is within KWh ± this.
	UncertaintyKWh float64 `json:"uncertaintyKWh"`
	// MarginalKg and AverageKg of CO2 are nil where no intensity was known; the
	// shares say of how much of the energy one was.
	MarginalKg    *float64 `json:"marginalKgCO2"`
	MarginalShare float64  `json:"marginalShare"`
	AverageKg     *float64 `json:"averageKgCO2"`
	AverageShare  float64  `json:"averageShare"`
}

// NewReport has the accounts by site, their sum and the entries of the rounds.
func NewReport(federation string, from, to time.Time, accounts map[string]Account, entries []Entry) Report {
	r := Report{Federation: federation, From: from, To: to}
	var total Account
	var sites []Row
	for _, site := range slices.Sorted(maps.Keys(accounts)) {
		total = total.Plus(accounts[site])
		sites = append(sites, row("site", site, accounts[site]))
	}
	r.Rows = append(append(r.Rows, row("federation", "", total)), sites...)
	for _, e := range entries {
		line := row("round", e.Site, e.Account)
		line.Round, line.From, line.To = &e.Round, &e.From, &e.To
		r.Rows = append(r.Rows, line)
	}
	return r
}

// AddBaseline adds what one region would have taken, always on.
func (r *Report) AddBaseline(b Baseline) {
	end := b.Start.Add(b.Duration)
	line := row("baseline", b.Region, Account{Joules: b.Joules, MarginalGrams: b.Grams, MarginalJoules: b.CoveredJoules})
	line.From, line.To = &b.Start, &end
	r.Rows = append(r.Rows, line)
}

// AddBound adds the least that was possible.
func (r *Report) AddBound(b Bound) {
	line := row("bound", "", Account{Joules: b.Joules, MarginalGrams: &b.Grams, MarginalJoules: b.Joules})
	line.From, line.To = &b.Start, &b.Deadline
	r.Rows = append(r.Rows, line)
}

func row(scope, site string, a Account) Row {
	return Row{
		Scope: scope, Site: site, KWh: a.KWh(), MeasuredShare: a.MeasuredShare(), UncertaintyKWh: a.UncertaintyJoules / JoulesPerKWh,
		MarginalKg: kg(a.MarginalGrams), MarginalShare: a.MarginalCoverage(),
		AverageKg: kg(a.AverageGrams), AverageShare: a.AverageCoverage(),
	}
}

func kg(grams *float64) *float64 {
	if grams == nil {
		return nil
	}
	v := *grams / 1000
	return &v
}

// WriteJSON writes the report; what is not known is null.
func (r Report) WriteJSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	if err := e.Encode(r); err != nil {
		return fmt.Errorf("ledger: report as JSON: %w", err)
	}
	return nil
}

// columns of the CSV.
var columns = []string{"scope", "round", "site", "from", "to", "kwh", "measured_share",
	"marginal_kgco2", "marginal_share", "average_kgco2", "average_share", "uncertainty_kwh"}

// WriteCSV writes the rows under a header; what is not known is an empty cell,
// never 0.
func (r Report) WriteCSV(w io.Writer) error {
	c := csv.NewWriter(w)
	lines := [][]string{columns}
	for _, row := range r.Rows {
		round := ""
		if row.Round != nil {
			round = strconv.FormatUint(*row.Round, 10)
		}
		lines = append(lines, []string{row.Scope, round, cell(row.Site), moment(row.From), moment(row.To), figure(&row.KWh),
			figure(&row.MeasuredShare), figure(row.MarginalKg), figure(&row.MarginalShare), figure(row.AverageKg), figure(&row.AverageShare), figure(&row.UncertaintyKWh)})
	}
	if err := c.WriteAll(lines); err != nil {
		return fmt.Errorf("ledger: report as CSV: %w", err)
	}
	return nil
}

// cell keeps a name from being taken as a formula by a spreadsheet.
func cell(name string) string {
	if name != "" && strings.ContainsRune("=+-@\t\r", rune(name[0])) {
		return "'" + name
	}
	return name
}

func moment(t *time.Time) string {
	if t == nil {
		return ""
	}
	return stamp(*t)
}

func figure(v *float64) string {
	if v == nil {
		return ""
	}
	return strconv.FormatFloat(*v, 'g', 8, 64)
}

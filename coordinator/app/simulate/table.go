package simulate

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
)

// WriteJSON writes the result as one indented document.
func (r *Result) WriteJSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(r)
}

// Changes are the membership decisions of a site in order.
func (r *Result) Changes(site string) []Change { return slices.Clone(r.changes[site]) }

// WriteTable writes the result for a terminal.
func (r *Result) WriteTable(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s h from %s (%s)\n", r.Federation, number(r.Hours, 2), stamp(r.Start), r.Ended)
	for _, line := range r.summary() {
		fmt.Fprintf(&b, "  %-10s %s\n", line[0], line[1])
	}
	b.WriteString("\n")
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
	row := func(cells ...string) { fmt.Fprintln(t, strings.Join(cells, "\t")+"\t") }
	row("SITE", "STARTS", "OPEN h", "IN", "TRAINED", "kWh", "kg MARGINAL", "kg AVERAGE", "CLEAN", "TRAIN h", "SYNC h", "IDLE h", "START h")
	for _, name := range r.names {
		s := r.Sites[name]
		row(name, strconv.Itoa(s.Starts), number(s.OpenHours, 2), percent(s.WindowUse), percent(s.TrainingUse), number(s.Energy, 2),
			optional(s.KgCO2e.Marginal, 3), optional(s.KgCO2e.Average, 3), percent(s.CleanShare),
			number(s.TrainingHours, 2), number(s.SyncHours, 2), number(s.IdleHours, 2), number(s.ProvisioningHours, 2))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	b.WriteString("\n")
	t = tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
	row("THE SAME WORK", "HOURS", "kWh", "kg MARGINAL", "THIS RUN IS")
	for _, name := range slices.Sorted(maps.Keys(r.Baselines)) {
		base := r.Baselines[name]
		mark := ""
		if base.Repeated {
			mark = "*"
		}
		row("always on in "+name+mark, number(base.Hours, 2), number(base.KWh, 2), optional(base.KgCO2e, 3), percent(base.Ratio))
	}
	if r.Bound != nil {
		row("clairvoyant bound", number(r.Bound.DeadlineHours, 2), number(r.Bound.KWh, 2), number(r.Bound.KgCO2e, 3),
			percent(ratio(r.KgCO2e.Marginal, &r.Bound.KgCO2e)))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if r.repeats() {
		b.WriteString("* its trace is shorter than the run and begun anew\n")
	}
	b.WriteString("\nOut, hours by reason\n")
	for _, name := range r.names {
		fmt.Fprintf(&b, "  %s: %s\n", name, outHours(r.Sites[name].OutHours))
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// summary is the run in a few lines of name and value.
func (r *Result) summary() [][2]string {
	work := number(r.Work.Done, 2)
	if r.Work.Asked != nil {
		work += " of " + number(*r.Work.Asked, 2)
	}
	work += " " + string(r.Work.Unit)
	if r.Work.Lost > 0 {
		work += ", " + number(r.Work.Lost, 2) + " lost"
	}
	out := [][2]string{
		{"work", work},
		{"rounds", fmt.Sprintf("%d committed, %d void", r.Rounds, r.VoidRounds)},
		{"energy", number(r.KWh, 2) + " kWh, " + percent(r.CleanShare) + " of it clean"},
		{"marginal", optional(r.KgCO2e.Marginal, 3) + " kgCO2e"},
		{"average", optional(r.KgCO2e.Average, 3) + " kgCO2e"},
	}
	if r.Tokens != nil {
		out = append(out, [2]string{"tokens", number(*r.Tokens, 0)})
	}
	return out
}

func (r *Result) repeats() bool {
	for _, b := range r.Baselines {
		if b.Repeated {
			return true
		}
	}
	return false
}

// outHours shows the reasons, the longest first.
func outHours(hours map[v1alpha1.Reason]float64) string {
	reasons := slices.Collect(maps.Keys(hours))
	slices.SortFunc(reasons, func(a, b v1alpha1.Reason) int {
		return cmp.Or(cmp.Compare(hours[b], hours[a]), cmp.Compare(a, b))
	})
	var parts []string
	for _, reason := range reasons {
		parts = append(parts, fmt.Sprintf("%s %s", reason, number(hours[reason], 2)))
	}
	if len(parts) == 0 {
		return "never"
	}
	return strings.Join(parts, ", ")
}

func number(v float64, decimals int) string { return strconv.FormatFloat(v, 'f', decimals, 64) }

// optional shows what is not known as a dash, never as 0.
func optional(v *float64, decimals int) string {
	if v == nil {
		return "–"
	}
	return number(*v, decimals)
}

func percent(v *float64) string {
	if v == nil {
		return "–"
	}
	return number(100**v, 1) + " %"
}

package report

import (
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

// columns of the terminal that the table is made for.
const columns = 80

// Text writes the summary table for a terminal; it fits 80 columns with three
// sites of the usual names.
func Text(w io.Writer, s Summary) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n\n", wrap(headline(s), columns))
	rows := [][]string{{"site", "rounds", "tokens", "window", "trained", "kWh", "marginal", "average"}}
	for _, site := range s.Sites {
		rows = append(rows, []string{site.Name, fmt.Sprint(site.Rounds), Count(float64(site.Tokens)), hours(site.WindowHours) + " h", hours(site.TrainingHours) + " h",
			sig(site.EnergyKWh), kilograms(site.MarginalKg), kilograms(site.AverageKg)})
	}
	rows = append(rows, []string{"all", fmt.Sprint(len(s.Rounds)), Count(float64(s.Tokens)), "", hours(s.Energy.UsefulHours) + " h",
		sig(s.Energy.KWh), kilograms(s.Energy.MarginalKg), kilograms(s.Energy.AverageKg)})
	table(&b, rows)
	if len(s.Energy.Baselines) > 0 {
		fmt.Fprintf(&b, "\nOne site always on for the same %s training hours instead (CO2):\n", hours(s.Energy.UsefulHours))
		rows = [][]string{{"where", "kWh", "marginal", "this run is", "average", "this run is"}}
		for _, l := range s.Energy.Baselines {
			rows = append(rows, []string{l.Site, sig(l.KWh), kilograms(l.MarginalKg), percent(l.MarginalRatio), kilograms(l.AverageKg), percent(l.AverageRatio)})
		}
		table(&b, rows)
	}
	fmt.Fprintf(&b, "\nheld-out loss  %s untrained, %s final, nats per byte over %s bytes\n",
		fixed(s.HeldOut.Untrained, 3), fixed(s.HeldOut.Final, 3), Count(float64(s.HeldOut.Tokens)))
	fmt.Fprintf(&b, "bytes          %s up, %s down per member and round (dense: %s each way), %s\n",
		byteSize(s.Wire.MedianUp), byteSize(s.Wire.MedianDown), ByteSize(float64(s.Wire.DenseBytes)), fewer(s.Wire.Fewer))
	fmt.Fprintf(&b, "               %s up, %s down in all, first weights and joins included, %s\n",
		ByteSize(float64(s.Wire.BytesUp)), ByteSize(float64(s.Wire.BytesDown)), fewer(s.Wire.FewerWithJoins))
	fmt.Fprintf(&b, "rounds         %d committed, %d void\n", len(s.Rounds), s.VoidRounds)
	if s.Comparison != nil {
		b.WriteString("\nSame start, same tokens, same held-out text:\n")
		rows = [][]string{{"trained", "tokens", "held-out loss"}}
		for _, a := range s.Comparison.Alone {
			rows = append(rows, []string{a.Name + " alone", Count(float64(a.Tokens)), fixed(a.Loss, 3)})
		}
		rows = append(rows, []string{"federation", Count(float64(s.Tokens)), fixed(s.HeldOut.Final, 3)})
		if c := s.Comparison.Central; c != nil {
			rows = append(rows, []string{"central, all text", Count(float64(c.Tokens)), fixed(c.Loss, 3)})
		}
		table(&b, rows)
		fmt.Fprintf(&b, "%s\n", wrap(verdict(s), columns))
	}
	fmt.Fprintf(&b, "\n%s\n", wrap(fmt.Sprintf("Modelled: traces are generated, power is a stated model, one real second stands for %s virtual seconds. Tokens per kWh are not those of a real GPU.", sig(s.Speed)), columns))
	_, err := io.WriteString(w, b.String())
	return err
}

// table aligns the first column left and the others right.
func table(b *strings.Builder, rows [][]string) {
	var width []int
	for _, r := range rows {
		for i, c := range r {
			if i == len(width) {
				width = append(width, 0)
			}
			width[i] = max(width[i], utf8.RuneCountInString(c))
		}
	}
	for _, r := range rows {
		var line strings.Builder
		for i, c := range r {
			pad := strings.Repeat(" ", width[i]-utf8.RuneCountInString(c))
			if i == 0 {
				line.WriteString(c + pad)
			} else {
				line.WriteString("  " + pad + c)
			}
		}
		b.WriteString(strings.TrimRight(line.String(), " ") + "\n")
	}
}

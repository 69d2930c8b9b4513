package main

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"time"
)

type report struct {
	Command string   `json:"command"`
	Seconds float64  `json:"seconds"`
	Results []result `json:"results"`
}

func newReport(command string, took time.Duration, results []result) report {
	return report{command, math.Round(took.Seconds()), results}
}

func (r result) brief() string {
	if r.Diverged != "" {
		return "diverged, " + r.Diverged
	}
	s := fmt.Sprintf("loss %.4f", r.Loss)
	if r.Accuracy > 0 {
		s += fmt.Sprintf(", accuracy %.4f", r.Accuracy)
	}
	return s + fmt.Sprintf(", %.1fx, rho %.2f, along %.2f, R %.1f, u %.1f", r.Ratio, r.Rho, r.Along, r.CoordinatorResidual, r.SiteResidual)
}

// write puts table, data and pictures into a folder.
func (r report) write(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	data, err := json.MarshalIndent(r.finite(), "", " ")
	if err != nil {
		return err
	}
	for name, b := range map[string][]byte{"results.json": append(data, '\n'), "results.md": []byte(r.markdown())} {
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o644); err != nil {
			return err
		}
	}
	return r.pictures(dir)
}

// finite has no infinities, which JSON cannot say; Diverged does.
func (r report) finite() report {
	out := r
	out.Results = append([]result(nil), r.Results...)
	for i := range out.Results {
		if math.IsInf(out.Results[i].Loss, 0) || math.IsNaN(out.Results[i].Loss) {
			out.Results[i].Loss = 0
		}
	}
	return out
}

// cell is the runs that differ in nothing but the seed.
type cell struct {
	s       setting
	variant string
	runs    []result
}

// table is the cells of one setting, whatever the seed.
type table struct {
	s     setting
	cells []cell
}

func (r report) tables() []table {
	var out []table
	at := map[setting]int{}
	for _, x := range r.Results {
		s := x.setting
		s.Seed = 0
		i, ok := at[s]
		if !ok {
			i, at[s] = len(out), len(out)
			out = append(out, table{s: s})
		}
		t := &out[i]
		if n := len(t.cells); n == 0 || t.cells[n-1].variant != x.Variant {
			t.cells = append(t.cells, cell{s, x.Variant, nil})
		}
		c := &t.cells[len(t.cells)-1]
		c.runs = append(c.runs, x)
	}
	return out
}

// mean and sample standard deviation over a cell's seeds.
func (c cell) mean(value func(result) float64) (mean, std float64) {
	n := float64(len(c.runs))
	for _, r := range c.runs {
		mean += value(r) / n
	}
	for _, r := range c.runs {
		std += (value(r) - mean) * (value(r) - mean) / max(1, n-1)
	}
	return mean, math.Sqrt(std)
}

func (c cell) diverged() bool {
	for _, r := range c.runs {
		if r.Diverged != "" {
			return true
		}
	}
	return false
}

func loss(r result) float64     { return r.Loss }
func accuracy(r result) float64 { return r.Accuracy }
func total(r result) float64    { return r.BytesUp + r.BytesDown }

func (r report) markdown() string {
	var b strings.Builder
	fmt.Fprintf(&b, "Made by `%s` in %.0f s, %d runs.\n", r.Command, r.Seconds, len(r.Results))
	for _, t := range r.tables() {
		s := t.s
		fmt.Fprintf(&b, "\n### %s, %s, %d sites, churn %s (%d rounds of %d steps)\n\n", s.Task, s.Split, s.Sites, s.Churn, s.length(), s.Steps)
		b.WriteString("| variant | seeds | loss | accuracy | x less | MB per site | kB up | kB down | rho | R, u |\n|---|---|---|---|---|---|---|---|---|---|\n")
		for _, c := range t.cells {
			if c.diverged() {
				fmt.Fprintf(&b, "| %s | %d | diverged | | | | | | | |\n", c.variant, len(c.runs))
				continue
			}
			l, ls := c.mean(loss)
			acc := ""
			if a, as := c.mean(accuracy); a > 0 {
				acc = fmt.Sprintf("%.4f ± %.4f", a, as)
			}
			of := func(f func(result) float64) float64 { m, _ := c.mean(f); return m }
			fmt.Fprintf(&b, "| %s | %d | %.4f ± %.4f | %s | %.1f | %.3f | %.2f | %.2f | %.2f | %.1f, %.1f |\n", c.variant, len(c.runs), l, ls, acc,
				of(func(r result) float64 { return r.Ratio }), of(total)/1e6,
				of(func(r result) float64 { return r.PayloadUp })/1e3, of(func(r result) float64 { return r.PayloadDown })/1e3,
				of(func(r result) float64 { return r.Rho }), of(func(r result) float64 { return r.CoordinatorResidual }),
				of(func(r result) float64 { return r.SiteResidual }))
		}
	}
	return b.String()
}

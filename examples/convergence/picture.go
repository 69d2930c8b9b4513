package main

import (
	"fmt"
	"math"
	"path/filepath"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"
)

// pictures draws each table: what a site has received and sent, and what the
// model was worth then, one line a variant, the mean of all seeds.
func (r report) pictures(dir string) error {
	for _, t := range r.tables() {
		if err := t.draw(dir, "loss", func(p point) float64 { return p.Loss }); err != nil {
			return err
		}
		if t.s.Task != mnistTask {
			continue
		}
		if err := t.draw(dir, "accuracy", func(p point) float64 { return p.Accuracy }); err != nil {
			return err
		}
	}
	return nil
}

func (t table) draw(dir, what string, value func(point) float64) error {
	p := plot.New()
	s := t.s
	p.Title.Text = fmt.Sprintf("%s %s, %d sites, churn %s: held-out %s", s.Task, s.Split, s.Sites, s.Churn, what)
	p.X.Label.Text = "bytes per site, up and down"
	p.X.Scale, p.X.Tick.Marker = plot.LogScale{}, plot.LogTicks{Prec: -1}
	p.Y.Label.Text = what
	p.Legend.Top = what == "loss"
	p.Add(plotter.NewGrid())
	for i, c := range t.cells {
		line, err := plotter.NewLine(c.curve(value))
		if err != nil {
			if c.diverged() {
				continue
			}
			return fmt.Errorf("picture of %s: %w", c.variant, err)
		}
		line.Color, line.Width, line.Dashes = plotutil.Color(i), vg.Points(1.5), plotutil.Dashes(i/7)
		p.Add(line)
		p.Legend.Add(c.variant, line)
	}
	name := fmt.Sprintf("%s-%s-%d-%s-%s.svg", s.Task, s.Split, s.Sites, s.Churn, what)
	return p.Save(24*vg.Centimeter, 15*vg.Centimeter, filepath.Join(dir, name))
}

// curve is the mean over seeds, as far as all have come.
func (c cell) curve(value func(point) float64) plotter.XYs {
	n := math.MaxInt
	for _, r := range c.runs {
		n = min(n, len(r.Curve))
	}
	out := make(plotter.XYs, n)
	for i := range out {
		for _, r := range c.runs {
			out[i].X += r.Curve[i].Bytes / float64(len(c.runs))
			out[i].Y += value(r.Curve[i]) / float64(len(c.runs))
		}
	}
	return out
}

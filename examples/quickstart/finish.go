package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/spf13/pflag"

	"girassol.dev/coordinator/checkpoint"
	"girassol.dev/examples/quickstart/plan"
	"girassol.dev/examples/quickstart/report"
	"girassol.dev/internal/algorithm"
	"girassol.dev/internal/tensor"
	"girassol.dev/signals"
	"girassol.dev/signals/replay"
	"girassol.dev/siteagent/trainer/transformer"
)

// finalTokens of held-out text that final judgements are over.
const finalTokens = 128 << 10

// finish judges the model, compares if asked to, and writes table and report.
func (r *runner) finish(ctx context.Context) error {
	recovered, err := checkpoint.ReadLatest(r.folder.Coordinator())
	if err != nil {
		return fmt.Errorf("the trained model: %w", err)
	}
	defer recovered.Close()
	s, err := r.identity(recovered)
	if err != nil {
		return err
	}
	s = report.Fill(s, r.entries)
	if !recovered.Empty() {
		err := tensor.WriteFileAtomic(r.folder.Model(), func(w io.Writer) error { return tensor.SaveState(w, recovered.State, false) })
		if err != nil {
			return err
		}
		r.say("\nJudging the model on held-out text ...")
		j, err := newJudge(r)
		if err != nil {
			return err
		}
		if s.HeldOut, err = j.judge(recovered.State.Theta, s.HeldOut); err != nil {
			return err
		}
		if r.o.Compare {
			r.say("Training each site alone and all text in one place, %s tokens in all ...", report.Count(2*float64(s.Tokens)))
			if s.Comparison, err = j.compare(ctx, s); err != nil {
				return err
			}
		}
	}
	s = report.Fill(s, r.entries)
	if err := r.write(s); err != nil {
		return err
	}
	if r.run.Complete && !r.o.Keep {
		if err := r.folder.RemoveScratch(); err != nil {
			return err
		}
	}
	r.say("\nReport: %s", r.folder.Report())
	return nil
}

// identity is what the summary says of the run itself.
func (r *runner) identity(recovered checkpoint.Recovered) (report.Summary, error) {
	p, err := r.run.Options.Parameters()
	if err != nil {
		return report.Summary{}, err
	}
	adaptive := p.Adaptive
	if !recovered.Empty() {
		p = recovered.Latest().Algorithm // what an adaptive step came to
	}
	s := report.Summary{
		Federation: plan.Federation, Seed: r.run.Options.Seed, Speed: r.run.Options.Speed,
		Start: r.run.Start, End: plan.End(r.run.Start), Ended: r.lastStop(),
		Algorithm: report.Algorithm{Strategy: p.Strategy, OuterLearningRate: p.OuterLearningRate, OuterMomentum: p.OuterMomentum, Adaptive: adaptive,
			Uplink: encodingText(p.Uplink), Downlink: encodingText(p.Downlink)},
		Corpus: report.Corpus{Source: r.run.Source, HeldOutFiles: r.run.HeldOut.Files, HeldOutBytes: r.run.HeldOut.Bytes},
	}
	if !recovered.Empty() {
		s.Parameters = uint64(recovered.State.Layout.Parameters())
	}
	marginal, err := replay.ReadFile(r.folder.Marginal(), signals.Marginal, signals.GramsPerKWh)
	if err != nil {
		return s, err
	}
	average, err := replay.ReadFile(r.folder.Average(), signals.Average, signals.GramsPerKWh)
	if err != nil {
		return s, err
	}
	enter, leave := float64(plan.EnterBelowGrams), float64(plan.LeaveAboveGrams)
	for _, site := range r.run.Sites {
		trace, err := traceOf(site.Region, marginal, average)
		if err != nil {
			return s, err
		}
		s.Sites = append(s.Sites, report.Site{
			Name: site.Name, Region: site.Region, Text: strings.Join(site.Text.Topics, ", "), TextBytes: site.Text.Bytes,
			Power:      report.Power{TrainingWatts: plan.TrainingWatts, IdleWatts: plan.IdleWatts, PUE: plan.PUEValue()},
			EnterBelow: &enter, LeaveAbove: &leave, Trace: trace,
		})
	}
	for _, name := range r.run.Elsewhere {
		trace, err := traceOf(name, marginal, average)
		if err != nil {
			return s, err
		}
		s.Elsewhere = append(s.Elsewhere, report.Region{Name: name, Trace: trace})
	}
	return s, nil
}

func (r *runner) lastStop() string {
	for i := len(r.entries) - 1; i >= 0; i-- {
		if s := r.entries[i].Stop; s != nil {
			return s.Why
		}
	}
	return ""
}

func traceOf(region string, marginal, average *replay.Trace) (report.Trace, error) {
	var t report.Trace
	for _, c := range []struct {
		from *replay.Trace
		to   *[]report.Point
	}{{marginal, &t.Marginal}, {average, &t.Average}} {
		series, err := c.from.Column(region)
		if err != nil {
			return t, err
		}
		for i := range series.Len() {
			at, v := series.Point(i)
			*c.to = append(*c.to, report.Point{Time: at, Value: v})
		}
	}
	return t, nil
}

func encodingText(e algorithm.Encoding) string {
	values := map[algorithm.Values]string{algorithm.FP32: "fp32", algorithm.BF16: "bf16", algorithm.TwoBit: "2-bit values",
		algorithm.EightBit: "8-bit values", algorithm.FourBit: "4-bit values", algorithm.OneBit: "1-bit values"}[e.Values]
	if e.KeepOneIn <= 1 {
		return "dense " + values
	}
	domain := "elements"
	if e.Transform == algorithm.DCT64 {
		domain = "DCT coefficients"
	}
	return fmt.Sprintf("1 in %d %s, %s", e.KeepOneIn, domain, values)
}

func (r *runner) write(s report.Summary) error {
	err := errors.Join(
		tensor.WriteFileAtomic(r.folder.Report(), func(w io.Writer) error { return report.HTML(w, s) }),
		tensor.WriteFileAtomic(r.folder.Summary(), func(w io.Writer) error {
			e := json.NewEncoder(w)
			e.SetIndent("", " ")
			return e.Encode(s)
		}),
	)
	if err != nil {
		return err
	}
	r.say("")
	return report.Text(r.stdout, s)
}

// judge evaluates models and trains the alternatives, in this process.
type judge struct {
	r       *runner
	config  transformer.Config
	heldOut *transformer.Corpus
}

func newJudge(r *runner) (*judge, error) {
	j := &judge{r: r}
	var err error
	if j.config, err = trainerConfig(r.run.Options.Trainer); err != nil {
		return nil, err
	}
	j.config.InitSeed = r.run.Options.Seed
	j.heldOut, err = transformer.ReadList(r.folder.HeldOut(), 0)
	return j, err
}

// trainerConfig is the model that the trainers' own flags, with the same
// arguments, make.
func trainerConfig(args []string) (transformer.Config, error) {
	c := transformer.DefaultConfig()
	flags := transformer.Command().Flags()
	flags.Usage = func() {}
	switch err := flags.Parse(args); {
	case errors.Is(err, pflag.ErrHelp): // wrapped, it would print the quickstart's own
		return c, errors.New("trainer arguments: see quickstart trainer --help")
	case err != nil:
		return c, fmt.Errorf("trainer arguments: %w; see quickstart trainer --help", err)
	}
	if flags.NArg() > 0 {
		return c, fmt.Errorf("trainer arguments: %q is no flag; see quickstart trainer --help", flags.Arg(0))
	}
	ints := map[string]*int{"dim": &c.Dim, "layers": &c.Layers, "heads": &c.Heads, "context": &c.Context, "batch": &c.Batch, "warmup": &c.Warmup}
	floats := map[string]*float64{"lr": &c.LR, "beta1": &c.Beta1, "beta2": &c.Beta2, "weight-decay": &c.WeightDecay, "clip": &c.Clip, "lr-floor": &c.LRFloor}
	var err error
	flags.Visit(func(f *pflag.Flag) {
		var e error
		switch {
		case ints[f.Name] != nil:
			*ints[f.Name], e = flags.GetInt(f.Name)
		case floats[f.Name] != nil:
			*floats[f.Name], e = flags.GetFloat64(f.Name)
		case f.Name == "total-samples":
			c.TotalSamples, e = flags.GetUint64(f.Name)
		}
		err = errors.Join(err, e)
	})
	if err == nil {
		err = c.Validate()
	}
	if err != nil {
		return c, fmt.Errorf("trainer arguments: %w", err)
	}
	return c, nil
}

// loss of a model with these weights on held-out text; nil weights are the
// untrained ones.
func (j *judge) loss(theta []float32) (loss float64, tokens int, err error) {
	m, err := transformer.NewModel(j.config)
	if err != nil {
		return 0, 0, err
	}
	if theta != nil {
		if err := m.LoadWeights(theta); err != nil {
			return 0, 0, err
		}
	}
	return transformer.Evaluate(m, j.heldOut, finalTokens)
}

func (j *judge) judge(theta []float32, h report.HeldOut) (report.HeldOut, error) {
	var untrained, final float64
	var tokens int
	var errs [2]error
	var group sync.WaitGroup
	group.Go(func() { untrained, _, errs[0] = j.loss(nil) })
	group.Go(func() { final, tokens, errs[1] = j.loss(theta) })
	group.Wait()
	if err := errors.Join(errs[0], errs[1]); err != nil {
		return h, err
	}
	h.Untrained, h.Final, h.Tokens = &untrained, &final, uint64(tokens)
	return h, nil
}

// compare trains each site alone with the tokens that it had in the federation
// and one central run with those of all, from the same first weights.
func (j *judge) compare(ctx context.Context, s report.Summary) (*report.Comparison, error) {
	began := time.Now()
	c := &report.Comparison{Alone: make([]report.Contender, len(s.Sites)), Central: &report.Contender{Name: "central"}}
	var lists []string
	for _, site := range s.Sites {
		lists = append(lists, j.r.folder.Files(site.Name))
	}
	var group sync.WaitGroup
	errs := make([]error, len(s.Sites)+1)
	for i, site := range s.Sites {
		c.Alone[i] = report.Contender{Name: site.Name, Tokens: site.Tokens}
		group.Go(func() { errs[i] = j.train(ctx, &c.Alone[i], lists[i:i+1], j.r.run.Sites[i].Seed) })
	}
	group.Go(func() {
		c.Central.Tokens = s.Tokens
		errs[len(s.Sites)] = j.train(ctx, c.Central, lists, j.r.run.Options.Seed)
	})
	group.Wait()
	c.Seconds = time.Since(began).Seconds()
	return c, errors.Join(errs...)
}

// train fills in the contender's loss after its tokens on the listed text.
func (j *judge) train(ctx context.Context, c *report.Contender, lists []string, seed uint64) error {
	if c.Tokens == 0 {
		return nil
	}
	text, err := readLists(lists)
	if err != nil {
		return err
	}
	t, err := transformer.NewTrainer(j.config, text, seed)
	if err != nil {
		return err
	}
	for t.Tokens() < c.Tokens && ctx.Err() == nil {
		if loss := t.Step(); loss != loss {
			return fmt.Errorf("%s alone: the loss is no number after %d tokens", c.Name, t.Tokens())
		}
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	loss, _, err := j.loss(t.Weights())
	c.Loss = &loss
	return err
}

// readLists is the text of several lists as one.
func readLists(lists []string) (*transformer.Corpus, error) {
	if len(lists) == 1 {
		return transformer.ReadList(lists[0], 0)
	}
	f, err := os.CreateTemp("", "girassol-all-*.files")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.Remove(f.Name()) }()
	for _, l := range lists {
		b, err := os.ReadFile(l)
		if err == nil {
			_, err = f.Write(b)
		}
		if err != nil {
			return nil, errors.Join(err, f.Close())
		}
	}
	if err := f.Close(); err != nil {
		return nil, err
	}
	return transformer.ReadList(f.Name(), 256<<20)
}

// Convergence measures what Girassol's strategies reach for the bytes that they
// send. It trains the built-in transformer on Go's sources and a perceptron on
// MNIST over 1 to 16 sites in one process, through the product's own codec,
// merge and replica, and writes tables and pictures.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := program(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "convergence:", err)
		os.Exit(1)
	}
}

// options say what to run: every combination of the lists.
type options struct {
	tasks, splits, churn, sites, seeds, variants string
	rounds, steps                                int
	out                                          string
	short                                        bool
}

// variantsFull are compared by default.
const variantsFull = "fedavg;diloco;diloco:eta=.5,mu=.8;dm;dm:up=32,down=14;dm:up=8,down=4;dm:up=64,down=32"

// lengths of a run: rounds and steps of a site in a round.
var lengths = map[string][2]int{mnistTask: {32, 25}, textTask: {40, 10}}

const (
	mnistTask = "mnist"
	textTask  = "lm"
)

func parse(args []string, stderr io.Writer) (options, error) {
	var o options
	f := flag.NewFlagSet("convergence", flag.ContinueOnError)
	f.SetOutput(stderr)
	f.StringVar(&o.tasks, "tasks", "mnist,lm", "models to train")
	f.StringVar(&o.splits, "splits", "iid,non-iid", "how data are cut")
	f.StringVar(&o.churn, "churn", "none,half", "none; half: each site away in half of the rounds; twice: half over twice the rounds; spells: for 3 to 7 rounds at a time")
	f.StringVar(&o.sites, "sites", "1,2,4,8,16", "numbers of sites")
	f.StringVar(&o.seeds, "seeds", "1,2,3", "seeds; everything random depends on them")
	f.StringVar(&o.variants, "variants", variantsFull, "separated by semicolons; strategy:key=value,... with dm, diloco, fedavg and up, down, values, upvalues, downvalues, group, eta, mu, rho, cap, rule, leave, finish, finishkeep")
	f.IntVar(&o.rounds, "rounds", 0, "instead of the task's")
	f.IntVar(&o.steps, "steps", 0, "of a site in a round, instead of the task's")
	f.StringVar(&o.out, "out", "convergence-report", "folder for the report")
	f.BoolVar(&o.short, "short", false, "a small part in less than a minute, for CI")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	if f.NArg() > 0 {
		return o, fmt.Errorf("unexpected argument %q", f.Arg(0))
	}
	if o.short {
		shorten(&o, f)
	}
	return o, nil
}

// shorten fills in what was not asked for.
func shorten(o *options, f *flag.FlagSet) {
	given := map[string]bool{}
	f.Visit(func(f *flag.Flag) { given[f.Name] = true })
	for name, value := range map[string]string{
		"tasks": "mnist,lm", "splits": iid, "churn": noChurn, "sites": "1,4", "seeds": "1", "rounds": "10", "variants": "fedavg;diloco;dm",
	} {
		if !given[name] {
			if err := f.Set(name, value); err != nil {
				panic(err) // the values are ours
			}
		}
	}
}

// job is one run.
type job struct {
	s setting
	v variant
}

func (o options) jobs() ([]job, error) {
	var out []job
	var variants []variant
	for _, s := range strings.Split(o.variants, ";") {
		v, err := parseVariant(strings.TrimSpace(s))
		if err != nil {
			return nil, err
		}
		variants = append(variants, v)
	}
	sites, err := numbers(o.sites)
	if err != nil {
		return nil, err
	}
	seeds, err := numbers(o.seeds)
	if err != nil {
		return nil, err
	}
	for _, task := range strings.Split(o.tasks, ",") {
		length, ok := lengths[task]
		if !ok {
			return nil, fmt.Errorf("unknown task %q, want %s or %s", task, mnistTask, textTask)
		}
		if o.rounds > 0 {
			length[0] = o.rounds
		}
		if o.steps > 0 {
			length[1] = o.steps
		}
		for _, split := range strings.Split(o.splits, ",") {
			for _, churn := range strings.Split(o.churn, ",") {
				if err := known(split, churn); err != nil {
					return nil, err
				}
				for _, n := range sites {
					for _, v := range variants {
						for _, seed := range seeds {
							s := setting{task, split, churn, n, length[1], length[0], uint64(seed)}
							if s.sensible() {
								out = append(out, job{s, v})
							}
						}
					}
				}
			}
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("nothing to run: one site alone has data of one kind and is never away")
	}
	return out, nil
}

func known(split, churn string) error {
	switch split {
	case iid, nonIID:
	default:
		return fmt.Errorf("unknown split %q, want %s or %s", split, iid, nonIID)
	}
	switch churn {
	case noChurn, half, twice, spells:
		return nil
	}
	return fmt.Errorf("unknown churn %q, want %s, %s, %s or %s", churn, noChurn, half, twice, spells)
}

func numbers(list string) ([]int, error) {
	var out []int
	for _, s := range strings.Split(list, ",") {
		n, err := strconv.Atoi(strings.TrimSpace(s))
		if err != nil || n < 1 || n > 1<<20 {
			return nil, fmt.Errorf("%q is no number above 0", s)
		}
		out = append(out, n)
	}
	return out, nil
}

func program(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	o, err := parse(args, stderr)
	if err != nil {
		return err
	}
	jobs, err := o.jobs()
	if err != nil {
		return err
	}
	tasks, err := load(jobs)
	if err != nil {
		return err
	}
	fmt.Fprintf(stderr, "%d runs, about %s on %d processors\n", len(jobs), estimate(jobs, runtime.GOMAXPROCS(0)), runtime.GOMAXPROCS(0))
	begin := time.Now()
	results, runErr := runAll(ctx, tasks, jobs, stderr)
	// Hours of work are worth a report even when they end early.
	results = slices.DeleteFunc(results, func(r result) bool { return r.Variant == "" })
	command := strings.Join(append([]string{"go run ."}, quoted(args)...), " ")
	r := newReport(command, time.Since(begin), results)
	if err := r.write(o.out); err != nil {
		return errors.Join(runErr, err)
	}
	_, err = io.WriteString(stdout, r.markdown())
	return errors.Join(runErr, err)
}

func quoted(args []string) []string {
	out := make([]string, len(args))
	for i, a := range args {
		if strings.ContainsAny(a, "; ") {
			a = "'" + a + "'"
		}
		out[i] = a
	}
	return out
}

func load(jobs []job) (map[string]task, error) {
	tasks := map[string]task{}
	for _, j := range jobs {
		if tasks[j.s.Task] != nil {
			continue
		}
		var t task
		var err error
		if j.s.Task == mnistTask {
			t, err = loadDigits()
		} else {
			t, err = loadText()
		}
		if err != nil {
			return nil, err
		}
		tasks[j.s.Task] = t
	}
	return tasks, nil
}

// runAll runs the jobs side by side, one a processor; results come in the order
// of the jobs.
func runAll(ctx context.Context, tasks map[string]task, jobs []job, progress io.Writer) ([]result, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	results := make([]result, len(jobs))
	next := make(chan int)
	var done sync.WaitGroup
	var tell sync.Mutex
	finished := 0
	for range min(runtime.GOMAXPROCS(0), len(jobs)) {
		done.Go(func() {
			for i := range next {
				j := jobs[i]
				r, err := run(ctx, tasks[j.s.Task], j.s, j.v)
				if err != nil {
					cancel(fmt.Errorf("%s, %s: %w", j.v.Name, j.s, err))
					continue
				}
				results[i] = r
				tell.Lock()
				finished++
				fmt.Fprintf(progress, "%d/%d %s, %s: %s\n", finished, len(jobs), j.s, j.v.Name, r.brief())
				tell.Unlock()
			}
		})
	}
	for i := range jobs {
		if ctx.Err() != nil {
			break
		}
		next <- i
	}
	close(next)
	done.Wait()
	return results, context.Cause(ctx)
}

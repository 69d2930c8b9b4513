package main

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"girassol.dev/coordinator/merge"
	"girassol.dev/internal/algorithm"
	"girassol.dev/internal/codec"
	"girassol.dev/internal/tensor"
)

// roleOurs is the argument with which the binary executes itself.
const roleOurs = "ours"

//go:embed flower.py
var flower string

// result is what a program says of its aggregation.
type result struct {
	Who     string  `json:"who"`
	Seconds float64 `json:"seconds"`
	CPU     float64 `json:"cpu"`
	// Sum and Squares are of the mean's values.
	Sum     float64 `json:"sum"`
	Squares float64 `json:"squares"`

	peak int64
}

// installTime is what fetching and installing Flower may take.
const installTime = 5 * time.Minute

// environment makes a Python environment with Flower in it.
func environment(ctx context.Context, dir string) (python string, err error) {
	ctx, cancel := context.WithTimeout(ctx, installTime)
	defer cancel()
	venv := filepath.Join(dir, "venv")
	python = filepath.Join(venv, "bin", "python")
	for _, args := range [][]string{{"python3", "-m", "venv", venv}, {python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "flwr"}} {
		if out, err := exec.CommandContext(ctx, args[0], args[1:]...).CombinedOutput(); err != nil {
			last := strings.Split(strings.TrimSpace(string(out)), "\n")
			return "", fmt.Errorf("%w: %s", err, last[len(last)-1])
		}
	}
	return python, nil
}

func ownCommand(ctx context.Context) (*exec.Cmd, error) {
	self, err := os.Executable()
	return exec.CommandContext(ctx, self, roleOurs), err
}

func flowerCommand(python string) func(context.Context) (*exec.Cmd, error) {
	return func(ctx context.Context) (*exec.Cmd, error) {
		return exec.CommandContext(ctx, python, "-c", flower), nil
	}
}

// aggregate runs a program and reads what it took.
func aggregate(ctx context.Context, j job, program func(context.Context) (*exec.Cmd, error)) (r result, err error) {
	cmd, err := program(ctx)
	if err != nil {
		return r, err
	}
	told, err := json.Marshal(j)
	if err != nil {
		return r, err
	}
	var out, log bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(told), &out, &log
	if err := cmd.Run(); err != nil {
		return r, fmt.Errorf("%s: %w\n%s", filepath.Base(cmd.Path), err, log.String())
	}
	if err := json.Unmarshal(out.Bytes(), &r); err != nil {
		return r, fmt.Errorf("%s said %q: %w", filepath.Base(cmd.Path), out.String(), err)
	}
	if u, ok := cmd.ProcessState.SysUsage().(*syscall.Rusage); ok {
		r.peak = u.Maxrss << 10
	}
	return r, nil
}

// runOurs is the child: the product's mean of the updates, checks included where they
// come from files.
func runOurs(stdin io.Reader, stdout io.Writer) error {
	var j job
	if err := json.NewDecoder(stdin).Decode(&j); err != nil {
		return err
	}
	l, err := j.layout()
	if err != nil {
		return err
	}
	p, err := algorithm.Defaults(algorithm.FedAvg)
	if err != nil {
		return err
	}
	d := codec.NewDomain(l, p.Uplink.Transform)
	begin, cpu := time.Now(), cpuTime()
	updates := make([]merge.Update, len(j.Files))
	for i, name := range j.Files {
		f, err := os.Open(name)
		if err != nil {
			return err
		}
		defer func() { _ = f.Close() }()
		var r io.ReaderAt = f
		fi, err := f.Stat()
		if err != nil {
			return err
		}
		if j.Scope == scopeMemory {
			b := make([]byte, fi.Size())
			if _, err := io.ReadFull(f, b); err != nil {
				return err
			}
			r = bytes.NewReader(b)
		}
		payload, err := codec.Parse(d, p.Uplink, r, fi.Size(), nil)
		if err != nil {
			return err
		}
		updates[i] = merge.Update{Member: name, Weight: float64(j.Weights[i]), Payload: payload}
	}
	if j.Scope == scopeMemory {
		begin, cpu = time.Now(), cpuTime()
	}
	mean, err := merge.NewMean(d, updates)
	if err != nil {
		return err
	}
	x := tensor.NewVector(d.Len())
	for _, b := range d.Blocks() {
		if err := mean.Block(b, x[b.Lo:b.Hi]); err != nil {
			return err
		}
	}
	r := result{Who: "girassol", Seconds: time.Since(begin).Seconds(), CPU: (cpuTime() - cpu).Seconds()}
	for _, v := range x {
		r.Sum += float64(v)
		r.Squares += float64(v) * float64(v)
	}
	return json.NewEncoder(stdout).Encode(r)
}

// cpuTime of this process.
func cpuTime() time.Duration {
	var r syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &r) != nil {
		return 0
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/alicebob/miniredis/v2"
	"golang.org/x/term"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	"girassol.dev/examples/quickstart/plan"
	"girassol.dev/examples/quickstart/timeline"
	"girassol.dev/examples/quickstart/view"
	"girassol.dev/siteagent/trainer"
)

// errInterrupted is the cause of a run that Ctrl-C ended.
var errInterrupted = errors.New("interrupted")

// demo runs everything from the options to the report.
func demo(ctx context.Context, o plan.Options, given func(string) bool, stdout, stderr io.Writer) (err error) {
	say := func(format string, args ...any) { fmt.Fprintf(stdout, format+"\n", args...) }
	folder, run, err := load(o, given, say)
	if err != nil {
		return err
	}
	fleet, err := newFleet()
	if err != nil {
		return err
	}
	ctx, stopSignals := onInterrupt(ctx, fleet, stderr)
	defer stopSignals()
	r := &runner{o: o, folder: folder, run: run, fleet: fleet, stdout: stdout, say: say}
	if err := r.open(); err != nil {
		return err
	}
	err = errors.Join(r.federate(ctx), r.writer.Close())
	if err != nil {
		return err
	}
	if r.interrupted {
		say("Stopped at %s of 18 h, %d rounds committed. Go on with: %s", hourMinute(r.run.At.Sub(r.run.Start)), r.committed(), resumeCommand(o))
		return errInterrupted
	}
	err = r.finish(ctx)
	if ctx.Err() != nil {
		return errInterrupted
	}
	return err
}

// load prepares a new run or takes an old one up.
func load(o plan.Options, given func(string) bool, say func(string, ...any)) (plan.Folder, plan.Run, error) {
	folder := plan.Folder(o.Out)
	if !o.Resume {
		say("Preparing %s ...", o.Out)
		run, err := plan.Prepare(folder, o, goRoot)
		if err != nil {
			return "", plan.Run{}, err
		}
		for _, s := range run.Sites {
			say("  %-12s %d files, %.1f MB: %s", s.Name, s.Text.Files, float64(s.Text.Bytes)/1e6, strings.Join(s.Text.Topics, ", "))
		}
		say("  %-12s %d files, %.1f MB, apart from all sites", "held out", run.HeldOut.Files, float64(run.HeldOut.Bytes)/1e6)
		return folder, run, nil
	}
	run, err := plan.Load(folder)
	if err != nil {
		return "", plan.Run{}, err
	}
	if bad := o.Contradicts(run.Options, given); len(bad) > 0 {
		return "", plan.Run{}, fmt.Errorf("--resume: the run in %s has another %s; leave it out or start a new run", o.Out, strings.Join(bad, ", "))
	}
	if run.Complete {
		return "", plan.Run{}, fmt.Errorf("--resume: the run in %s is complete; its report is %s", o.Out, folder.Report())
	}
	say("Going on with %s at %s of 18 h", o.Out, hourMinute(run.At.Sub(run.Start)))
	return folder, run, plan.WriteConfig(folder, run, o.Rounds)
}

// goRoot asks the go command on the path for its tree.
func goRoot() (string, error) {
	out, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		return "", fmt.Errorf("go env GOROOT: %w", err)
	}
	root := strings.TrimSpace(string(out))
	if root == "" {
		return "", errors.New("go env GOROOT is empty")
	}
	return root, nil
}

func resumeCommand(o plan.Options) string {
	cmd := "--resume"
	if o.Out != plan.DefaultOut {
		cmd += " --out " + strconv.Quote(o.Out)
	}
	name := "quickstart "
	if self, err := os.Executable(); err == nil && strings.Contains(self, "go-build") {
		name = "go run ./examples/quickstart "
	}
	return name + cmd
}

// onInterrupt ends the context at the first SIGINT or SIGTERM and everything at
// the second.
func onInterrupt(ctx context.Context, fleet *fleet, stderr io.Writer) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	done := make(chan struct{})
	go func() {
		for {
			select {
			case <-done:
				return
			case <-signals:
			}
			if ctx.Err() != nil {
				names := fleet.kill()
				view.Restore(stderr)
				fmt.Fprintf(stderr, "Forced. Killed: %s\n", strings.Join(names, ", "))
				os.Exit(exitInterrupted)
			}
			cancel(errInterrupted)
		}
	}()
	return ctx, func() {
		signal.Stop(signals)
		close(done)
		cancel(nil)
	}
}

// runner is one stretch of a run.
type runner struct {
	o      plan.Options
	folder plan.Folder
	run    plan.Run
	fleet  *fleet
	stdout io.Writer
	say    func(string, ...any)

	clock   virtualClock
	writer  *timeline.Writer
	differ  *timeline.Differ
	entries []timeline.Entry
	last    map[string]timeline.Site
	status  *coordinatorv1.FederationStatus
	rates   view.Rates
	screen  *view.Screen
	picture []string // the last one before all were asked to end
	note    string

	address     string
	redis       string
	sockets     string
	events      string // the last state of the link to Redis
	interrupted bool
	stopping    bool // all were asked to end
}

// open takes up or begins the timeline.
func (r *runner) open() (err error) {
	if r.o.Resume {
		r.writer, r.entries, err = timeline.Append(r.folder.Timeline())
	} else {
		r.writer, err = timeline.Create(r.folder.Timeline())
	}
	if err != nil {
		return err
	}
	r.differ = timeline.NewDiffer(r.entries, r.commit)
	r.last = map[string]timeline.Site{}
	r.clock = virtualClock{speed: r.run.Options.Speed, virtual: r.run.At, real: time.Now()}
	return nil
}

func (r *runner) committed() uint64 {
	if p := timeline.LastProgress(r.entries); p != nil {
		return p.RoundsCommitted
	}
	return 0
}

// record keeps entries and, without a live view, prints them.
func (r *runner) record(entries ...timeline.Entry) error {
	for _, e := range entries {
		var before *timeline.Site
		if e.Site != nil {
			if s, ok := r.last[e.Site.Name]; ok {
				before = &s
			}
			r.last[e.Site.Name] = *e.Site
		}
		// That all processes end when asked to is no news.
		news := !r.stopping || e.Site == nil && e.Phase == nil
		if r.screen == nil && news {
			if line := view.Line(e, r.run.Start, before); line != "" {
				r.say("%s", line)
			}
		}
	}
	r.entries = append(r.entries, entries...)
	return r.writer.Write(entries...)
}

// federate runs the federation until the trace ends, the rounds are done, it
// fails or is interrupted; all processes have ended when it returns.
func (r *runner) federate(ctx context.Context) (err error) {
	stop, err := r.startEvents()
	if err != nil {
		return err
	}
	defer stop()
	if r.sockets, err = socketFolder(); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(r.sockets)) }()
	defer func() {
		if names := r.fleet.kill(); len(names) > 0 {
			r.say("Killed what did not end in time: %s", strings.Join(names, ", "))
		}
	}()
	if err := r.startCoordinator(); err != nil {
		return err
	}
	conn, err := grpc.NewClient(r.address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	admin := coordinatorv1.NewAdminClient(conn)
	if err := r.awaitCoordinator(ctx, admin); err != nil {
		return err
	}
	r.clock.real = time.Now()
	if err := r.startAgents(); err != nil {
		return err
	}
	r.startScreen()
	defer r.stopScreen()
	start := timeline.Entry{Kind: timeline.KindStart, Time: r.run.At, Real: time.Now().UTC(), Start: &timeline.Start{Resumed: r.o.Resume, Speed: r.run.Options.Speed}}
	if err := r.record(start); err != nil {
		return err
	}
	return r.follow(ctx, admin)
}

// startEvents starts the embedded Redis unless a real one is named.
func (r *runner) startEvents() (stop func(), err error) {
	if r.o.Redis != "" {
		r.redis = r.o.Redis
		return func() {}, nil
	}
	m := miniredis.NewMiniRedis()
	if err := m.Start(); err != nil {
		return nil, fmt.Errorf("embedded Redis: %w", err)
	}
	r.redis = "redis://" + m.Addr() + "/0"
	return m.Close, nil
}

func (r *runner) startCoordinator() error {
	// A port that was free a moment ago: the coordinator takes an address, and
	// agents must know it before it is up.
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("no free port: %w", err)
	}
	r.address = l.Addr().String()
	if err := l.Close(); err != nil {
		return err
	}
	args := []string{roleCoordinator,
		"--config", r.folder.Config(), "--data", r.folder.Coordinator(), "--listen", r.address, "--redis", r.redis,
		"--clock-start", r.run.At.Format(time.RFC3339), "--clock-speed", strconv.FormatFloat(r.run.Options.Speed, 'g', -1, 64),
		"--heartbeat", heartbeat.String()}
	if m := r.o.Metrics; m != "" {
		args = append(args, "--metrics-listen", m)
	}
	_, err = r.fleet.start(roleCoordinator, r.folder.Log(roleCoordinator), args...)
	return err
}

// socketFolder is a private folder with a path short enough for Unix sockets,
// which --out may not have.
func socketFolder() (string, error) {
	for _, parent := range []string{"", "/tmp"} {
		dir, err := os.MkdirTemp(parent, "girassol-")
		switch {
		case err == nil && len(filepath.Join(dir, "15.sock")) <= trainer.MaxSocketPath:
			return dir, nil
		case err == nil:
			err = os.Remove(dir)
		}
		if err != nil && parent != "" {
			return "", fmt.Errorf("folder for the trainers' sockets: %w; set TMPDIR to a folder that can be written", err)
		}
	}
	return "", fmt.Errorf("no folder for the trainers' sockets: set TMPDIR to one with a path below 90 bytes")
}

// startTimeout bounds how long the coordinator may take to answer.
const startTimeout = 20 * time.Second

func (r *runner) awaitCoordinator(ctx context.Context, admin coordinatorv1.AdminClient) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	for {
		_, err := admin.Status(ctx, &coordinatorv1.StatusRequest{})
		if err == nil {
			return nil
		}
		select {
		case c := <-r.fleet.ended:
			return fmt.Errorf("the coordinator did not start: %s", r.fleet.reason(c))
		case <-ctx.Done():
			return fmt.Errorf("the coordinator at %s does not answer after %s (%w); see %s", r.address, startTimeout, err, r.folder.Log(roleCoordinator))
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func (r *runner) startAgents() error {
	for i, s := range r.run.Sites {
		command := []string{
			r.fleet.self, roleTrainer, "--files", r.folder.Files(s.Name), "--held-out-files", r.folder.HeldOut(),
			"--seed", strconv.FormatUint(s.Seed, 10), "--init-seed", strconv.FormatUint(r.run.Options.Seed, 10),
			"--evaluate-tokens", strconv.Itoa(evaluateTokens),
		}
		args := []string{
			roleAgent, "--coordinator", r.address, "--federation", plan.Federation, "--site", s.Name, "--node", "node-0",
			"--data", r.folder.SiteData(s.Name), "--work", r.folder.SiteWork(s.Name),
			"--socket", filepath.Join(r.sockets, strconv.Itoa(i)+".sock"), "--redis", r.redis, "--grace", agentGrace.String(), "--retry-max", "2s", "--",
		}
		args = append(append(args, command...), r.run.Options.Trainer...)
		if _, err := r.fleet.start("agent "+s.Name, r.folder.Log(s.Name), args...); err != nil {
			return err
		}
	}
	return nil
}

// startScreen takes the terminal when there is one.
func (r *runner) startScreen() {
	f, ok := r.stdout.(*os.File)
	if r.o.Plain || !ok || !term.IsTerminal(int(f.Fd())) || os.Getenv("TERM") == "dumb" {
		return
	}
	r.note = "Ctrl-C stops cleanly, --resume goes on. Logs: " + r.folder.Log("*")
	r.screen = view.NewScreen(f, func() (int, int) {
		w, h, err := term.GetSize(int(f.Fd()))
		if err != nil {
			return 80, 24
		}
		return w, h
	})
}

func (r *runner) stopScreen() {
	if r.screen == nil {
		return
	}
	r.screen.Close()
	r.screen = nil
	for _, l := range r.picture { // leave the last one behind
		r.say("%s", strings.TrimRight(l, " "))
	}
}

func (r *runner) model(note string) view.Model {
	up, down := r.differ.Bytes()
	now := time.Now()
	return view.Model{
		Status: r.status, Start: r.run.Start, End: plan.End(r.run.Start), Now: r.clock.at(now), Speed: r.run.Options.Speed,
		History: r.entries, TokensPerSecond: r.rates.Last(), BytesUp: up, BytesDown: down, Note: note,
	}
}

func hourMinute(d time.Duration) string {
	m := int(max(d, 0).Minutes())
	return fmt.Sprintf("%d:%02d", m/60, m%60)
}

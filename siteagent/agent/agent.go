package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"
	"google.golang.org/grpc"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	"girassol.dev/internal/tensor"
	"girassol.dev/siteagent/hardware"
	"girassol.dev/siteagent/replica"
	"girassol.dev/siteagent/trainer"
)

// Config of an agent.
type Config struct {
	// Federation, Site and Node name the member.
	Federation, Site, Node string
	// Version of the agent, for the coordinator's status.
	Version  string
	Hardware hardware.Facts
	// Dial returns a new connection to the coordinator; each session has its own.
	Dial func() (*grpc.ClientConn, error)
	// Traffic is the bytes on the sockets that Dial made. May be nil.
	Traffic func() (received, sent uint64)
	// Link tells the mode of the link and, with a tunnel, its handshake and bytes; nil
	// without. It must not block.
	Link func() *coordinatorv1.Link
	// Started is when the process began, and Opened how long reading the replica
	// from disk has taken, for the status; zero: now and not known.
	Started time.Time
	Opened  time.Duration
	// Trainer is served, and Replica closed, by the caller.
	Trainer *trainer.Server
	Replica *replica.Replica
	// TrainerFault says in a line why the trainer is not running, "" when it is.
	// May be nil.
	TrainerFault func() string
	// Energy measures the machine; nil without a meter. Whoever made it runs it.
	Energy EnergyMeter
	// PowerCap of the GPUs; nil without.
	PowerCap PowerCap
	// Redis is where events come from; nil without. CursorPath keeps the place in
	// the stream.
	Redis      redis.UniversalClient
	CursorPath string
	// RetryInitial and RetryMax bound the pauses between attempts.
	// 0: 500 ms and 60 s.
	RetryInitial, RetryMax time.Duration
	// StableAfter so long a session the pauses start anew. 0: 30 s.
	StableAfter time.Duration
	// WelcomeTimeout from dial to Welcome. 0: 30 s.
	WelcomeTimeout time.Duration
	Log            *slog.Logger
	Registerer     prometheus.Registerer
}

// ErrGraceExpired says that a leave was not over by its deadline.
var ErrGraceExpired = errors.New("the leave was not over by its deadline")

// Agent is one member. Run may be called once; Leave at any time.
type Agent struct {
	cfg     Config
	log     *slog.Logger
	metrics *metrics
	clock   clockOffset
	trips   roundTrips
	// kick wakes the worker, nudge the heartbeat; both have one place.
	kick, nudge chan struct{}

	eventKey *eventKey

	// boot tells this process's energy counter from others'.
	boot uint64

	// givenUp is the update that the worker no longer pushes by itself.
	givenUp string
	// failures of the trainer in a row; the worker's own.
	failures int

	mu             sync.Mutex
	status         memberStatus
	sess           *session
	sessionChanged chan struct{} // closed and replaced
	orders         orders
	running        *running
	interrupt      context.CancelCauseFunc // ends what the worker does outside a round
	stop           context.CancelCauseFunc // ends Run
	skewReported   bool
	warm           warmStart
	layout         *tensor.Layout // of the replica; nil without one
	// held is why the trainer gets no work before heldUntil; "" if it may.
	held      string
	heldUntil time.Time
}

// New checks the configuration.
func New(cfg Config) (*Agent, error) {
	for _, f := range []struct{ what, value string }{
		{"federation", cfg.Federation}, {"site", cfg.Site}, {"node", cfg.Node},
	} {
		if f.value == "" {
			return nil, fmt.Errorf("agent: the %s needs a name", f.what)
		}
	}
	if cfg.Dial == nil || cfg.Trainer == nil || cfg.Replica == nil {
		return nil, errors.New("agent: needs a coordinator to dial, a trainer and a replica")
	}
	for _, d := range []struct {
		v   *time.Duration
		def time.Duration
	}{
		{&cfg.RetryInitial, 500 * time.Millisecond}, {&cfg.RetryMax, time.Minute},
		{&cfg.StableAfter, 30 * time.Second}, {&cfg.WelcomeTimeout, 30 * time.Second},
	} {
		if *d.v <= 0 {
			*d.v = d.def
		}
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Registerer == nil {
		cfg.Registerer = prometheus.NewRegistry()
	}
	if cfg.Traffic == nil {
		cfg.Traffic = func() (uint64, uint64) { return 0, 0 }
	}
	a := &Agent{
		cfg:  cfg,
		log:  cfg.Log.With("federation", cfg.Federation, "site", cfg.Site, "node", cfg.Node),
		kick: make(chan struct{}, 1), nudge: make(chan struct{}, 1),
		sessionChanged: make(chan struct{}),
		eventKey:       newEventKey(),
		boot:           newBoot(),
		stop:           func(error) {},
		metrics:        newMetrics(cfg.Registerer, cfg.Federation, cfg.Site, cfg.Traffic),
	}
	cfg.Registerer.MustRegister(newEnergyCollector(cfg.Energy, cfg.PowerCap, cfg.Federation, cfg.Site))
	a.observeReplica()
	a.warm = warmStart{began: cfg.Started, pull: cfg.Opened, disk: a.status.held}
	if cfg.Started.IsZero() {
		a.warm.began = time.Now().Add(-cfg.Opened)
	}
	cfg.Trainer.SetOfferCheck(a.checkOffer)
	if u := cfg.Replica.Pending(); u != nil && !u.Accepted {
		// The first heartbeat already says that there is something to come.
		a.status.state = coordinatorv1.MemberState_MEMBER_STATE_UPLOADING
		a.status.round, a.status.steps, a.status.samples = u.Round, u.Steps, u.Samples
	} else {
		a.status.state = coordinatorv1.MemberState_MEMBER_STATE_IDLE
	}
	return a, nil
}

// Run takes part until the context ends, a leave or shutdown is over (nil), its
// grace expires (ErrGraceExpired), or a newer session of the same member takes
// over (ErrFenced).
func (a *Agent) Run(ctx context.Context) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	a.mu.Lock()
	a.stop = stop
	a.mu.Unlock()

	var group sync.WaitGroup
	defer group.Wait()
	defer stop(nil)
	group.Go(func() {
		if err := a.sessions(ctx); err != nil {
			stop(err)
		}
	})
	group.Go(func() { a.watchTrainer(ctx) })
	if a.cfg.Redis != nil {
		group.Go(func() { a.events().run(ctx) })
	}
	err := a.work(ctx)
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.Canceled) {
		return cause
	}
	return err
}

func (a *Agent) events() *eventReader {
	b := a.cfg.newBackOff()
	return &eventReader{
		redis: a.cfg.Redis, federation: a.cfg.Federation, path: a.cfg.CursorPath, keys: a.eventKey,
		backoff: b.NextBackOff, reset: b.Reset, handle: a.hint, metrics: a.metrics, log: a.log,
	}
}

// Leave asks the coordinator for an orderly leave: the step at work is finished
// and uploaded, then Run returns; at the latest after grace.
func (a *Agent) Leave(reason string, grace time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.orders.leave != nil {
		return
	}
	a.log.Info("leaving", "reason", reason, "grace", grace)
	a.orders.leave = &coordinatorv1.Leave{Reason: reason, GraceMs: grace.Milliseconds()}
	stop := a.stop
	time.AfterFunc(grace, func() {
		stop(fmt.Errorf("agent: %w (%s): work of an unfinished round is lost, what was trained before lies on disk in the residual", ErrGraceExpired, grace))
	})
	a.finishLocked("the agent is leaving", trainer.FinishBy(time.Now().Add(grace/5*4), reason))
	a.endIdleLocked()
	poke(a.kick)
	poke(a.nudge)
}

// watchTrainer tells the coordinator at once when a trainer comes or goes.
func (a *Agent) watchTrainer(ctx context.Context) {
	for {
		if a.cfg.Trainer.WaitAttached(ctx) != nil {
			return
		}
		a.letGo() // it may be another one
		poke(a.nudge)
		for a.cfg.Trainer.Attached() {
			if !pause(ctx, time.Second) {
				return
			}
		}
		poke(a.nudge)
	}
}

func (a *Agent) member() string { return a.cfg.Site + "/" + a.cfg.Node }

// poke fills a channel of one place.
func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

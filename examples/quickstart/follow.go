package main

import (
	"context"
	"fmt"
	"syscall"
	"time"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	"girassol.dev/api/federation/v1alpha1"
	"girassol.dev/coordinator/checkpoint"
	"girassol.dev/examples/quickstart/plan"
	"girassol.dev/examples/quickstart/timeline"
	"girassol.dev/examples/quickstart/view"
)

const (
	// evaluateTokens of held-out text per evaluation on the way.
	evaluateTokens = 8192
	// heartbeat of the members: a machine under load may take a second to
	// answer, and sessions end after three without.
	heartbeat = time.Second
	// agentGrace and stopTimeout bound the agents' leave and each part's end.
	agentGrace  = 6 * time.Second
	stopTimeout = 12 * time.Second
	// watchEvery is the least time between two statuses, drawEvery between two
	// frames, keepEvery between two notes of how far the run is.
	watchEvery = 150 * time.Millisecond
	drawEvery  = 125 * time.Millisecond
	keepEvery  = time.Second
	// mostRestarts of one child, restartPause before each.
	mostRestarts = 5
	restartPause = 500 * time.Millisecond
)

// follow watches the coordinator until the run ends and then ends everything in
// order: agents first, while the coordinator still takes their work.
func (r *runner) follow(ctx context.Context, admin coordinatorv1.AdminClient) error {
	watchCtx, stopWatch := context.WithCancel(context.WithoutCancel(ctx))
	defer stopWatch()
	statuses := make(chan *coordinatorv1.FederationStatus)
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		watch(watchCtx, admin, statuses)
	}()
	defer func() { stopWatch(); <-watched }()
	why, complete, failure := r.attend(ctx, statuses)
	if r.status != nil {
		r.picture = view.Frame(r.model(""), 80, 0, true)
	}
	r.note = why + " All are asked to end; Ctrl-C again forces."
	r.stopping = true
	if r.screen == nil {
		r.say("%s", r.note)
	}
	stopErr := r.shutDown(statuses, admin)
	r.run.At = r.clock.at(time.Now()).UTC()
	if end := plan.End(r.run.Start); r.run.At.After(end) {
		r.run.At = end
	}
	r.run.Complete = complete
	err := r.record(timeline.Entry{Kind: timeline.KindStop, Time: r.run.At, Real: time.Now().UTC(), Stop: &timeline.Stop{Complete: complete, Why: why}})
	for _, e := range []error{stopErr, err, r.run.Save(r.folder)} {
		if failure == nil {
			failure = e
		}
	}
	return failure
}

// watch sends statuses until ctx ends; a broken stream is opened again.
func watch(ctx context.Context, admin coordinatorv1.AdminClient, out chan<- *coordinatorv1.FederationStatus) {
	for ctx.Err() == nil {
		stream, err := admin.Watch(ctx, &coordinatorv1.WatchRequest{IntervalMs: watchEvery.Milliseconds()})
		for err == nil {
			var s *coordinatorv1.FederationStatus
			if s, err = stream.Recv(); err == nil {
				select {
				case out <- s:
				case <-ctx.Done():
				}
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(watchEvery):
		}
	}
}

// attend follows the run until it is over and says why it is.
func (r *runner) attend(ctx context.Context, statuses <-chan *coordinatorv1.FederationStatus) (why string, complete bool, failure error) {
	draw := time.NewTicker(drawEvery)
	defer draw.Stop()
	kept := time.Now()
	for {
		select {
		case <-ctx.Done():
			r.interrupted = true
			return "Interrupted.", false, nil
		case s := <-statuses:
			if err := r.take(s); err != nil {
				return "The timeline could not be written.", false, err
			}
			switch v1alpha1.FederationPhase(s.GetPhase()) {
			case v1alpha1.FederationCompleted:
				return fmt.Sprintf("All %d rounds were committed.", s.GetRoundsCommitted()), false, nil
			case v1alpha1.FederationFailed:
				return "The federation failed.", false, fmt.Errorf("the federation failed: %s: %s", s.GetReason(), s.GetMessage())
			}
		case c := <-r.fleet.ended:
			if err := r.revive(c); err != nil {
				return "A process did not stay up.", false, err
			}
		case <-draw.C:
			if r.screen != nil {
				r.screen.Draw(r.model(r.note))
			}
		}
		now := r.clock.at(time.Now())
		if !now.Before(plan.End(r.run.Start)) {
			return "The trace's 18 hours were over.", true, nil
		}
		if time.Since(kept) >= keepEvery {
			kept = time.Now()
			r.run.At = now.UTC()
			if err := r.run.Save(r.folder); err != nil {
				return "The run could not be kept.", false, err
			}
		}
	}
}

// take records what a status tells.
func (r *runner) take(s *coordinatorv1.FederationStatus) error {
	now := time.Now()
	r.clock.see(time.UnixMilli(s.GetSignalsUnixMs()).UTC(), now)
	r.status = s
	r.rates.See(s, now)
	virtual := r.clock.at(now)
	if end := plan.End(r.run.Start); virtual.After(end) {
		virtual = end // what happens while all are asked to end
	}
	r.tellEvents(s.GetEvents(), virtual)
	return r.record(r.differ.Next(s, virtual, now)...)
}

// tellEvents says when the link to Redis breaks and when it is back.
func (r *runner) tellEvents(e *coordinatorv1.EventsStatus, virtual time.Time) {
	before := r.events
	r.events = e.GetState()
	if r.screen != nil || r.stopping || r.events == before || r.events != "Disconnected" && before != "Disconnected" {
		return
	}
	text := "Redis is connected again"
	if r.events == "Disconnected" {
		text = "Redis is not connected, rounds go on without it: " + e.GetMessage()
	}
	r.say("%s  %s", hourMinute(virtual.Sub(r.run.Start)), text)
}

// revive starts a child that ended by itself again, as a node's supervisor
// would.
func (r *runner) revive(c *child) error {
	if c.restarts == mostRestarts {
		return fmt.Errorf("%s ended %d times, the last time: %s; see %s", c.name, c.restarts+1, r.fleet.reason(c), c.log)
	}
	text := fmt.Sprintf("%s ended (%s) and is started again, see %s", c.name, r.fleet.how(c), c.log)
	if r.screen == nil {
		r.say("%s", text)
	}
	r.note = text
	time.Sleep(restartPause)
	return r.fleet.again(c)
}

// shutDown ends agents, then the coordinator, each within its deadline; what is
// left is killed by federate.
func (r *runner) shutDown(statuses <-chan *coordinatorv1.FederationStatus, admin coordinatorv1.AdminClient) error {
	agents := r.fleet.running(isAgent)
	r.fleet.signal(agents, syscall.SIGTERM)
	if err := r.awaitEnd(isAgent, statuses); err != nil {
		return err
	}
	if len(r.fleet.running(isCoordinator)) > 0 { // the last commit may be news
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		s, err := admin.Status(ctx, &coordinatorv1.StatusRequest{})
		cancel()
		if err == nil {
			if err := r.take(s); err != nil {
				return err
			}
		}
	}
	r.fleet.signal(r.fleet.running(isCoordinator), syscall.SIGTERM)
	return r.awaitEnd(isCoordinator, statuses)
}

// awaitEnd waits until no matching child runs, at most stopTimeout.
func (r *runner) awaitEnd(match func(*child) bool, statuses <-chan *coordinatorv1.FederationStatus) error {
	deadline := time.NewTimer(stopTimeout)
	defer deadline.Stop()
	if r.screen != nil {
		r.screen.Draw(r.model(r.note))
	}
	for len(r.fleet.running(match)) > 0 {
		select {
		case s := <-statuses:
			if err := r.take(s); err != nil {
				return err
			}
		case <-r.fleet.ended:
		case <-deadline.C:
			return nil
		}
	}
	return nil
}

// commit looks a version up in the coordinator's log.
func (r *runner) commit(version uint64) (timeline.Commit, bool) {
	reader, err := checkpoint.Read(r.folder.Coordinator())
	if err != nil || version == 0 {
		return timeline.Commit{}, false
	}
	manifests, err := reader.Manifests(version - 1)
	if err != nil || len(manifests) == 0 || manifests[0].Version != version {
		return timeline.Commit{}, false
	}
	m := manifests[0]
	c := timeline.Commit{
		Round: m.Round, Digest: m.Digest, Tokens: m.CommittedSamples,
		Time: r.clock.at(time.UnixMilli(m.UnixMilli)).UTC(),
	}
	for _, u := range m.Members {
		c.Members = append(c.Members, timeline.Member{
			Name: u.Member, Site: u.Site, Steps: u.Steps, Tokens: u.Samples, Loss: u.Loss, PayloadBytes: u.PayloadBytes,
		})
	}
	if e := m.Evaluation; e != nil && e.Loss != nil {
		c.Evaluation = &timeline.Evaluation{Version: e.Version, Tokens: e.Samples, Loss: *e.Loss}
	}
	return c, true
}

package client

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"time"

	"github.com/cenkalti/backoff/v4"

	trainerv1 "girassol.dev/api/trainer/v1"
)

// ErrAborted is what a Handler returns when the agent said abort: nothing is
// posted.
var ErrAborted = errors.New("trainer: task aborted")

// Report tells the agent how far a task is and hears what to do next. While
// the agent is away it says continue: the stop time still holds.
type Report func(trainerv1.Progress) trainerv1.Directive

// Handler works on one task. An error other than ErrAborted is posted as a
// failure. It must keep task.StopAt by itself.
type Handler func(ctx context.Context, task trainerv1.Task, report Report) (trainerv1.Result, error)

// Loop is a trainer's life.
type Loop struct {
	Client *Client
	Handle Handler
	// Seed returns the path of the first weights, in the work folder. It is
	// called before each poll, so it writes the file only once. May be nil.
	Seed func() (string, error)
	// Wait of a long poll. 0: 30 s.
	Wait time.Duration
	Log  *slog.Logger
}

// resultTries bounds how often a result is posted while the agent is away.
const resultTries = 20

// Run polls, works and posts for ever, with backoff while the agent is away,
// and returns ctx's cause.
func (l Loop) Run(ctx context.Context) error {
	if l.Wait <= 0 {
		l.Wait = 30 * time.Second
	}
	if l.Log == nil {
		l.Log = slog.New(slog.DiscardHandler)
	}
	pause := newPause()
	away := false
	for ctx.Err() == nil {
		t, err := l.next(ctx)
		if err != nil {
			if ctx.Err() != nil {
				break
			}
			if !away {
				l.Log.Warn("agent is away, trying for ever", "error", err)
			}
			away = true
			sleep(ctx, pause.NextBackOff())
			continue
		}
		if away {
			l.Log.Info("agent is back")
		}
		away = false
		pause.Reset()
		if t != nil {
			l.work(ctx, *t)
		}
	}
	return context.Cause(ctx)
}

func newPause() *backoff.ExponentialBackOff {
	return backoff.NewExponentialBackOff(
		backoff.WithInitialInterval(100*time.Millisecond), backoff.WithMaxInterval(5*time.Second),
		backoff.WithMultiplier(2), backoff.WithRandomizationFactor(0.2), backoff.WithMaxElapsedTime(0))
}

func (l Loop) next(ctx context.Context) (*trainerv1.Task, error) {
	if l.Seed != nil {
		if err := l.offer(ctx); err != nil {
			return nil, err
		}
	}
	return l.Client.NextTask(ctx, l.Wait)
}

// offer offers the first weights. Only an agent that is away is an error: a
// trainer that cannot seed can still train what another has seeded.
func (l Loop) offer(ctx context.Context) error {
	path, err := l.Seed()
	if err != nil {
		l.Log.Warn("no first weights to offer", "error", err)
		return nil
	}
	err = l.Client.Seed(ctx, path)
	switch status := (*StatusError)(nil); {
	case err == nil:
		l.Log.Info("offered the first weights", "path", path)
	case Refused(err, http.StatusConflict): // not wanted now
	case errors.As(err, &status):
		l.Log.Warn("first weights refused", "path", path, "error", err)
	default:
		return err
	}
	return nil
}

// work does one task and posts its end.
func (l Loop) work(ctx context.Context, t trainerv1.Task) {
	log := l.Log.With("task", t.ID, "round", t.Round, "kind", t.Kind)
	report := func(p trainerv1.Progress) trainerv1.Directive {
		d, err := l.Client.Progress(ctx, t.ID, p)
		switch {
		case err == nil:
			return d
		case Refused(err, http.StatusNotFound, http.StatusConflict):
			return trainerv1.Directive{Action: trainerv1.Abort, Reason: err.Error()}
		case ctx.Err() != nil:
			return trainerv1.Directive{Action: trainerv1.Finish, Reason: "the trainer is stopping"}
		}
		log.Warn("progress not delivered", "error", err)
		return trainerv1.Directive{Action: trainerv1.Continue}
	}
	res, err := l.Handle(ctx, t, report)
	// A result is posted even when the trainer is being stopped: partial work counts.
	post := context.WithoutCancel(ctx)
	switch {
	case errors.Is(err, ErrAborted):
		log.Info("task aborted")
		return
	case err != nil:
		log.Error("task failed", "error", err)
		if err := l.Client.Failure(post, t.ID, err.Error()); err != nil {
			log.Warn("failure not delivered", "error", err)
		}
		return
	}
	pause := newPause()
	for range resultTries {
		if err = l.Client.Result(post, t.ID, res); err == nil {
			return
		}
		if status := (*StatusError)(nil); errors.As(err, &status) || ctx.Err() != nil {
			break // said no, or there is no time to wait for the agent
		}
		sleep(ctx, pause.NextBackOff())
	}
	log.Error("result not delivered", "error", err, "steps", res.Steps)
	if Refused(err, http.StatusBadRequest) {
		_ = l.Client.Failure(post, t.ID, "result refused: "+err.Error()) // so that nobody waits for the stop time
	}
}

func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

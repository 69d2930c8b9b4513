package nvml

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"
)

// Program is the file name of the child.
const Program = "agent-nvml"

// Options of a Client. The zero value is usable.
type Options struct {
	// Path of agent-nvml; empty: the file of that name beside the running program.
	Path string
	// Library is a path of libnvidia-ml.so.1; empty: where the dynamic linker finds
	// it.
	Library string
	// Timeout of a request, after which the child counts as hung and is killed; 0:
	// 30 s, since waking eight GPUs takes more than ten.
	Timeout time.Duration
	// Idle time after which the child is ended; 0: 1 minute.
	Idle time.Duration
	// Log tells once when NVML goes away or comes back; nil: nothing.
	Log *slog.Logger
}

// Client asks NVML through a child process, one request at a time. Its methods may
// be called concurrently. All errors are an *Error or the context's.
type Client struct {
	opts    Options
	now     func() time.Time
	slot    chan struct{} // held by who uses what follows
	closing chan struct{}
	closed  atomic.Bool

	child *child
	// ended children that may not be gone yet.
	ended *child
	// owed is a request whose caller has gone before the answer came.
	owed      *Request
	owedSince time.Time
	id        uint64
	// originals are the limits that were set and are to be put back, by UUID.
	originals map[string]Limit

	// failures in a row, the last of them failedAt.
	failures  int
	failedAt  time.Time
	notBefore time.Time
	last      *Error
	idle      *time.Timer
}

// New returns a client. Nothing is started before the first request.
func New(o Options) *Client {
	if o.Timeout <= 0 {
		o.Timeout = 30 * time.Second
	}
	if o.Idle <= 0 {
		o.Idle = time.Minute
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return &Client{opts: o, now: time.Now, slot: make(chan struct{}, 1), closing: make(chan struct{}), originals: make(map[string]Limit)}
}

// Inventory describes the driver and all GPUs. It may wake GPUs that nothing
// keeps awake.
func (c *Client) Inventory(ctx context.Context) (Inventory, error) {
	a, err := c.do(ctx, Request{Op: OpInventory})
	if err != nil {
		return Inventory{}, err
	}
	if a.Inventory == nil {
		return Inventory{}, &Error{Garbage, "agent-nvml gave no inventory"}
	}
	return *a.Inventory, nil
}

// Sample reads what changes from moment to moment, of all GPUs.
func (c *Client) Sample(ctx context.Context) ([]GPUSample, error) {
	a, err := c.do(ctx, Request{Op: OpSample})
	return a.Samples, err
}

// SetPowerLimit sets a GPU's limit and returns the one before. The first one
// before is remembered: it comes back with RestorePowerLimits, Close, and also
// when this process dies, unless somebody else has set another meanwhile. If the
// context ends first, the limit may be set all the same.
func (c *Client) SetPowerLimit(ctx context.Context, uuid string, watts float64) (before float64, err error) {
	a, err := c.do(ctx, Request{Op: OpSetPowerLimit, UUID: uuid, Watts: watts})
	if err != nil {
		return 0, err
	}
	if a.BeforeWatts == nil {
		return 0, &Error{Garbage, "agent-nvml did not say the limit before"}
	}
	return *a.BeforeWatts, nil
}

// KeepPowerLimit sets a GPU's limit for good: none comes back any more.
func (c *Client) KeepPowerLimit(ctx context.Context, uuid string, watts float64) error {
	_, err := c.do(ctx, Request{Op: OpSetPowerLimit, UUID: uuid, Watts: watts, Keep: true})
	return err
}

// RestorePowerLimit puts a GPU's limit back to what it was before the first
// SetPowerLimit; nothing if none was set.
func (c *Client) RestorePowerLimit(ctx context.Context, uuid string) error {
	_, err := c.do(ctx, Request{Op: OpRestorePowerLimits, UUID: uuid})
	return err
}

// RestorePowerLimits puts back all limits that were set.
func (c *Client) RestorePowerLimits(ctx context.Context) error {
	return c.RestorePowerLimit(ctx, "")
}

// Release ends the child at once, if it has no limits to put back; the next
// request starts another. For a driver that is about to be unloaded.
func (c *Client) Release() {
	select {
	case c.slot <- struct{}{}:
		c.endIdle()
		<-c.slot
	case <-c.closing:
	}
}

// Close puts limits back, ends the child and waits until it is gone, for some
// seconds at most. Requests at work end.
func (c *Client) Close() error {
	if !c.closed.CompareAndSwap(false, true) {
		return nil
	}
	close(c.closing)
	c.slot <- struct{}{} // for good
	if c.idle != nil {
		c.idle.Stop()
	}
	var err error
	if len(c.originals) > 0 {
		c.notBefore = time.Time{} // there is no later
		ctx, cancel := context.WithTimeout(context.Background(), closeGrace)
		defer cancel()
		_, err = c.ask(ctx, Request{Op: OpRestorePowerLimits}, nil)
	}
	c.end()
	if c.ended != nil && !c.ended.gone(closeGrace) {
		return &Error{Hung, fmt.Sprintf("agent-nvml (process %d) is stuck in the driver", c.ended.pid())}
	}
	return err
}

// closeGrace is how long Close waits for limits to be put back, and again for the
// child.
const closeGrace = 5 * time.Second

// do is one request; the slot is taken for its time.
func (c *Client) do(ctx context.Context, r Request) (Answer, error) {
	select {
	case <-c.closing:
		return Answer{}, errClosed
	default:
	}
	select {
	case c.slot <- struct{}{}:
	case <-ctx.Done():
		return Answer{}, ctx.Err()
	case <-c.closing:
		return Answer{}, errClosed
	}
	defer func() { <-c.slot }()
	defer c.armIdle()
	return c.ask(ctx, r, c.closing)
}

var errClosed = &Error{Closed, "the client is closed"}

// ask with the slot held.
func (c *Client) ask(ctx context.Context, r Request, closing <-chan struct{}) (Answer, error) {
	if err := c.settle(ctx, closing); err != nil {
		return Answer{}, err
	}
	if c.child == nil {
		if c.now().Before(c.notBefore) {
			return Answer{}, c.last
		}
		if err := c.start(ctx, closing); err != nil {
			return Answer{}, err
		}
	}
	c.id++
	r.ID, r.Originals = c.id, maps.Clone(c.originals)
	if err := c.child.send(r); err != nil {
		return Answer{}, c.fail(c.child.why(err))
	}
	c.owed, c.owedSince = &r, c.now()
	return c.await(ctx, closing)
}

// settle waits for the answer that is owed to somebody who left.
func (c *Client) settle(ctx context.Context, closing <-chan struct{}) error {
	if c.owed == nil {
		return nil
	}
	_, err := c.await(ctx, closing)
	if c.owed != nil || ctx.Err() != nil {
		return err // it is still owed, or nobody waits for what follows
	}
	return nil
}

// await the answer to the owed request, no longer than its timeout.
func (c *Client) await(ctx context.Context, closing <-chan struct{}) (Answer, error) {
	timeout := time.NewTimer(c.opts.Timeout - c.now().Sub(c.owedSince))
	defer timeout.Stop()
	for {
		select {
		case e := <-c.child.events:
			if e.err != nil {
				return Answer{}, c.fail(c.child.why(e.err))
			}
			if e.answer.ID != c.owed.ID {
				return Answer{}, c.fail(&Error{Garbage, fmt.Sprintf("agent-nvml answered request %d, asked was %d", e.answer.ID, c.owed.ID)})
			}
			return c.accept(e.answer)
		case <-timeout.C:
			return Answer{}, c.fail(&Error{Hung, fmt.Sprintf("no answer to %q within %v", c.owed.Op, c.opts.Timeout)})
		case <-ctx.Done():
			return Answer{}, ctx.Err()
		case <-closing:
			return Answer{}, errClosed
		}
	}
}

// accept the answer to the owed request.
func (c *Client) accept(a Answer) (Answer, error) {
	r := *c.owed
	c.owed = nil
	if a.Unavailable {
		return Answer{}, c.fail(a.Error)
	}
	if c.last != nil {
		c.opts.Log.Info("NVML can be read again")
	}
	if c.last = nil; c.now().Sub(c.failedAt) > longestPause {
		c.failures = 0 // not for one answer, lest starts and log lines go on for ever
	}
	if a.Error != nil {
		return Answer{}, a.Error
	}
	switch r.Op {
	case OpSetPowerLimit:
		switch {
		case r.Keep:
			delete(c.originals, r.UUID)
		case a.BeforeWatts != nil:
			c.originals[r.UUID] = c.originals[r.UUID].Change(*a.BeforeWatts, r.Watts)
		}
	case OpRestorePowerLimits:
		if r.UUID == "" {
			clear(c.originals)
		}
		delete(c.originals, r.UUID)
	}
	return a, nil
}

// fail ends the child, tells of a failure of a kind other than the last, and
// holds off the next start: not after the first failure, then ever longer.
func (c *Client) fail(e *Error) error {
	if c.child != nil {
		if e.Code == Hung || e.Code == Garbage {
			c.child.kill()
		}
		c.end()
	}
	if c.last == nil || c.last.Code != e.Code {
		if e.Normal() {
			c.opts.Log.Info("NVIDIA's management library is not read", "reason", e.Detail, "cure", e.WayOut())
		} else {
			c.opts.Log.Warn("NVIDIA's management library cannot be read", "problem", e.Detail, "cure", e.WayOut())
		}
	}
	c.failures++
	c.last, c.failedAt = e, c.now()
	if c.failures > 1 {
		c.notBefore = c.now().Add(min(time.Second<<min(c.failures-2, 10), longestPause))
	}
	return e
}

// longestPause between two starts of a child that fails.
const longestPause = time.Minute

// start a child once the last one is gone.
func (c *Client) start(ctx context.Context, closing <-chan struct{}) error {
	if c.ended != nil {
		wait := time.NewTimer(2 * closeGrace)
		defer wait.Stop()
		select {
		case <-c.ended.done:
			c.ended = nil
		case <-wait.C:
			return c.fail(&Error{Hung, fmt.Sprintf("agent-nvml (process %d) is stuck in the driver and cannot be killed", c.ended.pid())})
		case <-ctx.Done():
			return ctx.Err()
		case <-closing:
			return errClosed
		}
	}
	path := c.opts.Path
	if path == "" {
		self, err := os.Executable()
		if err != nil {
			return c.fail(&Error{NoProgram, fmt.Sprintf("where this program lies is not known: %v", err)})
		}
		path = filepath.Join(filepath.Dir(self), Program)
	}
	var args []string
	if c.opts.Library != "" {
		args = []string{"--library", c.opts.Library}
	}
	child, err := spawn(path, args)
	if err != nil {
		return c.fail(err)
	}
	c.child = child
	return nil
}

// end the child, without waiting.
func (c *Client) end() {
	if c.child == nil {
		return
	}
	c.child.end(closeGrace)
	c.ended, c.child, c.owed = c.child, nil, nil
}

// endIdle ends a child that owes nothing and has nothing to put back.
func (c *Client) endIdle() {
	if c.owed == nil && len(c.originals) == 0 {
		c.end()
	}
}

// armIdle has the child ended when no request comes for a while.
func (c *Client) armIdle() {
	if c.child == nil {
		return
	}
	if c.idle == nil {
		c.idle = time.AfterFunc(c.opts.Idle, func() {
			select {
			case c.slot <- struct{}{}:
				c.endIdle()
				<-c.slot
			default: // a request is at work and arms it again
			}
		})
		return
	}
	c.idle.Reset(c.opts.Idle)
}

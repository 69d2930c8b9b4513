package power

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"sync"
	"time"
)

// Board is a GPU whose power can be limited, with limits in watts.
type Board struct {
	// Device is stable over driver reloads.
	Device string
	// Limit is in force; Least and Most may be set, 0 where that is not known.
	Limit, Least, Most float64
}

// Boards are those of one vendor.
type Boards interface {
	// List gives the boards whose limit can be read.
	List(ctx context.Context) ([]Board, error)
	// SetLimit in watts. Errors may have a WayOut; errUnsure says that it may be set
	// all the same.
	SetLimit(ctx context.Context, device string, watts float64) error
	// PutBack is SetLimit with the limit before, which is to stay.
	PutBack(ctx context.Context, device string, watts float64) error
}

// CapOptions of a Cap.
type CapOptions struct {
	// Watts of each GPU while it trains; 0: none, and limits that an earlier process
	// left behind are put back all the same.
	Watts float64
	// Boards by vendor.
	Boards []Boards
	// Path of the file that remembers the limits before, for when this process is
	// killed.
	Path string
	// Linger so long after training before limits are put back; 0: 1 minute.
	Linger time.Duration
	Log    *slog.Logger
}

// Cap limits the power of GPUs while they train and puts back the limits before.
// That it cannot is told once and no reason not to train. It may be used by several
// goroutines.
type Cap struct {
	o CapOptions

	mu     sync.Mutex
	holds  int
	capped map[string]capped // by device, as in the file
	rest   *time.Timer
	told   map[string]bool
	closed bool
}

// capped is a board whose limit is not what it was.
type capped struct {
	// Before and Set are limits in watts.
	Before float64 `json:"beforeWatts"`
	Set    float64 `json:"setWatts"`
}

// capTimeout bounds one look at all boards with what is set there.
const capTimeout = 10 * time.Second

// sameLimit is how far apart two limits may be that are the same: drivers round to
// whole watts.
const sameLimit = 1.0

// NewCap puts back what an earlier process left behind.
func NewCap(o CapOptions) *Cap {
	if o.Linger <= 0 {
		o.Linger = time.Minute
	}
	c := &Cap{o: o, capped: map[string]capped{}, told: map[string]bool{}}
	left, err := readCapped(o.Path)
	if err != nil {
		o.Log.Warn("which GPUs' power limits an earlier process has lowered cannot be read; compare them with their defaults (nvidia-smi -q -d POWER, power1_cap_default)",
			"file", o.Path, "error", err)
		if err := c.remember(); err != nil {
			c.warn("the agent's data folder", err)
		}
	}
	if len(left) == 0 {
		return c
	}
	o.Log.Info("an earlier process has left power limits behind", "gpus", len(left))
	c.mu.Lock()
	defer c.mu.Unlock()
	c.capped = left
	c.putBack()
	return c
}

// Hold caps the GPUs until the last of those who hold has released, and for a while
// longer. release may be called once.
func (c *Cap) Hold() (release func()) {
	if c.o.Watts <= 0 {
		return func() {}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.holds++
	if c.rest != nil {
		c.rest.Stop()
	}
	if !c.closed {
		c.lower()
	}
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.holds--
		if c.holds == 0 && !c.closed {
			c.rest = time.AfterFunc(c.o.Linger, c.idle)
		}
	}
}

// idle puts limits back if nobody has held since.
func (c *Cap) idle() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.holds == 0 && !c.closed {
		c.putBack()
	}
}

// InForce is the cap in watts while at least one GPU is capped, else 0.
func (c *Cap) InForce() float64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, b := range c.capped {
		return b.Set
	}
	return 0
}

// Close puts limits back.
func (c *Cap) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	if c.rest != nil {
		c.rest.Stop()
	}
	c.putBack()
}

// lower caps all boards that draw more. Cap.mu is held.
func (c *Cap) lower() {
	ctx, cancel := context.WithTimeout(context.Background(), capTimeout)
	defer cancel()
	found := false
	for _, vendor := range c.o.Boards {
		boards, err := vendor.List(ctx)
		if err != nil {
			c.warn("GPUs", err)
		}
		for _, b := range boards {
			found = true
			if err := c.lowerOne(ctx, vendor, b); err != nil {
				c.warn(b.Device, err)
			}
		}
	}
	if !found {
		c.warn("this machine", errors.New("no GPU is there whose power limit can be read"))
	}
}

func (c *Cap) lowerOne(ctx context.Context, vendor Boards, b Board) error {
	watts := c.o.Watts
	switch {
	case b.Limit <= watts+sameLimit/2:
		return nil
	case b.Least > 0 && watts < b.Least:
		return &capError{fmt.Sprintf("a cap of %g W is below the least that the GPU takes, %g W", watts, b.Least), "raise spec.power.capWatts (--power-cap-watts)"}
	}
	// Remembered first: a process that is killed in between has changed nothing.
	old, known := c.capped[b.Device]
	if !known || math.Abs(b.Limit-old.Set) > sameLimit { // or somebody else has changed it since
		old.Before = b.Limit
	}
	c.capped[b.Device] = capped{Before: old.Before, Set: watts}
	err := c.remember()
	if err == nil {
		err = vendor.SetLimit(ctx, b.Device, watts)
	}
	if err == nil {
		c.o.Log.Info("a GPU's power is capped", "gpu", b.Device, "watts", watts, "before", b.Limit)
		return nil
	}
	if errors.Is(err, errUnsure) {
		return err
	}
	if known {
		c.capped[b.Device] = old
	} else {
		delete(c.capped, b.Device)
	}
	return errors.Join(err, c.remember())
}

// putBack restores the limits that are still those that were set; one that somebody
// else has changed since is theirs. What cannot be put back now is tried again after
// a while and at the next start. Cap.mu is held.
func (c *Cap) putBack() {
	if len(c.capped) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), capTimeout)
	defer cancel()
	for _, vendor := range c.o.Boards {
		boards, err := vendor.List(ctx)
		if err != nil {
			c.warn("GPUs", err)
		}
		for _, b := range boards {
			was, ok := c.capped[b.Device]
			if !ok {
				continue
			}
			switch {
			case math.Abs(b.Limit-was.Set) <= sameLimit:
				if err := vendor.PutBack(ctx, b.Device, was.Before); err != nil {
					c.warn(b.Device, fmt.Errorf("its limit of %g W is not put back: %w", was.Before, err))
					continue
				}
				c.o.Log.Info("a GPU's power limit is put back", "gpu", b.Device, "watts", was.Before)
			case math.Abs(b.Limit-was.Before) > sameLimit: // else it was never set, or agent-nvml has put it back
				c.o.Log.Info("a GPU's power limit was changed by somebody else and is left as it is", "gpu", b.Device, "watts", b.Limit, "set", was.Set)
			}
			delete(c.capped, b.Device)
		}
	}
	for device, was := range c.capped {
		c.warn(device, fmt.Errorf("its limit of %g W is not put back yet", was.Before))
	}
	if err := c.remember(); err != nil {
		c.warn("the agent's data folder", err)
	}
	if len(c.capped) > 0 && !c.closed {
		c.rest = time.AfterFunc(c.o.Linger, c.idle)
	}
}

// errUnsure is of a limit of which nobody knows whether it is set.
var errUnsure = errors.New("whether the limit is set is not known")

// remember writes the file.
func (c *Cap) remember() error { return writeCapped(c.o.Path, c.capped) }

// warn says each problem once.
func (c *Cap) warn(what string, err error) {
	text := what + ": " + err.Error()
	if c.told[text] || len(c.told) >= 256 {
		return
	}
	c.told[text] = true
	args := []any{"gpu", what, "problem", err}
	if out := wayOut(err); out != "" {
		args = append(args, "cure", out)
	}
	c.o.Log.Warn("power cap", args...)
}

// capError is a problem with its way out.
type capError struct{ problem, out string }

func (e *capError) Error() string  { return e.problem }
func (e *capError) WayOut() string { return e.out }

func wayOut(err error) string {
	var w interface{ WayOut() string }
	if errors.As(err, &w) {
		return w.WayOut()
	}
	return ""
}

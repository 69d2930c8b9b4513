// Package coordinators keeps one connection to the coordinator of each
// federation and the last that each of them said.
//
// It owns connections, certificates in use, the watch of each coordinator's
// status and what of a status is news. It must not know why a site is wanted or
// what is written into an object: it carries wishes and shows answers. Nothing
// that only reads waits for a coordinator.
package coordinators

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/event"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	"girassol.dev/internal/wire"
	"girassol.dev/operator/membership"
)

// ErrUnreachable is what a wish gets that no coordinator can be told; saying it
// again is up to the next change that Changed tells.
var ErrUnreachable = errors.New("coordinator unreachable")

// callTimeout bounds each wish.
const callTimeout = 5 * time.Second

// Target is where a coordinator is and how its operator proves itself.
type Target struct {
	// Address of its Service, host:port.
	Address string
	// Certificate of the operator; nil speaks plaintext, for networks that encrypt
	// below. A renewed one serves the next connection.
	Certificate *wire.PEM
}

// Directory of the federations' coordinators. Its fields are set before its use.
type Directory struct {
	Log *slog.Logger
	// Resolve maps addresses of Services to others, for operators that run outside
	// of the cluster.
	Resolve map[string]string
	// Observe, if any, gets every status that a coordinator sends, in order.
	Observe func(types.NamespacedName, *coordinatorv1.FederationStatus)

	mu       sync.Mutex
	context  context.Context // nil until Start
	clients  map[types.NamespacedName]*client
	watchers []*subscription
	wait     sync.WaitGroup
	stopped  bool
}

// Ensure keeps a connection to the coordinator at t and its status at hand.
func (d *Directory) Ensure(key types.NamespacedName, t Target) {
	name := t.Address // in the coordinator's certificate, wherever it is dialled
	if host, _, err := net.SplitHostPort(name); err == nil {
		name = host
	}
	if other, ok := d.Resolve[t.Address]; ok {
		t.Address = other
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.stopped {
		return
	}
	if c := d.clients[key]; c != nil {
		if c.address == t.Address && c.name == name && (c.certificate.Load() == nil) == (t.Certificate == nil) {
			c.certificate.Store(t.Certificate)
			return
		}
		c.stop()
	}
	c := newClient(key, t, name, d)
	if d.clients == nil {
		d.clients = make(map[types.NamespacedName]*client)
	}
	d.clients[key] = c
	if d.context != nil {
		d.run(c)
	}
}

// Forget ends the connection to a federation's coordinator.
func (d *Directory) Forget(key types.NamespacedName) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if c := d.clients[key]; c != nil {
		c.stop()
		delete(d.clients, key)
	}
}

// Status is the last that the coordinator said (nil before the first time; not to
// be changed), whether it can be reached, and in words why not. Reachable is
// Unknown before the first answer and for a short while after the last.
func (d *Directory) Status(key types.NamespacedName) (*coordinatorv1.FederationStatus, membership.Tri, string) {
	c := d.client(key)
	if c == nil {
		return nil, membership.Unknown, "the coordinator has not been asked yet"
	}
	return c.last()
}

// SetMembership tells a site's membership; it waits for the answer for a few
// seconds at most. The error wraps ErrUnreachable when nobody heard it.
func (d *Directory) SetMembership(ctx context.Context, key types.NamespacedName, r *coordinatorv1.SetMembershipRequest) (*coordinatorv1.SetMembershipResponse, error) {
	var answer *coordinatorv1.SetMembershipResponse
	err := d.call(ctx, key, func(ctx context.Context, admin coordinatorv1.AdminClient) (err error) {
		answer, err = admin.SetMembership(ctx, r)
		return err
	})
	return answer, err
}

// SetPaused pauses a federation or lets it go on. The message says why.
func (d *Directory) SetPaused(ctx context.Context, key types.NamespacedName, paused bool, message string) error {
	return d.call(ctx, key, func(ctx context.Context, admin coordinatorv1.AdminClient) error {
		if paused {
			_, err := admin.Pause(ctx, &coordinatorv1.PauseRequest{Message: message})
			return err
		}
		_, err := admin.Resume(ctx, &coordinatorv1.ResumeRequest{})
		return err
	})
}

func (d *Directory) call(ctx context.Context, key types.NamespacedName, f func(context.Context, coordinatorv1.AdminClient) error) error {
	c := d.client(key)
	if c == nil {
		return fmt.Errorf("federation %s: %w: it has not been asked yet", key, ErrUnreachable)
	}
	admin, why := c.admin()
	if admin == nil {
		return fmt.Errorf("federation %s: %w: %s", key, ErrUnreachable, why)
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if err := f(ctx, admin); err != nil {
		if unreachable(err) {
			return fmt.Errorf("federation %s: %w: %w", key, ErrUnreachable, err)
		}
		return fmt.Errorf("federation %s: its coordinator at %s: %w", key, c.address, err)
	}
	return nil
}

func (d *Directory) client(key types.NamespacedName) *client {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.clients[key]
}

// Changed tells federations (by namespace and name only) of whose status
// something is news that objects show: phase, reason, version, committed rounds,
// and of each site phase, reason, membership and members; and whether the
// coordinator can be reached. Progress within a round is none. Each call gives a
// channel of its own; what is not read in time is told once, later.
func (d *Directory) Changed() <-chan event.GenericEvent {
	s := &subscription{out: make(chan event.GenericEvent), wake: make(chan struct{}, 1)}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.watchers = append(d.watchers, s)
	if d.context != nil && !d.stopped {
		d.wait.Go(func() { s.run(d.context) })
	}
	return s.out
}

func (d *Directory) tell(key types.NamespacedName) {
	d.mu.Lock()
	watchers := slices.Clone(d.watchers)
	d.mu.Unlock()
	for _, s := range watchers {
		s.add(key)
	}
}

// Start keeps the connections until ctx ends; it returns when all are closed.
func (d *Directory) Start(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	d.mu.Lock()
	d.context = ctx
	for _, s := range d.watchers {
		d.wait.Go(func() { s.run(ctx) })
	}
	for _, c := range d.clients {
		d.run(c)
	}
	d.mu.Unlock()
	<-ctx.Done()
	d.mu.Lock()
	d.stopped = true
	d.mu.Unlock()
	d.wait.Wait()
	return nil
}

// NeedLeaderElection is true: one operator speaks to a coordinator.
func (d *Directory) NeedLeaderElection() bool { return true }

// run needs d.mu.
func (d *Directory) run(c *client) {
	ctx, cancel := context.WithCancel(d.context)
	c.cancel = cancel
	d.wait.Go(func() {
		defer cancel()
		c.run(ctx)
	})
}

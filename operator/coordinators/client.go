package coordinators

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v4"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/types"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	"girassol.dev/internal/wire"
	"girassol.dev/operator/membership"
)

const (
	// interval of the watch: at most one status in so long.
	interval = time.Second
	// silence after which a watch counts as broken; a coordinator sends every ten
	// intervals even if nothing changes.
	silence = 30 * time.Second
	// doubt is how long a coordinator that does not answer is Unknown before it is
	// unreachable: about a restart of its pod.
	doubt = 30 * time.Second
	// retryFirst and retryMost between two tries.
	retryFirst = 250 * time.Millisecond
	retryMost  = 10 * time.Second
)

// client of one coordinator.
type client struct {
	key         types.NamespacedName
	address     string
	name        string // in the coordinator's certificate
	certificate atomic.Pointer[wire.PEM]
	directory   *Directory
	cancel      context.CancelFunc // nil before it runs; under the directory's lock

	mu        sync.Mutex
	conn      *grpc.ClientConn // nil before it runs and after
	status    *coordinatorv1.FederationStatus
	reachable membership.Tri
	message   string
	silent    time.Time // since when it does not answer; zero while it does
	seen      string    // fingerprint of the last status
}

func newClient(key types.NamespacedName, t Target, name string, d *Directory) *client {
	c := &client{key: key, address: t.Address, name: name, directory: d, message: "no answer yet from " + t.Address}
	c.certificate.Store(t.Certificate)
	return c
}

// stop ends a client that runs.
func (c *client) stop() {
	if c.cancel != nil {
		c.cancel()
	}
}

func (c *client) last() (*coordinatorv1.FederationStatus, membership.Tri, string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.status, c.reachable, c.message
}

// admin is nil while the coordinator does not answer.
func (c *client) admin() (admin coordinatorv1.AdminClient, why string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.conn == nil || c.reachable != membership.Yes {
		return nil, c.message
	}
	return coordinatorv1.NewAdminClient(c.conn), ""
}

// run watches until ctx ends.
func (c *client) run(ctx context.Context) {
	log := c.directory.Log.With("namespace", c.key.Namespace, "federation", c.key.Name, "address", c.address)
	conn, err := wire.Dial(c.address, c.options())
	if err != nil { // an address or certificate that cannot work: the next Ensure brings another
		c.lost(err, time.Time{})
		log.Warn("coordinator cannot be dialled", "err", err)
		return
	}
	defer conn.Close()
	c.mu.Lock()
	c.conn = conn
	c.silent = time.Now()
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		c.conn = nil
		c.mu.Unlock()
	}()

	pause := backoff.NewExponentialBackOff(backoff.WithInitialInterval(retryFirst), backoff.WithMaxInterval(retryMost), backoff.WithMaxElapsedTime(0))
	reported := ""
	for ctx.Err() == nil {
		answered, err := c.watch(ctx, coordinatorv1.NewAdminClient(conn))
		if ctx.Err() != nil {
			return
		}
		if answered {
			pause.Reset()
			log.Info("watch of the coordinator ended", "err", err)
		} else if err.Error() != reported { // the same fault is said once
			log.Warn("coordinator does not answer", "err", err)
		}
		reported = err.Error()
		c.lost(err, time.Now())
		timer := time.NewTimer(pause.NextBackOff())
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
		}
	}
}

func (c *client) options() wire.Options {
	if c.certificate.Load() == nil {
		return wire.Options{AllowInsecure: true}
	}
	return wire.Options{ServerName: c.name, PEM: func() (wire.PEM, error) { return *c.certificate.Load(), nil }}
}

// watch takes statuses until the stream breaks; answered says whether any came.
func (c *client) watch(ctx context.Context, admin coordinatorv1.AdminClient) (answered bool, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	// gRPC's own deadline would bound the whole watch, so a timer bounds each wait.
	watchdog := time.AfterFunc(silence, func() {
		cancel(fmt.Errorf("nothing heard from the coordinator for %s", silence))
	})
	defer watchdog.Stop()
	stream, err := admin.Watch(ctx, &coordinatorv1.WatchRequest{IntervalMs: interval.Milliseconds()})
	for err == nil {
		var s *coordinatorv1.FederationStatus
		if s, err = stream.Recv(); err != nil {
			break
		}
		watchdog.Reset(silence)
		answered = true
		c.heard(s)
	}
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.Canceled) {
		err = cause
	}
	if errors.Is(err, io.EOF) {
		err = errors.New("the coordinator ended the watch")
	}
	return answered, err
}

func (c *client) heard(s *coordinatorv1.FederationStatus) {
	if observe := c.directory.Observe; observe != nil {
		observe(c.key, s)
	}
	seen := fingerprint(s)
	c.mu.Lock()
	news := c.reachable != membership.Yes || c.seen != seen
	c.status, c.seen = s, seen
	c.reachable, c.message, c.silent = membership.Yes, "", time.Time{}
	c.mu.Unlock()
	if news {
		c.directory.tell(c.key)
	}
}

// lost notes that a try failed at now; zero: there will be no other.
func (c *client) lost(err error, now time.Time) {
	c.mu.Lock()
	was := c.reachable
	c.message = words(err)
	switch {
	case now.IsZero():
		c.reachable = membership.No
	case c.silent.IsZero():
		c.silent, c.reachable = now, membership.Unknown
	case now.Sub(c.silent) >= doubt:
		c.reachable = membership.No
	}
	news := c.reachable != was
	c.mu.Unlock()
	if news {
		c.directory.tell(c.key)
	}
}

// words of an error without what gRPC puts around it.
func words(err error) string {
	if s, ok := status.FromError(err); ok {
		return s.Message()
	}
	return err.Error()
}

// unreachable says whether nobody has heard a call, as far as can be told.
func unreachable(err error) bool {
	switch status.Code(err) {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled:
		return true
	}
	return false
}

package controller

import (
	"context"
	"sync"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"
)

// Fan wakes any number of controllers for objects that changed outside of the
// API. Their queues keep each object once, so that it never waits. The zero
// value is ready for use; what is told before a controller starts reaches it with
// the objects that it lists then.
type Fan struct {
	mu      sync.Mutex
	readers []func(types.NamespacedName)
}

// Source gives one controller the objects told, as requests of its own.
func (f *Fan) Source(requests func(context.Context, types.NamespacedName) []reconcile.Request) source.Source {
	return source.Func(func(ctx context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.readers = append(f.readers, func(key types.NamespacedName) {
			for _, r := range requests(ctx, key) {
				queue.Add(r)
			}
		})
		return nil
	})
}

// Tell wakes for one object.
func (f *Fan) Tell(key types.NamespacedName) {
	f.mu.Lock()
	readers := f.readers
	f.mu.Unlock()
	for _, tell := range readers {
		tell(key)
	}
}

// Follow tells what comes from a channel until ctx ends or it is closed.
func (f *Fan) Follow(ctx context.Context, changes <-chan event.GenericEvent) error {
	for {
		select {
		case e, ok := <-changes:
			if !ok {
				return nil
			}
			f.Tell(client.ObjectKeyFromObject(e.Object))
		case <-ctx.Done():
			return nil
		}
	}
}

// Itself is for a controller of the kind that is told.
func Itself(_ context.Context, key types.NamespacedName) []reconcile.Request {
	return []reconcile.Request{{NamespacedName: key}}
}

package energy

import (
	"context"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/event"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
)

// changes tells of sites, each once however often it changed until somebody
// listens.
type changes struct {
	out  chan event.GenericEvent
	more chan struct{}

	mu      sync.Mutex
	waiting map[types.NamespacedName]bool
}

func newChanges() *changes {
	return &changes{out: make(chan event.GenericEvent), more: make(chan struct{}, 1), waiting: map[types.NamespacedName]bool{}}
}

func (c *changes) note(namespace, site string) {
	c.mu.Lock()
	c.waiting[types.NamespacedName{Namespace: namespace, Name: site}] = true
	c.mu.Unlock()
	select {
	case c.more <- struct{}{}:
	default:
	}
}

func (c *changes) take() (types.NamespacedName, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for key := range c.waiting {
		delete(c.waiting, key)
		return key, true
	}
	return types.NamespacedName{}, false
}

func (c *changes) run(ctx context.Context) {
	for {
		key, some := c.take()
		if !some {
			select {
			case <-c.more:
				continue
			case <-ctx.Done():
				return
			}
		}
		site := &v1alpha1.Site{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}}
		select {
		case c.out <- event.GenericEvent{Object: site}:
		case <-ctx.Done():
			return
		}
	}
}

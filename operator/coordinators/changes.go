package coordinators

import (
	"context"
	"sync"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/event"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
)

// subscription keeps what one reader has not been told yet: each federation once.
type subscription struct {
	out  chan event.GenericEvent
	wake chan struct{} // holds one

	mu    sync.Mutex
	dirty []types.NamespacedName // in order, each once
}

func (s *subscription) add(key types.NamespacedName) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, d := range s.dirty {
		if d == key {
			return
		}
	}
	s.dirty = append(s.dirty, key)
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

func (s *subscription) next() (key types.NamespacedName, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.dirty) == 0 {
		return key, false
	}
	key = s.dirty[0]
	s.dirty = s.dirty[1:]
	return key, true
}

func (s *subscription) run(ctx context.Context) {
	for {
		key, ok := s.next()
		if !ok {
			select {
			case <-s.wake:
				continue
			case <-ctx.Done():
				return
			}
		}
		f := &v1alpha1.Federation{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}}
		select {
		case s.out <- event.GenericEvent{Object: f}:
		case <-ctx.Done():
			return
		}
	}
}

// Package scaler is KEDA's external scaler: it says how many sites a federation
// has work for, and caps that by energy.
//
// It owns KEDA's view: what a trigger's metadata means, what is answered and
// when streams are told. It answers from what the reader (the manager's cache)
// holds and from nothing else, so that every replica gives the same answer and
// none waits for a coordinator. It must not know how a site is admitted.
package scaler

import (
	"context"
	"log/slog"
	"sync"

	"google.golang.org/grpc"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"girassol.dev/api/externalscaler"
	v1alpha1 "girassol.dev/api/federation/v1alpha1"
)

// Server answers KEDA. Its methods may be called at the same time.
type Server struct {
	externalscaler.UnimplementedExternalScalerServer

	reader client.Reader
	log    *slog.Logger

	mu sync.Mutex
	// changed is closed and replaced when something that streams show may have
	// changed.
	changed chan struct{}
	// closed once streams must end.
	closed  chan struct{}
	closing sync.Once
}

// New returns a server that answers from the reader. A nil logger logs nothing.
func New(reader client.Reader, log *slog.Logger) *Server {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Server{reader: reader, log: log, changed: make(chan struct{}), closed: make(chan struct{})}
}

// Register adds the service to a gRPC server.
func (s *Server) Register(r grpc.ServiceRegistrar) {
	externalscaler.RegisterExternalScalerServer(r, s)
}

// Changed tells open streams to look again. Calls between two looks are one.
func (s *Server) Changed() {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.changed)
	s.changed = make(chan struct{})
}

// close ends all streams: KEDA opens them again at another replica.
func (s *Server) close() { s.closing.Do(func() { close(s.closed) }) }

func (s *Server) change() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.changed
}

// IsActive is false when there is no work or every window is confirmed closed.
func (s *Server) IsActive(ctx context.Context, ref *externalscaler.ScaledObjectRef) (*externalscaler.IsActiveResponse, error) {
	_, answer, err := s.look(ctx, ref)
	if err != nil {
		return nil, err
	}
	return &externalscaler.IsActiveResponse{Result: answer.active()}, nil
}

// GetMetricSpec names the one metric of the trigger.
func (s *Server) GetMetricSpec(_ context.Context, ref *externalscaler.ScaledObjectRef) (*externalscaler.GetMetricSpecResponse, error) {
	q, err := parse(ref)
	if err != nil {
		return nil, err
	}
	return q.spec(), nil
}

// GetMetrics gives the trigger's metric now.
func (s *Server) GetMetrics(ctx context.Context, request *externalscaler.GetMetricsRequest) (*externalscaler.GetMetricsResponse, error) {
	q, answer, err := s.look(ctx, request.GetScaledObjectRef())
	if err != nil {
		return nil, err
	}
	if name := request.GetMetricName(); name != q.metric() {
		return nil, unknownMetric(name, q)
	}
	value := answer.value()
	return &externalscaler.GetMetricsResponse{MetricValues: []*externalscaler.MetricValue{{
		MetricName: q.metric(), MetricValue: value, MetricValueFloat: float64(value),
	}}}, nil
}

// StreamIsActive sends the answer of IsActive when the stream opens and whenever
// it changes.
func (s *Server) StreamIsActive(ref *externalscaler.ScaledObjectRef, stream grpc.ServerStreamingServer[externalscaler.IsActiveResponse]) error {
	ctx := stream.Context()
	var last *bool
	for {
		changed := s.change() // before looking, so that no change is missed
		_, answer, err := s.look(ctx, ref)
		if err != nil {
			return err
		}
		if active := answer.active(); last == nil || *last != active {
			if err := stream.Send(&externalscaler.IsActiveResponse{Result: active}); err != nil {
				return err
			}
			last = &active
			s.log.Debug("told KEDA", "scaledObject", ref.GetNamespace()+"/"+ref.GetName(), "active", active)
		}
		select {
		case <-ctx.Done():
			return ended(ctx)
		case <-s.closed:
			return errStopping
		case <-changed:
		}
	}
}

// StreamMetricSpec sends the answer of GetMetricSpec when the stream opens. It
// follows from the trigger's metadata alone, so it never changes: the stream then
// stays open until KEDA leaves.
func (s *Server) StreamMetricSpec(ref *externalscaler.ScaledObjectRef, stream grpc.ServerStreamingServer[externalscaler.GetMetricSpecResponse]) error {
	q, err := parse(ref)
	if err != nil {
		return err
	}
	if err := stream.Send(q.spec()); err != nil {
		return err
	}
	select {
	case <-stream.Context().Done():
		return ended(stream.Context())
	case <-s.closed:
		return errStopping
	}
}

// look reads the question and what the cache holds about it.
func (s *Server) look(ctx context.Context, ref *externalscaler.ScaledObjectRef) (question, answer, error) {
	q, err := parse(ref)
	if err != nil {
		return q, answer{}, err
	}
	f := &v1alpha1.Federation{}
	if err := s.reader.Get(ctx, q.federation, f); err != nil {
		return q, answer{}, unreadable(err, "Federation", q.federation)
	}
	names, err := q.sites(f)
	if err != nil {
		return q, answer{}, err
	}
	places := make([]place, 0, len(names))
	for _, name := range names {
		key := types.NamespacedName{Namespace: q.federation.Namespace, Name: name}
		site := &v1alpha1.Site{}
		switch err := s.reader.Get(ctx, key, site); {
		case err == nil:
			places = append(places, placeOf(f, site))
		case client.IgnoreNotFound(err) == nil:
			// A site that is not there has no work; the Federation's status says so.
		default:
			return q, answer{}, unreadable(err, "Site", key)
		}
	}
	return q, q.answer(f, places), nil
}

package app

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/operator/testenv"
)

// said is a log that many write.
type said struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *said) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *said) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// TestTheChartsRightsSufficeForAWholeLife runs an operator as the chart's
// ServiceAccount: election, children, nodes, changes and deletion.
func TestTheChartsRightsSufficeForAWholeLife(t *testing.T) {
	e, ctx := testenv.Shared(t), context.Background()
	config, own := e.Operator(t)
	namespace := e.Namespace(t)
	create(t, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: own, Name: "operator", Labels: map[string]string{"app.kubernetes.io/name": "girassol"}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "operator", Image: "operator:1"}}},
	})
	s := site(namespace, "lisboa")
	s.Spec.Nodes = &v1alpha1.NodesSpec{Selector: metav1.LabelSelector{MatchLabels: map[string]string{"rights": namespace}}, Vendor: v1alpha1.VendorCPU}
	s.Spec.Capacity.SettleSeconds = new(int32(0))
	create(t, s)
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: namespace, Labels: map[string]string{"rights": namespace}}}
	create(t, node)
	t.Cleanup(func() { _ = e.Client.Delete(ctx, node) })
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	if err := e.Client.Status().Update(ctx, node); err != nil {
		t.Fatal(err)
	}
	f := federation(namespace, "gpt", "lisboa", "porto")
	f.Spec.Events.Redis = &v1alpha1.RedisSpec{Mode: v1alpha1.RedisTrial}
	f.Spec.Drain.GraceSeconds = 1 // no coordinator runs here that could answer
	create(t, f)

	var log said
	o := options(t, namespace)
	o.Config, o.LeaderElect, o.PodName, o.PodNamespace = config, true, "operator", own
	o.Log = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	p := run(t, o)
	get := func(name string, o client.Object) error {
		return e.Client.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, o)
	}
	gone := func(name string, o client.Object) func() error {
		return func() error {
			switch err := get(name, o); {
			case err == nil:
				return fmt.Errorf("%T %s is there", o, name)
			case !apierrors.IsNotFound(err):
				return err
			}
			return nil
		}
	}
	eventually(t, "the coordinator and its Redis", func() error {
		if err := get("gpt-redis", &appsv1.Deployment{}); err != nil {
			return err
		}
		return get("gpt-coordinator", &appsv1.StatefulSet{})
	})
	create(t, site(namespace, "porto"))
	eventually(t, "acceptance", accepted(t, namespace, "gpt"))
	eventually(t, "the enrolled node", func() error {
		n := &corev1.Node{}
		if err := e.Client.Get(ctx, client.ObjectKeyFromObject(node), n); err != nil {
			return err
		}
		if n.Labels[v1alpha1.LabelAgent] == "" {
			if err := get("lisboa", s); err != nil {
				return err
			}
			return fmt.Errorf("labels %v; the site is %s %s: %s", n.Labels, s.Status.Phase, s.Status.Reason, s.Status.Message)
		}
		return nil
	})
	eventually(t, "events", func() error {
		var events corev1.EventList
		if err := e.Client.List(ctx, &events, client.InNamespace(namespace)); err != nil {
			return err
		}
		if len(events.Items) == 0 {
			return fmt.Errorf("none")
		}
		return nil
	})

	if err := get("gpt", f); err != nil {
		t.Fatal(err)
	}
	old := f.DeepCopy()
	f.Spec.Events.Redis, f.Spec.Sites = nil, f.Spec.Sites[:1]
	if err := e.Client.Patch(ctx, f, client.MergeFrom(old)); err != nil {
		t.Fatal(err)
	}
	eventually(t, "no Redis", gone("gpt-redis", &appsv1.Deployment{}))
	eventually(t, "no certificate of a site that left", gone("gpt-site-porto-tls", &corev1.Secret{}))
	if err := e.Client.Delete(ctx, f); err != nil {
		t.Fatal(err)
	}
	eventually(t, "no federation", gone("gpt", &v1alpha1.Federation{}))
	if err := e.Client.Delete(ctx, s); err != nil {
		t.Fatal(err)
	}
	eventually(t, "no site", gone("lisboa", &v1alpha1.Site{}))
	p.end()
	for line := range strings.Lines(log.String()) {
		if strings.Contains(line, "forbidden") || strings.Contains(line, "Forbidden") || strings.Contains(line, "panic") {
			t.Error(line)
		}
	}
}

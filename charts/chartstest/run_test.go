package chartstest

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	operatorapp "girassol.dev/operator/app"
	"girassol.dev/operator/resources"
	"girassol.dev/operator/testenv"
)

// TestTheOperatorLivesOnTheRightsOfTheChart runs the whole operator as its
// ServiceAccount, from the first election to the last finalizer: the apiserver
// must refuse it nothing.
func TestTheOperatorLivesOnTheRightsOfTheChart(t *testing.T) {
	for name, valuesYAML := range map[string]string{"all namespaces": "", "named namespaces": "namespaces: [training]"} {
		t.Run(name, func(t *testing.T) { live(t, valuesYAML) })
	}
}

func live(t *testing.T, valuesYAML string) {
	e, ctx := cluster(t), context.Background()
	asOperator(t, e, valuesYAML)
	template := into[appsv1.Deployment](t, find(t, objects(t, "girassol", valuesYAML), "Deployment", "")).Spec.Template
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: systemNamespace, GenerateName: "girassol-operator-", Labels: template.Labels}, Spec: template.Spec}
	create(t, e, pod)
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{GenerateName: "node-", Labels: map[string]string{"place": "here"}}}
	create(t, e, node)
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastHeartbeatTime: metav1.Now(), LastTransitionTime: metav1.Now()}}
	node.Status.Allocatable = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("8")}
	if err := e.Client.Status().Update(ctx, node); err != nil {
		t.Fatal(err)
	}

	var log journal
	run, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() {
		ended <- operatorapp.Run(run, operatorapp.Options{
			Config: e.As(systemNamespace, "girassol-operator"), Namespaces: strings.Fields(strings.Trim(strings.TrimPrefix(valuesYAML, "namespaces:"), " []")),
			LeaderElect: true, PodName: pod.Name, PodNamespace: systemNamespace,
			Images:   resources.Images{Coordinator: "coordinator:1", Agent: "agent:1", Redis: "redis:8"},
			Registry: prometheus.NewRegistry(), Log: slog.New(slog.NewTextHandler(&log, nil)),
		})
	}()
	defer func() {
		stop()
		if err := <-ended; err != nil {
			t.Errorf("the operator ended with %v", err)
		}
		for _, line := range strings.Split(log.String(), "\n") {
			if strings.Contains(strings.ToLower(line), "forbidden") {
				t.Error(line)
			}
		}
	}()

	zero := int32(0)
	s := &v1alpha1.Site{ObjectMeta: metav1.ObjectMeta{Namespace: trainingNamespace, Name: "here"}, Spec: v1alpha1.SiteSpec{
		Nodes:    &v1alpha1.NodesSpec{Selector: metav1.LabelSelector{MatchLabels: map[string]string{"place": "here"}}, Vendor: v1alpha1.VendorCPU},
		Capacity: v1alpha1.CapacitySpec{SettleSeconds: &zero},
	}}
	f := &v1alpha1.Federation{ObjectMeta: metav1.ObjectMeta{Namespace: trainingNamespace, Name: "gpt"}}
	f.Spec.Sites = []v1alpha1.SiteReference{{Name: "here"}}
	f.Spec.Energy.Policy = v1alpha1.EnergyIgnore
	f.Spec.Events.Redis = &v1alpha1.RedisSpec{Mode: v1alpha1.RedisTrial}
	f.Spec.Drain.GraceSeconds = 1 // no coordinator answers here
	f.Spec.Coordinator.Storage.ReclaimPolicy = v1alpha1.ReclaimDelete
	create(t, e, s)
	create(t, e, f)

	for _, want := range []client.Object{
		&appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Namespace: trainingNamespace, Name: resources.CoordinatorName("gpt")}},
		&corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: trainingNamespace, Name: resources.CommitsName("gpt")}},
		&appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: trainingNamespace, Name: resources.RedisName("gpt")}},
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: trainingNamespace, Name: resources.SiteSecretName("gpt", "here")}},
		&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: systemNamespace, Name: "operator.girassol.dev"}},
	} {
		until(t, "there is "+want.GetName(), func() bool { return e.Client.Get(ctx, client.ObjectKeyFromObject(want), want) == nil })
	}
	until(t, "both have a status", func() bool {
		return e.Client.Get(ctx, client.ObjectKeyFromObject(f), f) == nil && meta.FindStatusCondition(f.Status.Conditions, v1alpha1.ConditionReady) != nil &&
			e.Client.Get(ctx, client.ObjectKeyFromObject(s), s) == nil && meta.FindStatusCondition(s.Status.Conditions, v1alpha1.ConditionReady) != nil
	})
	until(t, "the node is enrolled", func() bool {
		return e.Client.Get(ctx, client.ObjectKeyFromObject(node), node) == nil && node.Labels[v1alpha1.LabelNodeSite] != ""
	})
	until(t, "the leader is marked", func() bool {
		return e.Client.Get(ctx, client.ObjectKeyFromObject(pod), pod) == nil && pod.Labels["girassol.dev/role"] == "leader"
	})
	// Recorders do not say when they are refused.
	for _, namespace := range []string{trainingNamespace, systemNamespace} {
		until(t, "there are events in "+namespace, func() bool {
			var events eventsv1.EventList
			return e.Client.List(ctx, &events, client.InNamespace(namespace)) == nil && len(events.Items) > 0
		})
	}
	for _, o := range []client.Object{f, s} {
		if err := e.Client.Delete(ctx, o); err != nil {
			t.Fatal(err)
		}
		until(t, o.GetName()+" is gone", func() bool {
			return apierrors.IsNotFound(e.Client.Get(ctx, client.ObjectKeyFromObject(o), o))
		})
	}
}

func create(t *testing.T, e *testenv.Environment, o client.Object) {
	t.Helper()
	if err := e.Client.Create(context.Background(), o); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = e.Client.Delete(context.Background(), o) })
}

func until(t *testing.T, what string, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(2 * time.Minute); !is(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not so: %s", what)
		}
	}
}

// journal is a log that may be written by many.
type journal struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (j *journal) Write(p []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.b.Write(p)
}

func (j *journal) String() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.b.String()
}

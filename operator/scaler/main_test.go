package scaler

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/signal"
	"sync"
	"testing"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"girassol.dev/api/externalscaler"
	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/operator/testenv"
)

func TestMain(m *testing.M) {
	if os.Getenv("TEST_SCALER_ROLE") == "server" {
		if err := serveStdin(); err != nil {
			println(err.Error())
			os.Exit(1)
		}
		os.Exit(0)
	}
	code := testenv.Main(m)
	if code == 0 {
		if err := goleak.Find(goleak.IgnoreTopFunction("k8s.io/klog/v2.(*flushDaemon).run.func1")); err != nil {
			println(err.Error())
			code = 1
		}
	}
	os.Exit(code)
}

// serveStdin is the scaler as a process, for the contract test in
// internal/tools/keda: it says where it listens, then takes a line of JSON for
// each object that its cache holds from then on, until the input ends.
func serveStdin() error {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	w := &world{}
	s := New(w, nil)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	go func() {
		defer stop()
		for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
			var o struct {
				Federation *v1alpha1.Federation
				Site       *v1alpha1.Site
			}
			if err := json.Unmarshal(lines.Bytes(), &o); err != nil {
				println(err.Error())
				return
			}
			if o.Federation != nil {
				w.put(o.Federation)
			}
			if o.Site != nil {
				w.put(o.Site)
			}
			s.Changed()
			fmt.Println("taken")
		}
	}()
	fmt.Println(lis.Addr())
	return (&Endpoint{Server: s, Listener: lis}).Start(ctx)
}

// world is a reader of a few objects, the newest of a name first; err, if set, is
// its answer to all.
type world struct {
	mu      sync.Mutex
	objects []client.Object
	err     error
}

func (w *world) put(o client.Object) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.objects = append([]client.Object{o}, w.objects...)
}

func (w *world) Get(_ context.Context, key client.ObjectKey, into client.Object, _ ...client.GetOption) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err != nil {
		return w.err
	}
	for _, o := range w.objects {
		if client.ObjectKeyFromObject(o) != key {
			continue
		}
		switch into := into.(type) {
		case *v1alpha1.Federation:
			if f, ok := o.(*v1alpha1.Federation); ok {
				f.DeepCopyInto(into)
				return nil
			}
		case *v1alpha1.Site:
			if s, ok := o.(*v1alpha1.Site); ok {
				s.DeepCopyInto(into)
				return nil
			}
		}
	}
	return apierrors.NewNotFound(schema.GroupResource{}, key.Name)
}

func (w *world) List(context.Context, client.ObjectList, ...client.ListOption) error { return w.err }

const namespace = "training"

func federation(edit func(*v1alpha1.Federation), sites ...string) *v1alpha1.Federation {
	f := &v1alpha1.Federation{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "gpt"}}
	for _, s := range sites {
		f.Spec.Sites = append(f.Spec.Sites, v1alpha1.SiteReference{Name: s})
	}
	if edit != nil {
		edit(f)
	}
	return f
}

// site with a known window: open, closed, or "" for an unknown one.
func site(name string, window metav1.ConditionStatus, edits ...func(*v1alpha1.Site)) *v1alpha1.Site {
	s := &v1alpha1.Site{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	if window != "" {
		s.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionEnergyFavourable, Status: window}}
	}
	for _, edit := range edits {
		edit(s)
	}
	return s
}

func reference(metadata map[string]string) *externalscaler.ScaledObjectRef {
	return &externalscaler.ScaledObjectRef{Name: "workers", Namespace: namespace, ScalerMetadata: metadata}
}

// dial a server on loopback that ends with the test.
func dial(t *testing.T, e *Endpoint, options ...grpc.DialOption) externalscaler.ExternalScalerClient {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	e.Listener = lis
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- e.Start(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Errorf("the endpoint ended with %v", err)
		}
	})
	if len(options) == 0 {
		options = []grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials())}
	}
	conn, err := grpc.NewClient(lis.Addr().String(), options...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return externalscaler.NewExternalScalerClient(conn)
}

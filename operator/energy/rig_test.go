package energy

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/operator/membership"
	"girassol.dev/operator/testenv"
	"girassol.dev/signals"
)

func TestMain(m *testing.M) { os.Exit(testenv.Main(m)) }

// wait bounds every wait of a test; it is never reached when all is well.
const wait = 2 * time.Minute

// points of a trace are so far apart.
const points = 5 * time.Minute

var t0 = time.Date(2026, 3, 2, 0, 0, 0, 0, time.UTC)

// hand is a clock that a test moves.
type hand struct {
	mu     sync.Mutex
	now    time.Time
	timers map[*handTimer]bool
}

type handTimer struct {
	of *hand
	at time.Time
	by string // who waits
	c  chan time.Time
}

func newHand(now time.Time) *hand { return &hand{now: now, timers: map[*handTimer]bool{}} }

func (h *hand) Now() time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.now
}

func (h *hand) NewTimer(d time.Duration) signals.Timer {
	h.mu.Lock()
	defer h.mu.Unlock()
	caller, _, _, _ := runtime.Caller(1)
	t := &handTimer{of: h, at: h.now.Add(d), by: runtime.FuncForPC(caller).Name(), c: make(chan time.Time, 1)}
	if d <= 0 {
		t.c <- h.now
	} else {
		h.timers[t] = true
	}
	return t
}

func (h *hand) move(d time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.now = h.now.Add(d)
	for t := range h.timers {
		if !h.now.Before(t.at) {
			delete(h.timers, t)
			t.c <- h.now
		}
	}
}

func (t *handTimer) C() <-chan time.Time { return t.c }

func (t *handTimer) Stop() bool {
	t.of.mu.Lock()
	defer t.of.mu.Unlock()
	was := t.of.timers[t]
	delete(t.of.timers, t)
	return was
}

// line is the network between an engine and the API server.
type line struct {
	cut           atomic.Bool
	reads, writes atomic.Int64
}

var errCut = errors.New("the line is cut")

func (l *line) client(c client.Client) client.Client {
	call := func(n *atomic.Int64) error {
		if l.cut.Load() {
			return errCut
		}
		n.Add(1)
		return nil
	}
	return interceptor.NewClient(c.(client.WithWatch), interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
			if err := call(&l.reads); err != nil {
				return err
			}
			return c.Get(ctx, key, o, opts...)
		},
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			if err := call(&l.writes); err != nil {
				return err
			}
			return c.Create(ctx, o, opts...)
		},
		Patch: func(ctx context.Context, c client.WithWatch, o client.Object, p client.Patch, opts ...client.PatchOption) error {
			if err := call(&l.writes); err != nil {
				return err
			}
			return c.Patch(ctx, o, p, opts...)
		},
		Delete: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.DeleteOption) error {
			if err := call(&l.writes); err != nil {
				return err
			}
			return c.Delete(ctx, o, opts...)
		},
	})
}

// rig is one namespace with engines that come and go.
type rig struct {
	t         *testing.T
	env       *testenv.Environment
	client    client.WithWatch
	namespace string
	traces    string
	clock     *hand
	every     time.Duration
	lives     []*life
}

func newRig(t *testing.T) *rig {
	t.Helper()
	env := testenv.Shared(t)
	c, err := client.NewWithWatch(env.Config, client.Options{Scheme: testenv.Scheme()})
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{t: t, env: env, client: c, namespace: env.Namespace(t), traces: t.TempDir(), clock: newHand(t0.Add(time.Minute)), every: 20 * time.Millisecond}
	ignore := goleak.IgnoreCurrent() // with the connection that Namespace made
	t.Cleanup(func() {
		if !t.Failed() {
			goleak.VerifyNone(t, ignore, goleak.IgnoreAnyFunction("net/http.(*http2ClientConn).readLoop"), goleak.IgnoreAnyFunction("golang.org/x/net/http2.(*ClientConn).readLoop"))
		}
	})
	return r
}

// trace writes one column per site, a point every five minutes (points) from t0.
func (r *rig) trace(name string, columns map[string][]float64) {
	r.t.Helper()
	var names []string
	rows := 0
	for n, values := range columns {
		names = append(names, n)
		rows = max(rows, len(values))
	}
	slices.Sort(names)
	text := "time," + strings.Join(names, ",") + "\n"
	for i := range rows {
		text += t0.Add(time.Duration(i) * points).Format(time.RFC3339)
		for _, n := range names {
			text += fmt.Sprintf(",%g", columns[n][i%len(columns[n])])
		}
		text += "\n"
	}
	if err := os.WriteFile(filepath.Join(r.traces, name), []byte(text), 0o600); err != nil {
		r.t.Fatal(err)
	}
}

func gram(v int32) *int32 { return &v }

// federation creates one of sites that read their columns of t.csv.
func (r *rig) federation(name string, change func(*v1alpha1.FederationSpec), sites ...string) (*v1alpha1.Federation, []v1alpha1.Site) {
	r.t.Helper()
	f := &v1alpha1.Federation{ObjectMeta: metav1.ObjectMeta{Namespace: r.namespace, Name: name}}
	f.Spec.Energy = v1alpha1.EnergySpec{EnterBelowGrams: gram(100), LeaveAboveGrams: gram(150)}
	var all []v1alpha1.Site
	for _, site := range sites {
		f.Spec.Sites = append(f.Spec.Sites, v1alpha1.SiteReference{Name: site})
		s := v1alpha1.Site{ObjectMeta: metav1.ObjectMeta{Namespace: r.namespace, Name: site}}
		s.Spec.Grid = v1alpha1.GridSpec{GridSource: v1alpha1.GridSource{Provider: v1alpha1.GridReplay, Region: site, TracePath: "t.csv"}}
		s.Spec.Power = v1alpha1.PowerSpec{TrainingWatts: 1000, IdleWatts: 100}
		all = append(all, s)
	}
	if change != nil {
		change(&f.Spec)
	}
	if err := r.client.Create(r.t.Context(), f); err != nil {
		r.t.Fatal(err)
	}
	return f, all
}

func (r *rig) secret(name string, data map[string]string) {
	r.t.Helper()
	s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: r.namespace, Name: name}, StringData: data}
	if err := r.client.Create(r.t.Context(), s); err != nil {
		r.t.Fatal(err)
	}
}

// life is one engine's, from its start to its end.
type life struct {
	*Engine
	r    *rig
	line *line
	stop context.CancelFunc
	done chan error
	over bool
}

func (r *rig) start(changes ...func(*Options)) *life {
	r.t.Helper()
	l := &life{r: r, line: &line{}, done: make(chan error, 1)}
	c := l.line.client(r.client)
	o := Options{Client: c, Reader: c, Traces: r.traces, Clock: r.clock, SaveEvery: r.every, RefreshEvery: time.Hour}
	for _, change := range changes {
		change(&o)
	}
	var err error
	if l.Engine, err = New(o); err != nil {
		r.t.Fatal(err)
	}
	r.lives = append(r.lives, l)
	ctx, stop := context.WithCancel(context.Background())
	l.stop = stop
	go func() { l.done <- l.Start(ctx) }()
	r.t.Cleanup(func() { l.end() })
	return l
}

// end is an orderly one.
func (l *life) end() error {
	l.r.t.Helper()
	if l.over {
		return nil
	}
	l.over = true
	l.stop()
	return l.ended()
}

func (l *life) ended() error {
	l.r.t.Helper()
	l.over = true
	defer l.stop()
	select {
	case err := <-l.done:
		return err
	case <-time.After(wait):
		l.r.t.Fatal("the engine does not end")
		return nil
	}
}

// kill ends it as a lost machine does: nothing more is written.
func (l *life) kill() {
	l.r.t.Helper()
	l.line.cut.Store(true)
	_ = l.end()
}

func (l *life) ensure(f *v1alpha1.Federation, sites []v1alpha1.Site) {
	l.r.t.Helper()
	if err := l.Ensure(l.r.t.Context(), f, sites); err != nil {
		l.r.t.Fatal(err)
	}
}

// until waits for a site's wish to be as wanted.
func (l *life) until(f *v1alpha1.Federation, site, what string, is func(membership.Energy, *coordinatorv1.Signal) bool) (membership.Energy, *coordinatorv1.Signal) {
	l.r.t.Helper()
	key := client.ObjectKeyFromObject(f)
	for deadline := time.Now().Add(wait); ; {
		e, s := l.Wish(key, site)
		if is(e, s) {
			return e, s
		}
		if time.Now().After(deadline) {
			x, _ := l.federation(key).explain(site)
			l.r.t.Fatalf("site %s is never %s: %+v, %v, fault %v\n%v", site, what, e, s, l.SiteFault(key, site), x.Facts())
		}
		select {
		case <-l.Changed():
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// sees waits until a site's decision is by the point of the moment.
func (l *life) sees(f *v1alpha1.Federation, site string) membership.Energy {
	l.r.t.Helper()
	point := l.r.clock.Now().Truncate(points)
	e, _ := l.until(f, site, "decided by the newest point", func(e membership.Energy, s *coordinatorv1.Signal) bool {
		return e.Known && s.GetPointUnixMs() == point.UnixMilli()
	})
	return e
}

// next goes to a minute into the next point, once every poller waits for it: one
// that was still busy would take the point for a late one, and wait for longer.
func (r *rig) next() {
	r.t.Helper()
	now := r.clock.Now()
	next := now.Truncate(points).Add(points)
	for deadline := time.Now().Add(wait); ; time.Sleep(time.Millisecond) {
		pollers, waiting := r.pollers(), r.clock.polls(next)
		if waiting == pollers {
			break
		}
		if time.Now().After(deadline) {
			r.t.Fatalf("%d of %d pollers wait for %s", waiting, pollers, next)
		}
	}
	r.clock.move(next.Add(time.Minute).Sub(now))
}

// pollers of all engines: one for each site that a director reads.
func (r *rig) pollers() (n int) {
	for _, l := range r.lives {
		if l.over {
			continue
		}
		for _, fed := range l.all() {
			fed.mu.Lock()
			if fed.run != nil {
				n += len(fed.run.grids)
			}
			fed.mu.Unlock()
		}
	}
	return n
}

// polls is the number of pollers that wait for a moment. Deciders may wait for the
// same one, so it matters who does.
func (h *hand) polls(at time.Time) (n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for t := range h.timers {
		if t.at.Equal(at) && strings.HasSuffix(t.by, "director.(*site).pause") {
			n++
		}
	}
	return n
}

func (r *rig) maps(f *v1alpha1.Federation) []corev1.ConfigMap {
	r.t.Helper()
	var list corev1.ConfigMapList
	if err := r.client.List(r.t.Context(), &list, client.InNamespace(r.namespace), client.MatchingLabels{v1alpha1.LabelFederation: f.Name}); err != nil {
		r.t.Fatal(err)
	}
	return list.Items
}

func key(f *v1alpha1.Federation) types.NamespacedName { return client.ObjectKeyFromObject(f) }

func containsPoint(v []byte, at time.Time) bool {
	return strings.Contains(string(v), `"pointTime":"`+at.Format(time.RFC3339)+`"`)
}

type (
	membershipEnergy = membership.Energy
	signal           = *coordinatorv1.Signal
)

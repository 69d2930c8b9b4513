package energy

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/operator/testenv"
	"girassol.dev/signals/planner"
	"girassol.dev/signals/sanity"
	"girassol.dev/signals/webhook"
	"girassol.dev/signals/window"
)

var owner = &v1alpha1.Federation{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "f", UID: "u"}}

// memory is an API server's part that a cabinet needs, without a server.
func memory(fail func(verb string) error) client.WithWatch {
	call := func(verb string) error {
		if fail == nil {
			return nil
		}
		return fail(verb)
	}
	return fake.NewClientBuilder().WithScheme(testenv.Scheme()).WithInterceptorFuncs(interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			if err := call("create"); err != nil {
				return err
			}
			return c.Create(ctx, o, opts...)
		},
		Patch: func(ctx context.Context, c client.WithWatch, o client.Object, p client.Patch, opts ...client.PatchOption) error {
			if err := call("patch"); err != nil {
				return err
			}
			return c.Patch(ctx, o, p, opts...)
		},
	}).Build()
}

func open(t *testing.T, c client.Client, writer string, limit int) *state {
	t.Helper()
	box := newCabinet(c, c, owner, writer, slog.New(slog.DiscardHandler))
	box.limit = limit
	s, err := loadState(t.Context(), box, 5*time.Second, slog.New(slog.DiscardHandler), func(error) {})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func flush(t *testing.T, s *state) {
	t.Helper()
	if err := s.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func TestEverythingIsReadAsItWasWritten(t *testing.T) {
	c := memory(nil)
	s := open(t, c, "one", mostShard)
	windows := map[string]window.State{"a": {Window: v1alpha1.WindowOpen, Since: t0, Open: true}, "b": {EnterCount: 1}}
	for i := range 2000 { // too large for a plain value
		st := windows["b"]
		st.Trailing = append(st.Trailing, window.Sample{Time: t0.Add(time.Duration(i) * time.Minute), Value: float64(i), Period: time.Minute})
		windows["b"] = st
	}
	override := window.Override{Admit: true, Until: t0, By: "x"}
	round := uint64(3)
	plan, moved := planner.State{Sites: map[string]planner.Memory{"a": {Chosen: true, Changed: &round}}}, map[string]time.Time{"a": t0}
	err := errors.Join(s.Save("a", windows["a"]), s.Save("b", windows["b"]), s.SaveSanity("a", sanity.State{}), s.SaveOverride("a", &override),
		s.SaveOverride("b", &override), s.SaveOverride("b", nil), s.SavePlan(plan, moved))
	if err != nil {
		t.Fatal(err)
	}
	flush(t, s)

	s = open(t, c, "two", mostShard)
	if got, err := s.Load(); err != nil || !reflect.DeepEqual(got, windows) {
		t.Errorf("windows %v, %v", got, err)
	}
	if got, err := s.LoadSanity(); err != nil || len(got) != 1 {
		t.Errorf("sanity %v, %v", got, err)
	}
	if got, err := s.LoadOverrides(); err != nil || !reflect.DeepEqual(got, map[string]window.Override{"a": override}) {
		t.Errorf("overrides %v, %v", got, err)
	}
	if p, m, err := s.LoadPlan(); err != nil || !reflect.DeepEqual(p, plan) || !reflect.DeepEqual(m, moved) {
		t.Errorf("plan %v, %v, %v", p, m, err)
	}
	s.keep(map[string]bool{"a": true}, nil)
	flush(t, s)
	if got, _ := open(t, c, "three", mostShard).Load(); len(got) != 1 {
		t.Errorf("a site that left is kept: %v", got)
	}
}

// noise does not pack.
func noise(n int, seed byte) json.RawMessage {
	x, out := uint32(seed)+1, make([]byte, n)
	for i := range out {
		x = x*1664525 + 1013904223
		out[i] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_"[x>>26]
	}
	b, _ := json.Marshal(string(out))
	return b
}

func TestWhatIsTooMuchForOneConfigMapIsSpread(t *testing.T) {
	c := memory(nil)
	const limit = 20 << 10
	s := open(t, c, "one", limit)
	want := map[string]json.RawMessage{}
	for round := range 6 {
		for i := range 12 {
			name := fmt.Sprintf("s%02d", i)
			want[name] = noise(1000*(1+(i+round*5)%7), byte(i+round)) // grow, shrink, move
			if round == 5 && i%3 == 0 {
				delete(want, name)
				s.set(kindSanity+"."+name, nil)
				continue
			}
			s.set(kindSanity+"."+name, want[name])
		}
		flush(t, s)
		for _, m := range list(t, c) {
			if n := size(&m); n > limit+200 { // with the three keys of its own
				t.Errorf("round %d: %s has %d bytes", round, m.Name, n)
			}
			if m.Labels[v1alpha1.LabelFederation] != "f" || len(m.OwnerReferences) != 1 || m.OwnerReferences[0].UID != "u" {
				t.Errorf("%s: %v %v", m.Name, m.Labels, m.OwnerReferences)
			}
		}
		got, err := load[json.RawMessage](open(t, c, "one", limit), kindSanity)
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Fatalf("round %d: %d values, want %d, %v", round, len(got), len(want), err)
		}
		s = open(t, c, "one", limit)
	}
	if n := len(list(t, c)); n < 2 {
		t.Errorf("%d ConfigMaps", n)
	}
}

func list(t *testing.T, c client.Client) []corev1.ConfigMap {
	t.Helper()
	var l corev1.ConfigMapList
	if err := c.List(t.Context(), &l); err != nil {
		t.Fatal(err)
	}
	return l.Items
}

func TestACrashBetweenTwoConfigMapsLosesNoValue(t *testing.T) {
	for after := range 6 {
		var left atomic.Int64
		left.Store(1 << 30)
		crash := errors.New("crash")
		c := memory(func(string) error {
			if left.Add(-1) < 0 {
				return crash
			}
			return nil
		})
		const limit = 6 << 10
		s := open(t, c, "one", limit)
		old := map[string]json.RawMessage{}
		for i := range 6 {
			name := fmt.Sprintf("s%d", i)
			old[name] = noise(1900, byte(i))
			s.set(kindSanity+"."+name, old[name])
		}
		flush(t, s)
		now := map[string]json.RawMessage{}
		for name := range old {
			now[name] = noise(3900, name[1])
			s.set(kindSanity+"."+name, now[name])
		}
		left.Store(int64(after))
		_ = s.Flush(t.Context())
		left.Store(1 << 30)
		got, err := load[json.RawMessage](open(t, c, "two", limit), kindSanity)
		if err != nil || len(got) != len(old) {
			t.Fatalf("after %d writes: %d values, %v", after, len(got), err)
		}
		for name, v := range got {
			if !bytes.Equal(v, old[name]) && !bytes.Equal(v, now[name]) {
				t.Errorf("after %d writes: %s is neither the old nor the new value", after, name)
			}
		}
	}
}

func TestDamageAndOtherVersionsCostOnlyWhatTheyTouch(t *testing.T) {
	c := memory(nil)
	s := open(t, c, "one", mostShard)
	if err := errors.Join(s.Save("a", window.State{EnterCount: 1}), s.Save("b", window.State{EnterCount: 2})); err != nil {
		t.Fatal(err)
	}
	flush(t, s)
	m := list(t, c)[0]
	m.Data["window.a"] = "{"
	m.Data["seen.dso.x"], m.Data["seen.dso.0"], m.Data["seen.dso.1"] = "[]", "[[1]]", "[]"
	m.BinaryData = map[string][]byte{"window.c": []byte("no gzip")}
	if err := c.Update(t.Context(), &m); err != nil {
		t.Fatal(err)
	}
	s = open(t, c, "two", mostShard)
	got, err := s.Load()
	if err == nil || !strings.Contains(err.Error(), "window of a") || !reflect.DeepEqual(got, map[string]window.State{"b": {EnterCount: 2}}) {
		t.Errorf("%v, %v", got, err)
	}
	m = list(t, c)[0]
	m.Data[keyVersion] = "2"
	if err := c.Update(t.Context(), &m); err != nil {
		t.Fatal(err)
	}
	s = open(t, c, "three", mostShard)
	if got, err := s.Load(); err != nil || len(got) != 0 {
		t.Errorf("another version: %v, %v", got, err)
	}
	if m := list(t, c)[0]; m.Data[keyVersion] != cabinetVersion || len(m.Data) != 3 || len(m.BinaryData) != 0 {
		t.Errorf("%v", m.Data)
	}
}

func TestAConfigMapInTheWayIsNotOverwritten(t *testing.T) {
	c := memory(nil)
	foreign := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "f-signals"}, Data: map[string]string{"mine": "yes"}}
	if err := c.Create(t.Context(), foreign); err != nil {
		t.Fatal(err)
	}
	_, err := newCabinet(c, c, owner, "one", slog.New(slog.DiscardHandler)).load(t.Context())
	if err == nil || !strings.Contains(err.Error(), "in the way") {
		t.Error(err)
	}
	if m := list(t, c); len(m) != 1 || m[0].Data["mine"] != "yes" {
		t.Errorf("%v", m)
	}
}

func TestWritesAreFewHoweverMuchChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var writes atomic.Int64
		s := open(t, memory(func(string) error { writes.Add(1); return nil }), "one", mostShard)
		ctx, stop := context.WithCancel(t.Context())
		go s.run(ctx)
		const span = 10 * time.Minute
		for i := range int(span / time.Second) {
			if err := s.Save(fmt.Sprintf("s%d", i%50), window.State{EnterCount: i}); err != nil {
				t.Error(err)
			}
			time.Sleep(time.Second)
		}
		synctest.Wait()
		if n, most := writes.Load(), int64(span/s.every)+1; n > most || n < most/2 {
			t.Errorf("%d writes in %s, want about one in %s", n, span, s.every)
		}
		// Whoever must wait gets his own, a few at once and then one by one.
		writes.Store(0)
		begin := time.Now()
		for i := range 100 {
			if err := s.Save("s", window.State{EnterCount: i}); err != nil {
				t.Error(err)
			}
			if err := s.Flush(ctx); err != nil {
				t.Error(err)
			}
		}
		took := time.Since(begin)
		if n, most := writes.Load(), mostAtOnce+int64(took/(s.every/backShare))+int64(took/s.every)+1; n > most {
			t.Errorf("%d writes in %s, want at most %d", n, took, most)
		}
		// And many together share one.
		time.Sleep(time.Minute)
		writes.Store(0)
		done := make(chan error)
		for i := range 200 {
			go func() {
				err := s.Save(fmt.Sprintf("s%d", i), window.State{EnterCount: -1})
				done <- errors.Join(err, s.Flush(ctx))
			}()
		}
		for range 200 {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
		if n := writes.Load(); n > mostAtOnce+2 {
			t.Errorf("%d writes for 200 together", n)
		}
		stop()
	})
}

// Whatever lies in a ConfigMap, it is read without a panic and written again.
func FuzzState(f *testing.F) {
	f.Add("window.a", `{"enterCount":1}`, []byte{0x1f, 0x8b})
	f.Add("seen.dso.0", `[[1,"a","b"]]`, []byte("x"))
	f.Add("seen.dso.-1", `[]`, []byte(nil))
	f.Add("version", "2", []byte(nil))
	f.Add("sequence", "-1", []byte(nil))
	f.Fuzz(func(t *testing.T, key, value string, packed []byte) {
		box := newCabinet(nil, nil, owner, "w", slog.New(slog.DiscardHandler))
		m := &corev1.ConfigMap{Data: map[string]string{keyVersion: cabinetVersion, key: value}, BinaryData: map[string][]byte{"sanity.b": packed}}
		s := &state{cabinet: box, log: slog.New(slog.DiscardHandler), items: box.unpack(m), dirty: map[string]bool{}, wake: make(chan struct{}, 1)}
		_ = sequence(m)
		s.seen = s.readDeliveries()
		_, _ = s.Load()
		_, _ = s.LoadSanity()
		_, _ = s.LoadOverrides()
		_, _, _ = s.LoadPlan()
		_, _ = (pushedStore{s}).Load(context.Background())
		for source, of := range s.seen {
			c := webhook.Commit{Source: source, At: t0, Deliveries: []webhook.Delivery{{ID: "i", Digest: "d"}}}
			if err := s.remember(c, of, func(string, []byte) {}); err != nil {
				t.Error(err)
			}
		}
		s.keep(map[string]bool{}, map[string]bool{})
	})
}

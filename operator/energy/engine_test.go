package energy

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/operator/membership"
	"girassol.dev/signals"
)

func reason(want v1alpha1.Reason) func(membership.Energy, *coordinatorv1.Signal) bool {
	return func(e membership.Energy, _ *coordinatorv1.Signal) bool { return e.Known && e.Reason == want }
}

func faulty(t *testing.T, l *life, f *v1alpha1.Federation, site string, want v1alpha1.Reason, words string) {
	t.Helper()
	fault := l.SiteFault(key(f), site)
	if fault == nil || fault.Reason != want || !strings.Contains(fault.Message, words) {
		t.Errorf("site %s: fault %+v, want %s with %q", site, fault, want, words)
	}
	if e, s := l.Wish(key(f), site); !e.Known || e.Admit || e.Reason != want || s == nil {
		t.Errorf("site %s: wish %+v", site, e)
	}
}

func TestTheWishCarriesWhatIsDecidedAndWhatTheLedgersBookAt(t *testing.T) {
	r := newRig(t)
	r.trace("t.csv", map[string][]float64{"a": {80, 80, 80}, "b": {300, 300, 300}})
	r.trace("average.csv", map[string][]float64{"a": {30, 31, 32}})
	f, sites := r.federation("f", func(s *v1alpha1.FederationSpec) { s.Energy.EnterConfirmations = 1 }, "a", "b")
	sites[0].Spec.Grid.AverageTracePath = "average.csv"
	l := r.start()
	if e, s := l.Wish(key(f), "a"); e.Known || s == nil {
		t.Errorf("before anything is known: %+v, %v", e, s)
	}
	l.ensure(f, sites)
	e, s := l.until(f, "a", "in", reason(v1alpha1.ReasonEnergyFavourable))
	if !e.Admit || e.Window != v1alpha1.WindowOpen || e.Fresh != membership.Yes || s.GetWindow() != "Open" || s.GetValue() != 80 {
		t.Errorf("%+v %v", e, s)
	}
	for name, i := range map[string]*coordinatorv1.Intensity{"marginal": s.GetMarginal(), "average": s.GetAverage()} {
		if i.GetGramsPerKwh() != map[string]float64{"marginal": 80, "average": 30}[name] || i.GetFromUnixMs() != t0.UnixMilli() || i.GetUntilUnixMs() != t0.Add(5*time.Minute).UnixMilli() {
			t.Errorf("%s: %v", name, i)
		}
	}
	e, s = l.until(f, "b", "out", reason(v1alpha1.ReasonWaitingForEnergy))
	if e.Admit || e.Window != v1alpha1.WindowClosed || e.Fresh != membership.Yes || s.GetAverage() != nil {
		t.Errorf("%+v %v", e, s)
	}
}

func TestASiteWithoutASignalIsAdmittedByPolicyUntilItsOverride(t *testing.T) {
	r := newRig(t)
	f, sites := r.federation("f", func(s *v1alpha1.FederationSpec) { s.Energy = v1alpha1.EnergySpec{Policy: v1alpha1.EnergyIgnore} }, "a")
	sites[0].Spec.Grid = v1alpha1.GridSpec{}
	l := r.start()
	l.ensure(f, sites)
	if e, s := l.until(f, "a", "in", reason(v1alpha1.ReasonAdmittedByPolicy)); !e.Admit || e.Fresh != membership.Unknown || s == nil {
		t.Errorf("%+v %v", e, s)
	}
	sites[0].Spec.Override = &v1alpha1.OverrideSpec{Action: v1alpha1.OverrideDrain, Until: metav1.NewTime(r.clock.Now().Add(time.Hour)), Reason: "work on the roof"}
	l.ensure(f, sites)
	if e, _ := l.Wish(key(f), "a"); e.Admit || e.Reason != v1alpha1.ReasonOverride || !strings.Contains(e.Message, "roof") {
		t.Errorf("%+v", e)
	}
	r.clock.move(2 * time.Hour)
	l.hurry()
	l.until(f, "a", "in again", reason(v1alpha1.ReasonAdmittedByPolicy))
	if n := len(r.maps(f)); n != 0 || l.line.writes.Load() != 0 {
		t.Errorf("%d ConfigMaps for nothing to remember", n)
	}
}

func TestOverridesOfTheSpecComeAndGoAlsoWhileNoOperatorRuns(t *testing.T) {
	r := newRig(t)
	r.trace("t.csv", map[string][]float64{"a": slices.Repeat([]float64{80}, 99), "b": slices.Repeat([]float64{80}, 99)})
	f, sites := r.federation("f", func(s *v1alpha1.FederationSpec) { s.Energy.EnterConfirmations = 1 }, "a", "b")
	l := r.start()
	l.ensure(f, sites)
	l.until(f, "a", "in", reason(v1alpha1.ReasonEnergyFavourable))
	sites[0].Spec.Override = &v1alpha1.OverrideSpec{Action: v1alpha1.OverrideDrain, Until: metav1.NewTime(r.clock.Now().Add(time.Hour))}
	l.ensure(f, sites)
	l.until(f, "a", "overridden", reason(v1alpha1.ReasonOverride))
	l.until(f, "b", "in", reason(v1alpha1.ReasonEnergyFavourable))
	if err := l.end(); err != nil {
		t.Fatal(err)
	}
	sites[0].Spec.Override = nil
	sites[1].Spec.Override = &v1alpha1.OverrideSpec{Action: v1alpha1.OverrideDrain, Until: metav1.NewTime(r.clock.Now().Add(time.Hour))}
	l = r.start()
	l.ensure(f, sites)
	l.until(f, "a", "in", reason(v1alpha1.ReasonEnergyFavourable))
	l.until(f, "b", "overridden", reason(v1alpha1.ReasonOverride))
	sites[1].Spec.Override.Until = metav1.NewTime(r.clock.Now().Add(31 * 24 * time.Hour))
	l.ensure(f, sites)
	faulty(t, l, f, "b", v1alpha1.ReasonInvalidSpec, "spec.override.until")
}

func TestOneSitesFaultStopsNoOther(t *testing.T) {
	r := newRig(t)
	r.trace("t.csv", map[string][]float64{"good": slices.Repeat([]float64{80}, 99)})
	r.secret("token", map[string]string{"token": "abc"})
	r.secret("empty", map[string]string{"other": "x"})
	cases := map[string]struct {
		grid   v1alpha1.GridSource
		reason v1alpha1.Reason
		words  string
	}{
		"nosecret": {v1alpha1.GridSource{Provider: v1alpha1.GridElectricityMaps, Region: "DE", Credentials: &v1alpha1.CredentialsSpec{Secret: &v1alpha1.SecretReference{Name: "gone"}}}, v1alpha1.ReasonSecretNotFound, "no Secret gone"},
		"noname":   {v1alpha1.GridSource{Provider: v1alpha1.GridElectricityMaps, Region: "DE", Credentials: &v1alpha1.CredentialsSpec{Secret: &v1alpha1.SecretReference{Name: "vault/watttime"}}}, v1alpha1.ReasonSecretNotFound, "no Secret vault/watttime"},
		"nokey":    {v1alpha1.GridSource{Provider: v1alpha1.GridWattTime, Region: "X", Credentials: &v1alpha1.CredentialsSpec{Secret: &v1alpha1.SecretReference{Name: "empty"}}}, v1alpha1.ReasonSecretInvalid, "no key user"},
		"file":     {v1alpha1.GridSource{Provider: v1alpha1.GridElectricityMaps, Region: "DE", Credentials: &v1alpha1.CredentialsSpec{TokenFile: "/var/run/secrets/kubernetes.io/serviceaccount/token"}}, v1alpha1.ReasonInvalidSpec, "put the credentials into a Secret"},
		"env":      {v1alpha1.GridSource{Provider: v1alpha1.GridElectricityMaps, Region: "DE", Credentials: &v1alpha1.CredentialsSpec{Secret: &v1alpha1.SecretReference{Name: "token"}, TokenEnv: "HOME"}}, v1alpha1.ReasonInvalidSpec, "standalone"},
		"slash":    {v1alpha1.GridSource{Provider: v1alpha1.GridReplay, Region: "a", TracePath: "/etc/passwd"}, v1alpha1.ReasonInvalidSpec, "plain name"},
		"dots":     {v1alpha1.GridSource{Provider: v1alpha1.GridReplay, Region: "a", TracePath: ".."}, v1alpha1.ReasonInvalidSpec, "plain name"},
		"average":  {v1alpha1.GridSource{Provider: v1alpha1.GridReplay, Region: "good", TracePath: "t.csv", AverageTracePath: "../t.csv"}, v1alpha1.ReasonInvalidSpec, "averageTracePath"},
		"column":   {v1alpha1.GridSource{Provider: v1alpha1.GridReplay, Region: "other", TracePath: "t.csv"}, v1alpha1.ReasonInvalidSpec, "tracePath"},
		"nothing":  {v1alpha1.GridSource{}, v1alpha1.ReasonInvalidSpec, "needs a signal"},
		"sender":   {v1alpha1.GridSource{Provider: v1alpha1.GridWebhook, Source: "nobody"}, v1alpha1.ReasonInvalidSpec, "is not among spec.energy.webhook.sources"},
	}
	names := []string{"good"}
	for name := range cases {
		names = append(names, name)
	}
	f, sites := r.federation("f", func(s *v1alpha1.FederationSpec) { s.Energy.EnterConfirmations = 1 }, names...)
	for i := range sites {
		if tc, ok := cases[sites[i].Name]; ok {
			sites[i].Spec.Grid.GridSource = tc.grid
		}
	}
	l := r.start()
	l.ensure(f, sites)
	l.until(f, "good", "in", reason(v1alpha1.ReasonEnergyFavourable))
	for name, tc := range cases {
		faulty(t, l, f, name, tc.reason, tc.words)
	}
	if fault := l.SiteFault(key(f), "good"); fault != nil {
		t.Errorf("good: %+v", fault)
	}
	// What is mended from outside is noticed without a change of a spec.
	r.secret("gone", map[string]string{"token": "abc"})
	r.trace("t.csv", map[string][]float64{"good": slices.Repeat([]float64{80}, 99), "other": slices.Repeat([]float64{70}, 99)})
	fed := l.federation(key(f))
	fed.changing.Lock()
	fed.secrets.read = nil // as if time had passed
	fed.changing.Unlock()
	if err := fed.refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	if fault := l.SiteFault(key(f), "nosecret"); fault != nil {
		t.Errorf("nosecret: %+v", fault)
	}
	l.until(f, "column", "in", reason(v1alpha1.ReasonEnergyFavourable))
	l.until(f, "good", "in", reason(v1alpha1.ReasonEnergyFavourable))
}

func TestAWrongWebhookIsTheFederationsFaultAndStopsNoSite(t *testing.T) {
	for name, tc := range map[string]struct {
		source v1alpha1.WebhookSource
		want   v1alpha1.Reason
	}{
		"files":       {v1alpha1.WebhookSource{Name: "dso", SecretFiles: []string{"/etc/passwd"}, Sites: []string{"a"}}, v1alpha1.ReasonInvalidSpec},
		"no Secret":   {v1alpha1.WebhookSource{Name: "dso", Secret: &v1alpha1.SecretReference{Name: "none"}, Sites: []string{"a"}}, v1alpha1.ReasonSecretNotFound},
		"wrong keys":  {v1alpha1.WebhookSource{Name: "dso", Secret: &v1alpha1.SecretReference{Name: "keys"}, Sites: []string{"a"}}, v1alpha1.ReasonSecretInvalid},
		"other sites": {v1alpha1.WebhookSource{Name: "dso", Secret: &v1alpha1.SecretReference{Name: "keys"}, Sites: []string{"z"}}, v1alpha1.ReasonInvalidSpec},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.trace("t.csv", map[string][]float64{"a": slices.Repeat([]float64{80}, 99)})
			r.secret("keys", map[string]string{"secret": "whsec_short"})
			f, sites := r.federation("f", func(s *v1alpha1.FederationSpec) { s.Energy.EnterConfirmations = 1 }, "a")
			f.Spec.Energy.Webhook = &v1alpha1.WebhookSpec{Sources: []v1alpha1.WebhookSource{tc.source}}
			l := r.start()
			var fault *Fault
			if err := l.Ensure(t.Context(), f, sites); !errors.As(err, &fault) || fault.Reason != tc.want || strings.Contains(err.Error(), "short") {
				t.Errorf("%v, want %s", err, tc.want)
			}
			l.until(f, "a", "in", reason(v1alpha1.ReasonEnergyFavourable))
		})
	}
}

func TestAnUnchangedWorldAsksNothingOfTheAPIServer(t *testing.T) {
	r := newRig(t)
	r.trace("t.csv", map[string][]float64{"a": slices.Repeat([]float64{80}, 99)})
	r.secret("token", map[string]string{"token": "abc"})
	f, sites := r.federation("f", func(s *v1alpha1.FederationSpec) { s.Energy.EnterConfirmations = 1 }, "a", "b")
	sites[1].Spec.Grid.GridSource = v1alpha1.GridSource{Provider: v1alpha1.GridElectricityMaps, Region: "DE", URL: "http://127.0.0.1:1",
		Credentials: &v1alpha1.CredentialsSpec{Secret: &v1alpha1.SecretReference{Name: "token"}}}
	l := r.start()
	l.ensure(f, sites)
	l.until(f, "a", "in", reason(v1alpha1.ReasonEnergyFavourable))
	r.kept(f)
	if err := l.federation(key(f)).state.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	reads, writes := l.line.reads.Load(), l.line.writes.Load()
	run := l.federation(key(f)).run
	for range 1000 {
		l.ensure(f, sites)
	}
	// A change that is no business of energy restarts nothing either.
	sites[0].Spec.Priority, sites[0].Generation = 7, 2
	l.ensure(f, sites)
	if l.federation(key(f)).run != run {
		t.Error("the director was restarted")
	}
	if got := l.line.writes.Load() - writes; got != 0 {
		t.Errorf("%d writes", got)
	}
	if got := l.line.reads.Load() - reads; got > 1 { // the Secret, at the change of a spec
		t.Errorf("%d reads", got)
	}
}

func TestAChangeOfOneSiteLeavesTheOthersWindows(t *testing.T) {
	r := newRig(t)
	r.trace("t.csv", map[string][]float64{"a": day, "b": day})
	f, sites := r.federation("f", func(s *v1alpha1.FederationSpec) { s.Energy.EnterConfirmations, s.Energy.LeaveConfirmations = 2, 2 }, "a", "b")
	l := r.start()
	l.ensure(f, sites)
	for range 2 { // one point of two is seen
		l.sees(f, "a")
		r.next()
	}
	l.sees(f, "a") // in
	r.next()
	l.sees(f, "a") // the first above
	sites[1].Spec.Energy = &v1alpha1.EnergySpec{EnterBelowGrams: gram(90), LeaveAboveGrams: gram(160)}
	l.ensure(f, sites)
	if e := l.sees(f, "a"); !e.Admit {
		t.Errorf("%+v", e)
	}
	r.next()
	if e := l.sees(f, "a"); e.Admit || e.Reason != v1alpha1.ReasonWaitingForEnergy {
		t.Errorf("the confirmation from before is lost: %+v", e)
	}
}

func status(site string, samples uint64, kWh, kg float64) *coordinatorv1.FederationStatus {
	return &coordinatorv1.FederationStatus{Round: &coordinatorv1.RoundStatus{Number: 3}, Sites: []*coordinatorv1.SiteStatus{
		{Name: site, Samples: samples, TrainingSeconds: 10, Ledger: &coordinatorv1.LedgerStatus{EnergyKwh: kWh, MarginalKgco2E: &kg}},
	}}
}

func TestABudgetWaitsForTheLedgerAndKeepsAllOutWhenItIsSpent(t *testing.T) {
	r := newRig(t)
	r.trace("t.csv", map[string][]float64{"a": slices.Repeat([]float64{80}, 99)})
	most := int64(1000)
	f, sites := r.federation("f", func(s *v1alpha1.FederationSpec) {
		s.Energy.EnterConfirmations, s.Energy.Budget = 1, &v1alpha1.BudgetSpec{CarbonGrams: &most}
	}, "a")
	l := r.start()
	l.ensure(f, sites)
	if e, _ := l.Wish(key(f), "a"); e.Known {
		t.Errorf("decided without the ledger: %+v", e)
	}
	l.Observe(key(f), status("a", 100, 1, 1.5))
	l.until(f, "a", "out", reason(v1alpha1.ReasonBudgetExhausted))
	more := int64(5000)
	f.Spec.Energy.Budget.CarbonGrams = &more
	l.ensure(f, sites)
	e, _ := l.until(f, "a", "in", reason(v1alpha1.ReasonEnergyFavourable))
	if !e.Admit {
		t.Errorf("%+v", e)
	}
}

func TestThePlannerPassesOverASiteWhoseCapacityFailed(t *testing.T) {
	r := newRig(t)
	r.trace("t.csv", map[string][]float64{"a": slices.Repeat([]float64{40}, 99), "b": slices.Repeat([]float64{80}, 99)})
	f, sites := r.federation("f", func(s *v1alpha1.FederationSpec) { s.Energy.EnterConfirmations, s.Energy.TargetSites = 1, 1 }, "a", "b")
	l := r.start()
	l.ensure(f, sites)
	l.Observe(key(f), &coordinatorv1.FederationStatus{Sites: []*coordinatorv1.SiteStatus{{Name: "a", Samples: 100, TrainingSeconds: 10}, {Name: "b", Samples: 100, TrainingSeconds: 10}}})
	in := func(e membership.Energy, _ *coordinatorv1.Signal) bool { return e.Known && e.Admit }
	l.until(f, "a", "in", in)
	l.until(f, "b", "out", func(e membership.Energy, _ *coordinatorv1.Signal) bool { return e.Known && !e.Admit })
	l.SetUnavailable(key(f), map[string]bool{"a": true})
	l.until(f, "a", "passed over", reason(v1alpha1.ReasonCoolingOff))
	l.until(f, "b", "in", in)
}

func TestExplainIsServedAsJSON(t *testing.T) {
	r := newRig(t)
	r.trace("t.csv", map[string][]float64{"a": slices.Repeat([]float64{80}, 99)})
	registry := prometheus.NewPedanticRegistry()
	f, sites := r.federation("f", func(s *v1alpha1.FederationSpec) { s.Energy.EnterConfirmations = 1 }, "a")
	l := r.start(func(o *Options) { o.Registerer = registry })
	l.ensure(f, sites)
	l.until(f, "a", "in", reason(v1alpha1.ReasonEnergyFavourable))
	get := func(path string) (int, map[string]any) {
		w := httptest.NewRecorder()
		l.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
		var v map[string]any
		if err := json.Unmarshal(w.Body.Bytes(), &v); err != nil {
			t.Errorf("%s: %q", path, w.Body)
		}
		return w.Code, v
	}
	if code, v := get(fmt.Sprintf("/v1/explain/%s/f/a", r.namespace)); code != http.StatusOK || v["site"] != "a" || v["admit"] != true {
		t.Errorf("%d %v", code, v)
	}
	for _, path := range []string{"/v1/explain/other/f/a", "/v1/explain/" + r.namespace + "/f/z"} {
		if code, v := get(path); code != http.StatusNotFound || v["error"] == "" {
			t.Errorf("%s: %d %v", path, code, v)
		}
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	found := false
	for _, m := range families {
		for _, x := range m.GetMetric() {
			for _, lab := range x.GetLabel() {
				found = found || lab.GetName() == "namespace" && lab.GetValue() == r.namespace && m.GetName() == "girassol_signal_value"
			}
		}
	}
	if !found {
		t.Error("no girassol_signal_value with a namespace")
	}
	l.Forget(key(f))
	if e, _ := l.Wish(key(f), "a"); e.Known {
		t.Errorf("forgotten: %+v", e)
	}
	families, err = registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range families {
		if m.GetName() == "girassol_signal_value" {
			t.Error("metrics of a forgotten federation")
		}
	}
}

func TestTracesNeedAFolder(t *testing.T) {
	e := &Engine{}
	if _, err := e.trace("t.csv"); err == nil {
		t.Error("a trace without a folder")
	}
	e.options.Traces = t.TempDir()
	for _, bad := range []string{"", ".", "..", "a/b", "/a", `a\b`, "a..b", "a\x00"} {
		if path, err := e.trace(bad); err == nil {
			t.Errorf("%q is %s", bad, path)
		}
	}
	if path, err := e.trace("t.csv"); err != nil || path != filepath.Join(e.options.Traces, "t.csv") {
		t.Errorf("%s %v", path, err)
	}
}

func TestAVirtualClockStretchesRoundsAndDrains(t *testing.T) {
	v, err := signals.NewVirtual(t0, 60, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	r := newRig(t)
	e, err := New(Options{Client: r.client, Reader: r.client, Clock: v})
	if err != nil {
		t.Fatal(err)
	}
	defer e.fetch.Close()
	if e.speed != 60 {
		t.Errorf("speed %v", e.speed)
	}
}

package energy

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/api/signalpush"
	"girassol.dev/internal/webhooksig"
	"girassol.dev/signals"
)

func whsec(fill byte) string {
	return "whsec_" + base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{fill}, 32))
}

// push sends a message to an engine, signed at the clock's time.
func (r *rig) push(l *life, federation string, fill byte, id, body string) (int, signalpush.Answer) {
	r.t.Helper()
	secret, err := webhooksig.ParseSecret(whsec(fill))
	if err != nil {
		r.t.Fatal(err)
	}
	req := httptest.NewRequest(http.MethodPost, "/v1/signals/"+r.namespace+"/"+federation, strings.NewReader(body))
	req.Header.Set("Content-Type", signalpush.ContentJSON)
	webhooksig.Set(req.Header, []webhooksig.Secret{secret}, id, r.clock.Now(), []byte(body))
	w := httptest.NewRecorder()
	l.Handler().ServeHTTP(w, req)
	var a signalpush.Answer
	if err := json.Unmarshal(w.Body.Bytes(), &a); err != nil {
		r.t.Errorf("answer %q: %v", w.Body, err)
	}
	return w.Code, a
}

func (r *rig) observed(value float64) string {
	now := r.clock.Now().Truncate(points).Format(time.RFC3339)
	return fmt.Sprintf(`{"type":"energy.signal.observed","data":{"site":"a","kind":"marginal","unit":"gCO2/kWh","points":[{"start":%q,"duration_s":300,"value":%g}],"generated_at":%q}}`, now, value, now)
}

func (r *rig) webhookFederation() (*v1alpha1.Federation, []v1alpha1.Site) {
	r.secret("dso", map[string]string{"secret": whsec('m'), "secret-next": whsec('n')})
	f, sites := r.federation("f", func(s *v1alpha1.FederationSpec) {
		s.Energy.EnterConfirmations = 1
		s.Energy.Webhook = &v1alpha1.WebhookSpec{Sources: []v1alpha1.WebhookSource{{Name: "dso", Secret: &v1alpha1.SecretReference{Name: "dso"}, Sites: []string{"a"}}}}
	}, "a")
	sites[0].Spec.Grid.GridSource = v1alpha1.GridSource{Provider: v1alpha1.GridWebhook, Source: "dso", Kind: v1alpha1.KindMarginal, Unit: string(signals.GramsPerKWh)}
	return f, sites
}

func TestPushedSignalsDecideAndAreTakenOnceAlsoByTheNextLeader(t *testing.T) {
	r := newRig(t)
	f, sites := r.webhookFederation()
	l := r.start()
	if code, _ := r.push(l, "f", 'm', "id1", "{}"); code != http.StatusNotFound {
		t.Errorf("before the federation is known: %d", code)
	}
	l.ensure(f, sites)
	good := r.observed(80)
	if code, a := r.push(l, "f", 'm', "id1", good); code != http.StatusAccepted {
		t.Fatalf("%d %+v", code, a)
	}
	l.until(f, "a", "in", reason(v1alpha1.ReasonEnergyFavourable))
	l.kill() // taken is written, or it would not have been answered

	l = r.start()
	l.ensure(f, sites)
	l.until(f, "a", "in", reason(v1alpha1.ReasonEnergyFavourable))
	if code, a := r.push(l, "f", 'n', "id1", good); code != http.StatusOK || a.Result != signalpush.Duplicate {
		t.Errorf("again: %d %+v", code, a)
	}
	if code, a := r.push(l, "f", 'x', "id2", good); code != http.StatusUnauthorized {
		t.Errorf("by a stranger: %d %+v", code, a)
	}
	if code, _ := r.push(l, "g", 'm', "id3", good); code != http.StatusNotFound {
		t.Errorf("for another federation: %d", code)
	}
	l.line.cut.Store(true)
	r.clock.move(points)
	if code, a := r.push(l, "f", 'm', "id4", r.observed(300)); code != http.StatusServiceUnavailable {
		t.Errorf("without an API server: %d %+v", code, a)
	}
	l.line.cut.Store(false)
	if code, a := r.push(l, "f", 'm', "id4", r.observed(300)); code != http.StatusAccepted {
		t.Errorf("repeated: %d %+v", code, a)
	}
	l.until(f, "a", "newer", func(e membershipEnergy, s signal) bool { return s.GetValue() == 300 })
}

func TestADemandToDrawLessOutlivesTheLeaderAndAChangeOfTheSpec(t *testing.T) {
	r := newRig(t)
	f, sites := r.webhookFederation()
	l := r.start()
	l.ensure(f, sites)
	if code, a := r.push(l, "f", 'm', "id1", r.observed(80)); code != http.StatusAccepted {
		t.Fatalf("%d %+v", code, a)
	}
	l.until(f, "a", "in", reason(v1alpha1.ReasonEnergyFavourable))
	now := r.clock.Now()
	demand := fmt.Sprintf(`{"type":"energy.curtailment.started","data":{"site":"a","id":"c1","start":%q,"end":%q,"generated_at":%q,"reason":"heat"}}`,
		now.Format(time.RFC3339), now.Add(time.Hour).Format(time.RFC3339), now.Format(time.RFC3339))
	if code, a := r.push(l, "f", 'm', "id2", demand); code != http.StatusAccepted {
		t.Fatalf("%d %+v", code, a)
	}
	curtailed := func(e membershipEnergy, _ signal) bool {
		return e.Known && (e.Reason == v1alpha1.ReasonCurtailed || e.Reason == v1alpha1.ReasonGridEmergency)
	}
	l.until(f, "a", "curtailed", curtailed)
	sites[0].Spec.Energy = &v1alpha1.EnergySpec{EnterBelowGrams: gram(110), LeaveAboveGrams: gram(150)}
	l.ensure(f, sites)
	l.until(f, "a", "curtailed after the change", curtailed)
	l.kill()
	l = r.start()
	l.ensure(f, sites)
	l.until(f, "a", "curtailed by the next leader", curtailed)
}

func TestTwoSendersWithOneKeyAreAFault(t *testing.T) {
	r := newRig(t)
	f, sites := r.webhookFederation()
	f.Spec.Energy.Webhook.Sources = append(f.Spec.Energy.Webhook.Sources, v1alpha1.WebhookSource{Name: "other", Secret: &v1alpha1.SecretReference{Name: "dso"}, Sites: []string{"a"}})
	l := r.start()
	var fault *Fault
	if err := l.Ensure(t.Context(), f, sites); !errors.As(err, &fault) || fault.Reason != v1alpha1.ReasonSecretInvalid || !strings.Contains(fault.Message, "same secret") {
		t.Errorf("%v", err)
	}
	if code, a := r.push(l, "f", 'm', "id1", r.observed(80)); code != http.StatusAccepted { // the first one still speaks
		t.Errorf("%d %+v", code, a)
	}
}

func TestKeysThatRotateAreReadAgain(t *testing.T) {
	r := newRig(t)
	f, sites := r.webhookFederation()
	l := r.start()
	l.ensure(f, sites)
	s := &corev1.Secret{}
	s.Namespace, s.Name = r.namespace, "dso"
	s.StringData = map[string]string{"secret": whsec('q')}
	if err := r.client.Update(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	fed := l.federation(key(f))
	fed.changing.Lock()
	fed.secrets.read = nil // as if minutes had passed
	fed.changing.Unlock()
	if err := fed.refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	if code, _ := r.push(l, "f", 'm', "id1", r.observed(80)); code != http.StatusUnauthorized {
		t.Errorf("the old key: %d", code)
	}
	if code, a := r.push(l, "f", 'q', "id1", r.observed(80)); code != http.StatusAccepted {
		t.Errorf("the new key: %d %+v", code, a)
	}
}

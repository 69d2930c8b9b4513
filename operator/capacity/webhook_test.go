package capacity

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/api/provisioning"
)

func TestAProvisionerIsAskedPolledAndDone(t *testing.T) {
	r := newHookRig(t)
	r.will(say(http.StatusOK, `{"state":"Pending","message":"ordering","poll":"/orders/1?x=y#z","more":1}`))
	if s := r.ask(); !s.Managed || s.Asked || s.Fault != nil || s.Recheck == 0 {
		t.Fatalf("it is not waited for: %+v", s)
	}
	s := r.news()
	if !s.Asked || s.Idle || s.Done || s.Failed || s.Fault != nil || s.PollURL != r.URL+"/orders/1?x=y" || s.Recheck != pollDefault {
		t.Fatalf("%+v", s)
	}
	wishes, _ := r.asked()
	w := wishes[0]
	by := r.site.Status.Provisioning.Since.Add(900 * time.Second)
	if w.APIVersion != provisioning.Version || w.Wish != provisioning.Provision || w.Namespace != "team" || w.Site != "quebec" || w.Federation != "gpt" ||
		w.Vendor != "NVIDIA" || w.MinGPUs != 8 || w.Priority != 7 || w.Key != "k1" || w.By == nil || !w.By.Equal(by) || w.Reason != "Provisioning" ||
		w.Callback != "https://girassol.example/v1/provisioning/team/quebec/result" {
		t.Errorf("asked for %+v", w)
	}

	// Nothing is asked before it is time.
	r.ask()
	r.look()
	r.now = r.now.Add(pollDefault)
	r.will(say(http.StatusOK, `{"state":"Done"}`))
	r.look()
	if s := r.news(); !s.Asked || !s.Done || s.Idle || s.Recheck != 0 {
		t.Fatalf("%+v", s)
	}
	r.now = r.now.Add(time.Hour)
	r.ask()
	if wishes, polls := r.asked(); len(wishes) != 1 || polls != 1 {
		t.Errorf("%d wishes and %d polls, want 1 and 1", len(wishes), polls)
	}

	// The release is another wish.
	r.wish(v1alpha1.WishRelease, "k2")
	if s := r.told(); !s.Idle || !s.Asked || !s.Done {
		t.Fatalf("%+v", s)
	}
	wishes, _ = r.asked()
	if w := wishes[1]; w.Wish != provisioning.Release || w.By != nil || w.Key != "k2" {
		t.Errorf("asked for %+v", w)
	}
}

func TestAWishIsNotAskedBeforeItIsKept(t *testing.T) {
	r := newHookRig(t)
	s, err := r.keeper.Ask(t.Context(), nil, r.site, false) // the status still says Provision
	if err != nil || s.Asked || s.Idle || s.Recheck == 0 {
		t.Errorf("%+v %v", s, err)
	}
	r.site.Status.Provisioning = nil
	if s, err := r.keeper.Ask(t.Context(), nil, r.site, true); err != nil || s.Asked || s.Recheck == 0 {
		t.Errorf("%+v %v", s, err)
	}
	if s, err := r.keeper.Ask(t.Context(), nil, r.site, false); err != nil || !s.Idle || s.Recheck != 0 {
		t.Errorf("never wished, so there is nothing to give back: %+v %v", s, err)
	}
	if wishes, _ := r.asked(); len(wishes) != 0 {
		t.Errorf("asked for %v", wishes)
	}
}

func TestAWishWithoutAPollIsAskedAgainWithTheSameKey(t *testing.T) {
	r := newHookRig(t)
	r.site.Spec.Capacity.Webhook.PollSeconds = 60
	if s := r.told(); !s.Asked || s.Recheck != time.Minute {
		t.Fatalf("%+v", s)
	}
	r.now = r.now.Add(time.Minute)
	r.will(say(http.StatusOK, `{"state":"Failed","message":"sold\nout"}`))
	s := r.told()
	if !s.Failed || s.Done || !s.Asked || s.Fault == nil || s.Fault.Reason != v1alpha1.ReasonProvisionerFailed || !strings.Contains(s.Fault.Message, "sold out") {
		t.Fatalf("%+v", s)
	}
	if wishes, _ := r.asked(); len(wishes) != 2 || wishes[0].Key != wishes[1].Key || !wishes[0].By.Equal(*wishes[1].By) {
		t.Errorf("asked for %+v", wishes)
	}
}

func TestARestartGoesOnWhereTheStatusStands(t *testing.T) {
	r := newHookRig(t)
	r.site.Status.Provisioning.AskedAt = pointer(metav1.NewTime(r.now))
	r.site.Status.Provisioning.PollURL = r.URL + "/orders/1"
	r.will(say(http.StatusOK, `{"state":"Done"}`))
	if s := r.ask(); !s.Asked || s.PollURL == "" {
		t.Fatalf("taken before: %+v", s)
	}
	if s := r.news(); !s.Done {
		t.Fatalf("%+v", s)
	}
	if wishes, polls := r.asked(); len(wishes) != 0 || polls != 1 {
		t.Errorf("%d wishes, %d polls", len(wishes), polls)
	}

	// Done before: nobody is asked.
	r.start()
	r.wish(v1alpha1.WishRelease, "k2")
	r.site.Status.Provisioning.State = v1alpha1.ProvisioningDone
	if s := r.ask(); !s.Idle || s.Recheck != 0 {
		t.Errorf("%+v", s)
	}
	// A poll URL of a provisioner of before is not asked.
	r.start()
	r.wish(v1alpha1.WishProvision, "k3")
	r.site.Status.Provisioning.AskedAt = pointer(metav1.NewTime(r.now))
	r.site.Status.Provisioning.PollURL = "https://elsewhere.example/orders/1"
	r.will(say(http.StatusOK, `{"state":"Done"}`))
	if s := r.told(); !s.Done || s.PollURL != "" {
		t.Errorf("%+v", s)
	}
	if wishes, polls := r.asked(); len(wishes) != 1 || polls != 1 {
		t.Errorf("%d wishes, %d polls", len(wishes), polls)
	}
}

func TestAnOrderThatTheProvisionerForgotIsAskedAgain(t *testing.T) {
	r := newHookRig(t)
	r.site.Status.Provisioning.AskedAt = pointer(metav1.NewTime(r.now))
	r.site.Status.Provisioning.PollURL = r.URL + "/orders/1"
	r.will(say(http.StatusGone, ""))
	s := r.told()
	if s.Fault == nil || s.Fault.Reason != v1alpha1.ReasonProvisionerUnreachable || s.PollURL != "" || !s.Asked {
		t.Fatalf("%+v", s)
	}
	r.now = r.now.Add(s.Recheck)
	r.will(say(http.StatusOK, `{"state":"Done"}`))
	r.site.Status.Provisioning.PollURL = ""
	if s := r.told(); !s.Done || s.Fault != nil {
		t.Fatalf("%+v", s)
	}
	if wishes, polls := r.asked(); len(wishes) != 1 || polls != 1 {
		t.Errorf("%d wishes, %d polls", len(wishes), polls)
	}
}

func TestRefusalsAndSilenceAreAskedAgainLaterAndLater(t *testing.T) {
	for name, tc := range map[string]struct {
		answer      http.HandlerFunc
		reason      v1alpha1.Reason
		says        string
		first, last time.Duration
	}{
		"refused":   {say(http.StatusForbidden, `{"reason":"Quota","message":"no\u0000 GPUs for team"}`), v1alpha1.ReasonProvisionerRefused, "403 Forbidden: no  GPUs for team", refusedFirst, refusedLast},
		"not found": {say(http.StatusNotFound, "<html>"), v1alpha1.ReasonProvisionerRefused, "404", refusedFirst, refusedLast},
		"redirect": {func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "/other", http.StatusPermanentRedirect)
		}, v1alpha1.ReasonProvisionerRefused, "redirects are not followed", refusedFirst, refusedLast},
		"busy":            {say(http.StatusTooManyRequests, ""), v1alpha1.ReasonProvisionerUnreachable, "429", unreachableFirst, unreachableLast},
		"broken":          {say(http.StatusBadGateway, ""), v1alpha1.ReasonProvisionerUnreachable, "502", unreachableFirst, unreachableLast},
		"no JSON":         {say(http.StatusOK, "done"), v1alpha1.ReasonProvisionerUnreachable, "not the JSON", unreachableFirst, unreachableLast},
		"no state":        {say(http.StatusOK, "{}"), v1alpha1.ReasonProvisionerUnreachable, "want Pending, Done or Failed", unreachableFirst, unreachableLast},
		"nothing":         {say(http.StatusOK, ""), v1alpha1.ReasonProvisionerUnreachable, "not the JSON", unreachableFirst, unreachableLast},
		"no content":      {say(http.StatusNoContent, ""), v1alpha1.ReasonProvisionerUnreachable, "want 200 or 202", unreachableFirst, unreachableLast},
		"done, but later": {say(http.StatusAccepted, `{"state":"Done"}`), v1alpha1.ReasonProvisionerUnreachable, "goes with 200", unreachableFirst, unreachableLast},
		"a book":          {say(http.StatusOK, `{"state":"Done","message":"`+strings.Repeat("x", maxAnswer)+`"}`), v1alpha1.ReasonProvisionerUnreachable, "more than 65536 bytes", unreachableFirst, unreachableLast},
		"elsewhere":       {say(http.StatusOK, `{"state":"Pending","poll":"https://metadata.example/latest"}`), v1alpha1.ReasonProvisionerUnreachable, "poll must be a path", unreachableFirst, unreachableLast},
		"cut off": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "100")
			w.WriteHeader(http.StatusOK)
		}, v1alpha1.ReasonProvisionerUnreachable, "unexpected EOF", unreachableFirst, unreachableLast},
	} {
		t.Run(name, func(t *testing.T) {
			r := newHookRig(t)
			r.will(tc.answer)
			var waits []time.Duration
			for range 8 {
				s := r.refused(tc.reason)
				if s.Asked || s.Failed || !strings.Contains(s.Fault.Message, tc.says) {
					t.Fatalf("%+v, want %q", s.Fault, tc.says)
				}
				for _, secret := range []string{"s3cr3t", whsec, "/wishes"} {
					if strings.Contains(s.Fault.Message, secret) {
						t.Fatalf("%q tells %q", s.Fault.Message, secret)
					}
				}
				waits = append(waits, s.Recheck)
				r.now = r.now.Add(s.Recheck - time.Nanosecond)
				r.ask() // too early: nothing is sent
				r.now = r.now.Add(time.Nanosecond)
			}
			if waits[0] < tc.first || waits[0] > tc.first+tc.first/5 || waits[7] < tc.last || waits[7] > tc.last+tc.last/5 {
				t.Errorf("waited %v, want %s to %s", waits, tc.first, tc.last)
			}
			if wishes, _ := r.asked(); len(wishes) != 8 {
				t.Errorf("asked %d times, want 8", len(wishes))
			}
		})
	}
}

func TestASpecPutRightIsTriedAtOnce(t *testing.T) {
	r := newHookRig(t)
	r.will(say(http.StatusUnauthorized, ""))
	r.refused(v1alpha1.ReasonProvisionerRefused)
	r.will(say(http.StatusOK, `{"state":"Done"}`))
	r.ask()
	if s := r.settled(); s.Done {
		t.Fatal("asked again at once though nothing has changed")
	}
	r.site.Generation++
	r.ask()
	if s := r.settled(); !s.Done || s.Fault != nil {
		t.Errorf("%+v", s)
	}
}

func TestAProvisionerWhoAsksForTimeGetsIt(t *testing.T) {
	r := newHookRig(t)
	r.will(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "120")
		w.WriteHeader(http.StatusServiceUnavailable)
	})
	if s := r.told(); s.Recheck != 2*time.Minute {
		t.Errorf("comes again after %s", s.Recheck)
	}
	for text, want := range map[string]time.Duration{"": 0, "7": 7 * time.Second, "-1": 0, "soon": 0,
		time.Unix(100, 0).UTC().Format(http.TimeFormat): 40 * time.Second} {
		if got := retryAfter(text, time.Unix(60, 0)); got != want {
			t.Errorf("%q: %s, want %s", text, got, want)
		}
	}
}

func TestASlowProvisionerHoldsUpNobody(t *testing.T) {
	for name, answer := range map[string]http.HandlerFunc{
		"no header": func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
		"a byte at a time": func(w http.ResponseWriter, r *http.Request) {
			for r.Context().Err() == nil {
				_, _ = io.WriteString(w, " ")
				if http.NewResponseController(w).Flush() != nil {
					return
				}
				select {
				case <-r.Context().Done():
				case <-time.After(time.Millisecond):
				}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newHookRig(t)
			r.keeper.hook.timeout = 50 * time.Millisecond
			r.will(answer)
			s := r.told()
			if s.Fault == nil || s.Fault.Reason != v1alpha1.ReasonProvisionerUnreachable || !strings.Contains(s.Fault.Message, "did not answer in time") {
				t.Errorf("%+v", s.Fault)
			}
		})
	}
}

func TestAStopEndsWhatIsInFlight(t *testing.T) {
	r := newHookRig(t)
	arrived := make(chan struct{})
	r.will(func(_ http.ResponseWriter, req *http.Request) { close(arrived); <-req.Context().Done() })
	k := New(r.options)
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- k.Start(ctx) }()
	if _, err := k.Ask(t.Context(), nil, r.site, true); err != nil {
		t.Fatal(err)
	}
	<-arrived
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if s, err := k.Ask(t.Context(), nil, r.site, true); err != nil || s.Asked {
		t.Errorf("%+v %v", s, err)
	}
	k.hook.running.Wait()
}

func TestTheNextWishWaitsForTheOneOnItsWay(t *testing.T) {
	r := newHookRig(t)
	arrived := make(chan struct{})
	r.will(func(_ http.ResponseWriter, req *http.Request) { close(arrived); <-req.Context().Done() })
	r.ask()
	<-arrived
	r.wish(v1alpha1.WishRelease, "k2")
	if s := r.ask(); s.Asked || s.Idle || s.Recheck == 0 {
		t.Fatalf("%+v", s)
	}
	r.news() // the first has been called off
	r.will(say(http.StatusOK, `{"state":"Done"}`))
	if s := r.told(); !s.Idle {
		t.Fatalf("%+v", s)
	}
	if wishes, _ := r.asked(); len(wishes) != 2 || wishes[0].Key != "k1" || wishes[1].Key != "k2" {
		t.Errorf("%+v", wishes)
	}
}

func TestSecretsThatAreMissingOrWrongAreNamedAndNotShown(t *testing.T) {
	for name, tc := range map[string]struct {
		data   map[string][]byte
		reason v1alpha1.Reason
		says   string
	}{
		"none":      {nil, v1alpha1.ReasonSecretNotFound, "Secret provisioner, named by capacity.webhook.secret, does not exist"},
		"other key": {map[string][]byte{"other": []byte(whsec)}, v1alpha1.ReasonSecretInvalid, "in Secret provisioner"},
		"no secret": {map[string][]byte{"key": []byte("hunter2")}, v1alpha1.ReasonSecretInvalid, `starts with "whsec_"`},
		"empty":     {map[string][]byte{"key": []byte("# withdrawn\n")}, v1alpha1.ReasonSecretInvalid, "is empty"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newHookRig(t)
			r.secrets.data = tc.data
			s := r.told()
			if s.Fault == nil || s.Fault.Reason != tc.reason || !strings.Contains(s.Fault.Message, tc.says) || strings.Contains(s.Fault.Message, "hunter2") {
				t.Errorf("%+v", s.Fault)
			}
		})
	}
}

func TestACallbackIsTakenAndEndsTheAsking(t *testing.T) {
	r := newHookRig(t)
	site := types.NamespacedName{Namespace: "team", Name: "quebec"}
	r.told()
	r.keeper.Report(site, provisioning.Result{Key: "k1", State: provisioning.Done})
	if s := r.news(); !s.Done || !s.Asked {
		t.Fatalf("%+v", s)
	}
	r.keeper.Report(site, provisioning.Result{Key: "k1", State: provisioning.Pending})
	if s := r.news(); !s.Done {
		t.Errorf("what is done went on: %+v", s)
	}
	// After a restart the callback may come before anyone looked.
	r.start()
	r.keeper.Report(site, provisioning.Result{Key: "k1", State: provisioning.Failed, Message: "sold out"})
	if s := r.news(); !s.Failed || !strings.Contains(s.Fault.Message, "sold out") {
		t.Errorf("%+v", s)
	}
	// One of another wish is nothing to the present one.
	r.start()
	r.keeper.Report(site, provisioning.Result{Key: "k0", State: provisioning.Failed})
	if s := r.news(); s.Failed || s.Asked {
		t.Errorf("%+v", s)
	}
	r.keeper.Forget(site)
	if n := len(r.keeper.hook.sites); n != 0 {
		t.Errorf("%d sites kept", n)
	}
}

func TestSitesThatNobodyAsksAboutAreForgotten(t *testing.T) {
	r := newHookRig(t)
	for i := range 10 {
		r.keeper.Report(types.NamespacedName{Namespace: "team", Name: fmt.Sprint(i)}, provisioning.Result{Key: "k", State: provisioning.Done})
	}
	r.now = r.now.Add(forgotten + time.Second)
	r.look()
	if n := len(r.keeper.hook.sites); n != 1 {
		t.Errorf("%d sites kept, want 1", n)
	}
}

func TestAddressesOfMachinesCredentialsAreNotReached(t *testing.T) {
	transport := outbound()
	defer transport.CloseIdleConnections()
	for _, url := range []string{"http://169.254.169.254/latest", "http://[fe80::1]/", "http://0.0.0.0:1/", "http://[::ffff:169.254.169.254]/"} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := transport.RoundTrip(req)
		if err == nil {
			_ = resp.Body.Close()
		}
		if err == nil || !strings.Contains(err.Error(), "refused") && !strings.Contains(err.Error(), "invalid argument") {
			t.Errorf("%s: %v", url, err)
		}
	}
}

func TestMessagesHoldNoURL(t *testing.T) {
	_, err := http.Get("http://127.0.0.1:1/?token=s3cr3t") // nothing listens there
	if err == nil || strings.Contains(plain(err), "s3cr3t") || !strings.Contains(plain(err), "refused") {
		t.Errorf("%v", plain(err))
	}
	if s := plain(errors.New(strings.Repeat("é\n", 900))); len(s) > 520 || strings.Contains(s, "\n") {
		t.Errorf("%d bytes", len(s))
	}
}

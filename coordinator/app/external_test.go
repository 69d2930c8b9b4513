package app

import (
	"context"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/internal/wire"
)

func externally(o *Options, text string) string {
	o.ExternalSignals = true
	return text
}

func (r *running) admin(t *testing.T) coordinatorv1.AdminClient {
	t.Helper()
	conn, err := wire.Dial(r.p.listener.Addr().String(), wire.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return coordinatorv1.NewAdminClient(conn)
}

// session opens an agent's and reads its welcome.
func (r *running) session(t *testing.T, site string) coordinatorv1.Fleet_SessionClient {
	t.Helper()
	conn, err := wire.Dial(r.p.listener.Addr().String(), wire.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	s, err := coordinatorv1.NewFleetClient(conn).Session(ctx)
	if err != nil {
		t.Fatal(err)
	}
	err = s.Send(&coordinatorv1.SessionRequest{Message: &coordinatorv1.SessionRequest_Hello{Hello: &coordinatorv1.Hello{Federation: "lm", Site: site, Node: "n"}}})
	if err != nil {
		t.Fatal(err)
	}
	if m, err := s.Recv(); err != nil || m.GetWelcome() == nil {
		t.Fatalf("no welcome: %v, %v", m, err)
	}
	return s
}

// site waits until a site is as wanted.
func (r *running) site(t *testing.T, name string, is func(*coordinatorv1.SiteStatus) bool) *coordinatorv1.SiteStatus {
	t.Helper()
	for deadline := time.After(testWait); ; {
		changed := r.p.engine.Changed()
		st, err := r.p.engine.Status(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var found *coordinatorv1.SiteStatus
		for _, s := range st.GetSites() {
			if s.GetName() == name {
				found = s
			}
		}
		if is(found) {
			return found
		}
		select {
		case <-changed:
		case <-deadline:
			t.Fatalf("site %s: %v", name, found)
		}
	}
}

func admitted(s *coordinatorv1.SiteStatus) bool {
	return s.GetMembership() == coordinatorv1.Membership_MEMBERSHIP_ADMIT
}

func TestWithExternalSignalsEverySiteWaitsForTheOperatorAlsoAfterARestart(t *testing.T) {
	dir := t.TempDir()
	r := runChanged(t, dir, externally)
	value := 20.0
	admit := &coordinatorv1.SetMembershipRequest{Site: "quebec", Membership: coordinatorv1.Membership_MEMBERSHIP_ADMIT, Reason: string(v1alpha1.ReasonEnergyFavourable),
		Signal: &coordinatorv1.Signal{Kind: "Marginal", Value: &value, Window: "Open"}}
	waits := func(s *coordinatorv1.SiteStatus) bool {
		return !admitted(s) && s.GetReason() == string(v1alpha1.ReasonSignalMissing) && strings.Contains(s.GetMessage(), "operator")
	}
	for _, name := range []string{"quebec", "lab"} { // with a provider and without
		if s := r.site(t, name, func(*coordinatorv1.SiteStatus) bool { return true }); !waits(s) {
			t.Errorf("%s at the start: %v", name, s)
		}
	}
	if _, err := r.admin(t).SetMembership(t.Context(), admit); err != nil {
		t.Fatal(err)
	}
	r.site(t, "quebec", admitted)
	if s := r.site(t, "lab", func(*coordinatorv1.SiteStatus) bool { return true }); admitted(s) {
		t.Errorf("lab: %v", s)
	}
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}

	again := runChanged(t, dir, externally)
	session := again.session(t, "quebec") // taken, though the site waits
	if s := again.site(t, "quebec", func(s *coordinatorv1.SiteStatus) bool { return len(s.GetMembers()) == 1 }); admitted(s) {
		t.Errorf("after the restart: %v", s)
	}
	if _, err := again.admin(t).SetMembership(t.Context(), admit); err != nil {
		t.Fatal(err)
	}
	s := again.site(t, "quebec", admitted)
	if len(s.GetMembers()) != 1 || !s.GetMembers()[0].GetConnected() {
		t.Errorf("the session that waited is gone: %v", s)
	}
	if err := session.CloseSend(); err != nil {
		t.Error(err)
	}
}

func TestWithExternalSignalsThePersonIsSentToTheOperator(t *testing.T) {
	r := runChanged(t, t.TempDir(), externally)
	c := r.admin(t)
	_, explain := c.Explain(t.Context(), &coordinatorv1.ExplainRequest{Site: "quebec"})
	_, set := c.SetOverride(t.Context(), &coordinatorv1.SetOverrideRequest{Site: "quebec", Admit: true, ForMs: 1000})
	_, cleared := c.ClearOverride(t.Context(), &coordinatorv1.ClearOverrideRequest{Site: "quebec"})
	for name, err := range map[string]error{"explain": explain, "override": set, "clear": cleared} {
		if status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "operator") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := c.Report(t.Context(), &coordinatorv1.ReportRequest{}); err != nil {
		t.Errorf("report: %v", err)
	}
}

func TestIntensitiesWithoutMeaningAreRefused(t *testing.T) {
	r := runChanged(t, t.TempDir(), externally)
	c := r.admin(t)
	for name, i := range map[string]*coordinatorv1.Intensity{
		"negative": {GramsPerKwh: -1, FromUnixMs: 1, UntilUnixMs: 2},
		"no span":  {GramsPerKwh: 1, FromUnixMs: 2, UntilUnixMs: 2},
	} {
		_, err := c.SetMembership(t.Context(), &coordinatorv1.SetMembershipRequest{Site: "quebec", Membership: coordinatorv1.Membership_MEMBERSHIP_ADMIT, Signal: &coordinatorv1.Signal{Average: i}})
		if status.Code(err) != codes.InvalidArgument {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestEnergyIsBookedAtTheIntensityThatWasToldForItsSpan(t *testing.T) {
	t0 := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	at := func(minute float64) time.Time { return t0.Add(time.Duration(minute * float64(time.Minute))) }
	tell := func(from, until, grams float64) *coordinatorv1.Intensity {
		return &coordinatorv1.Intensity{GramsPerKwh: grams, FromUnixMs: at(from).UnixMilli(), UntilUnixMs: at(until).UnixMilli()}
	}
	var in told
	for _, i := range []*coordinatorv1.Intensity{
		tell(0, 15, 100), tell(0, 15, 110), // revised
		tell(10, 20, 200), // comes before the other ends
		tell(2, 8, 999),   // late, of before what is known
		nil,               // nothing known ends nothing
		tell(30, 35, 300),
	} {
		in.keep(i)
	}
	for minute, want := range map[float64]float64{-1: -1, 0: 110, 9: 110, 10: 200, 19: 200, 20: -1, 29: -1, 30: 300, 34: 300, 35: -1} {
		s := in.At(at(minute))
		if at(minute).Before(s.From) || !at(minute).Before(s.Until) {
			t.Errorf("minute %v lies outside of [%s, %s)", minute, s.From, s.Until)
		}
		if (s.Value == nil) != (want < 0) || s.Value != nil && *s.Value != want {
			t.Errorf("minute %v: %v, want %v", minute, s.Value, want)
		}
	}
	for i := range 3 * toldSteps {
		in.keep(tell(float64(100+i), float64(101+i), 1))
	}
	if len(in.steps) != toldSteps {
		t.Errorf("%d steps are kept, want %d", len(in.steps), toldSteps)
	}
}

func TestMaxSitesBoundsWhoIsAdmitted(t *testing.T) {
	for _, tc := range []struct {
		max             string
		quebec, lab     bool
		reason, message string // of those that are out
	}{
		{"0", false, false, "ScaledToZero", "maxSites is 0"},
		{"1", false, true, "HigherPriority", "maxSites is 1"},
		{"2", true, true, "", ""},
	} {
		t.Run(tc.max, func(t *testing.T) {
			r := runChanged(t, t.TempDir(), func(_ *Options, text string) string {
				text = strings.Replace(text, "enterBelowGrams:", "enterConfirmations: 1, enterBelowGrams:", 1)
				return strings.Replace(text, "  algorithm:", "  maxSites: "+tc.max+"\n  algorithm:", 1)
			})
			for name, in := range map[string]bool{"quebec": tc.quebec, "lab": tc.lab} {
				s := r.site(t, name, func(s *coordinatorv1.SiteStatus) bool {
					return admitted(s) == in && (in || s.GetReason() == tc.reason)
				})
				if !in && !strings.Contains(s.GetMessage(), tc.message) {
					t.Errorf("%s: %v", name, s)
				}
			}
		})
	}
}

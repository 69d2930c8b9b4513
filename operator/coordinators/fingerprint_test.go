package coordinators

import (
	"errors"
	"log/slog"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	"girassol.dev/operator/membership"
)

func TestOnlyWhatObjectsShowIsNews(t *testing.T) {
	base := &coordinatorv1.FederationStatus{
		Phase: "Training", Reason: "Collecting", Version: new(uint64(3)), RoundsCommitted: 3, Round: &coordinatorv1.RoundStatus{Number: 4},
		Sites: []*coordinatorv1.SiteStatus{
			{Name: "lisboa", Phase: "Active", Reason: "Training", Membership: coordinatorv1.Membership_MEMBERSHIP_ADMIT,
				Members: []*coordinatorv1.MemberStatus{{Node: "a", Connected: true, State: coordinatorv1.MemberState_MEMBER_STATE_TRAINING}}},
			{Name: "porto", Phase: "Draining", Reason: "WaitingForEnergy", Membership: coordinatorv1.Membership_MEMBERSHIP_DRAIN,
				Members: []*coordinatorv1.MemberStatus{{Node: "b", Connected: true, State: coordinatorv1.MemberState_MEMBER_STATE_UPLOADING}}},
		},
	}
	for name, c := range map[string]struct {
		change func(*coordinatorv1.FederationStatus)
		news   bool
	}{
		"nothing":             {func(s *coordinatorv1.FederationStatus) {}, false},
		"clock and bytes":     {func(s *coordinatorv1.FederationStatus) { s.NowUnixMs, s.BytesUp = 9, 9 }, false},
		"steps":               {func(s *coordinatorv1.FederationStatus) { s.Sites[0].Members[0].Steps = 9 }, false},
		"round's part":        {func(s *coordinatorv1.FederationStatus) { s.Reason = "Committing" }, false},
		"next round":          {func(s *coordinatorv1.FederationStatus) { s.Round.Number = 5 }, false},
		"active site's state": {func(s *coordinatorv1.FederationStatus) { s.Sites[0].Reason = "Ready"; s.Sites[0].Members[0].State = 3 }, false},
		"commit":              {func(s *coordinatorv1.FederationStatus) { s.RoundsCommitted = 4 }, true},
		"version":             {func(s *coordinatorv1.FederationStatus) { s.Version = new(uint64(4)) }, true},
		"no model":            {func(s *coordinatorv1.FederationStatus) { s.Version = nil }, true},
		"void round": {func(s *coordinatorv1.FederationStatus) {
			s.Round.LastVoid = &coordinatorv1.VoidRound{Number: 4}
		}, true},
		"phase":             {func(s *coordinatorv1.FederationStatus) { s.Phase = "Paused" }, true},
		"site's phase":      {func(s *coordinatorv1.FederationStatus) { s.Sites[0].Phase = "Lost" }, true},
		"site's membership": {func(s *coordinatorv1.FederationStatus) { s.Sites[0].Membership = 2 }, true},
		"link measured": {func(s *coordinatorv1.FederationStatus) {
			s.Sites[0].Members[0].Link = &coordinatorv1.Link{Mode: "MTLS"}
		}, true},
		"member gone":     {func(s *coordinatorv1.FederationStatus) { s.Sites[0].Members = nil }, true},
		"member lost":     {func(s *coordinatorv1.FederationStatus) { s.Sites[0].Members[0].Connected = false }, true},
		"leaver has done": {func(s *coordinatorv1.FederationStatus) { s.Sites[1].Members[0].State = 1 }, true},
		"leaver's reason": {func(s *coordinatorv1.FederationStatus) { s.Sites[1].Reason = "Suspended" }, true},
	} {
		s := proto.Clone(base).(*coordinatorv1.FederationStatus)
		c.change(s)
		if news := fingerprint(s) != fingerprint(base); news != c.news {
			t.Errorf("%s: news %v", name, news)
		}
	}
}

func TestSilenceIsDoubtBeforeItIsLoss(t *testing.T) {
	d := &Directory{Log: slog.New(slog.DiscardHandler)}
	c := newClient(demo, Target{Address: "x:1"}, "x", d)
	down := errors.New("connection refused")
	now := time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)
	c.silent = now
	for _, step := range []struct {
		after time.Duration
		want  membership.Tri
	}{{0, membership.Unknown}, {doubt - 1, membership.Unknown}, {doubt, membership.No}, {2 * doubt, membership.No}} {
		c.lost(down, now.Add(step.after))
		if _, got, why := c.last(); got != step.want || why != "connection refused" {
			t.Errorf("first contact, after %s: %v %q, want %v", step.after, got, why, step.want)
		}
	}
	c.heard(&coordinatorv1.FederationStatus{})
	for _, step := range []struct {
		after time.Duration
		want  membership.Tri
	}{{0, membership.Unknown}, {doubt - 1, membership.Unknown}, {doubt, membership.No}} {
		c.lost(down, now.Add(step.after))
		if st, got, _ := c.last(); got != step.want || st == nil {
			t.Errorf("after it answered, %s later: %v, want %v", step.after, got, step.want)
		}
	}
}

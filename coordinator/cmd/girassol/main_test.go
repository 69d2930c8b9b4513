package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	"girassol.dev/internal/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// admin is a coordinator of which only the Admin service is there.
type admin struct {
	coordinatorv1.UnimplementedAdminServer
	mu       sync.Mutex
	requests []proto.Message
	answer   *coordinatorv1.SetMembershipResponse
	err      error
	// watched are the statuses that each call of Watch sends before it ends.
	watched [][]*coordinatorv1.FederationStatus
}

func (a *admin) note(m proto.Message) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.requests = append(a.requests, m)
}

func federation(phase string) *coordinatorv1.FederationStatus {
	return &coordinatorv1.FederationStatus{
		Federation: "demo", Phase: phase, NowUnixMs: 1_764_525_600_000, Version: proto.Uint64(3),
		Sites: []*coordinatorv1.SiteStatus{{Name: "lisboa", Phase: "Active", Reason: "Training"}, {Name: "porto", Phase: "Idle", Reason: "WaitingForEnergy"}},
	}
}

func (a *admin) Status(_ context.Context, m *coordinatorv1.StatusRequest) (*coordinatorv1.FederationStatus, error) {
	a.note(m)
	return federation("Training"), nil
}

func (a *admin) SetMembership(_ context.Context, m *coordinatorv1.SetMembershipRequest) (*coordinatorv1.SetMembershipResponse, error) {
	a.note(m)
	if a.err != nil {
		return nil, a.err
	}
	if a.answer != nil {
		return a.answer, nil
	}
	return &coordinatorv1.SetMembershipResponse{Changed: true, Membership: m.Membership, Reason: "Requested", Message: m.Message}, nil
}

func (a *admin) Pause(_ context.Context, m *coordinatorv1.PauseRequest) (*coordinatorv1.PauseResponse, error) {
	a.note(m)
	return &coordinatorv1.PauseResponse{}, a.err
}

func (a *admin) Resume(_ context.Context, m *coordinatorv1.ResumeRequest) (*coordinatorv1.ResumeResponse, error) {
	a.note(m)
	return &coordinatorv1.ResumeResponse{}, a.err
}

func (a *admin) Watch(m *coordinatorv1.WatchRequest, s grpc.ServerStreamingServer[coordinatorv1.FederationStatus]) error {
	a.note(m)
	a.mu.Lock()
	var now []*coordinatorv1.FederationStatus
	if len(a.watched) > 0 {
		now, a.watched = a.watched[0], a.watched[1:]
	}
	a.mu.Unlock()
	for _, st := range now {
		if err := s.Send(st); err != nil {
			return err
		}
	}
	if len(now) > 0 {
		return status.Error(codes.Unavailable, "coordinator stops")
	}
	<-s.Context().Done()
	return nil
}

func (a *admin) serve(t *testing.T) (address string) {
	t.Helper()
	l, err := wire.Listen("127.0.0.1:0", wire.Options{})
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer(wire.ServerOptions(wire.Options{})...)
	coordinatorv1.RegisterAdminServer(s, a)
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	t.Cleanup(func() {
		s.Stop()
		if err := <-done; err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			t.Error(err)
		}
	})
	return l.Addr().String()
}

type result struct {
	code           int
	stdout, stderr string
}

func girassol(ctx context.Context, env map[string]string, args ...string) result {
	var out, err bytes.Buffer
	code := run(ctx, args, func(k string) string { return env[k] }, &out, &err)
	return result{code, out.String(), err.String()}
}

// want checks the exit code and that a failure is one line.
func (r result) want(t *testing.T, code int, stdout, stderr string) {
	t.Helper()
	if r.code != code || !strings.Contains(r.stdout, stdout) || !strings.Contains(r.stderr, stderr) {
		t.Errorf("code %d, stdout %q, stderr %q; want %d, %q, %q", r.code, r.stdout, r.stderr, code, stdout, stderr)
	}
	if code != 0 && strings.Count(r.stderr, "\n") != 1 {
		t.Errorf("the error is not one line: %q", r.stderr)
	}
}

func TestStatusShowsTheTable(t *testing.T) {
	addr := (&admin{}).serve(t)
	r := girassol(t.Context(), nil, "status", "--address", addr)
	r.want(t, 0, "demo: Training\n", "")
	r.want(t, 0, "porto   Idle    WaitingForEnergy", "")
	girassol(t.Context(), map[string]string{addressEnv: addr}, "status").want(t, 0, "demo: Training\n", "")
}

func TestStatusAsJSONTellsUnknownFromZero(t *testing.T) {
	r := girassol(t.Context(), nil, "status", "-o", "json", "--address", (&admin{}).serve(t))
	var s map[string]any
	if err := json.Unmarshal([]byte(r.stdout), &s); err != nil || r.code != 0 {
		t.Fatal(err, r)
	}
	if s["roundsVoid"] != "0" || s["version"] != "3" {
		t.Errorf("roundsVoid %v, version %v", s["roundsVoid"], s["version"])
	}
	if _, ok := s["agreement"]; ok {
		t.Error("an agreement that nobody measured")
	}
}

func TestMembershipCommandsSayWhatIsInForce(t *testing.T) {
	a := &admin{}
	addr := a.serve(t)
	for _, c := range []struct {
		args   string
		answer *coordinatorv1.SetMembershipResponse
		want   string
		sent   *coordinatorv1.SetMembershipRequest
	}{
		{"drain lisboa --deadline 90s --reason maintenance", nil, "lisboa: drain in force, out within 1m30s (Requested: maintenance)\n",
			&coordinatorv1.SetMembershipRequest{Site: "lisboa", Membership: coordinatorv1.Membership_MEMBERSHIP_DRAIN, DeadlineMs: 90_000, Message: "maintenance"}},
		{"drain lisboa", &coordinatorv1.SetMembershipResponse{Membership: coordinatorv1.Membership_MEMBERSHIP_DRAIN}, "lisboa: drain was in force already\n",
			&coordinatorv1.SetMembershipRequest{Site: "lisboa", Membership: coordinatorv1.Membership_MEMBERSHIP_DRAIN}},
		{"exclude porto", nil, "porto: exclusion in force (Requested)\n",
			&coordinatorv1.SetMembershipRequest{Site: "porto", Membership: coordinatorv1.Membership_MEMBERSHIP_EXCLUDE}},
		{"admit porto", &coordinatorv1.SetMembershipResponse{Changed: true, Membership: coordinatorv1.Membership_MEMBERSHIP_DRAIN, Reason: "WaitingForEnergy", Message: "655 gCO2/kWh"}, "porto: drain stays in force (WaitingForEnergy: 655 gCO2/kWh)\n",
			&coordinatorv1.SetMembershipRequest{Site: "porto", Membership: coordinatorv1.Membership_MEMBERSHIP_ADMIT}},
	} {
		a.answer = c.answer
		a.requests = nil
		girassol(t.Context(), nil, append(strings.Fields(c.args), "--address", addr)...).want(t, 0, c.want, "")
		if len(a.requests) != 1 || !proto.Equal(a.requests[0], c.sent) {
			t.Errorf("%s sent %v", c.args, a.requests)
		}
	}
	a.answer = nil
	girassol(t.Context(), nil, "drain", "lisboa", "-o", "json", "--address", addr).want(t, 0, `"membership":"MEMBERSHIP_DRAIN"`, "")
}

func TestUnknownSiteNamesTheKnownOnes(t *testing.T) {
	a := &admin{err: status.Error(codes.NotFound, "no such site")}
	girassol(t.Context(), nil, "drain", "lissabon", "--address", a.serve(t)).want(t, 1, "", `no site "lissabon": federation demo has lisboa, porto`)
}

func TestPauseAndResume(t *testing.T) {
	a := &admin{}
	addr := a.serve(t)
	girassol(t.Context(), nil, "pause", "--message", "lunch", "--address", addr).want(t, 0, "paused: the round in flight ends", "")
	girassol(t.Context(), nil, "resume", "--address", addr).want(t, 0, "resumed\n", "")
	if !proto.Equal(a.requests[0], &coordinatorv1.PauseRequest{Message: "lunch"}) {
		t.Errorf("sent %v", a.requests[0])
	}
}

func TestErrorsSayWhatToDo(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	nobody := l.Addr().String()
	_ = l.Close()
	for name, c := range map[string]struct {
		err    error
		args   string
		code   int
		stderr string
	}{
		"nobody there":       {nil, "status --address " + nobody, 1, "no coordinator answers at " + nobody + ": start one, or name its address with --address or GIRASSOL_ADDRESS"},
		"watch nobody":       {nil, "watch --address " + nobody, 1, "no coordinator answers"},
		"refused":            {status.Error(codes.PermissionDenied, "IdentityMismatch: site lisboa"), "pause", 1, "must be a person's certificate"},
		"other version":      {status.Error(codes.Unimplemented, "unknown method"), "pause", 1, "no Girassol coordinator, or one of another version"},
		"slow":               {status.Error(codes.DeadlineExceeded, "too late"), "pause", 1, "does not answer within 10s"},
		"anything else":      {status.Error(codes.Internal, "disk\nfull"), "pause", 1, "says: disk full"},
		"plaintext far away": {nil, "status --address 192.0.2.1:7465", 2, "--insecure"},
		"half of TLS":        {nil, "status --tls-ca ca.pem", 2, "the certificate file is not given"},
		"no command":         {nil, "drian lisboa", 2, `unknown command "drian"`},
		"no site":            {nil, "drain", 2, "want a site, got 0 arguments"},
		"too many":           {nil, "status now", 2, `unexpected argument "now"`},
		"bad flag":           {nil, "status --verbose", 2, "--verbose"},
		"bad output":         {nil, "status -o yaml", 2, "want table or json"},
		"bad deadline":       {nil, "drain lisboa --deadline -1s", 2, "--deadline -1s"},
		"bad interval":       {nil, "watch --interval 0s", 2, "--interval 0s"},
	} {
		t.Run(name, func(t *testing.T) {
			env := map[string]string{addressEnv: (&admin{err: c.err}).serve(t)}
			girassol(t.Context(), env, strings.Fields(c.args)...).want(t, c.code, "", c.stderr)
		})
	}
}

func TestWatchTellsChangesUntilTheEnd(t *testing.T) {
	a := &admin{watched: [][]*coordinatorv1.FederationStatus{
		{federation("WaitingForSites"), federation("Training"), federation("Training")},
		{federation("Training"), federation("Completed")}, // the coordinator was away in between
	}}
	r := girassol(t.Context(), nil, "watch", "--interval", "2s", "--address", a.serve(t))
	r.want(t, 0, "demo: WaitingForSites\n", "coordinator stops")
	r.want(t, 0, "demo: Completed\n", "is back")
	if n := strings.Count(r.stdout, "demo: Training"); n != 1 {
		t.Errorf("%d lines of one change:\n%s", n, r.stdout)
	}
	if !proto.Equal(a.requests[0], &coordinatorv1.WatchRequest{IntervalMs: 2000}) {
		t.Errorf("sent %v", a.requests[0])
	}
}

func TestWatchFailsWithAFailedFederation(t *testing.T) {
	a := &admin{watched: [][]*coordinatorv1.FederationStatus{{{Federation: "demo", Phase: "Failed", Reason: "CommitLogFailed", Message: "disk full"}}}}
	girassol(t.Context(), nil, "watch", "--address", a.serve(t)).want(t, 1, "demo: Failed", "federation demo has failed: CommitLogFailed: disk full")
}

func TestWatchWritesALineOfJSONPerStatus(t *testing.T) {
	a := &admin{watched: [][]*coordinatorv1.FederationStatus{{federation("Training"), federation("Training"), federation("Completed")}}}
	r := girassol(t.Context(), nil, "watch", "-o", "json", "--address", a.serve(t))
	lines := strings.Split(strings.TrimSpace(r.stdout), "\n")
	if len(lines) != 3 || r.code != 0 {
		t.Fatalf("code %d, %d lines", r.code, len(lines))
	}
	for _, line := range lines {
		if !json.Valid([]byte(line)) {
			t.Errorf("no JSON: %s", line)
		}
	}
}

func TestWatchEndsWellWithAnInterrupt(t *testing.T) {
	ctx, interrupt := context.WithCancel(t.Context())
	a := &admin{watched: [][]*coordinatorv1.FederationStatus{{federation("Training")}}}
	addr := a.serve(t)
	var stderr bytes.Buffer
	code := run(ctx, []string{"watch", "--address", addr}, func(string) string { return "" }, writerFunc(func(p []byte) (int, error) {
		interrupt()
		return len(p), nil
	}), &stderr)
	if code != 0 {
		t.Errorf("code %d, %s", code, stderr.String())
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

func TestClosedOutputEndsWatch(t *testing.T) {
	a := &admin{watched: [][]*coordinatorv1.FederationStatus{{federation("Training")}}}
	code := run(t.Context(), []string{"watch", "--address", a.serve(t)}, func(string) string { return "" },
		writerFunc(func([]byte) (int, error) { return 0, errors.New("broken pipe") }), io.Discard)
	if code != 1 {
		t.Errorf("code %d", code)
	}
}

func TestVersionAndHelp(t *testing.T) {
	girassol(t.Context(), nil, "version").want(t, 0, "girassol ", "")
	girassol(t.Context(), nil, "version", "-o", "json").want(t, 0, `"platform":`, "")
	girassol(t.Context(), nil).want(t, 0, "Available Commands", "")
	girassol(t.Context(), nil, "drain", "--help").want(t, 0, "spec.drain.graceSeconds", "")
}

func TestDrawingFitsTheTerminal(t *testing.T) {
	var b bytes.Buffer
	if err := draw(&b, federation("Training"), 40, 6, strings.Repeat("no coordinator ", 9)); err != nil {
		t.Fatal(err)
	}
	got := b.String()
	if !strings.HasPrefix(got, cursorHome+"no coordinator") || !strings.HasSuffix(got, "…"+eraseToLine+"\n"+eraseBelow) {
		t.Errorf("got %q", got)
	}
	lines := strings.Split(strings.TrimSuffix(strings.TrimPrefix(got, cursorHome), eraseBelow), "\n")
	if len(lines) != 6 {
		t.Errorf("%d rows of 6", len(lines))
	}
	for _, line := range lines {
		if n := len([]rune(strings.TrimSuffix(line, eraseToLine))); n > 40 {
			t.Errorf("%d columns in %q", n, line)
		}
	}
}

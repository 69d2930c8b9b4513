package server_test

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	"girassol.dev/coordinator/server"
)

func TestAPersonGoesBackByTheAdminService(t *testing.T) {
	c := start(t, t.TempDir())
	c.admit("a")
	a := c.join("a")
	a.seed()
	seeded := digest(c.status())
	a.ready()
	payload := update(t, 0.5)
	a.mustPush(a.header(a.grant(), "u", payload), payload)
	c.until("committed", func(st *coordinatorv1.FederationStatus) bool { return st.GetVersion() == 1 })
	var log bytes.Buffer
	admin := &server.Admin{Engine: c.engine, Log: slog.New(slog.NewTextHandler(&log, nil))}
	for _, wrong := range []struct {
		req  *coordinatorv1.RollbackRequest
		code codes.Code
		says string
	}{
		{&coordinatorv1.RollbackRequest{Version: new(uint64(77))}, codes.FailedPrecondition, "VersionNotKept: version 77 is not in the commit log; those that can be had: 0"},
		{&coordinatorv1.RollbackRequest{Version: new(uint64(1))}, codes.FailedPrecondition, "in the state of version 1 already"},
		{&coordinatorv1.RollbackRequest{Message: strings.Repeat("x", 1025)}, codes.InvalidArgument, "1025 bytes"},
	} {
		if _, err := admin.Rollback(c.ctx(), wrong.req); status.Code(err) != wrong.code || !strings.Contains(err.Error(), wrong.says) {
			t.Errorf("%v: %v", wrong.req.Version, err)
		}
	}
	done, err := admin.Rollback(c.ctx(), &coordinatorv1.RollbackRequest{Message: "too warm"})
	if err != nil || done.GetVersion() != 2 || done.GetFromVersion() != 0 {
		t.Fatalf("%v, %v", done, err)
	}
	st := c.status()
	if rb := st.GetLastRollback(); digest(st) != seeded || st.GetVersion() != 2 || rb.GetReason() != "RolledBack" || rb.GetMessage() != "too warm" {
		t.Errorf("status %v", st)
	}
	for _, want := range []string{"version=77", `version="the one before" message="too warm"`} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("the log does not say %s:\n%s", want, &log)
		}
	}
}

package main

import (
	"context"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
)

func (a *admin) Rollback(_ context.Context, m *coordinatorv1.RollbackRequest) (*coordinatorv1.RollbackResponse, error) {
	a.note(m)
	if a.err != nil {
		return nil, a.err
	}
	to := uint64(11)
	if m.Version != nil {
		to = m.GetVersion()
	}
	return &coordinatorv1.RollbackResponse{Version: 13, FromVersion: to, Digest: []byte{1, 2, 3, 4}}, nil
}

func TestRollbackSaysWhatItMade(t *testing.T) {
	for _, c := range []struct {
		args []string
		err  error
		want string
		code int
	}{
		{[]string{"rollback"}, nil, "version 13 has the state of version 11 (01020304)", 0},
		{[]string{"rollback", "--to", "0", "--message", "diverged"}, nil, "the state of version 0", 0},
		{[]string{"rollback", "-o", "json"}, nil, `"fromVersion":"11"`, 0},
		{[]string{"rollback", "--to=-1"}, nil, "invalid", 2},
		{[]string{"rollback", "7"}, nil, "unexpected argument", 2},
		{[]string{"rollback", "--to", "7"}, status.Error(codes.FailedPrecondition, "VersionNotKept: those that can be had: 3, 6-9"), "6-9", 1},
		{[]string{"rollback"}, status.Error(codes.DeadlineExceeded, "it goes on"), "it goes on", 1},
	} {
		t.Run(strings.Join(c.args, " "), func(t *testing.T) {
			a := &admin{err: c.err}
			r := girassol(t.Context(), map[string]string{addressEnv: a.serve(t)}, c.args...)
			if c.code == 0 {
				r.want(t, 0, c.want, "")
			} else {
				r.want(t, c.code, "", c.want)
			}
		})
	}
}

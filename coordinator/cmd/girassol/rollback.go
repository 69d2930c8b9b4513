package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	"girassol.dev/coordinator/statusview"
)

// rollbackTimeout: the coordinator waits for a merge and reads the older state,
// and gives up before this.
const rollbackTimeout = 11 * time.Minute

func rollbackCommand(o *options) *cobra.Command {
	var to uint64
	var message string
	cmd := &cobra.Command{
		Use:   "rollback",
		Short: "Make the state of an older version the newest one",
		Long: `Make the state of an older version the newest one, under a new version number.

The round at work is void, and members forget work that they have not sent. Samples,
rounds, energy and emissions spent since stay counted. Without --to it goes back by
one version. The error for a version that is not kept lists those that are.`,
		Args: exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			req := &coordinatorv1.RollbackRequest{Message: message}
			if cmd.Flags().Changed("to") {
				req.Version = &to
			}
			return o.with(cmd.Context(), func(c coordinatorv1.AdminClient) error {
				ctx, cancel := context.WithTimeout(cmd.Context(), rollbackTimeout)
				defer cancel()
				resp, err := c.Rollback(ctx, req)
				if s, ok := status.FromError(err); ok && s.Code() == codes.DeadlineExceeded {
					return errors.New(s.Message())
				}
				if err != nil {
					return err
				}
				return o.answer(cmd.OutOrStdout(), resp, fmt.Sprintf("version %d has the state of version %d (%s); training goes on from it",
					resp.GetVersion(), resp.GetFromVersion(), statusview.ShortDigest(resp.GetDigest())))
			})
		},
	}
	cmd.Flags().Uint64Var(&to, "to", 0, "`version` to go back to (default the one before the newest)")
	cmd.Flags().StringVar(&message, "message", "", "`text` that says why, for others to read")
	return cmd
}

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	"girassol.dev/api/federation/v1alpha1"
	"girassol.dev/coordinator/statusview"
)

func statusCommand(o *options) *cobra.Command {
	members := false
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show what the federation does and waits for",
		Args:  exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.call(cmd.Context(), func(ctx context.Context, c coordinatorv1.AdminClient) error {
				s, err := c.Status(ctx, &coordinatorv1.StatusRequest{})
				if err != nil {
					return err
				}
				w := cmd.OutOrStdout()
				if o.json() {
					return writeJSON(w, s)
				}
				width, _, _ := terminal(w)
				statusview.Table(w, s, width)
				if members {
					_, _ = io.WriteString(w, "\n")
					statusview.Members(w, s, width)
				}
				return nil
			})
		},
	}
	cmd.Flags().BoolVar(&members, "members", false, "show each member's machine, how its trainer works and how it started (default false)")
	return cmd
}

func watchCommand(o *options) *cobra.Command {
	interval := time.Second
	cmd := &cobra.Command{
		Use:   "watch",
		Short: "Follow the federation until it has completed",
		Long: `Follow the federation until it has completed: a table that is drawn anew on a
terminal, a line per change elsewhere, a line of JSON per status with -o json.
Once it has seen the coordinator it waits for its return when it goes away.`,
		Args: exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if interval < time.Millisecond {
				return usageError{fmt.Errorf("--interval %s: want a time like 1s", interval)}
			}
			return o.with(cmd.Context(), func(c coordinatorv1.AdminClient) error {
				return o.watch(cmd.Context(), c, interval, cmd.OutOrStdout(), cmd.ErrOrStderr())
			})
		},
	}
	cmd.Flags().DurationVar(&interval, "interval", interval, "least `time` between two updates")
	return cmd
}

// watch ends with ctx, with the federation's end, or when the coordinator cannot
// be reached at the first attempt.
func (o *options) watch(ctx context.Context, c coordinatorv1.AdminClient, interval time.Duration, stdout, stderr io.Writer) error {
	view := &view{o: o, w: stdout, stderr: stderr}
	wait := backoff.NewExponentialBackOff(
		backoff.WithInitialInterval(250*time.Millisecond), backoff.WithMaxInterval(5*time.Second),
		backoff.WithMaxElapsedTime(0), // for ever
	)
	for {
		err := follow(ctx, c, interval, func(s *coordinatorv1.FederationStatus) error {
			wait.Reset()
			if err := view.show(s); err != nil {
				return err
			}
			if ended, _ := view.ended(); ended {
				return io.EOF
			}
			return nil
		})
		if ctx.Err() != nil {
			return nil //nolint:nilerr // Ctrl-C is how one ends it
		}
		if ended, err := view.ended(); ended {
			return err
		}
		if view.last == nil || !worthWaiting(err) {
			return err
		}
		view.away(o.explain(err))
		select {
		case <-time.After(wait.NextBackOff()):
		case <-ctx.Done():
			return nil
		}
	}
}

func follow(ctx context.Context, c coordinatorv1.AdminClient, interval time.Duration, show func(*coordinatorv1.FederationStatus) error) error {
	stream, err := c.Watch(ctx, &coordinatorv1.WatchRequest{IntervalMs: interval.Milliseconds()})
	if err != nil {
		return err
	}
	for {
		s, err := stream.Recv()
		if err != nil {
			return err
		}
		if err := show(s); err != nil {
			return err
		}
	}
}

// worthWaiting says whether the coordinator may come back: it ended the stream or
// cannot be reached.
func worthWaiting(err error) bool {
	switch status.Code(err) {
	case codes.PermissionDenied, codes.Unauthenticated, codes.Unimplemented, codes.InvalidArgument:
		return false
	}
	_, isStatus := status.FromError(err)
	return isStatus || errors.Is(err, io.EOF)
}

// view is how watch shows one status after the other.
type view struct {
	o         *options
	w, stderr io.Writer
	last      *coordinatorv1.FederationStatus
	isAway    bool
}

func (v *view) show(s *coordinatorv1.FederationStatus) error {
	before := v.last
	v.last = s
	if v.o.json() {
		v.isAway = false
		return writeJSON(v.w, s)
	}
	if width, height, ok := terminal(v.w); ok {
		v.isAway = false
		return draw(v.w, s, width, height, "")
	}
	if v.isAway {
		v.isAway = false
		fmt.Fprintf(v.stderr, "girassol: the coordinator at %s is back\n", v.o.address)
	}
	for _, line := range statusview.Changes(before, s) {
		if _, err := fmt.Fprintln(v.w, line); err != nil {
			return err
		}
	}
	return nil
}

// away says once that the coordinator is gone.
func (v *view) away(err error) {
	if v.isAway {
		return
	}
	v.isAway = true
	if width, height, ok := terminal(v.w); ok && !v.o.json() {
		_ = draw(v.w, v.last, width, height, fmt.Sprintf("%v; trying again", err))
		return
	}
	fmt.Fprintf(v.stderr, "girassol: %v; trying again\n", err)
}

// ended says whether the last status was the federation's end, and how it ended.
func (v *view) ended() (bool, error) {
	switch v1alpha1.FederationPhase(v.last.GetPhase()) {
	case v1alpha1.FederationCompleted:
		return true, nil
	case v1alpha1.FederationFailed:
		return true, fmt.Errorf("federation %s has failed: %s: %s", v.last.GetFederation(), v.last.GetReason(), v.last.GetMessage())
	}
	return false, nil
}

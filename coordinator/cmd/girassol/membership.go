package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
)

func drainCommand(o *options) *cobra.Command {
	var deadline time.Duration
	var reason string
	cmd := &cobra.Command{
		Use:   "drain SITE",
		Short: "Let a site leave in order: work done so far counts",
		Long: `Let a site leave in order: it finishes its step, uploads, and work done so far
counts. It stays out, whatever its energy says, until girassol admit.`,
		Args: exactly("a site"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if deadline < 0 || deadline != 0 && deadline < time.Millisecond {
				return usageError{fmt.Errorf("--deadline %s: want a time like 60s", deadline)}
			}
			return o.setMembership(cmd, &coordinatorv1.SetMembershipRequest{
				Site: args[0], Membership: coordinatorv1.Membership_MEMBERSHIP_DRAIN, DeadlineMs: deadline.Milliseconds(), Message: reason,
			})
		},
	}
	cmd.Flags().DurationVar(&deadline, "deadline", 0, "`time` by which the site must be out, for example 60s (default the federation's spec.drain.graceSeconds)")
	cmd.Flags().StringVar(&reason, "reason", "", "`text` that says why, for others to read")
	return cmd
}

func admitCommand(o *options) *cobra.Command {
	return &cobra.Command{
		Use:   "admit SITE",
		Short: "Let a site take part, as far as its energy allows",
		Long: `Let a site take part. This ends a drain or exclusion by a person; where energy
decides about the site, that decision is in force again.`,
		Args: exactly("a site"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.setMembership(cmd, &coordinatorv1.SetMembershipRequest{Site: args[0], Membership: coordinatorv1.Membership_MEMBERSHIP_ADMIT})
		},
	}
}

func excludeCommand(o *options) *cobra.Command {
	var reason string
	cmd := &cobra.Command{
		Use:   "exclude SITE",
		Short: "Make a site leave at once: work in flight is discarded",
		Long: `Make a site leave at once: work in flight is discarded. It stays out until
girassol admit. To keep the work, use girassol drain.`,
		Args: exactly("a site"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.setMembership(cmd, &coordinatorv1.SetMembershipRequest{Site: args[0], Membership: coordinatorv1.Membership_MEMBERSHIP_EXCLUDE, Message: reason})
		},
	}
	cmd.Flags().StringVar(&reason, "reason", "", "`text` that says why, for others to read")
	return cmd
}

func (o *options) setMembership(cmd *cobra.Command, req *coordinatorv1.SetMembershipRequest) error {
	return o.call(cmd.Context(), func(ctx context.Context, c coordinatorv1.AdminClient) error {
		resp, err := c.SetMembership(ctx, req)
		if status.Code(err) == codes.NotFound {
			return unknownSite(ctx, c, req.GetSite(), err)
		}
		if err != nil {
			return err
		}
		return o.answer(cmd.OutOrStdout(), resp, membershipText(req, resp))
	})
}

// membershipText says what is in force now; that need not be what was asked for.
func membershipText(req *coordinatorv1.SetMembershipRequest, resp *coordinatorv1.SetMembershipResponse) string {
	text := map[coordinatorv1.Membership]string{
		coordinatorv1.Membership_MEMBERSHIP_ADMIT:   "admission",
		coordinatorv1.Membership_MEMBERSHIP_DRAIN:   "drain",
		coordinatorv1.Membership_MEMBERSHIP_EXCLUDE: "exclusion",
	}
	inForce := resp.GetMembership()
	if inForce == coordinatorv1.Membership_MEMBERSHIP_UNSPECIFIED {
		inForce = req.GetMembership()
	}
	line := req.GetSite() + ": "
	switch {
	case inForce != req.GetMembership():
		line += text[inForce] + " stays in force"
	case !resp.GetChanged():
		line += text[inForce] + " was in force already"
	default:
		line += text[inForce] + " in force"
		if ms := req.GetDeadlineMs(); ms > 0 {
			line += fmt.Sprintf(", out within %s", time.Duration(ms)*time.Millisecond)
		}
	}
	if resp.GetReason() != "" {
		line += " (" + resp.GetReason()
		if resp.GetMessage() != "" {
			line += ": " + resp.GetMessage()
		}
		line += ")"
	}
	return line
}

// unknownSite names the sites that there are.
func unknownSite(ctx context.Context, c coordinatorv1.AdminClient, site string, err error) error {
	s, statusErr := c.Status(ctx, &coordinatorv1.StatusRequest{})
	if statusErr != nil {
		return err
	}
	var names []string
	for _, known := range s.GetSites() {
		names = append(names, known.GetName())
	}
	if len(names) == 0 {
		return fmt.Errorf("no site %q: federation %s has no sites yet", site, s.GetFederation())
	}
	return fmt.Errorf("no site %q: federation %s has %s", site, s.GetFederation(), strings.Join(names, ", "))
}

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
)

func tokenCommand(o *options) *cobra.Command {
	cmd := &cobra.Command{Use: "token", Short: "Tokens with which agents enrol", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() }}
	cmd.AddCommand(tokenCreateCommand(o))
	return cmd
}

func tokenCreateCommand(o *options) *cobra.Command {
	var site string
	var ttl time.Duration
	cmd := &cobra.Command{
		Use:   "create --site SITE",
		Short: "Make a token with which one agent enrols as a site, once",
		Long: `Make a token with which one agent enrols as a site, once. It is shown here and
nowhere again: the coordinator keeps its hash. Whoever has it before it is used can
be the site; girassol revoke --token ID takes it, and what it got, out of force.`,
		Args: exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if site == "" {
				return usageError{errors.New("--site: which site shall the agent be?")}
			}
			if ttl < time.Second {
				return usageError{fmt.Errorf("--ttl %s: want at least 1s", ttl)}
			}
			return o.call(cmd.Context(), func(ctx context.Context, c coordinatorv1.AdminClient) error {
				resp, err := c.CreateToken(ctx, &coordinatorv1.CreateTokenRequest{Site: site, TtlMs: ttl.Milliseconds()})
				if err != nil {
					return err
				}
				// The rest goes to stderr: the output is the file that an agent reads.
				if !o.json() {
					_, _ = fmt.Fprintf(cmd.ErrOrStderr(), "token %s for site %s, good once until %s\n", resp.GetId(), site, clock(resp.GetExpiresUnixMs()))
				}
				return o.answer(cmd.OutOrStdout(), resp, resp.GetToken())
			})
		},
	}
	cmd.Flags().StringVar(&site, "site", "", "`name` of the site (required)")
	cmd.Flags().DurationVar(&ttl, "ttl", time.Hour, "how long the token is good, at most 720h")
	return cmd
}

func identitiesCommand(o *options) *cobra.Command {
	return &cobra.Command{
		Use:   "identities",
		Short: "List open tokens and the sites' certificates",
		Args:  exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.call(cmd.Context(), func(ctx context.Context, c coordinatorv1.AdminClient) error {
				resp, err := c.ListIdentities(ctx, &coordinatorv1.ListIdentitiesRequest{})
				if err != nil {
					return err
				}
				if o.json() {
					return writeJSON(cmd.OutOrStdout(), resp)
				}
				return identitiesTable(cmd.OutOrStdout(), resp, time.Now())
			})
		},
	}
}

func identitiesTable(w io.Writer, r *coordinatorv1.ListIdentitiesResponse, now time.Time) error {
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	_, _ = fmt.Fprintln(t, "KIND\tSITE\tID\tUNTIL\tSTATE")
	for _, k := range r.GetTokens() {
		_, _ = fmt.Fprintf(t, "token\t%s\t%s\t%s\topen\n", k.GetSite(), k.GetId(), clock(k.GetExpiresUnixMs()))
	}
	for _, c := range r.GetCertificates() {
		state := "in force"
		switch {
		case c.GetRevokedUnixMs() != 0:
			state = "revoked " + clock(c.GetRevokedUnixMs())
			if c.GetMessage() != "" {
				state += " (" + c.GetMessage() + ")"
			}
		case c.GetNotAfterUnixMs() != 0 && now.UnixMilli() > c.GetNotAfterUnixMs():
			state = "ended"
		}
		site, id := c.GetSite(), c.GetSerial()
		if site == "" {
			site = "-"
		}
		if id == "*" {
			id = "all that began before"
		}
		_, _ = fmt.Fprintf(t, "certificate\t%s\t%s\t%s\t%s\n", site, id, clock(c.GetNotAfterUnixMs()), state)
	}
	return t.Flush()
}

// clock writes a time of the coordinator's, "-" for none.
func clock(unixMs int64) string {
	if unixMs == 0 {
		return "-"
	}
	return time.UnixMilli(unixMs).UTC().Format(time.RFC3339)
}

func revokeCommand(o *options) *cobra.Command {
	req := &coordinatorv1.RevokeIdentityRequest{}
	cmd := &cobra.Command{
		Use:   "revoke --site SITE | --serial SERIAL | --token ID",
		Short: "Take a site's certificates, one certificate, or a token out of force for ever",
		Long: `Take a site's certificates, one certificate, or a token out of force for ever. Live
sessions that stand on them end at once. --token also revokes every certificate that
was got with the token and its renewals. A site that was revoked may enrol again with
a new token.`,
		Args: exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			given := 0
			for _, s := range []string{req.Site, req.Serial, req.TokenId} {
				if s != "" {
					given++
				}
			}
			if given != 1 {
				return usageError{errors.New("give exactly one of --site, --serial and --token; girassol identities lists them")}
			}
			return o.call(cmd.Context(), func(ctx context.Context, c coordinatorv1.AdminClient) error {
				resp, err := c.RevokeIdentity(ctx, req)
				if err != nil {
					return err
				}
				return o.answer(cmd.OutOrStdout(), resp, fmt.Sprintf("revoked: %d certificates, %d tokens; %d live sessions ended",
					resp.GetCertificates(), resp.GetTokens(), resp.GetSessions()))
			})
		},
	}
	f := cmd.Flags()
	f.StringVar(&req.Site, "site", "", "`name` of the site")
	f.StringVar(&req.Serial, "serial", "", "`number` of the certificate, hexadecimal")
	f.StringVar(&req.TokenId, "token", "", "`id` of the token, its second part")
	f.StringVar(&req.Message, "message", "", "`text` that says why, for others to read")
	return cmd
}

package main

import (
	"context"
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
)

func explainCommand(o *options) *cobra.Command {
	return &cobra.Command{
		Use:   "explain SITE",
		Short: "Say why a site is in or out: readings, verdict, thresholds, forecast, plan",
		Long: `Say what is behind a site's energy decision: the reading with its unit, source
and age, what was thought of it, thresholds and confirmations, the forecast, an
override, the planner's choice, and the earliest time at which it can change.`,
		Args: exactly("a site"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.call(cmd.Context(), func(ctx context.Context, c coordinatorv1.AdminClient) error {
				resp, err := c.Explain(ctx, &coordinatorv1.ExplainRequest{Site: args[0]})
				if status.Code(err) == codes.NotFound {
					return unknownSite(ctx, c, args[0], err)
				}
				if err != nil {
					return err
				}
				if o.json() {
					_, err := fmt.Fprintln(cmd.OutOrStdout(), resp.GetJson())
					return err
				}
				return writeFacts(cmd, resp.GetFacts())
			})
		},
	}
}

func writeFacts(cmd *cobra.Command, facts []*coordinatorv1.Fact) error {
	w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
	for _, f := range facts {
		fmt.Fprintf(w, "%s\t%s\n", f.GetName(), printable(f.GetValue()))
	}
	return w.Flush()
}

// printable keeps a coordinator's text from steering the terminal.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, s)
}

func reportCommand(o *options) *cobra.Command {
	return &cobra.Command{
		Use:   "report",
		Short: "Energy and CO2 by federation, site and round, as CSV or JSON",
		Long: `Print the ledgers: energy and CO2 by federation, site and round (the newest 256),
and what one site that is always on would have taken for the same training time.
Marginal and average are two ledgers and are never added. CSV, or JSON with -o json;
an empty cell or null is not known, never 0.`,
		Args: exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.call(cmd.Context(), func(ctx context.Context, c coordinatorv1.AdminClient) error {
				resp, err := c.Report(ctx, &coordinatorv1.ReportRequest{})
				if err != nil {
					return err
				}
				text := resp.GetCsv()
				if o.json() {
					text = resp.GetJson()
				}
				_, err = fmt.Fprint(cmd.OutOrStdout(), text)
				return err
			})
		},
	}
}

func overrideCommand(o *options) *cobra.Command {
	var in, out, clearIt bool
	var span time.Duration
	var reason string
	cmd := &cobra.Command{
		Use:   "override SITE --admit|--release|--clear",
		Short: "Decide about a site for a while, whatever its electricity is",
		Long: `Decide about a site for a while, whatever its electricity is. An override always
ends, by --for; demand-response emergencies and a spent budget still win. It does
not end a person's drain: for that there is girassol admit.`,
		Args: exactly("a site"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if n := count(in, out, clearIt); n != 1 {
				return usageError{fmt.Errorf("want one of --admit, --release and --clear, got %d", n)}
			}
			if clearIt {
				return o.call(cmd.Context(), func(ctx context.Context, c coordinatorv1.AdminClient) error {
					resp, err := c.ClearOverride(ctx, &coordinatorv1.ClearOverrideRequest{Site: args[0]})
					if err != nil {
						return err
					}
					return o.answer(cmd.OutOrStdout(), resp, args[0]+": its window decides again")
				})
			}
			if span < time.Second {
				return usageError{fmt.Errorf("--for %s: an override needs an end, for example --for 2h", span)}
			}
			return o.call(cmd.Context(), func(ctx context.Context, c coordinatorv1.AdminClient) error {
				resp, err := c.SetOverride(ctx, &coordinatorv1.SetOverrideRequest{Site: args[0], Admit: in, ForMs: span.Milliseconds(), Reason: reason})
				if err != nil {
					return err
				}
				what := "released"
				if in {
					what = "admitted"
				}
				until := time.UnixMilli(resp.GetUntilUnixMs()).UTC().Format("2006-01-02 15:04:05 UTC")
				return o.answer(cmd.OutOrStdout(), resp, fmt.Sprintf("%s: %s by override until %s", args[0], what, until))
			})
		},
	}
	f := cmd.Flags()
	f.BoolVar(&in, "admit", false, "let the site take part (default false)")
	f.BoolVar(&out, "release", false, "keep the site out (default false)")
	f.BoolVar(&clearIt, "clear", false, "end an override (default false)")
	f.DurationVar(&span, "for", 0, "`time` that it holds, on the clock of the signals, for example 2h (required with --admit and --release)")
	f.StringVar(&reason, "reason", "", "`text` that says why, for others to read")
	return cmd
}

func count(flags ...bool) int {
	n := 0
	for _, f := range flags {
		if f {
			n++
		}
	}
	return n
}

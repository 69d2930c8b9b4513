package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	"girassol.dev/coordinator/statusview"
	"girassol.dev/internal/wire/wireguard"
)

// linkTestTimeout is for a site with many members, a minute each at most.
const linkTestTimeout = 31 * time.Minute

func linkCommand(o *options) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "link",
		Short: "Measure the links to the sites",
		Args:  exactly(),
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(linkTestCommand(o))
	return cmd
}

func linkTestCommand(o *options) *cobra.Command {
	var bytes uint64
	cmd := &cobra.Command{
		Use:   "test SITE",
		Short: "Measure round trip and throughput, and say what a round's transfers cost",
		Long: `Measure round trip and throughput of a site's live links, one member after the
other, and say what the transfers of a round cost with the present algorithm and
model: seconds, and their share of the round's training time.

Rounds go on meanwhile and share the link, so a test in the middle of an upload
shows what is left. At most --bytes go each way, for at most a minute.`,
		Args: exactly("SITE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.with(cmd.Context(), func(c coordinatorv1.AdminClient) error {
				ctx, cancel := context.WithTimeout(cmd.Context(), linkTestTimeout)
				defer cancel()
				resp, err := c.LinkTest(ctx, &coordinatorv1.LinkTestRequest{Site: args[0], Bytes: bytes})
				if err != nil {
					return err
				}
				if o.json() {
					return writeJSON(cmd.OutOrStdout(), resp)
				}
				return writeLinks(cmd.OutOrStdout(), args[0], resp)
			})
		},
	}
	cmd.Flags().Uint64Var(&bytes, "bytes", 16<<20, "most `bytes` each way")
	return cmd
}

func writeLinks(w io.Writer, site string, resp *coordinatorv1.LinkTestResponse) error {
	for _, m := range resp.GetMembers() {
		name := fmt.Sprintf("%s/%s", site, m.GetNode())
		r := m.GetResult()
		if r.GetError() != "" {
			if _, err := fmt.Fprintf(w, "%s: no result: %q\n", name, r.GetError()); err != nil {
				return err
			}
			continue
		}
		text := fmt.Sprintf("%s: RTT %.1f ms, up %s/s, down %s/s\n  %s\n", name, 1000*r.GetRttSeconds(),
			statusview.Bytes(uint64(r.GetUpBytesPerSecond())), statusview.Bytes(uint64(r.GetDownBytesPerSecond())), statusview.Link(m.GetLink()))
		switch cost := m.GetRoundTransferSeconds(); {
		case m.RoundTransferSeconds == nil:
			text += "  a round's transfers: not known before there is a model\n"
		case resp.RoundSeconds == nil:
			text += fmt.Sprintf("  a round's transfers: %.2f s at most\n", cost)
		default:
			text += fmt.Sprintf("  a round's transfers: %.2f s at most, %.1f %% of a round of %.0f s\n", cost, 100*cost/resp.GetRoundSeconds(), resp.GetRoundSeconds())
		}
		if _, err := io.WriteString(w, text); err != nil {
			return err
		}
	}
	return nil
}

func wireguardCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "wireguard",
		Short: "Make keys of tunnels",
		Args:  exactly(),
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	next, show := false, false
	key := &cobra.Command{
		Use:   "key FILE",
		Short: "Make a private key and print the public one",
		Long: `Make a private key in FILE, mode 0600, and print the public one, which the other
end is told. An existing file is never overwritten.

With --next the key is made in FILE.next: an agent goes over to it by itself once
the coordinator knows its public key and it has shaken hands, and until then goes
on with the old.`,
		Args: exactly("FILE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			path := args[0]
			if next && show {
				return usageError{fmt.Errorf("--next makes a key, --show reads one: choose")}
			}
			if next {
				path = wireguard.NextKeyFile(path)
			}
			var public wireguard.PublicKey
			if show {
				k, err := wireguard.LoadKey(path)
				if err != nil {
					return err
				}
				public = k.Public()
			} else {
				var err error
				if public, err = wireguard.CreateKey(path, rand.Reader); err != nil {
					return err
				}
			}
			_, err := fmt.Fprintln(cmd.OutOrStdout(), public)
			return err
		},
	}
	key.Flags().BoolVar(&next, "next", false, "make the key that shall take FILE's place (default false)")
	key.Flags().BoolVar(&show, "show", false, "print the public key of a file that is there (default false)")
	cmd.AddCommand(key)
	return cmd
}

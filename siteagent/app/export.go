package app

import (
	"fmt"
	"io"
	"path/filepath"

	"github.com/spf13/cobra"

	"girassol.dev/internal/tensor"
	"girassol.dev/siteagent/replica"
)

// exportCommand writes the model out of an agent's data folder.
func exportCommand() *cobra.Command {
	var data, out string
	var momentum bool
	cmd := &cobra.Command{
		Use:   "export --data DIR --out FILE",
		Short: "Write this site's copy of the model as safetensors",
		Long: `Write the model that the agent's data folder holds, the newest committed version
that the site has seen, as a safetensors file. It reads only: the agent may be at
work.

With --momentum the file holds the outer momentum, too, and floats as F32: what
a new federation goes on from (spec.model.source: File) where the coordinator's
store is lost.`,
		Example:      `  agent export --data /var/lib/girassol --out model.safetensors`,
		Args:         cobra.NoArgs,
		SilenceUsage: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := replica.Read(filepath.Join(data, replicaFolder))
			if err != nil {
				return err
			}
			defer c.State.Close()
			if err := tensor.WriteFileAtomic(out, func(w io.Writer) error { return tensor.SaveState(w, c.State, momentum) }); err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s: version %d of federation %s, digest %s\n", out, c.Version, c.Federation, c.Digest)
			return nil
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.StringVar(&data, "data", "", "`folder` that the agent was given as --data (required)")
	f.StringVar(&out, "out", "", "`file` to write (required)")
	f.BoolVar(&momentum, "momentum", false, "with the outer momentum (default false)")
	for _, name := range []string{"data", "out"} {
		_ = cmd.MarkFlagRequired(name)
	}
	return cmd
}

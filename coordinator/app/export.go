package app

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"girassol.dev/coordinator/engine"
	"girassol.dev/internal/tensor"
)

// exportCommand writes a model out of a commit log.
func exportCommand() *cobra.Command {
	var data, out string
	var version uint64
	var momentum bool
	cmd := &cobra.Command{
		Use:   "export --data DIR --out FILE",
		Short: "Write a version of the model as safetensors",
		Long: `Write the newest version of the model, or an older one that the commit log still
has, as a safetensors file. It reads only: the coordinator may be at work.

With --momentum the file holds the outer momentum, too, and floats as F32: what
a new federation goes on from (spec.model.source: File).`,
		Example:       `  coordinator export --data /var/lib/girassol --out model.safetensors`,
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var wanted *uint64
			if cmd.Flags().Changed("version") {
				wanted = &version
			}
			st, man, err := engine.ReadModel(data, wanted)
			if err != nil {
				return err
			}
			defer st.Close()
			if err := tensor.WriteFileAtomic(out, func(w io.Writer) error { return tensor.SaveState(w, st, momentum) }); err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s: version %d, digest %s\n", out, man.Version, man.Digest)
			return nil
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.StringVar(&data, "data", "", "`folder` of the commit log (required)")
	f.StringVar(&out, "out", "", "`file` to write (required)")
	f.Uint64Var(&version, "version", 0, "`number` of the version (default the newest)")
	f.BoolVar(&momentum, "momentum", false, "with the outer momentum (default false)")
	for _, name := range []string{"data", "out"} {
		_ = cmd.MarkFlagRequired(name)
	}
	return cmd
}

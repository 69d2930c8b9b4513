// Command agent takes part in a federation as one member of a site. Its
// subcommand trainer is the built-in trainer, so that one image holds both;
// hardware shows what the agent sees of its machine.
package main

import (
	"os"

	"github.com/spf13/cobra"

	"girassol.dev/siteagent/app"
	"girassol.dev/siteagent/trainer/transformer"
)

func main() { os.Exit(app.ExitCode(command().Execute())) }

func command() *cobra.Command {
	cmd := app.Command()
	cmd.CompletionOptions.DisableDefaultCmd = true
	trainer := transformer.Command()
	trainer.SilenceErrors = false // nobody else says why it ends
	cmd.AddCommand(trainer, app.HardwareCommand())
	return cmd
}

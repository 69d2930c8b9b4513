// Command agent takes part in a federation as one member of a site.
package main

import (
	"os"

	"girassol.dev/siteagent/app"
)

func main() { os.Exit(app.ExitCode(app.Command().Execute())) }

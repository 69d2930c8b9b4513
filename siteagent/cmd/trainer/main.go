// Command trainer is the byte-level transformer as a process of its own, for the
// container beside the agent's that a Federation without a trainer image runs.
package main

import (
	"os"

	"girassol.dev/siteagent/trainer/transformer"
)

func main() {
	if err := transformer.Command().Execute(); err != nil {
		os.Exit(1)
	}
}

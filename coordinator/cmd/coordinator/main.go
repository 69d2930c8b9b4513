// Command coordinator runs the rounds of one federation.
package main

import (
	"fmt"
	"os"

	"girassol.dev/coordinator/app"
)

func main() {
	if err := app.Command().Execute(); err != nil {
		fmt.Fprintln(os.Stderr, "coordinator:", err)
		os.Exit(1)
	}
}

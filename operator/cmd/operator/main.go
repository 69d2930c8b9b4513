// Command operator is girassol-operator: it runs Federations and Sites on
// Kubernetes.
package main

import (
	"fmt"
	"os"

	"girassol.dev/operator/app"
)

func main() {
	if err := app.Command().Execute(); err != nil {
		fmt.Fprintln(os.Stderr, "girassol-operator:", err)
		os.Exit(1)
	}
}

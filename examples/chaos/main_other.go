//go:build !linux

package main

import (
	"fmt"
	"os"
)

func main() {
	fmt.Fprintln(os.Stderr, "chaos: it needs Linux: network namespaces, tmpfs and /proc")
	os.Exit(1)
}

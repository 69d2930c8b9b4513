// Command girassol is the person's way to a running coordinator: see what it does
// and waits for, follow it, drain or admit a site, pause and resume.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
)

// The exit codes.
const (
	exitOK     = 0
	exitFailed = 1
	exitUsage  = 2
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Getenv, os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// usageError is a command line that cannot be meant.
type usageError struct{ error }

func run(ctx context.Context, args []string, getenv func(string) string, stdout, stderr io.Writer) int {
	cmd := command(getenv)
	cmd.SetArgs(args)
	cmd.SetOut(stdout)
	cmd.SetErr(stderr)
	err := cmd.ExecuteContext(ctx)
	if err == nil {
		return exitOK
	}
	var usage usageError
	if errors.As(err, &usage) {
		fmt.Fprintf(stderr, "girassol: %v (girassol --help tells more)\n", err)
		return exitUsage
	}
	fmt.Fprintf(stderr, "girassol: %v\n", err)
	return exitFailed
}

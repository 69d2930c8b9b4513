// Command agent-nvml answers an agent's questions about NVIDIA GPUs: it loads
// NVIDIA's management library, libnvidia-ml.so.1, which the agent, a static
// program, cannot. The agent starts it; package nvml has the protocol.
//
// It ends with its standard input, and ignores signals but SIGKILL: whoever stops
// the agent's process group must not keep it from putting power limits back.
package main

import (
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"girassol.dev/siteagent/nvml/server"
)

func main() {
	path := flag.String("library", "", "`path` of libnvidia-ml.so.1 (default: where the dynamic linker finds it)")
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "agent-nvml is started by the agent and reads requests from standard input, a line of JSON each.")
		flag.PrintDefaults()
	}
	flag.Parse()
	signal.Ignore(syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGPIPE)
	if err := server.New(newLibrary(*path)).Serve(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "agent-nvml:", err)
		os.Exit(1)
	}
}

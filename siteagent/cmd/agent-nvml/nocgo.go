//go:build !cgo

package main

import (
	"girassol.dev/siteagent/nvml"
	"girassol.dev/siteagent/nvml/server"
)

// newLibrary of a build without cgo cannot be opened, which it says.
func newLibrary(string) server.Library { return none{} }

type none struct{ server.Library }

func (none) Open() error {
	return &nvml.Error{Code: nvml.NoProgram, Detail: "this agent-nvml was built without cgo (CGO_ENABLED=0, or no C compiler)"}
}

func (none) Close() error { return nil }

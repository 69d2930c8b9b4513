package engine

import (
	"fmt"
	"slices"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/internal/algorithm"
)

// speaks refuses an agent that says what it can read and write, and leaves out what
// this federation sends up or down: it would fail at its first update.
func (e *Engine) speaks(hello *coordinatorv1.Hello) error {
	if len(hello.GetEncodings()) == 0 {
		return nil
	}
	for _, side := range []struct {
		name string
		e    algorithm.Encoding
	}{{"uplink", e.cfg.Algorithm.Uplink}, {"downlink", e.cfg.Algorithm.Downlink}} {
		want := string(side.e.Transform) + "/" + string(side.e.Values)
		if !slices.Contains(hello.GetEncodings(), want) {
			return &RefusedError{v1alpha1.ReasonEncodingMismatch,
				fmt.Sprintf("the federation's %s is %s, agent %.40q has %.200q: update the agent, or set spec.algorithm.%s",
					side.name, want, hello.GetAgentVersion(), hello.GetEncodings(), side.name)}
		}
	}
	return nil
}

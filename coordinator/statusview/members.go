package statusview

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
)

// Members writes, for each member, its machine, how its trainer works and how its
// newest start went, broken to width (0: not at all). Errors of w are not reported.
func Members(w io.Writer, s *coordinatorv1.FederationStatus, width int) {
	var b strings.Builder
	for _, site := range s.GetSites() {
		name := clean(site.GetName())
		if site.FirstStepSeconds != nil {
			lines := breakWords(fmt.Sprintf("%s: %s from its admission to its first step", name, seconds(site.GetFirstStepSeconds())), width)
			b.WriteString(strings.Join(lines, "\n") + "\n")
		}
		for _, m := range site.GetMembers() {
			parts := memberParts(m)
			parts[0] = name + "/" + clean(m.GetNode()) + ": " + parts[0]
			b.WriteString(strings.Join(breakAt(parts, "; ", "  ", width), "\n") + "\n")
		}
	}
	_, _ = io.WriteString(w, b.String())
}

func memberParts(m *coordinatorv1.MemberStatus) []string {
	parts := []string{machine(m.GetHardware())}
	if v := clean(m.GetAgentVersion()); v != "" {
		parts = append(parts, "agent "+v)
	}
	if len(m.GetTrainer()) > 0 {
		var facts []string
		for _, k := range slices.Sorted(maps.Keys(m.GetTrainer())) {
			facts = append(facts, clean(k)+" "+clean(m.GetTrainer()[k]))
		}
		parts = append(parts, "trains with "+strings.Join(facts, ", "))
	}
	if m.StepSeconds != nil {
		parts = append(parts, seconds(m.GetStepSeconds())+" a step")
	}
	if w := m.GetWarmStart(); w != nil {
		parts = append(parts, started(w))
	}
	if m.GetLink() != nil {
		parts = append(parts, Link(m.GetLink()))
	}
	for _, p := range m.GetHardware().GetProblems() {
		parts = append(parts, "problem: "+clean(p))
	}
	return parts
}

func machine(h *coordinatorv1.Hardware) string {
	if h == nil {
		return "machine unknown"
	}
	text := or(clean(h.GetVendor()), "vendor unknown")
	if n := len(h.GetDevices()); n > 0 {
		text = fmt.Sprintf("%d x %s", n, clean(h.GetDevices()[0]))
		for _, d := range h.GetDevices() {
			if d != h.GetDevices()[0] {
				text = fmt.Sprintf("%d GPUs, the first %s", n, clean(h.GetDevices()[0]))
				break
			}
		}
	}
	for _, v := range []string{h.GetDriver(), h.GetRuntime()} {
		if v = clean(v); v != "" {
			text += ", " + v
		}
	}
	return text
}

// started is how a member came to its first step.
func started(w *coordinatorv1.WarmStart) string {
	text := fmt.Sprintf("first step after %s (process %s, read and pull %s, load %s)", seconds(w.GetFirstStepSeconds()),
		seconds(w.GetProcessSeconds()), seconds(w.GetPullSeconds()), seconds(w.GetLoadSeconds()))
	if w.GetFromDisk() {
		text += " from disk"
	}
	switch whole := w.GetPulledBytes() - min(w.GetDeltaBytes(), w.GetPulledBytes()); {
	case whole > 0:
		text += ", pulled " + Bytes(w.GetPulledBytes())
	case w.GetDeltaBytes() > 0:
		text += ", pulled " + Bytes(w.GetDeltaBytes()) + " of deltas"
	}
	return text
}

func seconds(v float64) string { return fmt.Sprintf("%.3g s", v) }

package nvidia

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"girassol.dev/siteagent/hardware/machine"
)

// meanings of the Xid numbers that speak of hardware; others are mostly a
// program's fault.
var meanings = map[int]string{
	48: "double-bit memory error", 61: "the GPU's microcontroller stopped", 62: "the GPU's microcontroller halted", 63: "a row of memory was remapped",
	64: "a row of memory could not be remapped", 74: "NVLink error", 79: "the GPU has fallen off the bus", 92: "many single-bit memory errors",
	94: "contained memory error", 95: "uncontained memory error", 119: "the GPU's system processor does not answer", 120: "the GPU's system processor failed",
	140: "memory error that was not recovered", 154: "the GPU needs a reset",
}

// parseXids finds the driver's reports of errors in the kernel's log: numbers by
// address, each once, as "NVRM: Xid (PCI:0000:07:00): 79, ...".
func parseXids(log string) map[string][]int {
	found := make(map[string][]int)
	for line := range strings.Lines(log) {
		_, rest, ok := strings.Cut(line, "NVRM: Xid (PCI:")
		if !ok {
			continue
		}
		slot, rest, ok := strings.Cut(rest, "): ")
		if !ok || len(slot) > len("00000000:00:00.0") {
			continue
		}
		digits, _, _ := strings.Cut(rest, ",")
		n, err := strconv.Atoi(strings.TrimSpace(digits))
		if err != nil || n <= 0 {
			continue
		}
		address := strings.ToLower(slot)
		if !strings.Contains(address, ".") {
			address += ".0"
		}
		if !slices.Contains(found[address], n) && len(found[address]) < mostXids {
			found[address] = append(found[address], n)
		}
	}
	return found
}

// mostXids of a GPU that are told apart.
const mostXids = 32

// judgeXids says which hardware errors the kernel's log still holds. The log goes
// back to the boot at most, so that a GPU may be in order since.
func judgeXids(numbers []int, g *machine.GPU, say sayer) {
	var words []string
	for _, n := range numbers {
		if meaning, ok := meanings[n]; ok {
			words = append(words, fmt.Sprintf("%d (%s)", n, meaning))
		}
	}
	if len(words) == 0 {
		return
	}
	g.Health = machine.Degraded
	say(machine.Warning, g.Address, "the kernel's log has Xid errors of the GPU: "+strings.Join(words, ", "),
		"see dmesg | grep Xid for when; drain the node and reset the GPU or reboot, and replace it if they come back")
}

// Package hardware owns the facts about the machine that an agent tells its
// coordinator: processors, memory and accelerators.
//
// It must not know what they are told for, and a fact that cannot be read is
// left out rather than guessed.
package hardware

import (
	"bufio"
	"io"
	"os"
	"runtime"
	"strconv"
	"strings"
)

// CPU is the vendor of a machine without accelerators.
const CPU = "cpu"

// Facts about a machine.
type Facts struct {
	// Vendor of the accelerators: "nvidia", "amd" or "cpu" without any.
	Vendor string
	// Devices by model name, one entry each.
	Devices []string
	// CPUs that this process may use.
	CPUs int
	// MemoryBytes of the machine or of the process's cgroup, whichever is less;
	// 0 when unknown.
	MemoryBytes uint64
}

// Detect reads the facts of the machine that it runs on.
func Detect() Facts {
	f := Facts{Vendor: CPU, CPUs: runtime.NumCPU(), MemoryBytes: totalMemory()}
	if name := modelName(); name != "" {
		f.Devices = []string{name}
	}
	return f
}

func totalMemory() uint64 {
	total := uint64(0)
	if f, err := os.Open("/proc/meminfo"); err == nil {
		total = parseMemInfo(f)
		_ = f.Close()
	}
	if b, err := os.ReadFile("/sys/fs/cgroup/memory.max"); err == nil {
		if limit, err := strconv.ParseUint(strings.TrimSpace(string(b)), 10, 64); err == nil && (total == 0 || limit < total) {
			total = limit
		}
	}
	return total
}

// parseMemInfo finds MemTotal, which is given in KiB; 0 without it.
func parseMemInfo(r io.Reader) uint64 {
	s := bufio.NewScanner(r)
	for s.Scan() {
		rest, ok := strings.CutPrefix(s.Text(), "MemTotal:")
		if !ok {
			continue
		}
		kib, err := strconv.ParseUint(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "kB")), 10, 54)
		if err != nil {
			return 0
		}
		return kib << 10
	}
	return 0
}

func modelName() string {
	f, err := os.Open("/proc/cpuinfo")
	if err != nil {
		return ""
	}
	defer f.Close()
	return parseModelName(f)
}

// parseModelName finds the first processor's model; empty where the kernel does
// not name it (arm64).
func parseModelName(r io.Reader) string {
	s := bufio.NewScanner(r)
	for s.Scan() {
		key, value, ok := strings.Cut(s.Text(), ":")
		if ok && strings.TrimSpace(key) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

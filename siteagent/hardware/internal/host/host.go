// Package host reads a Linux machine's processors, memory and the limits of the
// process's cgroup from /proc and /sys.
//
// It must not know of GPUs.
package host

import (
	"math"
	"path"
	"strconv"
	"strings"

	"girassol.dev/siteagent/hardware/internal/tree"
	"girassol.dev/siteagent/hardware/machine"
)

// Read fills in everything but GPUs. Affinity is the number of CPUs that the
// scheduler lets the process run on; 0 for all.
func Read(t tree.Tree, affinity int) machine.Report {
	r := machine.Report{
		Kernel: t.String("proc/sys/kernel/osrelease"), Container: container(t),
		CPU: parseCPU(t.String("proc/cpuinfo")), Memory: parseMemory(t.String("proc/meminfo")),
	}
	r.CPU.Usable = affinity
	if affinity <= 0 {
		r.CPU.Usable = max(r.CPU.Threads, 1)
	}
	groups := parseCgroup(t.String("proc/self/cgroup"))
	if quota, ok := cpuQuota(t, groups); ok {
		r.CPU.QuotaCPUs = &quota
		r.CPU.Usable = max(1, min(r.CPU.Usable, int(math.Ceil(quota))))
	}
	if limit, ok := memoryLimit(t, groups); ok && (r.Memory.TotalBytes == 0 || limit < r.Memory.TotalBytes) {
		r.Memory.LimitBytes = &limit
	}
	return r
}

// container guesses from what runtimes leave behind.
func container(t tree.Tree) bool {
	for _, mark := range []string{".dockerenv", "run/.containerenv", "dev/termination-log"} {
		if t.Exists(mark) {
			return true
		}
	}
	for line := range strings.Lines(t.String("proc/self/mountinfo")) {
		before, after, _ := strings.Cut(line, " - ")
		if fields := strings.Fields(before); len(fields) > 4 && fields[4] == "/" {
			return strings.HasPrefix(after, "overlay ")
		}
	}
	return false
}

// parseCPU reads /proc/cpuinfo; arm64 kernels name no model there.
func parseCPU(cpuinfo string) machine.CPU {
	var c machine.CPU
	sockets := make(map[string]bool)
	for line := range strings.Lines(cpuinfo) {
		key, value, ok := strings.Cut(line, ":")
		if !ok {
			continue
		}
		switch value = strings.TrimSpace(value); strings.TrimSpace(key) {
		case "processor":
			c.Threads++
		case "model name":
			if c.Model == "" {
				c.Model = value
			}
		case "physical id":
			sockets[value] = true
		}
	}
	c.Sockets = len(sockets)
	return c
}

// parseMemory reads /proc/meminfo, which counts in KiB.
func parseMemory(meminfo string) machine.Memory {
	pairs := tree.Pairs(meminfo, ":")
	bytes := func(key string) uint64 {
		kib, err := strconv.ParseUint(strings.TrimSpace(strings.TrimSuffix(pairs[key], "kB")), 10, 54)
		if err != nil {
			return 0
		}
		return kib << 10
	}
	return machine.Memory{TotalBytes: bytes("MemTotal"), AvailableBytes: bytes("MemAvailable")}
}

// parseCgroup reads /proc/self/cgroup: the process's group by controller, under
// "" the one of the unified hierarchy.
func parseCgroup(text string) map[string]string {
	groups := make(map[string]string)
	for line := range strings.Lines(text) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) != 3 {
			continue
		}
		for controller := range strings.SplitSeq(parts[1], ",") {
			groups[controller] = parts[2]
		}
	}
	return groups
}

// upwards names the group's folder and those above it. In a container a group's
// path may not exist below the mount; the mount's top then is the container's.
func upwards(top, group string) []string {
	group = path.Clean("/" + group)
	folders := []string{top}
	for group != "/" {
		folders = append(folders, top+group)
		group = path.Dir(group)
	}
	return folders
}

func memoryLimit(t tree.Tree, groups map[string]string) (limit uint64, found bool) {
	least := func(top, group, file string) {
		for _, folder := range upwards(top, group) {
			// Version 1 says "no limit" with a number near the largest.
			if n, ok := t.Uint(folder, file); ok && n > 0 && n < 1<<62 && (!found || n < limit) {
				limit, found = n, true
			}
		}
	}
	least("sys/fs/cgroup", groups[""], "memory.max")
	least("sys/fs/cgroup/memory", groups["memory"], "memory.limit_in_bytes")
	return limit, found
}

func cpuQuota(t tree.Tree, groups map[string]string) (cpus float64, found bool) {
	least := func(quota, period string) {
		q, err1 := strconv.ParseUint(quota, 10, 63)
		p, err2 := strconv.ParseUint(period, 10, 63)
		if err1 != nil || err2 != nil || q == 0 || p == 0 {
			return // "max", or -1 in version 1
		}
		if n := float64(q) / float64(p); !found || n < cpus {
			cpus, found = n, true
		}
	}
	for _, folder := range upwards("sys/fs/cgroup", groups[""]) {
		quota, period, _ := strings.Cut(t.String(folder, "cpu.max"), " ")
		least(quota, period)
	}
	for _, folder := range upwards("sys/fs/cgroup/cpu", groups["cpu"]) {
		least(t.String(folder, "cpu.cfs_quota_us"), t.String(folder, "cpu.cfs_period_us"))
	}
	return cpus, found
}

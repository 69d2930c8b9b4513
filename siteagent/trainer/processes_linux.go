package trainer

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// process is one of a trainer's, told from a later one of the same number by the
// time it began.
type process struct {
	pid, parent, group int
	began              uint64 // in ticks since boot
}

// processes are all of this machine that can be seen.
func processes() []process {
	paths, _ := filepath.Glob("/proc/[0-9]*/stat")
	all := make([]process, 0, len(paths))
	for _, path := range paths {
		if b, err := os.ReadFile(path); err == nil {
			if p, err := parseStat(b); err == nil {
				all = append(all, p)
			}
		}
	}
	return all
}

// family is the trainer's processes: its group, and all that descend from its
// leader, wherever they have put themselves.
func family(leader int) []process {
	all := processes()
	ours := map[int]bool{leader: true}
	for grown := true; grown; {
		grown = false
		for _, p := range all {
			if !ours[p.pid] && (ours[p.parent] || p.group == leader) {
				ours[p.pid], grown = true, true
			}
		}
	}
	var out []process
	for _, p := range all {
		if ours[p.pid] {
			out = append(out, p)
		}
	}
	return out
}

// parseStat reads /proc/PID/stat: the name, in parentheses, may hold anything.
func parseStat(b []byte) (process, error) {
	open, end := bytes.IndexByte(b, '('), bytes.LastIndexByte(b, ')')
	if open < 1 || end < open {
		return process{}, errors.New("no name in parentheses")
	}
	f := strings.Fields(string(b[end+1:]))
	const parent, group, began = 1, 2, 19 // after the name
	if len(f) <= began {
		return process{}, fmt.Errorf("%d fields after the name", len(f))
	}
	var p process
	var errs [4]error
	p.pid, errs[0] = strconv.Atoi(strings.TrimSpace(string(b[:open])))
	p.parent, errs[1] = strconv.Atoi(f[parent])
	p.group, errs[2] = strconv.Atoi(f[group])
	p.began, errs[3] = strconv.ParseUint(f[began], 10, 64)
	return p, errors.Join(errs[:]...)
}

// kill ends those of the processes that are still there.
func kill(ps []process) {
	for _, p := range ps {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.pid))
		if err != nil {
			continue
		}
		if now, err := parseStat(b); err == nil && now.began == p.began {
			_ = syscall.Kill(p.pid, syscall.SIGKILL)
		}
	}
}

// memory of a trainer's processes in bytes. Above enough it is looked at closely:
// pages that several of them map are counted once, and those of files not at all, as
// the kernel takes them back when it needs room (a mapped corpus may be larger than
// all memory).
func memory(leader int, enough int64) int64 {
	ps := family(leader)
	var resident, own int64
	for _, p := range ps {
		resident += residentBytes(p.pid)
	}
	if resident <= enough {
		return resident
	}
	for _, p := range ps {
		own += ownBytes(p.pid)
	}
	return own
}

func residentBytes(pid int) int64 {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		return 0
	}
	if f := strings.Fields(string(b)); len(f) > 1 {
		if pages, err := strconv.ParseInt(f[1], 10, 64); err == nil {
			return pages * int64(os.Getpagesize())
		}
	}
	return 0
}

// ownBytes is what only the process's end or swapping gives back.
func ownBytes(pid int) int64 {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		return residentBytes(pid)
	}
	if own, ok := parseRollup(string(b)); ok {
		return own
	}
	return residentBytes(pid)
}

// parseRollup reads /proc/PID/smaps_rollup, where a page that n processes map counts
// as an nth of one. Kernels before 5.4 do not tell pages of files from others.
func parseRollup(text string) (int64, bool) {
	kib := map[string]int64{}
	for line := range strings.Lines(text) {
		name, rest, _ := strings.Cut(line, ":")
		if v, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64); err == nil {
			kib[name] = v
		}
	}
	anonymous, ok := kib["Pss_Anon"]
	if shared, all := kib["Pss_Shmem"]; ok && all {
		return (anonymous + shared) << 10, true
	}
	pss, ok := kib["Pss"]
	return pss << 10, ok
}

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

// memory of a trainer's processes in bytes. Pages that several of them map are
// counted once if that matters, that is above enough.
func memory(leader int, enough int64) int64 {
	ps := family(leader)
	var resident, shared int64
	for _, p := range ps {
		resident += residentBytes(p.pid)
	}
	if resident <= enough {
		return resident
	}
	for _, p := range ps {
		shared += proportionalBytes(p.pid)
	}
	return shared
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

// proportionalBytes counts a page that n processes map as an nth of one.
func proportionalBytes(pid int) int64 {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		return residentBytes(pid)
	}
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, "Pss:"); ok {
			kib, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
			if err == nil {
				return kib << 10
			}
		}
	}
	return residentBytes(pid)
}

package host

import (
	"strings"
	"testing"
)

func TestAProcessorWithoutANameIsLeftOut(t *testing.T) {
	if got := parseCPU("processor\t: 0\nmodel name\t: Example 9000 \nprocessor: 1\nmodel name: Other\n"); got.Model != "Example 9000" || got.Threads != 2 {
		t.Errorf("%+v", got)
	}
	if got := parseCPU("processor: 0\nCPU part: 0xd0c\n"); got.Model != "" || got.Threads != 1 {
		t.Errorf("%+v, want no model", got)
	}
}

func TestMemoryIsReadInBytes(t *testing.T) {
	for in, want := range map[string]uint64{
		"MemTotal:       16384 kB\nMemFree: 1 kB\n": 16 << 20,
		"MemFree: 1 kB\n":                     0,
		"MemTotal: lots kB\n":                 0,
		"MemTotal: 18446744073709551615 kB\n": 0,
		"":                                    0,
	} {
		if got := parseMemory(in).TotalBytes; got != want {
			t.Errorf("%q is %d, want %d", in, got, want)
		}
	}
}

func FuzzParsers(f *testing.F) {
	f.Add("processor : 0\nmodel name : x\nphysical id : 0\n", "0::/a/../../b\n")
	f.Add("MemTotal: 1 kB\n", "4:cpu,cpuacct:/docker/x\n")
	f.Fuzz(func(t *testing.T, text, group string) {
		parseMemory(text)
		if c := parseCPU(text); c.Threads < 0 || c.Sockets < 0 {
			t.Errorf("%+v", c)
		}
		for _, g := range parseCgroup(group) {
			for _, folder := range upwards("sys/fs/cgroup", g) {
				if !strings.HasPrefix(folder, "sys/fs/cgroup") || strings.Contains("/"+folder+"/", "/../") {
					t.Errorf("%q leaves the mount", folder)
				}
			}
		}
	})
}

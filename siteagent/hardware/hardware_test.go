package hardware

import (
	"strings"
	"testing"
)

func TestMemoryIsReadInBytes(t *testing.T) {
	for in, want := range map[string]uint64{
		"MemTotal:       16384 kB\nMemFree: 1 kB\n": 16 << 20,
		"MemFree: 1 kB\n":     0,
		"MemTotal: lots kB\n": 0,
		"":                    0,
	} {
		if got := parseMemInfo(strings.NewReader(in)); got != want {
			t.Errorf("parseMemInfo(%q) = %d, want %d", in, got, want)
		}
	}
}

func TestAProcessorWithoutANameIsLeftOut(t *testing.T) {
	if got := parseModelName(strings.NewReader("processor: 0\nmodel name\t: Example 9000 \n")); got != "Example 9000" {
		t.Errorf("model %q", got)
	}
	if got := parseModelName(strings.NewReader("processor: 0\nCPU part: 0xd0c\n")); got != "" {
		t.Errorf("model %q, want none", got)
	}
}

func TestDetectNamesAtLeastTheProcessors(t *testing.T) {
	f := Detect()
	if f.Vendor != CPU || f.CPUs < 1 {
		t.Errorf("facts %+v", f)
	}
}

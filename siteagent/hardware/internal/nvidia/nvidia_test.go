package nvidia

import (
	"strings"
	"testing"
)

func TestTheVersionIsFoundInBothFlavours(t *testing.T) {
	for text, want := range map[string][2]string{
		"NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12 19:39:15 UTC 2024\nGCC version:  gcc version 12.3.0\n": {"535.183.01", "proprietary"},
		"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  595.84  Release Build  (a@b)  Thu Jul 1\n":                           {"595.84", "open"},
		"NVRM version: NVIDIA UNIX\n": {"", "proprietary"},
		"GCC version: 12.3.0\n":       {"", ""},
		"":                            {"", ""},
	} {
		if v, f := parseVersion(text); v != want[0] || f != want[1] {
			t.Errorf("%q: %q %q, want %q", text, v, f, want)
		}
	}
}

func TestWhatTheDriverDoesNotKnowIsLeftOut(t *testing.T) {
	got := parseInformation("Model: \t\t Unknown\nGPU UUID: \t GPU-????????-????-????-????-????????????\nVideo BIOS: \t ??.??.??.??.??\nDevice Minor: \t 3\nBlacklisted:\t Yes\n")
	if want := (information{found: true, minor: 3, excluded: true}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}

func FuzzParsers(f *testing.F) {
	f.Add("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  555.58.02  Release Build\n")
	f.Add("Model: \t\t NVIDIA H100\nDevice Minor: \t 0\n")
	f.Add("4,1234,567,-;NVRM: Xid (PCI:0000:07:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.\n")
	f.Add(`{"cuda": {"version": "12.4.1"}}`)
	f.Fuzz(func(t *testing.T, text string) {
		if v, _ := parseVersion(text); v != "" && (!isVersion(v) || !strings.Contains(text, v)) {
			t.Errorf("version %q", v)
		}
		if i := parseInformation(text); i.minor < -1 || i.minor > 1<<16 || strings.Contains(i.id, "?") {
			t.Errorf("%+v", i)
		}
		parseToolkit(text)
		for address, numbers := range parseXids(text) {
			if len(numbers) == 0 || len(numbers) > mostXids || !strings.Contains(address, ".") {
				t.Errorf("%q: %v", address, numbers)
			}
		}
	})
}

package pci

import (
	"strings"
	"testing"
)

func TestOnlyWhatShowsOrComputesCounts(t *testing.T) {
	for uevent, want := range map[string]bool{
		"DRIVER=nvidia\nPCI_CLASS=30200\nPCI_ID=10DE:2330\n": true,
		"PCI_CLASS=30000\nPCI_ID=1A03:2000\n":                true,
		"PCI_CLASS=38000\nPCI_ID=1002:740C\n":                true,
		"PCI_CLASS=120000\nPCI_ID=1002:74A1\n":               true,
		"PCI_CLASS=120000\nPCI_ID=8086:4940\n":               false, // QuickAssist
		"PCI_CLASS=68000\nPCI_ID=10DE:22A3\n":                false, // NVSwitch
		"PCI_CLASS=40300\nPCI_ID=1002:AB28\n":                false, // sound of a GPU
		"PCI_CLASS=30200\n":                                  false,
		"PCI_CLASS=30200\nPCI_ID=10DE\n":                     false,
		"PCI_CLASS=30200\nPCI_ID=110DE:2330\n":               false,
		"PCI_CLASS=-30200\nPCI_ID=10DE:2330\n":               false,
		"":                                                   false,
	} {
		if f, got := parse(uevent); got != want {
			t.Errorf("%q: %t, %+v", uevent, got, f)
		}
	}
}

func TestKindsAreToldByVendorAndPlace(t *testing.T) {
	for want, functions := range map[string][]Function{
		"gpu":        {{Vendor: NVIDIA}, {Vendor: AMD}},
		"bmc":        {{Vendor: 0x1a03}, {Vendor: 0x102b}},
		"virtual":    {{Vendor: 0x1234}, {Vendor: 0x1af4}},
		"integrated": {{Vendor: intel, Address: "0000:00:02.0"}},
		"other":      {{Vendor: intel, Address: "0000:4d:00.0"}, {Vendor: 0x9999}},
	} {
		for _, f := range functions {
			if got := f.Kind(); string(got) != want {
				t.Errorf("%+v is %s, want %s", f, got, want)
			}
		}
	}
}

func FuzzLookup(f *testing.F) {
	f.Add("10de  NVIDIA Corporation\n\t2330  GH100\n", uint16(NVIDIA), uint16(0x2330))
	f.Add("10de  NVIDIA Corporation\n1002  AMD\n\t2330  GH100\n", uint16(NVIDIA), uint16(0x2330))
	f.Fuzz(func(t *testing.T, list string, vendor, device uint16) {
		v, d := lookup(strings.NewReader(list), vendor, device)
		if !strings.Contains(list, v) || !strings.Contains(list, d) || d != "" && !strings.Contains(list, "\t"+digits(device)+"  ") {
			t.Errorf("%q %q", v, d)
		}
	})
}

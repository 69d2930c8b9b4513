// Package pci owns what the PCI bus says about display and compute functions:
// which there are, what drives them and what kind of thing they are.
//
// It must not know any driver's files.
package pci

import (
	"bufio"
	"io"
	"strconv"
	"strings"

	"girassol.dev/siteagent/hardware/internal/tree"
	"girassol.dev/siteagent/hardware/machine"
)

// Devices is the folder with one folder per function.
const Devices = "sys/bus/pci/devices"

// Vendor numbers.
const (
	AMD    = 0x1002
	NVIDIA = 0x10de
	intel  = 0x8086
)

// Classes: base class display, and accelerators, as which newer AMD Instinct
// cards appear.
const (
	baseDisplay = 0x03
	accelerator = 0x1200
)

// Function is one PCI function.
type Function struct {
	// Address is domain:bus:device.function.
	Address string
	// Class without the programming interface, such as 0x0302.
	Class          uint16
	Vendor, Device uint16
	Driver         string
	// Virtual says that a physical function on this machine has handed it out.
	Virtual bool
	// VirtualFunctions that it has handed out.
	VirtualFunctions int
}

// Functions lists the display and compute functions in order of their addresses.
func Functions(t tree.Tree) []Function {
	var all []Function
	for _, address := range t.List(Devices) {
		f, ok := parse(t.String(Devices, address, "uevent"))
		if !ok {
			continue
		}
		f.Address = address
		f.Virtual = t.Exists(Devices, address, "physfn")
		if n, ok := t.Uint(Devices, address, "sriov_numvfs"); ok && n <= 1<<16 {
			f.VirtualFunctions = int(n)
		}
		all = append(all, f)
	}
	return all
}

// parse a uevent file; false for anything that neither shows nor computes.
func parse(uevent string) (Function, bool) {
	pairs := tree.Pairs(uevent, "=")
	class, err := strconv.ParseUint(pairs["PCI_CLASS"], 16, 32)
	if err != nil {
		return Function{}, false
	}
	f := Function{Class: uint16(class >> 8), Driver: pairs["DRIVER"]}
	v, d, _ := strings.Cut(pairs["PCI_ID"], ":")
	vendor, err := strconv.ParseUint(v, 16, 16)
	if err != nil {
		return Function{}, false
	}
	device, err := strconv.ParseUint(d, 16, 16)
	if err != nil {
		return Function{}, false
	}
	f.Vendor, f.Device = uint16(vendor), uint16(device)
	shows := f.Class>>8 == baseDisplay
	return f, shows || f.Class == accelerator && f.Vendor == AMD
}

// consoles are display chips that are no GPUs.
var consoles = map[uint16]machine.Kind{
	0x1a03: machine.BMC,      // ASPEED
	0x102b: machine.BMC,      // Matrox G200
	0x19e5: machine.BMC,      // Huawei iBMC
	0x1234: machine.Emulated, // QEMU
	0x1013: machine.Emulated, // Cirrus, as emulated by QEMU
	0x1af4: machine.Emulated, // virtio
	0x1b36: machine.Emulated, // QXL
	0x15ad: machine.Emulated, // VMware
	0x80ee: machine.Emulated, // VirtualBox
	0x1414: machine.Emulated, // Hyper-V
}

// Kind as far as the bus tells; an integrated GPU of AMD looks like any other.
func (f Function) Kind() machine.Kind {
	if kind, ok := consoles[f.Vendor]; ok {
		return kind
	}
	switch f.Vendor {
	case AMD, NVIDIA:
		return machine.Discrete
	case intel:
		if strings.HasSuffix(f.Address, ":00:02.0") {
			return machine.Integrated
		}
	}
	return machine.Other
}

// GPU has what the bus tells about a function.
func (f Function) GPU(t tree.Tree) machine.GPU {
	g := machine.GPU{
		Address: f.Address, Vendor: digits(f.Vendor), Kind: f.Kind(), PCIID: digits(f.Vendor) + ":" + digits(f.Device),
		Driver: f.Driver, VirtualFunction: f.Virtual, VirtualFunctions: f.VirtualFunctions, Health: machine.Unknown,
	}
	switch f.Vendor {
	case AMD:
		g.Vendor = machine.AMD
	case NVIDIA:
		g.Vendor = machine.NVIDIA
	}
	if n, ok := t.Uint(Devices, f.Address, "numa_node"); ok && n < 1<<16 { // -1 without NUMA
		node := int(n)
		g.NUMANode = &node
	}
	return g
}

// Narrow says that the function's link is narrower than both ends allow.
func Narrow(t tree.Tree, address string) (now, could uint64, narrow bool) {
	now, ok1 := t.Uint(Devices, address, "current_link_width")
	could, ok2 := t.Uint(Devices, address, "max_link_width")
	return now, could, ok1 && ok2 && now > 0 && now < could
}

func digits(n uint16) string {
	s := strconv.FormatUint(uint64(n), 16)
	return strings.Repeat("0", 4-len(s)) + s
}

// Name of a function by the list of PCI IDs that the machine may have; else its
// numbers.
func (f Function) Name(t tree.Tree) string {
	for _, list := range []string{"usr/share/misc/pci.ids", "usr/share/hwdata/pci.ids"} {
		r, err := t.Open(list)
		if err != nil {
			continue
		}
		vendor, device := lookup(r, f.Vendor, f.Device)
		_ = r.Close()
		if device != "" {
			return vendor + " " + device
		}
	}
	return "PCI " + digits(f.Vendor) + ":" + digits(f.Device)
}

// lookup finds names in the format of pci.ids: vendors at the line's start,
// their devices behind one tab.
func lookup(r io.Reader, vendor, device uint16) (vendorName, deviceName string) {
	s := bufio.NewScanner(r)
	for s.Scan() {
		line := s.Text()
		if vendorName == "" {
			if rest, ok := strings.CutPrefix(line, digits(vendor)+"  "); ok {
				vendorName = strings.TrimSpace(rest)
			}
			continue
		}
		if line != "" && line[0] != '\t' && line[0] != '#' {
			return vendorName, "" // the next vendor
		}
		if rest, ok := strings.CutPrefix(line, "\t"+digits(device)+"  "); ok {
			return vendorName, strings.TrimSpace(rest)
		}
	}
	return vendorName, ""
}

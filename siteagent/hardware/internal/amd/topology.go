package amd

import (
	"errors"
	"fmt"
	"io/fs"
	"strconv"

	"girassol.dev/siteagent/hardware/internal/tree"
)

const topologyNodes = "sys/class/kfd/kfd/topology/nodes"

// node of KFD's topology that computes: a GPU or a partition of one.
type node struct {
	// slot is domain:bus:device, function its number there: KFD counts a GPU's
	// partitions as functions that PCI does not have.
	slot         string
	function     uint64
	computeUnits int
	architecture string
	// firmware of the engine that takes work from queues.
	firmware    string
	renderMinor int
}

type topology struct {
	// present says that the driver has its compute half.
	present bool
	nodes   []node
	// hidden nodes belong to GPUs that the device cgroup keeps from the process.
	hidden int
}

func readTopology(t tree.Tree) topology {
	top := topology{present: t.Exists(topologyNodes)}
	for _, name := range t.List(topologyNodes) {
		text, err := t.Text(topologyNodes, name, "properties")
		if errors.Is(err, fs.ErrPermission) {
			top.hidden++
			continue
		}
		if n, ok := parseNode(text); ok {
			top.nodes = append(top.nodes, n)
		}
	}
	return top
}

// parseNode reads a node's properties; false for a node without a GPU.
func parseNode(text string) (node, bool) {
	pairs := tree.Pairs(text, " ")
	number := func(key string) uint64 {
		n, err := strconv.ParseUint(pairs[key], 10, 32)
		if err != nil {
			return 0
		}
		return n
	}
	simds := number("simd_count")
	if simds == 0 {
		return node{}, false
	}
	location := number("location_id") & 0xffff // above lie the partition's bits
	n := node{
		slot:        fmt.Sprintf("%04x:%02x:%02x", number("domain"), location>>8, location>>3&0x1f),
		function:    location & 7,
		renderMinor: int(min(number("drm_render_minor"), 1<<20)),
	}
	if per := number("simd_per_cu"); per > 0 {
		n.computeUnits = int(min(simds/per, 1<<20))
	}
	if v := number("gfx_target_version"); v > 0 {
		n.architecture = fmt.Sprintf("gfx%d%x%x", v/10000, v/100%100, v%100)
	}
	if v := number("fw_version"); v > 0 {
		n.firmware = strconv.FormatUint(v, 10)
	}
	return n, true
}

// of the GPU at a PCI address: its own node and, for the slot's first function,
// those of functions that PCI does not have, which are its partitions.
func (top topology) of(address string, real map[string]bool) (nodes []node) {
	for _, n := range top.nodes {
		own := n.slot + "." + strconv.FormatUint(n.function, 10)
		if own == address || n.slot+".0" == address && !real[own] {
			nodes = append(nodes, n)
		}
	}
	return nodes
}

package trainer

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// A GPU is named by its index, or by the UUID of it or of a part of it.
var (
	gpuIndex = regexp.MustCompile(`^[0-9]{1,3}$`)
	gpuUUID  = map[string]*regexp.Regexp{
		"nvidia": regexp.MustCompile(`^(GPU-|MIG-)[0-9A-Za-z/-]{4,80}$`),
		"amd":    regexp.MustCompile(`^GPU-[0-9A-Fa-f]{4,32}$`),
	}
)

// Visible is the environment in which a trainer sees these GPUs of a vendor
// ("nvidia", "amd") and no others; none means all of them, and changes nothing.
// Nvidia's are counted in the order of the bus, as nvidia-smi does. ROCm counts
// again within what ROCR_VISIBLE_DEVICES leaves, so HIP's list is all of those.
func Visible(vendor string, gpus []string) ([]string, error) {
	if len(gpus) == 0 {
		return nil, nil
	}
	uuid, ok := gpuUUID[vendor]
	if !ok {
		return nil, fmt.Errorf("trainer: no GPU of a known vendor to choose from: see what the agent's hardware command says is wrong")
	}
	seen := map[string]bool{}
	again := make([]string, len(gpus))
	indices := false
	for i, g := range gpus {
		index := gpuIndex.MatchString(g)
		switch {
		case !index && !uuid.MatchString(g):
			return nil, fmt.Errorf("trainer: %q is neither the index nor the UUID of a GPU of vendor %s", g, vendor)
		case seen[g]:
			return nil, fmt.Errorf("trainer: GPU %s is named twice", g)
		}
		seen[g] = true
		indices = indices || index
		again[i] = strconv.Itoa(i)
	}
	list := strings.Join(gpus, ",")
	if vendor == "amd" {
		return []string{"ROCR_VISIBLE_DEVICES=" + list, "HIP_VISIBLE_DEVICES=" + strings.Join(again, ",")}, nil
	}
	env := []string{"CUDA_VISIBLE_DEVICES=" + list}
	if indices {
		env = append(env, "CUDA_DEVICE_ORDER=PCI_BUS_ID")
	}
	return env, nil
}

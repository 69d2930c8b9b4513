package server

import (
	"fmt"
	"math"
	"strings"

	"girassol.dev/siteagent/nvml"
)

// mig is the division of a GPU; nil for one that cannot be divided.
func mig(d Device, memoryBytes uint64) *nvml.MIG {
	enabled, pending, err := d.MIG()
	if err != nil {
		return nil
	}
	m := &nvml.MIG{Enabled: enabled, Pending: pending}
	if !enabled {
		return m
	}
	most, err := d.MostInstances()
	if err != nil {
		return m
	}
	for i := range min(most, mostInstances) {
		if part, err := d.Instance(i); err == nil { // places are left free between
			m.Instances = append(m.Instances, instance(part, memoryBytes))
		}
	}
	return m
}

// mostInstances of a GPU, of which today's have 7.
const mostInstances = 64

func instance(d Device, memoryBytes uint64) nvml.MIGInstance {
	i := nvml.MIGInstance{UUID: or(d.UUID())}
	if total, used, err := d.Memory(); err == nil {
		i.MemoryBytes, i.MemoryUsedBytes = total, &used
	}
	shares, err := d.Shares()
	if err == nil {
		i.Multiprocessors = shares.Multiprocessors
	}
	if _, profile, ok := strings.Cut(or(d.Name()), " MIG "); ok {
		i.Profile = strings.TrimSpace(profile)
	} else if err == nil {
		i.Profile = profileOf(shares, memoryBytes)
	}
	return i
}

// profileOf is the profile's name, which older drivers do not tell: slices, and
// gigabytes that are eighths of the GPU's memory.
func profileOf(s Shares, memoryBytes uint64) string {
	if s.GPUSlices <= 0 || memoryBytes == 0 {
		return ""
	}
	const eighths = 8
	part := min(math.Ceil(float64(s.MemoryMiB<<20)/float64(memoryBytes)*eighths)/eighths, 1)
	gigabytes := math.Round(part * math.Ceil(float64(memoryBytes)/(1<<30)))
	name := fmt.Sprintf("%dg.%.0fgb", s.GPUSlices, gigabytes)
	if s.ComputeSlices > 0 && s.ComputeSlices != s.GPUSlices {
		name = fmt.Sprintf("%dc.%s", s.ComputeSlices, name)
	}
	return name
}

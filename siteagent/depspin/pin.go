//go:build cgo

// Package depspin holds a dependency until its user is there.
package depspin

import _ "github.com/NVIDIA/go-nvml/pkg/nvml"

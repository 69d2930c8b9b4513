//go:build !linux

package checkpoint

import "io"

func startWriteback(io.Writer, int64, int64) {}

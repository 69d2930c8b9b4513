//go:build !linux

package checkpoint

import "math"

// freeBytes is not told here: writing a little must do.
func freeBytes(string) (int64, error) { return math.MaxInt64, nil }

//go:build !linux

package hardware

func kernelLog() string { return "" }

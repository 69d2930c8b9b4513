package spool

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// mapMemory gives n bytes outside the Go heap. It asks for no huge pages: copies in and
// out are as fast without, and to find them in fragmented memory can cost the first
// uploads ten times as much.
func mapMemory(n int) ([]byte, func(), bool) {
	base, err := unix.MmapPtr(-1, 0, nil, uintptr(n), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return nil, nil, false
	}
	return unsafe.Slice((*byte)(base), n), func() { _ = unix.MunmapPtr(base, uintptr(n)) }, true
}

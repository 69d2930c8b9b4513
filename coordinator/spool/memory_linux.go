package spool

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

const hugePage = 2 << 20

// mapMemory gives n bytes outside the Go heap, on huge pages where the system has
// them.
func mapMemory(n int) ([]byte, func(), bool) {
	size := uintptr(n + hugePage)
	base, err := unix.MmapPtr(-1, 0, nil, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return nil, nil, false
	}
	_ = unix.Madvise(unsafe.Slice((*byte)(base), size), unix.MADV_HUGEPAGE) // advice only
	skip := int(-uintptr(base) & (hugePage - 1))
	return unsafe.Slice((*byte)(unsafe.Add(base, skip)), n), func() { _ = unix.MunmapPtr(base, size) }, true
}

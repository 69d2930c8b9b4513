package tensor

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

const hugePage = 2 << 20

// mapMemory gives n zeroed bytes outside the Go heap that start offset bytes
// behind a huge page boundary, and the function that returns them.
func mapMemory(n, offset int) (unsafe.Pointer, func(), bool) {
	size := n + offset + hugePage
	base, err := unix.MmapPtr(-1, 0, nil, uintptr(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return nil, nil, false
	}
	// Advice only: without transparent huge pages the memory is as good, slower.
	_ = unix.Madvise(unsafe.Slice((*byte)(base), size), unix.MADV_HUGEPAGE)
	skip := int(-uintptr(base)&(hugePage-1)) + offset
	return unsafe.Add(base, skip), func() { _ = unix.MunmapPtr(base, uintptr(size)) }, true
}

// populate asks for the whole pages of a mapping's part, zeroed where they are not
// there yet. Kernels before 5.14 do not know how; pages then come when touched.
func populate(b []byte) {
	page := unix.Getpagesize()
	skip := int(-uintptr(unsafe.Pointer(unsafe.SliceData(b))) & uintptr(page-1))
	if whole := (len(b) - skip) &^ (page - 1); whole > 0 {
		_ = unix.Madvise(b[skip:skip+whole], unix.MADV_POPULATE_WRITE)
	}
}

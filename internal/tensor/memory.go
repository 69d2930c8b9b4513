package tensor

import (
	"encoding/binary"
	"sync"
	"unsafe"
)

// offHeapBytes is the size from which a vector leaves the Go heap.
const offHeapBytes = 1 << 20

var mappings = struct {
	sync.Mutex
	free map[*float32]func()
	next int
}{free: map[*float32]func(){}}

// NewVector returns a zeroed vector. A large one lives outside the Go heap: it
// does not weigh on the collector's pacing, it asks for huge pages (without
// them the kernels lose a third), and its first byte has another offset within
// a page than its neighbours' (same offsets cost as much again). Give it back
// with FreeVector; nothing else will.
func NewVector(n int) []float32 {
	if n*4 < offHeapBytes {
		return make([]float32, n)
	}
	mappings.Lock()
	defer mappings.Unlock()
	// 17 cache lines further each time: 64 different offsets.
	offset := mappings.next * 1088 % 4096
	mappings.next++
	p, free, ok := mapMemory(n*4, offset)
	if !ok {
		return make([]float32, n)
	}
	v := unsafe.Slice((*float32)(p), n)
	mappings.free[&v[0]] = free
	return v
}

// FreeVector returns a vector of NewVector; nobody may use it, or a part of it,
// afterwards. Vectors of other origin and nil are left alone.
func FreeVector(v []float32) {
	key := unsafe.SliceData(v)
	mappings.Lock()
	free := mappings.free[key]
	delete(mappings.free, key)
	mappings.Unlock()
	if free != nil {
		free()
	}
}

// Populate brings the memory of a vector of NewVector in, whose first use would
// otherwise take several times as long as a later one. Values stay as they are. It
// does nothing where it cannot, and for vectors of other origin.
func Populate(v []float32) {
	mappings.Lock()
	_, mapped := mappings.free[unsafe.SliceData(v)]
	mappings.Unlock()
	if mapped {
		populate(bytesOf(v))
	}
}

// littleEndian says that floats in memory have the bytes they have in files.
var littleEndian = binary.NativeEndian.Uint16([]byte{1, 0}) == 1

// bytesOf is the memory of v.
func bytesOf(v []float32) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(v))), 4*len(v))
}

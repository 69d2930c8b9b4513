package spool

import "sync"

// Block is the unit in which uploads take memory, in bytes.
const Block = 256 << 10

// segment is the unit in which a Memory grows, in bytes.
const segment = 32 << 20

// Memory is what uploads share. It grows as they need it, up to a bound, and is
// kept for the next ones: pages that the system has just handed out cost ten times
// as much to write as used ones. It lies outside the Go heap.
type Memory struct {
	mu    sync.Mutex
	bound int64
	// mapped is what the system has given, used what uploads hold of it, heap what they
	// hold besides.
	mapped, used, heap int64
	free               [][]byte // of Block bytes each; the last one is used next
	segments           []func()
	closed             bool
}

// NewMemory returns a Memory of at most bound bytes. Close it when no spool is open.
func NewMemory(bound int64) *Memory { return &Memory{bound: bound} }

// Bound sets the bound. What is above it goes as it is given back.
func (m *Memory) Bound(bytes int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.bound = bytes
	m.shrink()
}

// Held tells how many bytes there are, and how many of them uploads use.
func (m *Memory) Held() (total, used int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.mapped + m.heap, m.used + m.heap
}

// Close gives all back to the system; spools that are still open keep theirs.
func (m *Memory) Close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = true
	m.shrink()
}

// take returns n bytes, at most Block, nil when there is no room. Less than a block
// lies in the Go heap, so that small uploads take what they need and no more.
func (m *Memory) take(n int64) []byte {
	if m == nil {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.closed:
		return nil
	case n < Block && m.mapped+m.heap+n <= m.bound:
		m.heap += n
		return make([]byte, n)
	case m.used+Block > m.bound || len(m.free) == 0 && !m.grow():
		return nil
	}
	b := m.free[len(m.free)-1]
	m.free = m.free[:len(m.free)-1]
	m.used += Block
	return b[:n]
}

// grow maps another segment; mu is held.
func (m *Memory) grow() bool {
	size := min(segment, (m.bound-m.mapped-m.heap)/Block*Block)
	if size < Block {
		return false
	}
	b, unmap, ok := mapMemory(int(size))
	if !ok {
		return false
	}
	m.mapped += size
	m.segments = append(m.segments, unmap)
	for at := size - Block; at >= 0; at -= Block { // so that they are used upwards
		m.free = append(m.free, b[at:at+Block:at+Block])
	}
	return true
}

// give takes back what take has returned.
func (m *Memory) give(b []byte) {
	if b == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if cap(b) < Block {
		m.heap -= int64(len(b))
		return
	}
	m.used -= Block
	m.free = append(m.free, b[:Block])
	m.shrink()
}

// shrink unmaps all once nothing is used and there is more than there may be; mu is
// held.
func (m *Memory) shrink() {
	if m.used > 0 || !m.closed && m.mapped <= m.bound {
		return
	}
	m.free = nil
	for _, unmap := range m.segments {
		unmap()
	}
	m.segments, m.mapped = nil, 0
}

package tensor

import (
	"crypto/sha256"
	"encoding/binary"
	"math"
	"runtime"
	"slices"
	"sync"
	"testing"
	"unsafe"

	"github.com/zeebo/xxh3"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// referenceDigest is the definition, written the plain way.
func referenceDigest(s *State) [32]byte {
	layout := s.Layout.Digest()
	pre := layout[:]
	store := func(b []byte) {
		pre = binary.LittleEndian.AppendUint64(pre, uint64(len(b)))
		for block := range slices.Chunk(b, 64<<10) {
			sum := xxh3.Hash128(block).Bytes()
			pre = append(pre, sum[:]...)
		}
	}
	for _, v := range [][]float32{s.Theta, s.Momentum, s.Buffers} {
		var b []byte
		for _, f := range v {
			b = binary.LittleEndian.AppendUint32(b, math.Float32bits(f))
		}
		store(b)
	}
	store(s.Integers)
	return sha256.Sum256(pre)
}

func TestDigestFollowsItsDefinition(t *testing.T) {
	for _, l := range []*Layout{
		model(t),
		layout(t, Spec{"exactly one block", F32, []int64{1 << 18}, Parameter}),
		layout(t,
			Spec{"blocks and a rest", F32, []int64{3<<18 + 5}, Parameter},
			Spec{"buffer", F32, []int64{1<<18 + 1}, Buffer},
			Spec{"bytes", U8, []int64{1<<20 + 1}, Integer}),
	} {
		s := filled(l, false)
		want := referenceDigest(s)
		if got := s.Digest(); got != want {
			t.Errorf("digest %x, definition %x", got, want)
		}
		plain := s.DigestTrail()
		plain.view = false
		plain.parallel(3)
		if got := plain.Sum(); got != want {
			t.Errorf("without a view of memory: %x, definition %x", got, want)
		}
		trail := s.DigestTrail()
		for n := 0; n < len(s.Theta); n += 70_001 {
			trail.Upto(n)
		}
		if got := trail.Sum(); got != want {
			t.Errorf("behind changes: %x, definition %x", got, want)
		}
		s.Close()
	}
}

func TestDigestSeesEveryStoreAndTheLayout(t *testing.T) {
	s := filled(model(t), false)
	defer s.Close()
	seen := map[[32]byte]string{s.Digest(): "nothing"}
	note := func(what string) {
		d := s.Digest()
		if other, dup := seen[d]; dup {
			t.Errorf("the digest after changing %s is the one after changing %s", what, other)
		}
		seen[d] = what
	}
	s.Theta[len(s.Theta)-1]++
	note("theta")
	s.Momentum[0] = float32(math.Copysign(0, -1))
	note("momentum")
	s.Momentum[0] = 0
	note("the sign of a zero")
	s.Buffers[1]++
	note("buffers")
	s.Integers[0]++
	note("integers")
	renamed := slices.Clone(s.Layout.Tensors())
	renamed[0].Name += "x"
	s.Layout = layout(t, renamed...)
	note("a name")
}

func TestDigestDoesNotCopyVectors(t *testing.T) {
	if !littleEndian {
		t.Skip("this machine is big endian: digests go through a scratch block")
	}
	s := NewState(layout(t, Spec{"w", F32, []int64{1 << 22}, Parameter}))
	defer s.Close()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	s.Digest()
	runtime.ReadMemStats(&after)
	if got := after.TotalAlloc - before.TotalAlloc; got > 256<<10 {
		t.Errorf("a digest of 32 MiB allocates %d bytes", got)
	}
}

func TestCopyFromIsBitForBit(t *testing.T) {
	a := filled(model(t), false)
	a.Theta[0] = math.Float32frombits(0x7fc12345)
	b := NewState(a.Layout)
	b.CopyFrom(a)
	if a.Digest() != b.Digest() {
		t.Error("copies differ")
	}
	b.Theta[0] = 1
	if a.Digest() == b.Digest() {
		t.Error("copies share memory")
	}
	defer func() {
		if recover() == nil {
			t.Error("a state of another layout was copied")
		}
	}()
	b.CopyFrom(NewState(layout(t, Spec{"w", F32, nil, Parameter})))
}

func TestLargeVectorsAreZeroedAndPlacedApart(t *testing.T) {
	const n = offHeapBytes/4 + 3
	offsets := map[uintptr]bool{}
	var all [][]float32
	for range 6 {
		v := NewVector(n)
		if len(v) != n || cap(v) != n {
			t.Fatalf("len %d, cap %d", len(v), cap(v))
		}
		for i := range v {
			if v[i] != 0 {
				t.Fatal("not zeroed")
			}
			v[i] = 1
		}
		offsets[uintptr(unsafe.Pointer(&v[0]))%4096] = true
		all = append(all, v)
	}
	mappings.Lock()
	mapped := len(mappings.free)
	mappings.Unlock()
	if mapped == 0 {
		t.Skip("no off-heap memory on this system: vectors live on the Go heap")
	}
	if len(offsets) != len(all) {
		t.Errorf("%d vectors share %d page offsets", len(all), len(offsets))
	}
	for _, v := range all {
		FreeVector(v[:1]) // the same memory, whatever the length
		FreeVector(v)
	}
	mappings.Lock()
	defer mappings.Unlock()
	if got := len(mappings.free); got != mapped-len(all) {
		t.Errorf("%d mappings are left of %d", got, mapped)
	}
}

func TestPopulateLeavesValuesAlone(t *testing.T) {
	v := NewVector(offHeapBytes + 7)
	defer FreeVector(v)
	v[3], v[len(v)-1] = 1, 2
	Populate(v)
	Populate(nil)
	Populate([]float32{5})
	for i, x := range v {
		if want := map[int]float32{3: 1, len(v) - 1: 2}[i]; x != want {
			t.Fatalf("element %d is %g, want %g", i, x, want)
		}
	}
}

func TestFreeVectorLeavesForeignMemoryAlone(t *testing.T) {
	FreeVector(nil)
	v := make([]float32, offHeapBytes)
	FreeVector(v)
	v[0] = 1
	small := NewVector(10)
	FreeVector(small)
	small[0] = 1
	s := filled(model(t), false)
	s.Close()
	s.Close()
}

func TestVectorsMayBeMadeConcurrently(t *testing.T) {
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 20 {
				v := NewVector(offHeapBytes / 4)
				v[len(v)-1] = 1
				FreeVector(v)
			}
		})
	}
	wg.Wait()
}

package wire

import (
	"bytes"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
)

// list is a field of a message, so many times.
func list(field protowire.Number, times int, value []byte) []byte {
	var one []byte
	one = protowire.AppendTag(one, field, protowire.BytesType)
	one = protowire.AppendBytes(one, value)
	return bytes.Repeat(one, times)
}

// allocated by f, in bytes.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// A message takes no more memory than a few times its own size, whatever its lists
// would make of it.
func TestListsAreCountedBeforeTheyAreDecoded(t *testing.T) {
	header := func(b []byte) []byte { return list(1, 1, b) }
	packed := list(3, 1, bytes.Repeat([]byte{1}, 1<<20)) // a shape of a million dimensions
	for name, c := range map[string]struct {
		into proto.Message
		b    []byte
		want string
	}{
		"tensors":             {new(coordinatorv1.PushRequest), header(list(9, MaxSections+1, nil)), "tensors"},
		"a million tensors":   {new(coordinatorv1.PushRequest), header(list(9, 1_000_000, nil)), "tensors"},
		"consumed":            {new(coordinatorv1.PushRequest), header(list(20, MaxEntries+1, nil)), "consumed"},
		"metrics":             {new(coordinatorv1.PushRequest), header(list(19, MaxEntries+1, nil)), "metrics"},
		"evaluation":          {new(coordinatorv1.PushRequest), header(list(18, 1, list(4, MaxEntries+1, nil))), "evaluation"},
		"evaluation in parts": {new(coordinatorv1.PushRequest), header(list(18, MaxEntries+1, list(4, 1, nil))), "evaluation"},
		"rank":                {new(coordinatorv1.PushRequest), header(list(9, 1, packed)), "dimensions"},
		"bytes":               {new(coordinatorv1.PushRequest), header(list(6, 1, make([]byte, MaxPushHeader))), "bytes"},
		"headers joined":      {new(coordinatorv1.PushRequest), list(1, 9, list(9, 2000, nil)), "tensors"},
		"behind an unknown":   {new(coordinatorv1.PushRequest), append(list(99, 1, []byte("x")), header(list(9, 100_000, nil))...), "tensors"},
		"devices of a member": {new(coordinatorv1.SessionRequest), list(1, 1, list(5, 500_000, nil)), "bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			var err error
			used := allocated(func() { err = Codec().Unmarshal(mem.BufferSlice{mem.SliceBuffer(c.b)}, c.into) })
			if err != nil {
				t.Fatal(err)
			}
			why := Oversize(c.into)
			if p, ok := c.into.(*coordinatorv1.PushRequest); ok && p.GetHeader() != nil {
				why += Oversize(p.GetHeader())
			}
			if !strings.Contains(why, c.want) {
				t.Errorf("refused for %q, want %q", why, c.want)
			}
			if most := uint64(4*len(c.b) + 64<<10); used > most {
				t.Errorf("%d bytes allocated for a message of %d", used, len(c.b))
			}
			// A later chunk with such a header is no way around it.
			if _, ok := c.into.(*coordinatorv1.PushRequest); ok {
				var f PushFrames
				used := allocated(func() { err = Codec().Unmarshal(mem.BufferSlice{mem.SliceBuffer(c.b)}, &f) })
				if most := uint64(4*len(c.b) + 64<<10); used > most {
					t.Errorf("%d bytes allocated for a chunk of %d (%v)", used, len(c.b), err)
				}
			}
		})
	}
}

func TestWhatIsWithinTheBoundsIsDecodedAsByGeneratedCode(t *testing.T) {
	h := &coordinatorv1.PushHeader{UpdateId: "u", Evaluation: &coordinatorv1.Evaluation{Metrics: map[string]float64{}}, Metrics: map[string]float64{}}
	for i := range MaxSections {
		h.Tensors = append(h.Tensors, &coordinatorv1.TensorSection{Name: fmt.Sprint("layer.", i, ".weight"), Dtype: "F32", Shape: []int64{4096, 1 << 40}, Offset: 1 << 40, Length: 1 << 40})
	}
	for i := range MaxEntries {
		h.Metrics[fmt.Sprint(i)], h.Evaluation.Metrics[fmt.Sprint(i)] = 1, 2
		h.Consumed = append(h.Consumed, &coordinatorv1.DataRange{})
	}
	want := &coordinatorv1.PushRequest{Header: h}
	b, err := proto.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	got := new(coordinatorv1.PushRequest)
	if err := Codec().Unmarshal(mem.BufferSlice{mem.SliceBuffer(b)}, got); err != nil || !proto.Equal(got, want) {
		t.Fatalf("not the same (%v): %s%s", err, Oversize(got), Oversize(got.GetHeader()))
	}
	if why := Oversize(got) + Oversize(got.GetHeader()); why != "" {
		t.Error(why)
	}
}

// Whatever the bytes: no panic, and what is decoded is what generated code makes.
func FuzzBounds(f *testing.F) {
	f.Add(list(9, 3, []byte{0x1a, 2, 1, 2}))
	f.Add(list(18, 2, list(4, 2, nil)))
	f.Add(list(9, MaxSections+1, nil))
	f.Add([]byte{0x4a, 0xff, 0xff, 0xff, 0xff, 0x0f})
	f.Fuzz(func(t *testing.T, b []byte) {
		var want coordinatorv1.PushHeader
		err := proto.Unmarshal(b, &want)
		why := headerExcess(b)
		if err == nil && why == "" && len(want.GetTensors()) > MaxSections {
			t.Fatalf("%d tensors passed", len(want.GetTensors()))
		}
		if err == nil && why == "" {
			for _, s := range want.GetTensors() {
				if len(s.GetShape()) > maxShape {
					t.Fatalf("%d dimensions passed", len(s.GetShape()))
				}
			}
		}
	})
}

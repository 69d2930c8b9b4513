package codec

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"testing"

	"girassol.dev/internal/algorithm"
	"girassol.dev/internal/tensor"
)

func encoding(tr algorithm.Transform, keep int, v algorithm.Values) algorithm.Encoding {
	return algorithm.Encoding{Transform: tr, KeepOneIn: keep, Values: v}
}

func allEncodings() (out []algorithm.Encoding) {
	for _, tr := range []algorithm.Transform{algorithm.Identity, algorithm.DCT64} {
		for _, keep := range []int{1, 16, 4096} {
			for _, v := range allValues {
				out = append(out, encoding(tr, keep, v))
			}
			small := encoding(tr, min(keep, 256), allValues[keep%len(allValues)])
			small.GroupSize = 256
			out = append(out, small)
		}
	}
	return out
}

func encode(t testing.TB, d *Domain, e algorithm.Encoding, x []float32, aux Aux) []byte {
	t.Helper()
	var b bytes.Buffer
	n, err := Encode(&b, d, e, x, aux)
	if err != nil || n != int64(b.Len()) {
		t.Fatalf("encoded %d of %d bytes: %v", n, b.Len(), err)
	}
	return b.Bytes()
}

func parse(t testing.TB, d *Domain, e algorithm.Encoding, b []byte) *Payload {
	t.Helper()
	p, err := Parse(d, e, bytes.NewReader(b), int64(len(b)), nil)
	if err != nil {
		t.Fatalf("%+v: %v", e, err)
	}
	return p
}

func TestPayloadComesBackAsSent(t *testing.T) {
	l := mixedLayout(t)
	aux := auxFor(l, 3)
	for _, e := range allEncodings() {
		d := NewDomain(l, e.Transform)
		x := heavy(2, d.Len())
		for _, b := range d.Blocks() {
			x[b.Lo] = float32(math.Copysign(0, -1))
		}
		sent := make([]float32, d.Len())
		var streamed bytes.Buffer
		enc := NewEncoder(&streamed, d, e)
		for _, b := range d.Blocks() {
			if err := enc.Block(b, x[b.Lo:b.Hi], sent[b.Lo:b.Hi]); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := enc.Close(aux); err != nil {
			t.Fatal(err)
		}
		b := encode(t, d, e, x, aux)
		if !bytes.Equal(b, streamed.Bytes()) {
			t.Fatalf("%+v: block by block differs from whole", e)
		}
		if limit := MaxSize(d, e); int64(len(b)) > limit || (e.KeepOneIn == 1 && !e.Values.Quantised() && int64(len(b)) != limit) {
			t.Errorf("%+v: %d bytes, MaxSize %d", e, len(b), limit)
		}
		p := parse(t, d, e, b)
		got := heavy(9, d.Len()) // Decode must overwrite
		if err := p.Decode(got); err != nil {
			t.Fatal(err)
		}
		if !sameBits(got, sent) {
			t.Fatalf("%+v: receiver and sender differ", e)
		}
		if e.Lossless() && !slices.Equal(got, x) {
			t.Errorf("%+v: not lossless", e)
		}
		buffers, integers := make([]float32, l.Buffers()), make([]byte, l.IntegerBytes())
		if err := errors.Join(p.Buffers(buffers), p.Integers(integers)); err != nil {
			t.Fatal(err)
		}
		if !sameBits(buffers, aux.Buffers) || !bytes.Equal(integers, aux.Integers) {
			t.Errorf("%+v: buffers or integers changed", e)
		}
	}
}

func TestSmallTensorsAreNeverCut(t *testing.T) {
	l := smallLayout(t)
	e := encoding(algorithm.DCT64, 4096, algorithm.TwoBit)
	d := NewDomain(l, e.Transform)
	x := make([]float32, d.Len())
	for i := range x {
		x[i] = 1 + float32(i%7)/4 // exact in bf16
	}
	got := make([]float32, d.Len())
	if err := parse(t, d, e, encode(t, d, e, x, auxFor(l, 1))).Decode(got); err != nil {
		t.Fatal(err)
	}
	for _, b := range d.Blocks() {
		if !b.Compressed && !slices.Equal(got[b.Lo:b.Hi], x[b.Lo:b.Hi]) {
			t.Errorf("%s was cut", l.Tensors()[b.Tensor].Name)
		}
	}
}

func TestAddRangeByBlocksEqualsAdd(t *testing.T) {
	l := mixedLayout(t)
	for _, e := range allEncodings() {
		d := NewDomain(l, e.Transform)
		p := parse(t, d, e, encode(t, d, e, heavy(4, d.Len()), auxFor(l, 4)))
		whole, parts, want := heavy(5, d.Len()), heavy(5, d.Len()), heavy(5, d.Len())
		if err := p.Add(whole, 0.3); err != nil {
			t.Fatal(err)
		}
		blocks := slices.Clone(d.Blocks())
		slices.Reverse(blocks)
		for _, b := range blocks {
			if err := p.AddRange(parts[b.Lo:b.Hi], b.Lo, b.Hi, 0.3); err != nil {
				t.Fatal(err)
			}
		}
		x := make([]float32, d.Len())
		if err := p.Decode(x); err != nil {
			t.Fatal(err)
		}
		for i := range want {
			want[i] += float32(0.3 * x[i])
		}
		if !sameBits(whole, want) || !sameBits(parts, want) {
			t.Fatalf("%+v: adding differs from its definition", e)
		}
	}
}

// The sizes of the two models that the algorithm was measured on.
func TestDefaultsCompressAsMeasured(t *testing.T) {
	mlp := newLayout(t, param("fc1.weight", 128, 784), param("fc1.bias", 128), param("fc2.weight", 10, 128), param("fc2.bias", 10))
	specs := []tensor.Spec{param("embed", 256, 64)}
	for i := range 2 {
		for name, shape := range map[string][]int64{
			"q": {64, 64}, "k": {64, 64}, "v": {64, 64}, "o": {64, 64},
			"up": {256, 64}, "down": {64, 256}, "up.bias": {256}, "norm": {64},
		} {
			specs = append(specs, param(fmt.Sprintf("block%d.%s", i, name), shape...))
		}
	}
	p, err := algorithm.Defaults(algorithm.DecoupledMomentum)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name   string
		layout *tensor.Layout
		ratio  float64
	}{{"MNIST MLP", mlp, 47}, {"byte LM", newLayout(t, specs...), 43}} {
		d := NewDomain(c.layout, algorithm.DCT64)
		g := heavy(6, c.layout.Parameters())
		x := make([]float32, d.Len())
		d.Forward(x, g)
		aux := auxFor(c.layout, 1)
		up, down := len(encode(t, d, p.Uplink, x, aux)), len(encode(t, d, p.Downlink, x, aux))
		dense := 4 * c.layout.Parameters()
		ratio := float64(2*dense) / float64(up+down)
		t.Logf("%s: %d parameters, fp32 %d B one way; up %d B (at most %d), down %d B (at most %d): %.1fx",
			c.name, c.layout.Parameters(), dense, up, MaxSize(d, p.Uplink), down, MaxSize(d, p.Downlink), ratio)
		if ratio < c.ratio {
			t.Errorf("%s: %.1fx, want at least %.0fx", c.name, ratio, c.ratio)
		}
	}
}

// failing is a reader whose medium fails.
type failing struct{ err error }

func (f failing) ReadAt([]byte, int64) (int, error) { return 0, f.err }

func TestReadFailureIsNotTheSendersFault(t *testing.T) {
	d := NewDomain(smallLayout(t), algorithm.DCT64)
	e := encoding(algorithm.DCT64, 16, algorithm.TwoBit)
	broken := errors.New("disk on fire")
	_, err := Parse(d, e, failing{broken}, 1000, nil)
	var fault *Error
	if !errors.Is(err, broken) || errors.As(err, &fault) {
		t.Errorf("%v: want the reader's error and no *Error", err)
	}
}

// swap lets a payload's bytes change after Parse.
type swap struct{ b []byte }

func (s *swap) ReadAt(p []byte, at int64) (int, error) { return bytes.NewReader(s.b).ReadAt(p, at) }

func TestBytesThatChangeAfterParseAreNoticed(t *testing.T) {
	l := newLayout(t, param("w", 64, 64))
	for _, e := range []algorithm.Encoding{encoding(algorithm.Identity, 1, algorithm.FP32), encoding(algorithm.DCT64, 2, algorithm.FP32)} {
		d := NewDomain(l, e.Transform)
		good := encode(t, d, e, heavy(1, d.Len()), Aux{})
		r := &swap{good}
		p, err := Parse(d, e, r, int64(len(good)), nil)
		if err != nil {
			t.Fatal(err)
		}
		r.b = append(slices.Clone(good[:len(good)-4]), 0, 0, 0xc0, 0x7f) // NaN
		if err := p.Add(make([]float32, d.Len()), 1); err == nil {
			t.Errorf("%+v: a NaN slipped in", e)
		}
		r.b = good[:len(good)/2]
		if err := p.Add(make([]float32, d.Len()), 1); err == nil {
			t.Errorf("%+v: missing bytes were not noticed", e)
		}
	}
}

func TestEncodeRefusesWhatIsNotFinite(t *testing.T) {
	l := smallLayout(t)
	for _, e := range allEncodings() {
		d := NewDomain(l, e.Transform)
		x := heavy(1, d.Len())
		b := d.Blocks()[len(d.Blocks())-1]
		x[b.Hi-1] = float32(math.Inf(1))
		var fault *Error
		if _, err := Encode(io.Discard, d, e, x, auxFor(l, 1)); !errors.As(err, &fault) || fault.Tensor != l.Tensors()[b.Tensor].Name {
			t.Errorf("%+v: %v", e, err)
		}
		aux := auxFor(l, 1)
		aux.Buffers[40] = float32(math.NaN())
		if _, err := Encode(io.Discard, d, e, heavy(1, d.Len()), aux); !errors.As(err, &fault) || fault.Tensor != "i.running_var" {
			t.Errorf("%+v: %v", e, err)
		}
	}
}

func TestEncodeReportsTheWriter(t *testing.T) {
	l := smallLayout(t)
	d := NewDomain(l, algorithm.Identity)
	r, w := io.Pipe()
	full := errors.New("no space left")
	_ = r.CloseWithError(full)
	if _, err := Encode(w, d, encoding(algorithm.Identity, 1, algorithm.FP32), heavy(1, d.Len()), auxFor(l, 1)); !errors.Is(err, full) {
		t.Errorf("%v, want the writer's error", err)
	}
}

func TestDensePayloadIsReadInBoundedMemory(t *testing.T) {
	if raceDetector() {
		t.Skip("the race detector makes sync.Pool forget, so that allocations say nothing")
	}
	const n = 3 << 20 // 12 MiB as fp32
	l := newLayout(t, param("w", 2, n/2))
	d := NewDomain(l, algorithm.Identity)
	e := encoding(algorithm.Identity, 1, algorithm.FP32)
	file, err := os.CreateTemp(t.TempDir(), "payload")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	x := heavy(1, n)
	dst := make([]float32, n)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	size, err := Encode(file, d, e, x, Aux{})
	if err != nil {
		t.Fatal(err)
	}
	p, err := Parse(d, e, file, size, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Add(dst, 1); err != nil {
		t.Fatal(err)
	}
	runtime.ReadMemStats(&after)
	allocated := after.TotalAlloc - before.TotalAlloc
	t.Logf("encoding, parsing and adding %d bytes allocated %d", size, allocated)
	if allocated > 4<<20 {
		t.Errorf("%d bytes allocated, want at most 4 MiB", allocated)
	}
	if !slices.Equal(dst, x) {
		t.Error("differs")
	}
}

func raceDetector() bool {
	info, ok := debug.ReadBuildInfo()
	return ok && slices.ContainsFunc(info.Settings, func(s debug.BuildSetting) bool { return s.Key == "-race" && s.Value == "true" })
}

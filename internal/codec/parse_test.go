package codec

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"

	"girassol.dev/api/federation/v1alpha1"
	"girassol.dev/internal/algorithm"
	"girassol.dev/internal/tensor"
)

func wantReason(t *testing.T, what string, err error, reason v1alpha1.Reason, words ...string) {
	t.Helper()
	var fault *Error
	if !errors.As(err, &fault) || fault.Reason != reason {
		t.Errorf("%s: %v, want %s", what, err, reason)
		return
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("%s: %q does not say %q", what, err, w)
		}
	}
}

func refuse(t *testing.T, what string, d *Domain, e algorithm.Encoding, b []byte, reason v1alpha1.Reason, words ...string) {
	t.Helper()
	_, err := Parse(d, e, bytes.NewReader(b), int64(len(b)), nil)
	wantReason(t, what, err, reason, words...)
}

func TestBadPayloadsAreRefusedWithTheirReason(t *testing.T) {
	l := newLayout(t, param("bias", 16), param("w", 64, 64),
		tensor.Spec{Name: "x.running_var", DType: tensor.F32, Shape: []int64{3}, Role: tensor.Buffer},
		tensor.Spec{Name: "y", DType: tensor.I64, Role: tensor.Integer})
	for _, e := range allEncodings() {
		d := NewDomain(l, e.Transform)
		good := encode(t, d, e, heavy(1, d.Len()), auxFor(l, 1))
		parse(t, d, e, good)
		patch := func(at int, b ...byte) []byte {
			c := slices.Clone(good)
			copy(c[at:], b)
			return c
		}
		refuse(t, "empty", d, e, nil, v1alpha1.ReasonTruncated)
		refuse(t, "header cut", d, e, good[:HeaderSize-1], v1alpha1.ReasonTruncated)
		refuse(t, "garbage", d, e, bytes.Repeat([]byte("GET / HTTP/1.1\r\n"), 3), v1alpha1.ReasonMalformed, "GSFD")
		refuse(t, "version", d, e, patch(4, 9), v1alpha1.ReasonUnsupportedVersion, "9")
		refuse(t, "other values", d, e, patch(6, good[6]^1), v1alpha1.ReasonEncodingMismatch)
		refuse(t, "other density", d, e, patch(8, 33, 0), v1alpha1.ReasonEncodingMismatch, "one in 33")
		refuse(t, "other layout", d, e, patch(12, 1, 2, 3, 4, 5), v1alpha1.ReasonShapeMismatch)
		for _, n := range []int{HeaderSize, HeaderSize + 1, len(good) / 2, len(good) - 9, len(good) - 1} {
			refuse(t, "truncated", d, e, good[:n], v1alpha1.ReasonTruncated)
		}
		longer := append(slices.Clone(good), 0)
		if int64(len(longer)) <= MaxSize(d, e) {
			refuse(t, "trailing byte", d, e, longer, v1alpha1.ReasonMalformed, "1 bytes")
		} else {
			refuse(t, "trailing byte", d, e, longer, v1alpha1.ReasonTooLarge)
		}
		// A claim of 10 GB is refused before a byte is read.
		_, err := Parse(d, e, failing{errors.New("read")}, 10<<30, nil)
		wantReason(t, "oversize claim", err, v1alpha1.ReasonTooLarge)
		// The claim is right, the bytes are not there.
		_, err = Parse(d, e, bytes.NewReader(good[:len(good)-8]), int64(len(good)), nil)
		wantReason(t, "missing bytes", err, v1alpha1.ReasonTruncated)

		nan := math.Float32bits(float32(math.NaN()))
		bad := slices.Clone(good)
		binary.LittleEndian.PutUint32(bad[len(bad)-8-4:], nan)
		refuse(t, "NaN in a buffer", d, e, bad, v1alpha1.ReasonNotFinite, "x.running_var")
		if e.Values == algorithm.FP32 {
			for _, v := range []float64{math.NaN(), math.Inf(-1), 1e30} {
				bad := slices.Clone(good)
				binary.LittleEndian.PutUint32(bad[HeaderSize+8:], math.Float32bits(float32(v)))
				refuse(t, "bad small value", d, e, bad, v1alpha1.ReasonNotFinite, `"bias"`)
				bad = slices.Clone(good)
				binary.LittleEndian.PutUint32(bad[len(bad)-8-12-4:], math.Float32bits(float32(v)))
				refuse(t, "bad large value", d, e, bad, v1alpha1.ReasonNotFinite, `"w"`)
			}
		} else {
			refuse(t, "NaN as bf16", d, e, patch(HeaderSize+2, 0xc0, 0x7f), v1alpha1.ReasonNotFinite, `"bias"`)
			refuse(t, "infinity as bf16", d, e, patch(HeaderSize+2, 0x80, 0xff), v1alpha1.ReasonNotFinite, `"bias"`)
		}
	}
}

func TestBadGroupsAreRefused(t *testing.T) {
	l := newLayout(t, param("w", 64, 64))
	e := encoding(algorithm.DCT64, 1024, algorithm.TwoBit) // 4 of 4096
	d := NewDomain(l, e.Transform)
	group := func(code uint32, low, high uint32, b uint, gaps []uint32, values ...uint32) []byte {
		w := newBitWriter(header(d, e), 2000)
		w.put(uint64(code), codeBits)
		w.put(uint64(low|high<<16), 32)
		for _, g := range gaps {
			w.rice(g, b)
		}
		for _, v := range values {
			w.put(uint64(v), 2)
		}
		return w.flush()
	}
	one, two, inf := uint32(0x3f80), uint32(0x4000), uint32(0x7f80)
	fits := []uint32{0, 4092, 0, 0}
	parse(t, d, e, group(11, one, two, 11, fits, 0, 1, 2, 3))
	parse(t, d, e, append(header(d, e), codeEmpty))
	refuse(t, "index past the group", d, e, group(11, one, two, 11, []uint32{0, 4093, 0, 0}, 0, 1, 2, 3), v1alpha1.ReasonMalformed, "index")
	refuse(t, "unknown code", d, e, group(12, one, two, 11, fits, 0, 1, 2, 3), v1alpha1.ReasonMalformed, "code")
	refuse(t, "levels out of order", d, e, group(11, two, one, 11, fits, 0, 1, 2, 3), v1alpha1.ReasonMalformed, "levels")
	refuse(t, "negative level", d, e, group(11, one|0x8000, two, 11, fits, 0, 1, 2, 3), v1alpha1.ReasonMalformed, "levels")
	refuse(t, "infinite level", d, e, group(11, one, inf, 11, fits, 0, 1, 2, 3), v1alpha1.ReasonNotFinite)
	refuse(t, "NaN level", d, e, group(11, inf|1, inf|1, 11, fits, 0, 1, 2, 3), v1alpha1.ReasonNotFinite)
	refuse(t, "filling bits", d, e, append(header(d, e), codeEmpty|0x80), v1alpha1.ReasonMalformed, "fill")
	dirty := group(11, one, two, 11, fits, 0, 1, 2, 3)
	dirty[len(dirty)-1] |= 0x80
	refuse(t, "filling bits of a full group", d, e, dirty, v1alpha1.ReasonMalformed, "fill")

	all := encoding(algorithm.DCT64, 1, algorithm.TwoBit)
	b := encode(t, d, all, heavy(1, d.Len()), Aux{})
	b[HeaderSize] |= 3
	refuse(t, "parameter without indices", d, all, b, v1alpha1.ReasonMalformed, "code")
}

// sectioned lays the tensors of a payload out in reverse order.
func sectioned(t *testing.T, l *tensor.Layout, d *Domain, e algorithm.Encoding, x []float32, aux Aux) ([]byte, []Section) {
	t.Helper()
	whole := encode(t, d, e, x, aux)
	p := parse(t, d, e, whole)
	out := slices.Clone(whole[:HeaderSize])
	clear(out[12:20])
	var sections []Section
	for i := len(l.Tensors()) - 1; i >= 0; i-- {
		s := l.Tensors()[i]
		var part []byte
		if s.Role == tensor.Parameter {
			for _, b := range d.tensorBlocks(i) {
				at := p.spans[b.index]
				part = append(part, whole[at.at:at.at+int64(at.n)]...)
			}
		} else {
			part = whole[p.aux[i] : p.aux[i]+maxTensorSize(d, i, s, formatOf(e))]
		}
		sections = append(sections, Section{s.Name, string(s.DType), s.Shape, int64(len(out)), int64(len(part))})
		out = append(out, part...)
	}
	return out, sections
}

func TestTensorsAreMatchedByNameNotByPlace(t *testing.T) {
	l := smallLayout(t)
	for _, e := range allEncodings() {
		d := NewDomain(l, e.Transform)
		x, aux := heavy(1, d.Len()), auxFor(l, 1)
		b, sections := sectioned(t, l, d, e, x, aux)
		p, err := Parse(d, e, bytes.NewReader(b), int64(len(b)), sections)
		if err != nil {
			t.Fatal(err)
		}
		got, want := make([]float32, d.Len()), make([]float32, d.Len())
		buffers, integers := make([]float32, l.Buffers()), make([]byte, l.IntegerBytes())
		err = errors.Join(p.Decode(got), p.Buffers(buffers), p.Integers(integers),
			parse(t, d, e, encode(t, d, e, x, aux)).Decode(want))
		if err != nil || !sameBits(got, want) || !sameBits(buffers, aux.Buffers) || !bytes.Equal(integers, aux.Integers) {
			t.Fatalf("%+v: another order of tensors gives other values (%v)", e, err)
		}
	}
}

func TestSectionsThatDoNotFitAreRefused(t *testing.T) {
	l := smallLayout(t)
	e := encoding(algorithm.DCT64, 16, algorithm.TwoBit)
	d := NewDomain(l, e.Transform)
	b, good := sectioned(t, l, d, e, heavy(1, d.Len()), auxFor(l, 1))
	at := func(name string) int {
		return slices.IndexFunc(good, func(s Section) bool { return s.Name == name })
	}
	prime, counter, bias, mask := at("c.prime"), at("j.counter"), at("d.bias"), at("k.mask")
	for _, c := range []struct {
		name   string
		change func(s []Section) []Section
		reason v1alpha1.Reason
		words  []string
	}{
		{"unknown name", func(s []Section) []Section { s[prime].Name = "layer1"; return s },
			v1alpha1.ReasonUnknownTensor, []string{"layer1", "c.prime"}},
		{"missing name", func(s []Section) []Section { return slices.Delete(s, prime, prime+1) },
			v1alpha1.ReasonMissingTensor, []string{"c.prime"}},
		{"no sections at all", func(s []Section) []Section { return []Section{} }, v1alpha1.ReasonMissingTensor, nil},
		{"twice", func(s []Section) []Section { return append(s, s[prime]) }, v1alpha1.ReasonMalformed, []string{"c.prime"}},
		{"names swapped", func(s []Section) []Section {
			s[prime].Name, s[bias].Name = s[bias].Name, s[prime].Name
			return s
		}, v1alpha1.ReasonShapeMismatch, []string{"[53 61]", "[5000]"}},
		{"places swapped", func(s []Section) []Section {
			s[prime].Offset, s[bias].Offset = s[bias].Offset, s[prime].Offset
			s[prime].Length, s[bias].Length = s[bias].Length, s[prime].Length
			return s
		}, v1alpha1.ReasonMalformed, nil},
		{"shape transposed", func(s []Section) []Section { s[prime].Shape = []int64{61, 53}; return s },
			v1alpha1.ReasonShapeMismatch, []string{"[61 53]", "[53 61]"}},
		{"float for integer", func(s []Section) []Section { s[counter].DType = "F64"; return s },
			v1alpha1.ReasonDTypeMismatch, []string{"F64", "I64"}},
		{"integer for float", func(s []Section) []Section { s[prime].DType = "I32"; return s },
			v1alpha1.ReasonDTypeMismatch, []string{"I32", "F32"}},
		{"other integer", func(s []Section) []Section { s[counter].DType = "U64"; return s },
			v1alpha1.ReasonDTypeMismatch, nil},
		{"unknown dtype", func(s []Section) []Section { s[prime].DType = "Q7"; return s },
			v1alpha1.ReasonDTypeMismatch, nil},
		{"gap", func(s []Section) []Section { s[mask].Offset++; return s }, v1alpha1.ReasonMalformed, nil},
		{"overlap", func(s []Section) []Section { s[prime].Offset--; return s }, v1alpha1.ReasonMalformed, nil},
		{"outside", func(s []Section) []Section { s[prime].Offset = math.MaxInt64 - 1; return s }, v1alpha1.ReasonTruncated, nil},
		{"too long", func(s []Section) []Section { s[prime].Length = math.MaxInt64; return s }, v1alpha1.ReasonTruncated, nil},
		{"negative", func(s []Section) []Section { s[prime].Length = -1; return s }, v1alpha1.ReasonTruncated, nil},
		{"inside the header", func(s []Section) []Section { s[prime].Offset = 3; return s }, v1alpha1.ReasonTruncated, nil},
	} {
		s := make([]Section, len(good))
		copy(s, good)
		_, err := Parse(d, e, bytes.NewReader(b), int64(len(b)), c.change(s))
		wantReason(t, c.name, err, c.reason, c.words...)
	}
	// Tiled without a gap, but one tensor has a byte more than it needs.
	longer := slices.Clone(good)
	end := longer[prime].Offset + longer[prime].Length
	longer[prime].Length++
	for i := range longer {
		if longer[i].Offset >= end {
			longer[i].Offset++
		}
	}
	c := slices.Insert(slices.Clone(b), int(end), 0)
	_, err := Parse(d, e, bytes.NewReader(c), int64(len(c)), longer)
	wantReason(t, "a byte too many", err, v1alpha1.ReasonMalformed, "c.prime", "1 bytes too many")
	// Floats of another width are the same class: values travel as encoded.
	s := slices.Clone(good)
	s[prime].DType, s[bias].DType = "BF16", "F64"
	if _, err := Parse(d, e, bytes.NewReader(b), int64(len(b)), s); err != nil {
		t.Errorf("a half-precision sender was refused: %v", err)
	}
}

func TestPayloadWithoutSectionsMustNameItsLayout(t *testing.T) {
	l := smallLayout(t)
	e := encoding(algorithm.DCT64, 16, algorithm.TwoBit)
	d := NewDomain(l, e.Transform)
	b := encode(t, d, e, heavy(1, d.Len()), auxFor(l, 1))
	clear(b[12:20])
	refuse(t, "no layout", d, e, b, v1alpha1.ReasonShapeMismatch)
}

package codec

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"slices"

	"girassol.dev/api/federation/v1alpha1"
	"girassol.dev/internal/algorithm"
	"girassol.dev/internal/tensor"
)

// HeaderSize is the length of a payload's header in bytes.
const HeaderSize = 20

const (
	magic   = "GSFD"
	version = 1
)

func transformCode(t algorithm.Transform) byte {
	if t == algorithm.DCT64 {
		return 1
	}
	return 0
}

// valueNames by their codes.
var valueNames = [...]algorithm.Values{algorithm.FP32, algorithm.BF16, algorithm.TwoBit, algorithm.EightBit, algorithm.FourBit, algorithm.OneBit}

// Encodings is what this codec reads and writes, transform/values each: what an
// agent says it can do.
func Encodings() (out []string) {
	for _, t := range []algorithm.Transform{algorithm.Identity, algorithm.DCT64} {
		for _, v := range valueNames {
			out = append(out, string(t)+"/"+string(v))
		}
	}
	return out
}

func valuesCode(v algorithm.Values) byte { return byte(max(0, slices.Index(valueNames[:], v))) }

// groupCode is the power of two, 0 for the largest group.
func groupCode(size int) byte {
	if size == MaxGroupSize {
		return 0
	}
	return byte(bits.TrailingZeros(uint(size)))
}

// encodingName of bytes 5 to 12 of a header.
func encodingName(b []byte) string {
	t, v, group := "?", "?", ""
	if b[0] < 2 {
		t = [...]string{string(algorithm.Identity), string(algorithm.DCT64)}[b[0]]
	}
	if int(b[1]) < len(valueNames) {
		v = string(valueNames[b[1]])
	}
	if b[2] != 0 {
		group = fmt.Sprintf(" in groups of 2^%d", b[2])
	}
	return fmt.Sprintf("%s, one in %d%s, %s", t, binary.LittleEndian.Uint32(b[3:]), group, v)
}

func header(d *Domain, e algorithm.Encoding) []byte {
	b := append(make([]byte, 0, HeaderSize), magic...)
	b = append(b, version, transformCode(e.Transform), valuesCode(e.Values), groupCode(e.Group()))
	b = binary.LittleEndian.AppendUint32(b, uint32(e.KeepOneIn))
	digest := d.layout.Digest()
	return append(b, digest[:8]...)
}

// checkHeader compares b, which has HeaderSize bytes, with what is expected.
func checkHeader(b []byte, d *Domain, e algorithm.Encoding, sectioned bool) error {
	if string(b[:4]) != magic {
		return fault(v1alpha1.ReasonMalformed, "", "begins with %q, not with %q: no payload of ours", b[:4], magic)
	}
	if b[4] != version {
		return fault(v1alpha1.ReasonUnsupportedVersion, "", "payload version %d, want %d: update the older side", b[4], version)
	}
	want := header(d, e)
	if string(b[5:12]) != string(want[5:12]) {
		return fault(v1alpha1.ReasonEncodingMismatch, "", "is %s, want %s",
			encodingName(b[5:12]), encodingName(want[5:12]))
	}
	none := string(b[12:20]) == "\x00\x00\x00\x00\x00\x00\x00\x00"
	if string(b[12:20]) != string(want[12:20]) && (!sectioned || !none) {
		return fault(v1alpha1.ReasonShapeMismatch, "", "was made for another model: layout %x, want %x", b[12:20], want[12:20])
	}
	return nil
}

// MaxSize is the most bytes that a valid payload can have: what admission
// allows before anything is allocated or read.
func MaxSize(d *Domain, e algorithm.Encoding) int64 {
	f := formatOf(e)
	size := int64(HeaderSize)
	for i, s := range d.layout.Tensors() {
		size += maxTensorSize(d, i, s, f)
	}
	return size
}

func maxTensorSize(d *Domain, i int, s tensor.Spec, f format) int64 {
	switch s.Role {
	case tensor.Buffer:
		return 4 * int64(s.Elements())
	case tensor.Integer:
		return int64(s.DType.Size()) * int64(s.Elements())
	}
	size := int64(0)
	for _, b := range d.tensorBlocks(i) {
		size += f.blockBytes(b)
	}
	return size
}

// blockBytes is the most bytes of a block.
func (f format) blockBytes(b Block) int64 {
	if !b.Compressed || f.fixed() {
		return int64(b.Len()) * int64(f.width())
	}
	whole, rest := b.Len()/f.group, b.Len()%f.group
	size := int64(whole) * f.maxBytes(f.group)
	if rest > 0 {
		size += f.maxBytes(rest)
	}
	return size
}

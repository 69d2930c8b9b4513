package tensor

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestParseReadsAFileOfOthers(t *testing.T) {
	// As the reference implementation writes it: padded with spaces.
	b := raw(`{"__metadata__":{"format":"pt"},"b":{"dtype":"F32","shape":[],"data_offsets":[4,8]},`+
		`"a\u00e9":{"dtype":"U8","shape":[2,2],"data_offsets":[0,4]}}   `, 1, 2, 3, 4, 0, 0, 0x80, 0x3f)
	f := must(parse(b))(t)
	specs := f.Specs()
	if len(specs) != 2 || specs[0].Name != "aé" || !slices.Equal(specs[0].Shape, []int64{2, 2}) || specs[1].Elements() != 1 {
		t.Errorf("specs %+v", specs)
	}
	if !maps.Equal(f.Metadata(), map[string]string{"format": "pt"}) {
		t.Errorf("metadata %v", f.Metadata())
	}
	ints, floats := make([]byte, 4), make([]float32, 1)
	if err := errors.Join(f.ReadBytes("aé", ints), f.ReadFloats("b", floats)); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(ints, []byte{1, 2, 3, 4}) || floats[0] != 1 {
		t.Errorf("values %v %v", ints, floats)
	}
	for what, err := range map[string]error{
		"unknown name": f.ReadFloats("c", floats), "wrong length": f.ReadFloats("b", make([]float32, 2)),
		"integers as floats": f.ReadFloats("aé", make([]float32, 4)), "bytes of wrong size": f.ReadBytes("aé", ints[:3]),
		"bytes of nothing": f.ReadBytes("c", ints),
	} {
		if err == nil {
			t.Errorf("%s: no error", what)
		}
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
}

func TestHostileHeadersAreRefused(t *testing.T) {
	one := func(fields string) string { return `{"w":{` + fields + `}}` }
	for what, c := range map[string]struct {
		file []byte
		want string
	}{
		"empty file":              {nil, "0 bytes"},
		"no header":               {[]byte{1, 0, 0, 0, 0, 0, 0, 0}, "claims 1 bytes"},
		"10 GB header":            {append(binary.LittleEndian.AppendUint64(nil, 10<<30), '{', '}'), "claims 10737418240"},
		"length that overflows":   {append(binary.LittleEndian.AppendUint64(nil, math.MaxUint64), '{', '}'), "at most"},
		"header beyond the file":  {append(binary.LittleEndian.AppendUint64(nil, 3), '{', '}'), "has 2"},
		"no object":               {raw(`[]`), "begin with {"},
		"space before":            {raw(` {}`), "begin with {"},
		"not UTF-8":               {raw("{\"\xff\":{}}"), "UTF-8"},
		"cut JSON":                {raw(`{"w":{"dtype":"F32"`), "unexpected EOF"},
		"bytes behind the object": {raw(`{} x`), "behind"},
		"tensor is no object":     {raw(`{"w":3}`), "object"},
		"metadata is no object":   {raw(`{"__metadata__":[]}`), "object"},
		"metadata is no string":   {raw(`{"__metadata__":{"a":1}}`), "no string"},
		"metadata is null":        {raw(`{"__metadata__":{"a":null}}`), "no string"},
		"metadata twice":          {raw(`{"__metadata__":{},"__metadata__":{}}`), "twice"},
		"metadata key twice":      {raw(`{"__metadata__":{"a":"","a":""}}`), "twice"},
		"name twice": {raw(`{"w":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"w":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}`, 0, 0),
			"twice"},
		"field twice":          {raw(one(`"dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1]`), 0), "twice"},
		"unknown field":        {raw(one(`"dtype":"U8","shape":[1],"data_offsets":[0,1],"x":1`), 0), "unknown field"},
		"empty name":           {raw(`{"":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}`, 0), "name"},
		"unknown type":         {raw(one(`"dtype":"F8","shape":[1],"data_offsets":[0,1]`), 0), "dtype"},
		"type missing":         {raw(one(`"shape":[1],"data_offsets":[0,1]`), 0), "needs dtype"},
		"shape missing":        {raw(one(`"dtype":"U8","data_offsets":[0,1]`), 0), "needs dtype"},
		"shape null":           {raw(one(`"dtype":"U8","shape":null,"data_offsets":[0,1]`), 0), "needs dtype"},
		"offsets missing":      {raw(one(`"dtype":"U8","shape":[1]`), 0), "needs dtype"},
		"three offsets":        {raw(one(`"dtype":"U8","shape":[1],"data_offsets":[0,1,2]`), 0), "two data_offsets"},
		"fractional shape":     {raw(one(`"dtype":"U8","shape":[1.5],"data_offsets":[0,1]`), 0), "unmarshal"},
		"negative shape":       {raw(one(`"dtype":"U8","shape":[-1],"data_offsets":[0,1]`), 0), "impossible shape"},
		"overflowing shape":    {raw(one(`"dtype":"U8","shape":[4294967296,4294967296,0],"data_offsets":[0,0]`)), "impossible shape"},
		"2^41 elements":        {raw(one(`"dtype":"U8","shape":[2199023255552],"data_offsets":[0,2199023255552]`)), "at most"},
		"rank 17":              {raw(one(`"dtype":"U8","shape":[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1],"data_offsets":[0,1]`), 0), "rank 17"},
		"size against shape":   {raw(one(`"dtype":"F32","shape":[2],"data_offsets":[0,4]`), 0, 0, 0, 0), "do not hold 8 bytes"},
		"offsets backwards":    {raw(one(`"dtype":"U8","shape":[1],"data_offsets":[1,0]`), 0), "do not hold"},
		"negative offset":      {raw(one(`"dtype":"U8","shape":[1],"data_offsets":[-1,0]`), 0), "do not hold"},
		"offset beyond int64":  {raw(one(`"dtype":"U8","shape":[1],"data_offsets":[9223372036854775808,9223372036854775809]`), 0), "unmarshal"},
		"gap at the start":     {raw(one(`"dtype":"U8","shape":[1],"data_offsets":[1,2]`), 0, 0), "no gaps"},
		"trailing bytes":       {raw(one(`"dtype":"U8","shape":[1],"data_offsets":[0,1]`), 0, 0), "the file at 2"},
		"data cut off":         {raw(one(`"dtype":"U8","shape":[2],"data_offsets":[0,2]`), 0), "the file at 1"},
		"overlapping tensors":  {raw(`{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}}`, 0, 0, 0), "no gaps"},
		"same bytes twice":     {raw(`{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"b":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}`, 0), "no gaps"},
		"gap between tensors":  {raw(`{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"b":{"dtype":"U8","shape":[1],"data_offsets":[2,3]}}`, 0, 0, 0), "no gaps"},
		"deeply nested":        {raw(one(`"shape":` + strings.Repeat("[", 20000))), "depth"},
		"name of 2000 bytes":   {raw(`{"` + strings.Repeat("n", 2000) + `":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}`), "name"},
		"shape of a string":    {raw(one(`"dtype":"U8","shape":"1","data_offsets":[0,1]`), 0), "unmarshal"},
		"type of another kind": {raw(one(`"dtype":7,"shape":[1],"data_offsets":[0,1]`), 0), "unmarshal"},
	} {
		if _, err := parse(c.file); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want %q in it", what, err, c.want)
		}
	}
}

func TestTooManyTensorsAreRefused(t *testing.T) {
	var b strings.Builder
	b.WriteByte('{')
	for i := range MaxTensors + 1 {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, `"%d":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}`, i)
	}
	b.WriteByte('}')
	if _, err := parse(raw(b.String())); err == nil || !strings.Contains(err.Error(), "more than") {
		t.Error(err)
	}
}

func TestHeaderLimitHoldsBeforeMemoryIsTaken(t *testing.T) {
	// A sparse file of 200 MB whose header claims nearly all of it.
	path := filepath.Join(t.TempDir(), "big")
	if err := os.WriteFile(path, binary.LittleEndian.AppendUint64(nil, 199_000_000), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, 200_000_000); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenFile(path); err == nil || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "at most") {
		t.Error(err)
	}
	if _, err := OpenFile(path + "x"); err == nil {
		t.Error("a missing file was opened")
	}
}

func TestReadersThatEndEarlyAreReported(t *testing.T) {
	s := filled(model(t), true)
	b := saved(t, s, false)
	for _, n := range []int{0, 4, 8, 20, len(b) - 1} {
		f, err := ParseFile(bytes.NewReader(b[:n]), int64(len(b)))
		if err == nil {
			_, err = LoadState(f)
		}
		if !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("%d of %d bytes: %v", n, len(b), err)
		}
	}
}

func TestLongTensorsConvertInBlocks(t *testing.T) {
	for _, d := range []DType{F64, F32, F16, BF16} {
		l := layout(t, Spec{"w", d, []int64{3<<19 + 7}, Parameter})
		s := NewState(l)
		for i := range s.Theta {
			s.Theta[i] = float32(i%401) - 200
		}
		got := must(LoadState(must(parse(saved(t, s, false)))(t)))(t)
		if got.Digest() != s.Digest() {
			t.Errorf("%s differs", d)
		}
		got.Close()
		s.Close()
	}
}

func TestWrittenFilesKeepTheFormatsRules(t *testing.T) {
	for _, momentum := range []bool{false, true} {
		b := saved(t, filled(model(t), true), momentum)
		n := binary.LittleEndian.Uint64(b)
		if (8+n)%64 != 0 {
			t.Errorf("data begins at %d, not 64-aligned", 8+n)
		}
		f := must(parse(b))(t)
		for name, e := range f.entries {
			if e.offset%int64(e.spec.DType.Size()) != 0 {
				t.Errorf("%s of type %s begins at %d", name, e.spec.DType, e.offset)
			}
		}
		if f.Metadata()["format"] != "pt" {
			t.Error("the format is not named, some readers need it")
		}
	}
}

func FuzzParseFile(f *testing.F) {
	s := filled(layoutOf(f), true)
	for _, momentum := range []bool{false, true} {
		f.Add(saved(f, s, momentum))
	}
	f.Add(raw(`{}`))
	f.Add(raw(`{"w":{"dtype":"F64","shape":[1],"data_offsets":[0,8]}}`, 0, 0, 0, 0, 0, 0, 0xf0, 0x7f))
	f.Add(raw(`{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"BF16","shape":[],"data_offsets":[2,4]}}`, 1, 2, 3, 4))
	f.Fuzz(func(t *testing.T, b []byte) {
		file, err := parse(b)
		if err != nil {
			return
		}
		total := 0
		for _, s := range file.Specs() {
			total += s.Elements() * s.DType.Size()
			if err := file.ReadBytes(s.Name, make([]byte, s.Elements()*s.DType.Size())); err != nil {
				t.Fatalf("%q passed the check and cannot be read: %v", s.Name, err)
			}
		}
		if total > len(b) {
			t.Fatalf("%d bytes of tensors in %d bytes", total, len(b))
		}
		st, err := LoadState(file)
		if err != nil {
			return
		}
		defer st.Close()
		again, err := LoadState(must(parse(saved(t, st, true)))(t))
		if err != nil {
			t.Fatalf("a loaded state cannot be saved and loaded: %v", err)
		}
		defer again.Close()
		if again.Digest() != st.Digest() {
			t.Fatal("a state changed on its way through a file")
		}
	})
}

// layoutOf is a small model, to keep the fuzzer's inputs short.
func layoutOf(t testing.TB) *Layout {
	return layout(t, Spec{"w", BF16, []int64{2}, Parameter}, Spec{"m", F32, nil, Buffer}, Spec{"n", I32, nil, Integer})
}

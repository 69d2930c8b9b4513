package tensor

import (
	"bytes"
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"girassol.dev/api/federation/v1alpha1"
)

func TestWholeStateRoundTripsBitForBit(t *testing.T) {
	s := filled(model(t), false)
	s.Theta[0] = float32(math.Copysign(0, -1))
	s.Theta[1] = math.SmallestNonzeroFloat32
	s.Theta[2] = math.MaxFloat32 // too large for a half: stored as F32 all the same
	got := must(LoadState(must(parse(saved(t, s, true)))(t)))(t)
	if got.Digest() != s.Digest() {
		t.Error("digests differ")
	}
	if d := s.Layout.Diff(got.Layout); len(d) > 0 || got.Layout.Digest() != s.Layout.Digest() {
		t.Errorf("layouts differ: %v", d)
	}
}

func TestModelForTrainersKeepsTypesAndRoles(t *testing.T) {
	s := filled(model(t), true)
	f := must(parse(saved(t, s, false)))(t)
	for _, spec := range f.Specs() {
		i, ok := s.Layout.Lookup(spec.Name)
		if want := s.Layout.Tensors()[i]; !ok || spec.DType != want.DType || !slices.Equal(spec.Shape, want.Shape) {
			t.Errorf("%s is %s %v in the file, %s %v in the layout", spec.Name, spec.DType, spec.Shape, want.DType, want.Shape)
		}
	}
	got := must(LoadState(f))(t)
	if d := s.Layout.Diff(got.Layout); len(d) > 0 {
		t.Errorf("layouts differ: %v", d)
	}
	clear(s.Momentum)
	if got.Digest() != s.Digest() {
		t.Error("values differ")
	}
}

func TestRolesFollowTypesNamesAndMetadata(t *testing.T) {
	for name, want := range map[string]Role{
		"running_mean": Buffer, "bn.running_var": Buffer, "bn.running_variance": Parameter, "running_mean.weight": Parameter,
		"listed": Buffer, "listed too": Buffer, "not listed": Parameter,
	} {
		specs := []Spec{{Name: name, DType: F32}}
		if got := RolesFor(specs, map[string]string{BuffersKey: "listed, listed too"})[0].Role; got != want {
			t.Errorf("%s is a %s, want %s", name, got, want)
		}
		if specs[0].Role != "" {
			t.Error("the caller's specs were changed")
		}
	}
	if got := RolesFor([]Spec{{Name: "listed", DType: I64}}, map[string]string{BuffersKey: "listed"})[0].Role; got != Integer {
		t.Errorf("an integer that is listed as a buffer is a %s", got)
	}
}

// fileOf is a file with the given tensors; values are zero.
func fileOf(t testing.TB, specs ...Spec) *File {
	t.Helper()
	var records []record
	for _, s := range specs {
		records = append(records, record{spec: s, floats: make([]float32, s.Elements()), bytes: make([]byte, s.Elements()*s.DType.Size())})
	}
	var b bytes.Buffer
	if err := save(&b, records, nil); err != nil {
		t.Fatal(err)
	}
	return must(parse(b.Bytes()))(t)
}

func TestReadIntoMatchesByNameAndConvertsFloats(t *testing.T) {
	l := layout(t, Spec{"a", BF16, []int64{2}, Parameter}, Spec{"b", F32, []int64{1}, Parameter}, Spec{"n", I32, nil, Integer})
	var out bytes.Buffer
	// Other order, other float types.
	err := save(&out, []record{
		{spec: Spec{Name: "n", DType: I32}, bytes: []byte{9, 0, 0, 0}},
		{spec: Spec{Name: "b", DType: F64, Shape: []int64{1}}, floats: []float32{3}},
		{spec: Spec{Name: "a", DType: F16, Shape: []int64{2}}, floats: []float32{1, 2}},
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	theta, integers := make([]float32, 3), make([]byte, 4)
	if err := ReadInto(must(parse(out.Bytes()))(t), l, theta, nil, integers); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(theta, []float32{1, 2, 3}) || integers[0] != 9 {
		t.Errorf("theta %v, integers %v", theta, integers)
	}
	if err := ReadInto(must(parse(out.Bytes()))(t), l, theta[:2], nil, integers); err == nil {
		t.Error("vectors of another length were taken")
	}
}

func TestReadIntoRefusesAnotherModelWithoutWriting(t *testing.T) {
	a, b := Spec{"a", F32, []int64{2, 3}, Parameter}, Spec{"b", F32, []int64{4}, Parameter}
	n := Spec{"n", I64, nil, Integer}
	l := layout(t, a, b, n)
	with := func(s Spec, change func(*Spec)) Spec {
		change(&s)
		return s
	}
	for what, c := range map[string]struct {
		file   *File
		reason v1alpha1.Reason
		names  []string
	}{
		"missing":          {fileOf(t, a, n), v1alpha1.ReasonMissingTensor, []string{"b"}},
		"unknown":          {fileOf(t, a, b, n, Spec{Name: "c", DType: F32}), v1alpha1.ReasonUnknownTensor, []string{"c"}},
		"renamed":          {fileOf(t, a, n, with(b, func(s *Spec) { s.Name = "module.b" })), v1alpha1.ReasonMissingTensor, []string{"b", "module.b"}},
		"transposed":       {fileOf(t, with(a, func(s *Spec) { s.Shape = []int64{3, 2} }), b, n), v1alpha1.ReasonShapeMismatch, []string{"a"}},
		"flattened":        {fileOf(t, with(a, func(s *Spec) { s.Shape = []int64{6} }), b, n), v1alpha1.ReasonShapeMismatch, []string{"a"}},
		"float for int":    {fileOf(t, a, b, with(n, func(s *Spec) { s.DType = F64 })), v1alpha1.ReasonDTypeMismatch, []string{"n"}},
		"int for float":    {fileOf(t, with(a, func(s *Spec) { s.DType = I32 }), b, n), v1alpha1.ReasonDTypeMismatch, []string{"a"}},
		"other int":        {fileOf(t, a, b, with(n, func(s *Spec) { s.DType = I32 })), v1alpha1.ReasonDTypeMismatch, []string{"n"}},
		"0-d became 1-d":   {fileOf(t, a, b, with(n, func(s *Spec) { s.Shape = []int64{1} })), v1alpha1.ReasonShapeMismatch, []string{"n"}},
		"nothing the same": {fileOf(t, Spec{Name: "x", DType: F32}), v1alpha1.ReasonMissingTensor, []string{"a", "b", "n", "x"}},
	} {
		theta, integers := slices.Repeat([]float32{5}, 10), slices.Repeat([]byte{6}, 8)
		err := ReadInto(c.file, l, theta, nil, integers)
		var mismatch *MismatchError
		if !errors.As(err, &mismatch) || mismatch.Reason != c.reason || len(mismatch.Differences) != len(c.names) {
			t.Errorf("%s: %v", what, err)
			continue
		}
		for i, name := range c.names {
			if !strings.HasPrefix(mismatch.Differences[i], name+": ") {
				t.Errorf("%s: difference %q does not begin with %q", what, mismatch.Differences[i], name)
			}
		}
		if slices.ContainsFunc(theta, func(v float32) bool { return v != 5 }) || slices.ContainsFunc(integers, func(v byte) bool { return v != 6 }) {
			t.Errorf("%s: something was written", what)
		}
	}
}

func TestLongDifferencesAreCutInTheMessage(t *testing.T) {
	e := &MismatchError{Reason: v1alpha1.ReasonMissingTensor, Differences: slices.Repeat([]string{"w: missing"}, 50)}
	if text := e.Error(); strings.Count(text, "w: missing") != 8 || !strings.Contains(text, "and 42 more") || len(e.Differences) != 50 {
		t.Error(text)
	}
}

func TestValuesThatAreNotFiniteAreRefusedByName(t *testing.T) {
	for _, where := range []string{"theta", "momentum", "buffers"} {
		for _, bad := range []float64{math.NaN(), math.Inf(1), math.Inf(-1)} {
			s := filled(model(t), true)
			name := "z.weight"
			switch i, _ := s.Layout.Lookup(name); where {
			case "theta":
				s.Theta[s.Layout.Offset(i)+5] = float32(bad)
			case "momentum":
				s.Momentum[s.Layout.Offset(i)+5] = float32(bad)
				name = MomentumPrefix + name
			case "buffers":
				name = "bn.running_mean"
				i, _ = s.Layout.Lookup(name)
				s.Buffers[s.Layout.Offset(i)+1] = float32(bad)
			}
			f := must(parse(saved(t, s, true)))(t)
			_, err := LoadState(f)
			var mismatch *MismatchError
			if !errors.As(err, &mismatch) || mismatch.Reason != v1alpha1.ReasonNotFinite || !strings.Contains(err.Error(), name+": element") {
				t.Errorf("%g in %s: %v", bad, where, err)
			}
		}
	}
	// A double beyond float32 is an infinity to us.
	l := layout(t, Spec{"w", F64, []int64{1}, Parameter})
	f := must(parse(raw(`{"w":{"dtype":"F64","shape":[1],"data_offsets":[0,8]}}`, 0, 0, 0, 0, 0, 0, 0xf0, 0x7e)))(t)
	var mismatch *MismatchError
	if err := ReadInto(f, l, make([]float32, 1), nil, nil); !errors.As(err, &mismatch) || mismatch.Reason != v1alpha1.ReasonNotFinite {
		t.Errorf("1e300: %v", err)
	}
}

func TestStateFilesMustHoldWhatTheirLayoutSays(t *testing.T) {
	l := layoutOf(t)
	b := saved(t, filled(l, true), true)
	for what, change := range map[string][2]string{
		"momentum renamed":   {`"girassol.momentum/w":`, `"girassol.momentum/v":`},
		"type in the layout": {`\"dtype\":\"I32\"`, `\"dtype\":\"U32\"`},
		"layout is no JSON":  {`"girassol.layout":"[`, `"girassol.layout":"{`},
		"role in the layout": {`\"role\":\"integer\"`, `\"role\":\"weights\"`},
	} {
		c := bytes.Replace(b, []byte(change[0]), []byte(change[1]), 1)
		if bytes.Equal(b, c) || len(b) != len(c) {
			t.Fatalf("%s: the test changes nothing", what)
		}
		if _, err := LoadState(must(parse(c))(t)); err == nil {
			t.Errorf("%s: loaded", what)
		}
	}
	if _, err := LoadState(fileOf(t, Spec{Name: "girassol.momentum/w", DType: F32})); err == nil || !strings.Contains(err.Error(), "reserved") {
		t.Errorf("a reserved name: %v", err)
	}
	if _, err := LoadState(fileOf(t)); err == nil {
		t.Error("a file without tensors is a model")
	}
	if _, err := LoadState(fileOf(t, Spec{Name: "n", DType: I64})); err == nil {
		t.Error("a model without parameters was loaded")
	}
}

func TestNarrowTypesRefuseWhatTheyCannotHold(t *testing.T) {
	s := NewState(layout(t, Spec{"w", F16, []int64{3}, Parameter}))
	s.Theta[2] = 70000
	if err := SaveState(io.Discard, s, false); err == nil || !strings.Contains(err.Error(), `"w": element 2 is 70000`) {
		t.Error(err)
	}
	if err := SaveState(io.Discard, s, true); err != nil {
		t.Error(err)
	}
}

func TestSaveVectorsAreReadableByName(t *testing.T) {
	var b bytes.Buffer
	names, vecs := []string{"residual", "empty"}, [][]float32{{1, float32(math.NaN()), -2}, {}}
	if err := SaveVectors(&b, names, vecs, map[string]string{"base": "7"}); err != nil {
		t.Fatal(err)
	}
	f := must(parse(b.Bytes()))(t)
	got := make([]float32, 3)
	if err := f.ReadFloats("residual", got); err != nil || got[0] != 1 || got[1] == got[1] || got[2] != -2 {
		t.Errorf("%v %v", got, err)
	}
	if err := f.ReadFloats("empty", nil); err != nil || f.Metadata()["base"] != "7" {
		t.Error(err, f.Metadata())
	}
	if err := SaveVectors(io.Discard, []string{"a", "a"}, make([][]float32, 2), nil); err == nil {
		t.Error("a double name was written")
	}
	if err := SaveVectors(io.Discard, []string{"a"}, nil, nil); err == nil {
		t.Error("names without vectors were written")
	}
}

// limited fails after n bytes, as a full disk does.
type limited struct{ n int }

var errFull = errors.New("no space left")

func (l *limited) Write(b []byte) (int, error) {
	if l.n -= len(b); l.n < 0 {
		return 0, errFull
	}
	return len(b), nil
}

func TestWriteErrorsAreReported(t *testing.T) {
	s := filled(model(t), true)
	size := len(saved(t, s, true))
	for n := 0; n < size; n += 37 {
		if err := SaveState(&limited{n}, s, true); !errors.Is(err, errFull) {
			t.Fatalf("after %d bytes: %v", n, err)
		}
	}
}

func TestWriteFileAtomicIsAllOrNothing(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "f")
	write := func(text string, err error) error {
		return WriteFileAtomic(path, func(w io.Writer) error {
			_, _ = io.WriteString(w, text)
			return err
		})
	}
	content := func() string { return string(must(os.ReadFile(path))(t)) }
	if err := write("old", nil); err != nil || content() != "old" {
		t.Fatal(err)
	}
	if err := write("half of the ne", errFull); !errors.Is(err, errFull) || !strings.Contains(err.Error(), path) || content() != "old" {
		t.Errorf("error %v, content %q", err, content())
	}
	if err := write("new", nil); err != nil || content() != "new" {
		t.Error(err)
	}
	if mode := must(os.Stat(path))(t).Mode().Perm(); mode != 0o644 {
		t.Errorf("mode %o: another user's trainer cannot read it", mode)
	}
	if left := must(os.ReadDir(dir))(t); len(left) != 1 {
		t.Errorf("%d files in the folder", len(left))
	}
	if err := WriteFileAtomic(filepath.Join(dir, "no", "f"), func(io.Writer) error { return nil }); err == nil {
		t.Error("a folder that does not exist was written to")
	}
	// Over a folder the rename fails, and the temporary file goes.
	if err := os.Mkdir(filepath.Join(dir, "d"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := WriteFileAtomic(filepath.Join(dir, "d"), func(io.Writer) error { return nil }); err == nil {
		t.Error("a folder was replaced")
	}
	if left := must(os.ReadDir(dir))(t); len(left) != 2 {
		t.Errorf("%d entries in the folder", len(left))
	}
}

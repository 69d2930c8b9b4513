package corpus

import (
	"fmt"
	"strconv"
	"strings"
)

// Range is the samples [Begin, End) of one pass over the corpus; passes count
// from 0.
type Range struct{ Pass, Begin, End uint64 }

// Ranges are ascending, first by pass, not empty, and apart. As text they read
// "0:0-4096,5000-6000 1:0-512".
type Ranges []Range

// Size is the number of samples.
func (rs Ranges) Size() (n uint64) {
	for _, r := range rs {
		n += r.End - r.Begin
	}
	return n
}

// Check says what is wrong with the order of ranges.
func (rs Ranges) Check() error {
	for i, r := range rs {
		if r.Begin >= r.End {
			return fmt.Errorf("range %d of pass %d, %d to %d, is empty or backward", i, r.Pass, r.Begin, r.End)
		}
		if i == 0 {
			continue
		}
		if b := rs[i-1]; r.Pass < b.Pass || r.Pass == b.Pass && r.Begin < b.End {
			return fmt.Errorf("%s does not lie behind %s: ranges go upward and do not overlap", r, b)
		}
	}
	return nil
}

func (r Range) String() string { return fmt.Sprintf("%d:%d-%d", r.Pass, r.Begin, r.End) }

func (rs Ranges) String() string {
	var b []byte
	for i, r := range rs {
		switch {
		case i > 0 && rs[i-1].Pass == r.Pass:
			b = append(b, ',')
		case i > 0:
			b = append(b, ' ')
			fallthrough
		default:
			b = append(strconv.AppendUint(b, r.Pass, 10), ':')
		}
		b = append(strconv.AppendUint(b, r.Begin, 10), '-')
		b = strconv.AppendUint(b, r.End, 10)
	}
	return string(b)
}

// MarshalText implements encoding.TextMarshaler.
func (rs Ranges) MarshalText() ([]byte, error) { return []byte(rs.String()), rs.Check() }

// UnmarshalText reads what MarshalText writes.
func (rs *Ranges) UnmarshalText(text []byte) error {
	var out Ranges
	for group := range strings.FieldsSeq(string(text)) {
		pass, list, ok := strings.Cut(group, ":")
		p, err := strconv.ParseUint(pass, 10, 64)
		if !ok || err != nil {
			return fmt.Errorf("%.60q is not PASS:BEGIN-END", group)
		}
		for item := range strings.SplitSeq(list, ",") {
			begin, end, _ := strings.Cut(item, "-")
			b, err1 := strconv.ParseUint(begin, 10, 64)
			e, err2 := strconv.ParseUint(end, 10, 64)
			if err1 != nil || err2 != nil {
				return fmt.Errorf("%.60q is not BEGIN-END", item)
			}
			out = append(out, Range{p, b, e})
		}
	}
	if err := out.Check(); err != nil {
		return err
	}
	*rs = out
	return nil
}

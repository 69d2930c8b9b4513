package statusview

import (
	"strings"
	"testing"
	"unicode"

	"google.golang.org/protobuf/proto"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
)

// Whatever a coordinator, or a site through it, says: a terminal gets lines of
// printable text.
func FuzzStatus(f *testing.F) {
	for _, s := range []*coordinatorv1.FederationStatus{training(), wentBack()} {
		b, err := proto.Marshal(s)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b, 80)
	}
	f.Fuzz(func(t *testing.T, b []byte, width int) {
		var s coordinatorv1.FederationStatus
		if proto.Unmarshal(b, &s) != nil {
			return
		}
		width %= 300
		var out strings.Builder
		Table(&out, &s, width)
		Members(&out, &s, width)
		for _, line := range Changes(nil, &s) {
			out.WriteString(line + "\n")
		}
		for _, r := range out.String() {
			if r != '\n' && unicode.IsControl(r) {
				t.Fatalf("a control character %q is shown", r)
			}
		}
	})
}

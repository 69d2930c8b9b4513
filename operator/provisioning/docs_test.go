package provisioning

import (
	"encoding/json"
	"os"
	"regexp"
	"strings"
	"testing"

	api "girassol.dev/api/provisioning"
)

// TestTheExamplesOfTheGuideAreTheContracts decodes each of them without a field
// left over.
func TestTheExamplesOfTheGuideAreTheContracts(t *testing.T) {
	guide, err := os.ReadFile("../../docs/provisioning.md")
	if err != nil {
		t.Fatal(err)
	}
	want := []any{&api.Wish{}, &api.Answer{}, &api.Result{}, &api.List{}, &api.Event{}}
	examples := regexp.MustCompile("(?s)```json\n(.*?)```").FindAllStringSubmatch(string(guide), -1)
	if len(examples) != len(want) {
		t.Fatalf("%d examples, want %d", len(examples), len(want))
	}
	for i, example := range examples {
		d := json.NewDecoder(strings.NewReader(example[1]))
		d.DisallowUnknownFields()
		if err := d.Decode(want[i]); err != nil {
			t.Errorf("%T: %v in %s", want[i], err, example[1])
		}
	}
}

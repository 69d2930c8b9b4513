package provisioning

import (
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// TestTheOpenAPIDescriptionHasTheSameFields compares names and what is required.
func TestTheOpenAPIDescriptionHasTheSameFields(t *testing.T) {
	raw, err := os.ReadFile("openapi.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var doc struct {
		Components struct {
			Schemas map[string]struct {
				Required   []string
				Properties map[string]any
			}
		}
	}
	if err := yaml.Unmarshal(raw, &doc); err != nil {
		t.Fatal(err)
	}
	for _, v := range []any{Wish{}, Answer{}, Result{}, Taken{}, Problem{}, Item{}, List{}, Event{}} {
		typ := reflect.TypeOf(v)
		schema := doc.Components.Schemas[typ.Name()]
		var required []string
		for i := range typ.NumField() {
			name, options, _ := strings.Cut(typ.Field(i).Tag.Get("json"), ",")
			if _, there := schema.Properties[name]; !there {
				t.Errorf("%s.%s is not described", typ.Name(), name)
			}
			delete(schema.Properties, name)
			if options == "" {
				required = append(required, name)
			}
		}
		for name := range schema.Properties {
			t.Errorf("%s.%s is described but is no field", typ.Name(), name)
		}
		slices.Sort(required)
		slices.Sort(schema.Required)
		if !slices.Equal(required, schema.Required) {
			t.Errorf("%s requires %q, described are %q", typ.Name(), required, schema.Required)
		}
	}
}

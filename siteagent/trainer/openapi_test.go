package trainer

import (
	"encoding/json"
	"net/http/httptest"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	trainerv1 "girassol.dev/api/trainer/v1"
)

type schema struct {
	Type                 string            `json:"type"`
	Format               string            `json:"format"`
	Required             []string          `json:"required"`
	Enum                 []string          `json:"enum"`
	Properties           map[string]schema `json:"properties"`
	AdditionalProperties json.RawMessage   `json:"additionalProperties"`
	Ref                  string            `json:"$ref"`
}

type content map[string]struct {
	Schema schema `json:"schema"`
}

type operation struct {
	RequestBody *struct {
		Content content `json:"content"`
	} `json:"requestBody"`
	Responses map[string]struct {
		Content content `json:"content"`
	} `json:"responses"`
}

func TestOpenAPISaysWhatTheGoTypesSay(t *testing.T) {
	b, err := os.ReadFile("../../api/trainer/v1/openapi.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var doc struct {
		Paths      map[string]map[string]operation `json:"paths"`
		Components struct {
			Schemas map[string]schema `json:"schemas"`
		} `json:"components"`
	}
	if err := yaml.Unmarshal(b, &doc); err != nil {
		t.Fatal(err)
	}
	types := map[string]any{
		"Task": trainerv1.Task{}, "DataRange": trainerv1.DataRange{}, "Progress": trainerv1.Progress{}, "Directive": trainerv1.Directive{}, "Result": trainerv1.Result{},
		"Failure": trainerv1.Failure{}, "Seed": trainerv1.Seed{}, "Problem": trainerv1.Problem{},
	}
	for name, v := range types {
		s, ok := doc.Components.Schemas[name]
		if !ok {
			t.Errorf("no schema for %s", name)
			continue
		}
		if s.Type != "object" || string(s.AdditionalProperties) != "false" {
			t.Errorf("%s must be a closed object", name)
		}
		typ := reflect.TypeOf(v)
		want := required(typ)
		slices.Sort(want)
		slices.Sort(s.Required)
		if !slices.Equal(want, s.Required) {
			t.Errorf("%s requires %v, the Go type %v", name, s.Required, want)
		}
		if typ.NumField() != len(s.Properties) {
			t.Errorf("%s has %d properties, the Go type %d", name, len(s.Properties), typ.NumField())
		}
		for i := range typ.NumField() {
			field, _, _ := strings.Cut(typ.Field(i).Tag.Get("json"), ",")
			p := s.Properties[field]
			if got, want := p.Type+" "+p.Format, jsonType(typ.Field(i).Type); strings.TrimSpace(got) != want {
				t.Errorf("%s.%s is %q, the Go type %q", name, field, got, want)
			}
		}
	}
	if len(doc.Components.Schemas) != len(types) {
		t.Errorf("%d schemas, %d Go types", len(doc.Components.Schemas), len(types))
	}
	for field, want := range map[string][]string{
		"Task.kind":        {string(trainerv1.Train), string(trainerv1.Evaluate)},
		"Directive.action": {string(trainerv1.Continue), string(trainerv1.Finish), string(trainerv1.Abort)},
	} {
		name, prop, _ := strings.Cut(field, ".")
		if got := doc.Components.Schemas[name].Properties[prop].Enum; !slices.Equal(got, want) {
			t.Errorf("%s is one of %v, want %v", field, got, want)
		}
	}

	want := map[string][3]string{ // request, 200, 204
		"get /v1/task":                 {"", "Task", "yes"},
		"post /v1/tasks/{id}/progress": {"Progress", "Directive", ""},
		"post /v1/tasks/{id}/result":   {"Result", "", "yes"},
		"post /v1/tasks/{id}/failure":  {"Failure", "", "yes"},
		"put /v1/model":                {"Seed", "", "yes"},
	}
	got := map[string][3]string{}
	for path, methods := range doc.Paths {
		for method, op := range methods {
			var v [3]string
			if op.RequestBody != nil {
				v[0] = op.RequestBody.Content.name()
			}
			v[1] = op.Responses["200"].Content.name()
			if _, ok := op.Responses["204"]; ok {
				v[2] = "yes"
			}
			got[method+" "+path] = v
			if _, ok := op.Responses["default"]; !ok {
				t.Errorf("%s %s describes no problem", method, path)
			}
		}
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("operations are %v, want %v", got, want)
	}
	// The server has each of them: not a path that it does not know.
	h := newRig(t).s.Handler()
	for op := range want {
		method, path, _ := strings.Cut(op, " ")
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(strings.ToUpper(method), path, strings.NewReader("{}")))
		if w.Code == 405 || strings.Contains(w.Body.String(), "no such path") {
			t.Errorf("%s: %d %s", op, w.Code, w.Body)
		}
	}
}

func (c content) name() string {
	return strings.TrimPrefix(c["application/json"].Schema.Ref, "#/components/schemas/")
}

func jsonType(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Pointer:
		return jsonType(t.Elem())
	case reflect.String:
		return "string"
	case reflect.Uint64:
		return "integer uint64"
	case reflect.Float64:
		return "number"
	case reflect.Slice:
		return "array"
	case reflect.Map:
		return "object"
	}
	if t == reflect.TypeFor[time.Time]() {
		return "string date-time"
	}
	return "unknown " + t.String()
}

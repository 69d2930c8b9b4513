package trainer

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"strings"
	"time"
)

// decode reads one JSON object of bounded size, or says why not.
func decode(w http.ResponseWriter, req *http.Request, into any) *reply {
	rc := http.NewResponseController(w)
	_ = rc.SetReadDeadline(time.Now().Add(bodyTimeout))
	body, err := io.ReadAll(http.MaxBytesReader(w, req.Body, MaxBody))
	if err == nil {
		_ = rc.SetReadDeadline(time.Time{})
		if err = parse(body, into); err == nil {
			return nil
		}
	}
	var bad reply
	if tooLarge := (*http.MaxBytesError)(nil); errors.As(err, &tooLarge) {
		bad = refuse(http.StatusRequestEntityTooLarge, "the body has more than %d bytes", tooLarge.Limit)
	} else {
		bad = refuse(http.StatusBadRequest, "the body is no %s: %v (numbers must be finite: leave out a loss that is not)",
			reflect.TypeOf(into).Elem().Name(), err)
	}
	return &bad
}

// parse takes exactly one object: no field that the contract does not have, no
// required one missing (those without omitempty), nothing behind it.
func parse(body []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(body))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("more than one JSON value")
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(body, &fields); err != nil {
		return err
	}
	for _, name := range required(reflect.TypeOf(into).Elem()) {
		if v, ok := fields[name]; !ok || string(v) == "null" {
			return fmt.Errorf("field %q is missing", name)
		}
	}
	return nil
}

// required is the JSON names of the struct's fields without omitempty.
func required(t reflect.Type) []string {
	var names []string
	for i := range t.NumField() {
		name, options, _ := strings.Cut(t.Field(i).Tag.Get("json"), ",")
		if !strings.Contains(options, "omitempty") {
			names = append(names, name)
		}
	}
	return names
}

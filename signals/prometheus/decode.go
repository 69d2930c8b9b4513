package prometheus

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"time"

	"girassol.dev/api/federation/v1alpha1"
	"girassol.dev/signals"
	"girassol.dev/signals/fetch"
)

// sample is one value of the series; nil for NaN and infinities.
type sample struct {
	at    time.Time
	value *float64
}

// UnmarshalJSON reads [unix seconds, "value"].
func (s *sample) UnmarshalJSON(b []byte) error {
	var pair []json.RawMessage
	if err := json.Unmarshal(b, &pair); err != nil {
		return err
	}
	if len(pair) != 2 {
		return fmt.Errorf("a sample of %d parts", len(pair))
	}
	var at float64
	if err := json.Unmarshal(pair[0], &at); err != nil {
		return err
	}
	if !(at >= 0 && at < 253370764800) {
		return fmt.Errorf("%v is no time in unix seconds", at)
	}
	var text string
	if err := json.Unmarshal(pair[1], &text); err != nil {
		return err
	}
	v, err := strconv.ParseFloat(text, 64)
	if err != nil && !errors.Is(err, strconv.ErrRange) {
		return errors.New("a sample without a number")
	}
	s.at = time.UnixMilli(int64(math.Round(at * 1000))).UTC()
	if !math.IsNaN(v) && !math.IsInf(v, 0) {
		s.value = &v
	}
	return nil
}

type series struct {
	Value  *sample  `json:"value"`
	Values []sample `json:"values"`
}

// decode reads the samples of the one series of a vector, matrix or scalar. None
// is no error.
func decode(body []byte) ([]sample, error) {
	var a struct {
		Status string `json:"status"`
		Error  string `json:"error"`
		Data   struct {
			Type   string          `json:"resultType"`
			Result json.RawMessage `json:"result"`
		} `json:"data"`
	}
	if err := fetch.JSON(body, &a); err != nil {
		return nil, err
	}
	if a.Status != "success" {
		return nil, errors.New(fetch.Remark(fetch.Answer{Status: 200, Body: body}))
	}
	var list []series
	switch a.Data.Type {
	case "scalar":
		var one sample
		if err := json.Unmarshal(a.Data.Result, &one); err != nil {
			return nil, fmt.Errorf("the answer cannot be read: %w", err)
		}
		return []sample{one}, nil
	case "vector", "matrix":
		if err := json.Unmarshal(a.Data.Result, &list); err != nil {
			return nil, fmt.Errorf("the answer cannot be read: %w", err)
		}
	default:
		return nil, fmt.Errorf("a result of type %q instead of vector, matrix or scalar", a.Data.Type)
	}
	switch {
	case len(list) == 0:
		return nil, nil
	case len(list) > 1:
		// A series that was renamed stays visible beside its successor for minutes.
		return nil, &signals.ProviderError{Reason: v1alpha1.ReasonSignalBadAnswer,
			Detail: fmt.Sprintf("the query gives %d series; aggregate or select it to one", len(list))}
	case list[0].Value != nil:
		return []sample{*list[0].Value}, nil
	}
	return list[0].Values, nil
}

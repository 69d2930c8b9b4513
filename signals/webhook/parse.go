package webhook

import (
	"encoding/json"
	"errors"
	"fmt"
	"mime"
	"net/http"
	"net/url"
	"strings"

	"girassol.dev/api/signalpush"
)

// format of a body, by its headers.
type format int

const (
	unknownFormat format = iota
	envelopeFormat
	structuredFormat
	binaryFormat
	batchFormat
)

// formatOf is unknownFormat for what is answered with 415.
func formatOf(h http.Header) format {
	if e := h.Get("Content-Encoding"); e != "" && !strings.EqualFold(e, "identity") {
		return unknownFormat
	}
	media, params, err := mime.ParseMediaType(h.Get("Content-Type"))
	if err != nil {
		return unknownFormat
	}
	if c, ok := params["charset"]; ok && !strings.EqualFold(c, "utf-8") {
		return unknownFormat
	}
	switch media {
	case signalpush.ContentCloudEvent:
		return structuredFormat
	case signalpush.ContentBatch:
		return batchFormat
	case signalpush.ContentJSON:
		if len(h.Values("ce-specversion")) > 0 {
			return binaryFormat
		}
		return envelopeFormat
	}
	return unknownFormat
}

// errBody is a body or header that cannot be read at all, as against one that says
// what cannot be.
var errBody = errors.New("cannot be read")

// binaryAttributes are the headers that a binary CloudEvent is made of. The
// signature does not cover them, so they are part of a delivery's digest.
var binaryAttributes = []string{"ce-specversion", "ce-id", "ce-source", "ce-type", "ce-time", "ce-subject"}

// events reads a body in its format.
func events(f format, h http.Header, body []byte) ([]event, error) {
	switch f {
	case envelopeFormat:
		var e signalpush.Envelope
		if err := unmarshal(body, &e); err != nil {
			return nil, err
		}
		return []event{{kind: e.Type, data: e.Data, at: e.Timestamp}}, nil
	case structuredFormat:
		var c signalpush.CloudEvent
		if err := unmarshal(body, &c); err != nil {
			return nil, err
		}
		e, err := cloudEvent(c)
		return []event{e}, err
	case batchFormat:
		var batch []signalpush.CloudEvent
		if err := unmarshal(body, &batch); err != nil {
			return nil, err
		}
		if len(batch) == 0 || len(batch) > signalpush.MaxBatch {
			return nil, fmt.Errorf("a batch of %d events, want 1 to %d", len(batch), signalpush.MaxBatch)
		}
		out := make([]event, len(batch))
		for i, c := range batch {
			var err error
			if out[i], err = cloudEvent(c); err != nil {
				return nil, fmt.Errorf("event %d: %w", i, err)
			}
		}
		return out, nil
	case binaryFormat:
		return binary(h, body)
	}
	return nil, fmt.Errorf("content type %w", errBody)
}

func binary(h http.Header, body []byte) ([]event, error) {
	attribute := map[string]string{}
	for _, name := range binaryAttributes {
		values := h.Values(name)
		if len(values) > 1 {
			return nil, fmt.Errorf("header %s %w: it is there %d times", name, errBody, len(values))
		}
		if len(values) == 1 {
			text, err := url.PathUnescape(values[0])
			if err != nil {
				return nil, fmt.Errorf("header %s %w: %w", name, errBody, err)
			}
			attribute[name] = text
		}
	}
	if !json.Valid(body) {
		return nil, unmarshal(body, new(json.RawMessage))
	}
	// ce-time is not signed, so it cannot order messages.
	e, err := cloudEvent(signalpush.CloudEvent{
		SpecVersion: attribute["ce-specversion"], ID: attribute["ce-id"], Source: attribute["ce-source"],
		Type: signalpush.Type(attribute["ce-type"]), Data: body,
	})
	if err != nil {
		return nil, fmt.Errorf("headers: %w", err)
	}
	return []event{e}, nil
}

func cloudEvent(c signalpush.CloudEvent) (event, error) {
	switch {
	case c.SpecVersion != "1.0":
		return event{}, fmt.Errorf("%w: specversion %.20q, want 1.0", errBody, c.SpecVersion)
	case c.ID == "" || c.Source == "" || c.Type == "":
		return event{}, fmt.Errorf("%w: a CloudEvent has id, source and type", errBody)
	case c.DataContentType != "" && !isJSON(c.DataContentType):
		return event{}, fmt.Errorf("datacontenttype %.40q, want %s", c.DataContentType, signalpush.ContentJSON)
	case len(c.Data) > 0 && len(c.DataBase64) > 0:
		return event{}, fmt.Errorf("%w: data and data_base64 exclude each other", errBody)
	}
	for _, f := range [][2]string{{"id", c.ID}, {"source", c.Source}} {
		if err := name(f[0], f[1]); err != nil {
			return event{}, fmt.Errorf("%w: %w", errBody, err)
		}
	}
	data := []byte(c.Data)
	if len(data) == 0 {
		data = c.DataBase64
	}
	return event{kind: c.Type, data: data, at: c.Time, id: c.Source + "\n" + c.ID}, nil
}

func isJSON(contentType string) bool {
	media, _, err := mime.ParseMediaType(contentType)
	return err == nil && media == signalpush.ContentJSON
}

// unmarshal tells a body that is no JSON from one that says what cannot be: a NaN
// or an infinity, which JSON does not have and which some senders write all the
// same.
func unmarshal(body []byte, into any) error {
	err := json.Unmarshal(body, into)
	if err == nil {
		return nil
	}
	var syntax *json.SyntaxError
	if !errors.As(err, &syntax) {
		return err
	}
	if from := int(syntax.Offset) - 1; from >= 0 && from < len(body) {
		// The offset is behind the first byte that fits nowhere: the N, the I, or
		// what follows a minus or an N that began like null.
		around := string(body[max(0, from-2):min(len(body), from+8)])
		for _, no := range []string{"NaN", "Infinity", "nan", "Inf", "inf"} {
			if strings.Contains(around, no) {
				return fmt.Errorf("%s is no value: send null where there is none", no)
			}
		}
	}
	return fmt.Errorf("the body %w as JSON: %w", errBody, err)
}

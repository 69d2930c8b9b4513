package fetch

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"mime"
	"net/url"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"girassol.dev/api/federation/v1alpha1"
	"girassol.dev/signals"
)

// JSON decodes a whole body. An empty one, null and {} hold no data.
func JSON(body []byte, into any) error {
	switch string(bytes.TrimSpace(body)) {
	case "":
		return NoData("the body is empty")
	case "{}", "null", "[]":
		return NoData("the answer is empty: %s", bytes.TrimSpace(body))
	}
	if !utf8.Valid(body) {
		return errors.New("the answer is not UTF-8")
	}
	if err := json.Unmarshal(body, into); err != nil {
		return fmt.Errorf("the answer cannot be read: %w", err)
	}
	return nil
}

// NoData is an answer without values.
func NoData(format string, args ...any) *signals.ProviderError {
	return &signals.ProviderError{Reason: v1alpha1.ReasonSignalNoData, Detail: fmt.Sprintf(format, args...)}
}

// ParseTime reads RFC 3339 and the same without seconds. An offset is mandatory,
// since a time without one could mean any zone, and so is a year from 1970 to
// 9998.
func ParseTime(s string) (time.Time, error) {
	t, err := time.Parse(time.RFC3339, s)
	if err != nil {
		var short error
		if t, short = time.Parse("2006-01-02T15:04Z07:00", s); short != nil {
			return time.Time{}, fmt.Errorf("%q is no time with an offset", excerpt([]byte(s)))
		}
	}
	if t = t.UTC(); t.Year() < 1970 || t.Year() > 9998 {
		return time.Time{}, fmt.Errorf("%q is no time of our days", excerpt([]byte(s)))
	}
	return t, nil
}

// IsJSON says that an answer declares itself as JSON.
func IsJSON(a Answer) bool {
	kind, _, err := mime.ParseMediaType(a.Header.Get("Content-Type"))
	return err == nil && (kind == "application/json" || kind == "text/json" || strings.HasSuffix(kind, "+json"))
}

// Remark is what an error body says, for people: the text of its usual fields,
// or the beginning of plain text, but no pages.
func Remark(a Answer) string {
	status := fmt.Sprintf("status %d", a.Status)
	body := bytes.TrimSpace(a.Body)
	if len(body) == 0 {
		return status
	}
	if body[0] == '<' {
		return status + " with a page instead of data"
	}
	var fields map[string]json.RawMessage
	if json.Unmarshal(body, &fields) == nil {
		if text := remark(fields, 0); text != "" {
			return status + ": " + text
		}
	}
	return status + ": " + excerpt(body)
}

func remark(fields map[string]json.RawMessage, depth int) string {
	var parts []string
	for _, name := range []string{"error", "errorType", "message", "msg", "detail", "title"} {
		raw, ok := fields[name]
		if !ok {
			continue
		}
		var text string
		var inner map[string]json.RawMessage
		switch {
		case json.Unmarshal(raw, &text) == nil:
		case depth == 0 && json.Unmarshal(raw, &inner) == nil:
			text = remark(inner, depth+1)
		default:
			text = string(raw)
		}
		if text = excerpt([]byte(text)); text != "" {
			parts = append(parts, text)
		}
	}
	return strings.Join(parts, ": ")
}

// mostExcerpt of what others wrote, in runes.
const mostExcerpt = 200

// excerpt is the beginning of a text, on one line and printable.
func excerpt(b []byte) string {
	var out strings.Builder
	n, space := 0, false
	for _, r := range string(b[:min(len(b), 8*mostExcerpt)]) {
		if unicode.IsSpace(r) || !unicode.IsPrint(r) || r == utf8.RuneError {
			space = n > 0
			continue
		}
		if n >= mostExcerpt {
			out.WriteString("…")
			break
		}
		if space {
			out.WriteByte(' ')
			space = false
		}
		out.WriteRune(r)
		n++
	}
	return out.String()
}

// scrub takes secrets out of a text, as they are and as they look in a URL and in
// JSON.
func scrub(text string, secrets []string) string {
	for _, s := range secrets {
		if len(s) < 3 {
			continue // it would tear words apart, and tells as little
		}
		for _, form := range []string{s, url.QueryEscape(s), url.PathEscape(s), strings.ReplaceAll(s, "/", `\/`)} {
			text = strings.ReplaceAll(text, form, redacted)
		}
	}
	return text
}

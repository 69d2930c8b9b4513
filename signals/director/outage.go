package director

import (
	"log/slog"
	"regexp"
)

// outage is a failure that goes on: the errors that were logged and how often
// there was one.
type outage struct {
	logged map[string]bool
	count  int
}

// mostErrors that are told apart while a failure goes on.
const mostErrors = 16

// failure records the present failure and counts it. Each error is logged once
// until there is none; those that differ in numbers only (a time, a port, a
// request's id) are the same.
func (s *site) failure(r *outage, field func(*Explanation) *string, text, message string) {
	s.show(func(e *Explanation) { *field(e) = text })
	s.outage(r, text, message)
}

func (s *site) outage(r *outage, text, message string) { noteOutage(s.log, r, text, message) }

func noteOutage(log *slog.Logger, r *outage, text, message string) {
	if text == "" {
		if r.count > 0 {
			log.Info("recovered", "from", message, "failures", r.count)
		}
		*r = outage{}
		return
	}
	r.count++
	if key := withoutNumbers(text); !r.logged[key] && len(r.logged) < mostErrors {
		if r.logged == nil {
			r.logged = map[string]bool{}
		}
		r.logged[key] = true
		log.Warn(message, "error", text, "failures", r.count)
	}
}

var numbers = regexp.MustCompile(`[0-9]+`)

func withoutNumbers(text string) string { return numbers.ReplaceAllString(text, "#") }

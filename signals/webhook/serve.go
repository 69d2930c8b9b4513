package webhook

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"math"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"girassol.dev/api/signalpush"
	"girassol.dev/internal/webhooksig"
)

// refusal is an answer other than that a message was taken. The words are for the
// sender's person.
type refusal struct {
	status  int
	reason  string
	message string
	// again is when to come again; 0 for no advice.
	again time.Duration
}

func (r *refusal) Error() string { return r.reason + ": " + r.message }

// The reasons of refusals.
const (
	reasonMethod       = "MethodNotAllowed"
	reasonContentType  = "UnsupportedContentType"
	reasonTooLarge     = "TooLarge"
	reasonSlow         = "TooSlow"
	reasonHeaders      = "BadHeaders"
	reasonBody         = "BadBody"
	reasonSignature    = "BadSignature"
	reasonTimestamp    = "BadTimestamp"
	reasonForbidden    = "TargetNotAllowed"
	reasonReused       = "IDReused"
	reasonInvalid      = "Invalid"
	reasonRate         = "TooManyRequests"
	reasonStore        = "StoreUnavailable"
	allowedMethods     = "GET, OPTIONS, POST"
	contentTypeOptions = "X-Content-Type-Options"
)

func refuse(status int, reason, message string) *refusal {
	return &refusal{status: status, reason: reason, message: message}
}

// ServeHTTP answers POST, and the handshakes of OpenADR (GET ?echo=) and of
// CloudEvents (OPTIONS).
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set(contentTypeOptions, "nosniff")
	w.Header().Set("Cache-Control", "no-store")
	switch r.Method {
	case http.MethodPost:
		h.post(w, r)
	case http.MethodGet, http.MethodHead:
		h.echo(w, r)
	case http.MethodOptions:
		h.options(w, r)
	default:
		w.Header().Set("Allow", allowedMethods)
		h.write(w, nobody, refuse(http.StatusMethodNotAllowed, reasonMethod, "use POST"))
	}
}

const maxEcho = 512

// echo proves to an OpenADR server that this address wants its notifications.
func (h *Handler) echo(w http.ResponseWriter, r *http.Request) {
	text := r.URL.Query().Get("echo")
	if text == "" || len(text) > maxEcho {
		w.Header().Set("Allow", allowedMethods)
		h.write(w, nobody, refuse(http.StatusMethodNotAllowed, reasonMethod, "use POST, or GET with ?echo= of at most "+strconv.Itoa(maxEcho)+" bytes"))
		return
	}
	h.metrics.answered(nobody, http.StatusOK)
	// Plain text that may not be sniffed cannot become a page.
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_, _ = io.WriteString(w, text)
}

// options grants a CloudEvents sender's wish to deliver. The asynchronous form, by
// a callback URL, is not served: it would make this server call strangers.
func (h *Handler) options(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Allow", allowedMethods)
	origin := r.Header.Get("WebHook-Request-Origin")
	switch {
	case origin == "" || len(origin) > maxEcho:
		h.write(w, nobody, refuse(http.StatusBadRequest, reasonHeaders, "want WebHook-Request-Origin"))
		return
	case len(h.config.AllowedOrigins) > 0 && !slices.Contains(h.config.AllowedOrigins, origin):
		h.write(w, nobody, refuse(http.StatusForbidden, reasonForbidden, "this origin is not expected"))
		return
	}
	w.Header().Set("WebHook-Allowed-Origin", origin)
	rate := 0
	for _, s := range h.order {
		rate = max(rate, s.PerMinute)
	}
	w.Header().Set("WebHook-Allowed-Rate", strconv.Itoa(rate))
	h.metrics.answered(nobody, http.StatusOK)
	w.WriteHeader(http.StatusOK)
}

func (h *Handler) post(w http.ResponseWriter, r *http.Request) {
	select {
	case h.slots <- struct{}{}:
		defer func() { <-h.slots }()
	default:
		h.write(w, nobody, &refusal{http.StatusTooManyRequests, reasonRate, "too many requests at once", time.Second})
		return
	}
	s, results, err := h.receive(w, r)
	source := nobody
	if s != nil {
		source = s.Name
	}
	if err != nil {
		var no *refusal
		if !errors.As(err, &no) {
			no = refuse(http.StatusInternalServerError, reasonStore, err.Error())
		}
		if s != nil {
			s.log.Warn("pushed message refused", "status", no.status, "reason", no.reason, "message", no.message)
		} else {
			h.config.Log.Debug("pushed message refused", "status", no.status, "reason", no.reason, "remote", r.RemoteAddr)
		}
		h.write(w, source, no)
		return
	}
	answer := signalpush.Answer{Result: results[0], Message: words[results[0]]}
	if len(results) > 1 {
		answer.Events = results
		if slices.Contains(results, signalpush.Stored) {
			answer.Result, answer.Message = signalpush.Stored, words[signalpush.Stored]
		}
	}
	status := http.StatusOK
	if answer.Result == signalpush.Stored {
		status = http.StatusAccepted
	}
	h.metrics.answered(source, status)
	writeJSON(w, status, answer)
}

var words = map[signalpush.Result]string{
	signalpush.Stored:     "taken",
	signalpush.Duplicate:  "taken before",
	signalpush.Superseded: "ignored: something generated later is known",
	signalpush.Expired:    "ignored: it is not valid any more",
}

// receive does all of a POST but the answer. The sender is nil until it is known.
func (h *Handler) receive(w http.ResponseWriter, r *http.Request) (*sender, []signalpush.Result, error) {
	f := formatOf(r.Header)
	if f == unknownFormat {
		return nil, nil, refuse(http.StatusUnsupportedMediaType, reasonContentType, "use "+signalpush.ContentJSON+", "+
			signalpush.ContentCloudEvent+" or "+signalpush.ContentBatch+", in UTF-8 and not compressed")
	}
	tooLarge := refuse(http.StatusRequestEntityTooLarge, reasonTooLarge, "the most is "+strconv.Itoa(signalpush.MaxBody)+" bytes")
	if r.ContentLength > signalpush.MaxBody {
		return nil, nil, tooLarge
	}
	claim, err := claimOf(r)
	if err != nil {
		return nil, nil, refuse(http.StatusBadRequest, reasonHeaders, err.Error())
	}
	// A sender that trickles must not hold a slot; not every writer has deadlines.
	connection := http.NewResponseController(w)
	_ = connection.SetReadDeadline(time.Now().Add(h.config.BodyTimeout))
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, signalpush.MaxBody))
	if err == nil {
		// Past it, the server would take the sender for gone while we still store.
		_ = connection.SetReadDeadline(time.Time{})
	}
	if err != nil {
		w.Header().Set("Connection", "close")
		var large *http.MaxBytesError
		var network net.Error
		switch {
		case errors.As(err, &large):
			return nil, nil, tooLarge
		case errors.As(err, &network) && network.Timeout():
			return nil, nil, refuse(http.StatusRequestTimeout, reasonSlow, "the body took longer than "+h.config.BodyTimeout.String())
		}
		return nil, nil, refuse(http.StatusBadRequest, reasonBody, "the body ended early")
	}
	now := h.config.Clock.Now()
	s, err := h.authenticate(claim, r, body, now)
	if s == nil || err != nil {
		return s, nil, err
	}
	if wait, ok := s.bucket.take(now); !ok {
		return s, nil, &refusal{http.StatusTooManyRequests, reasonRate, "more than " + strconv.Itoa(s.PerMinute) + " a minute", wait}
	}
	ctx, cancel := context.WithTimeout(r.Context(), h.config.StoreTimeout)
	defer cancel()
	results, err := h.accept(ctx, s, delivery(claim, f, r.Header, body), now, func() ([]Message, error) {
		return h.messages(s, f, r.Header, body, now)
	})
	return s, results, err
}

// messages reads and checks all of a body; one bad event refuses the whole.
func (h *Handler) messages(s *sender, f format, header http.Header, body []byte, now time.Time) ([]Message, error) {
	messages, err := h.decode(s, f, header, body, now)
	if errors.Is(err, errBody) {
		return nil, refuse(http.StatusBadRequest, reasonBody, err.Error())
	}
	if err != nil {
		return nil, refuse(http.StatusUnprocessableEntity, reasonInvalid, err.Error())
	}
	for _, m := range messages {
		if !s.mayTarget(m.Target) {
			return nil, refuse(http.StatusForbidden, reasonForbidden, "source "+s.Name+" may not speak for "+m.Target.String())
		}
	}
	return messages, nil
}

func (h *Handler) decode(s *sender, f format, header http.Header, body []byte, now time.Time) ([]Message, error) {
	if s.Decoder != nil {
		messages, err := s.Decoder.Decode(body, now)
		for i := range messages {
			if err == nil {
				err = messages[i].check()
			}
		}
		return messages, err
	}
	es, err := events(f, header, body)
	if err != nil {
		return nil, err
	}
	messages := make([]Message, len(es))
	for i, e := range es {
		if messages[i], err = e.message(now, limits{h.config.MaxCurtailment, h.config.MaxOverride}); err != nil {
			if len(es) > 1 {
				err = indexed(i, err)
			}
			return nil, err
		}
	}
	return messages, nil
}

// claim is how a request says that it may be believed.
type claim struct {
	signed *webhooksig.Signed
	token  string
	source string // as the request names it, perhaps ""
}

// claimOf reads the headers; its errors are of the caller's making.
func claimOf(r *http.Request) (claim, error) {
	c := claim{source: r.Header.Get(signalpush.HeaderSource)}
	for _, name := range []string{webhooksig.HeaderID, webhooksig.HeaderTimestamp, webhooksig.HeaderSignature} {
		if len(r.Header.Values(name)) > 0 {
			signed, err := webhooksig.Read(r.Header)
			c.signed = &signed
			return c, err
		}
	}
	if scheme, token, ok := strings.Cut(r.Header.Get("Authorization"), " "); ok && strings.EqualFold(scheme, "Bearer") {
		c.token = strings.TrimSpace(token)
	}
	return c, nil
}

// authenticate finds the source whose key fits. The source is returned with the
// error where it is the timestamp only that is wrong.
func (h *Handler) authenticate(c claim, r *http.Request, body []byte, now time.Time) (*sender, error) {
	for _, s := range h.order {
		if c.source != "" && c.source != s.Name {
			continue
		}
		failed := func(path string, err error) { h.keyFile(s, path, err) }
		switch {
		case c.signed != nil:
			if !c.signed.By(s.secrets.now(failed), body) {
				continue
			}
			if err := c.signed.Timely(now); err != nil {
				return s, refuse(http.StatusUnauthorized, reasonTimestamp, err.Error())
			}
			return s, nil
		case c.token != "":
			if has(s.bearers, c.token, failed) {
				return s, nil
			}
		case s.Unsigned && direct(r):
			return s, nil
		}
	}
	if c.signed == nil && c.token == "" {
		return nil, refuse(http.StatusBadRequest, reasonHeaders, "want "+webhooksig.HeaderID+", "+webhooksig.HeaderTimestamp+" and "+webhooksig.HeaderSignature)
	}
	return nil, refuse(http.StatusUnauthorized, reasonSignature, "no secret fits this message as it arrived")
}

// direct says that a request comes from this machine and from no proxy on it.
func direct(r *http.Request) bool {
	for _, name := range []string{"Forwarded", "X-Forwarded-For", "X-Real-Ip", "Via"} {
		if len(r.Header.Values(name)) > 0 {
			return false
		}
	}
	remote, err := netip.ParseAddrPort(r.RemoteAddr)
	return err == nil && remote.Addr().Unmap().IsLoopback()
}

func (h *Handler) keyFile(s *sender, path string, err error) {
	if err == nil {
		s.log.Info("secrets can be read again", "file", path)
		return
	}
	h.metrics.keyErrors.WithLabelValues(s.Name).Inc()
	s.log.Error("secrets cannot be read", "file", path, "error", err)
}

func (h *Handler) write(w http.ResponseWriter, source string, no *refusal) {
	h.metrics.answered(source, no.status)
	if no.again > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(max(1, int(math.Ceil(no.again.Seconds())))))
	}
	writeJSON(w, no.status, signalpush.Answer{Result: signalpush.Refused, Reason: no.reason, Message: no.message})
}

func writeJSON(w http.ResponseWriter, status int, answer signalpush.Answer) {
	w.Header().Set("Content-Type", signalpush.ContentJSON)
	w.WriteHeader(status)
	// The sender may have gone: then it will ask again.
	_ = json.NewEncoder(w).Encode(answer)
}

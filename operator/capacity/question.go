package capacity

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"strconv"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/api/provisioning"
	"girassol.dev/internal/webhooksig"
	"girassol.dev/operator/membership"
	provisioningapi "girassol.dev/operator/provisioning"
)

const (
	answerTimeout = 10 * time.Second
	// maxAnswer in bytes; longer ones are not read.
	maxAnswer = 64 << 10
)

// question is one request to a provisioner: a wish, or with poll set a question
// for the outcome.
type question struct {
	hook   *webhook
	key    string
	url    string
	poll   string
	secret client.ObjectKey
	field  string
	body   []byte
}

func (h *webhook) question(s *v1alpha1.Site, e *errand) question {
	w, _ := provisioningapi.WishOf(s)
	if h.callback != "" {
		w.Callback = h.callback + "/v1/provisioning/" + s.Namespace + "/" + s.Name + "/result"
	}
	body, _ := json.Marshal(w) // strings, numbers and times: it cannot fail
	spec := s.Spec.Capacity.Webhook
	q := question{hook: h, key: e.key, url: spec.URL, body: body,
		secret: client.ObjectKey{Namespace: s.Namespace, Name: spec.Secret.Name}, field: spec.Secret.Key}
	if e.taken {
		q.poll = e.poll
	}
	return q
}

// ask sends the question and reads the reply. Nothing that it says holds a secret
// or a URL, which may hold one.
func (q question) ask(ctx context.Context) reply {
	secrets, fault := q.secrets(ctx)
	if fault != nil {
		return reply{fault: fault}
	}
	req, err := q.request(ctx, secrets)
	if err != nil {
		return reply{fault: &membership.Fault{Reason: v1alpha1.ReasonInvalidSpec, Message: err.Error()}}
	}
	resp, err := q.hook.client.Do(req)
	if err != nil {
		return unreachable(req.URL, plain(err), 0)
	}
	defer func() { _ = resp.Body.Close() }()
	raw, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	if err != nil {
		return unreachable(req.URL, plain(err), 0)
	}
	return q.read(req.URL, resp, raw)
}

// read says what a complete answer means.
func (q question) read(from *url.URL, resp *http.Response, raw []byte) reply {
	status := strconv.Itoa(resp.StatusCode)
	if text := http.StatusText(resp.StatusCode); text != "" {
		status += " " + text
	}
	switch code := resp.StatusCode; {
	case code == http.StatusRequestTimeout, code == http.StatusTooManyRequests, code >= 500:
		return unreachable(from, "it answered "+status, retryAfter(resp.Header.Get("Retry-After"), q.hook.now()))
	case q.poll != "" && (code == http.StatusNotFound || code == http.StatusGone):
		r := unreachable(from, "it no longer knows the wish that it had taken ("+status+"); it is asked again", 0)
		r.lost = true
		return r
	case code >= 400:
		return refused(from, "it answered "+status+words(raw))
	case code >= 300:
		return refused(from, "it answered "+status+"; redirects are not followed: put the final address into capacity.webhook.url")
	case len(raw) > maxAnswer:
		return unreachable(from, fmt.Sprintf("its answer has more than %d bytes", maxAnswer), 0)
	case code == http.StatusAccepted && len(bytes.TrimSpace(raw)) == 0:
		return reply{answer: provisioning.Answer{State: provisioning.Pending}}
	case code != http.StatusOK && code != http.StatusAccepted:
		return unreachable(from, "it answered "+status+", want 200 or 202", 0)
	}
	a, err := parseAnswer(raw, from)
	if err != nil {
		return unreachable(from, "its answer is none: "+err.Error(), 0)
	}
	if resp.StatusCode == http.StatusAccepted && a.State != provisioning.Pending {
		return unreachable(from, fmt.Sprintf("it answered 202 with state %s, which goes with 200", a.State), 0)
	}
	return reply{answer: a}
}

func (q question) request(ctx context.Context, secrets []webhooksig.Secret) (*http.Request, error) {
	if _, err := provisionerURL(q.url); err != nil {
		return nil, err
	}
	if err := webhooksig.CheckID(q.key); err != nil {
		return nil, fmt.Errorf("the wish's key is no id: %w", err)
	}
	now := q.hook.now()
	method, to, id, body := http.MethodPost, q.url, q.key, q.body
	if q.poll != "" {
		method, to, id, body = http.MethodGet, q.poll, q.key+".poll."+strconv.FormatInt(now.UnixNano(), 36), nil
	}
	req, err := http.NewRequestWithContext(ctx, method, to, bytes.NewReader(body))
	if err != nil {
		return nil, errors.New("capacity.webhook.url is no URL")
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set(provisioning.HeaderIdempotencyKey, q.key)
	}
	req.Header.Set("Accept", "application/json")
	req.Header.Set("User-Agent", "girassol-operator")
	webhooksig.Set(req.Header, secrets, id, now, body)
	return req, nil
}

func (q question) secrets(ctx context.Context) ([]webhooksig.Secret, *membership.Fault) {
	secret := &corev1.Secret{}
	if err := q.hook.secrets.Get(ctx, q.secret, secret); err != nil {
		switch {
		case apierrors.IsNotFound(err):
			return nil, &membership.Fault{Reason: v1alpha1.ReasonSecretNotFound, Message: fmt.Sprintf(
				"Secret %s, named by capacity.webhook.secret, does not exist: create it with a whsec_... under %s", q.secret.Name, q.field)}
		case apierrors.IsForbidden(err):
			return nil, &membership.Fault{Reason: v1alpha1.ReasonSecretNotFound, Message: fmt.Sprintf(
				"Secret %s, named by capacity.webhook.secret, may not be read: give the operator the verb get on secrets in this namespace", q.secret.Name)}
		}
		return nil, &membership.Fault{Reason: v1alpha1.ReasonProvisionerUnreachable, Message: fmt.Sprintf(
			"Secret %s, named by capacity.webhook.secret, cannot be read now: %s", q.secret.Name, plain(err))}
	}
	secrets, err := provisioningapi.Secrets(secret, q.field)
	if err != nil {
		return nil, &membership.Fault{Reason: v1alpha1.ReasonSecretInvalid, Message: err.Error()}
	}
	return secrets, nil
}

func unreachable(u *url.URL, why string, again time.Duration) reply {
	return reply{again: again, fault: &membership.Fault{Reason: v1alpha1.ReasonProvisionerUnreachable,
		Message: fmt.Sprintf("no usable answer from the provisioner at %s: %s", u.Host, why)}}
}

func refused(u *url.URL, why string) reply {
	return reply{fault: &membership.Fault{Reason: v1alpha1.ReasonProvisionerRefused,
		Message: fmt.Sprintf("the provisioner at %s refuses the wish: %s", u.Host, why)}}
}

// words of a refusal, as far as it is a Problem.
func words(raw []byte) string {
	var p provisioning.Problem
	if len(raw) > maxAnswer || json.Unmarshal(raw, &p) != nil || p.Message == "" {
		return ""
	}
	return ": " + clip(p.Message)
}

// plain takes the URL out of an error, and the noise out of a timeout.
func plain(err error) string {
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded) {
		return "it did not answer in time"
	}
	if u := (*url.Error)(nil); errors.As(err, &u) {
		err = u.Err
	}
	if op := (*net.OpError)(nil); errors.As(err, &op) { // without ports, which change
		return op.Op + ": " + clip(op.Err.Error())
	}
	return clip(err.Error())
}

// retryAfter reads seconds or an HTTP date; 0 for none.
func retryAfter(s string, now time.Time) time.Duration {
	if n, err := strconv.ParseInt(s, 10, 32); err == nil && n >= 0 {
		return time.Duration(n) * time.Second
	}
	if at, err := http.ParseTime(s); err == nil {
		return max(0, at.Sub(now))
	}
	return 0
}

// outbound is a transport for addresses that tenants choose: everything is
// bounded, and link-local addresses, where clouds serve their machines'
// credentials, are not reached.
func outbound() *http.Transport {
	d := &net.Dialer{Timeout: 5 * time.Second, Control: func(_, address string, _ syscall.RawConn) error {
		to, err := netip.ParseAddrPort(address)
		if err != nil {
			return err
		}
		if a := to.Addr().Unmap(); a.IsLinkLocalUnicast() || a.IsMulticast() || a.IsUnspecified() {
			return fmt.Errorf("%s is not reached: link-local, multicast and unspecified addresses are refused", a)
		}
		return nil
	}}
	return &http.Transport{
		DialContext:            d.DialContext,
		TLSHandshakeTimeout:    5 * time.Second,
		ResponseHeaderTimeout:  answerTimeout,
		MaxResponseHeaderBytes: maxAnswer,
		IdleConnTimeout:        30 * time.Second,
		MaxIdleConnsPerHost:    1,
		ForceAttemptHTTP2:      true,
		DisableCompression:     true,
	}
}

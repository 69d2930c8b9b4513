package fetch

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"girassol.dev/signals"
)

// Request is one question to a provider. Equal questions of one account (URL,
// variant and identity) share calls and answers.
type Request struct {
	// Provider, Region and Endpoint name the question in errors, logs and
	// metrics.
	Provider, Region, Endpoint string
	// Scope is what a failure of the provider concerns, besides the account.
	// Default Region and Endpoint.
	Scope string
	// URL without credentials. A GET is made.
	URL string
	// Variant tells questions apart that have one URL and are decoded differently.
	Variant string
	// Auth is nil for open providers.
	Auth Authorizer
	// Login says that the answer is a credential for other questions, so that it
	// ends no failure of theirs.
	Login bool
	// AllowPlain lets credentials travel over http to other machines.
	AllowPlain bool
	// Bucket is the rate limit that counts. Default the URL's host.
	Bucket string
	// Limit of the bucket when it is first used; zero is the default.
	Limit Limit
	// Period of the signal bounds how long a failing provider is left alone, as
	// far as it is known.
	Period time.Duration
	// Classify gives the provider's own meaning to an answer that is not 2xx;
	// nil, or nil from it, is the general one.
	Classify func(Answer) *signals.ProviderError
}

// Answer is what a provider said.
type Answer struct {
	Status int
	Header http.Header
	Body   []byte
	// Received in the signals' clock.
	Received time.Time
}

// Result is a decoded answer and how long it is good.
type Result[T any] struct {
	// Value is shared by all who ask and must not be changed.
	Value T
	// Point and Period of the newest point: the answer is good until there should
	// be another.
	Point  time.Time
	Period time.Duration
	// Until, if not zero, is how long it is good instead. An answer with neither
	// is not kept.
	Until time.Time
}

// Authorizer adds an account's credentials to calls.
type Authorizer interface {
	// Identity of the account, made by the function Identity.
	Identity() (string, error)
	// Authorize adds credentials to a header and tells what must never be shown.
	Authorize(ctx context.Context, h http.Header) (secrets []string, err error)
}

// Renewer is an Authorizer with a credential that runs out: after a 401 it is
// renewed, and the call made once more.
type Renewer interface {
	Authorizer
	// Renew is told the secrets that were refused.
	Renew(ctx context.Context, secrets []string) error
}

// HeaderAuth sends a secret in a header, such as "auth-token", behind a prefix
// such as "Bearer ".
func HeaderAuth(header, prefix string, s *Secret) Authorizer {
	return headerAuth{header, prefix, s}
}

type headerAuth struct {
	header, prefix string
	secret         *Secret
}

func (a headerAuth) Identity() (string, error) {
	v, err := a.secret.Reveal()
	return Identity(a.header, v), err
}

func (a headerAuth) Authorize(_ context.Context, h http.Header) ([]string, error) {
	v, err := a.secret.Reveal()
	if err != nil {
		return nil, err
	}
	h.Set(a.header, a.prefix+v)
	return []string{v}, nil
}

// BasicAuth is HTTP Basic.
func BasicAuth(user, password *Secret) Authorizer { return basicAuth{user, password} }

type basicAuth struct{ user, password *Secret }

func (a basicAuth) reveal() (user, password string, err error) {
	if user, err = a.user.Reveal(); err == nil {
		password, err = a.password.Reveal()
	}
	if err == nil && strings.Contains(user, ":") {
		err = errors.New("the user name holds a colon, which HTTP Basic cannot carry")
	}
	return user, password, err
}

func (a basicAuth) Identity() (string, error) {
	u, p, err := a.reveal()
	return Identity("basic", u, p), err
}

func (a basicAuth) Authorize(_ context.Context, h http.Header) ([]string, error) {
	u, p, err := a.reveal()
	if err != nil {
		return nil, err
	}
	both := base64.StdEncoding.EncodeToString([]byte(u + ":" + p))
	h.Set("Authorization", "Basic "+both)
	return []string{both, p, u}, nil
}

// BaseURL checks the address of a provider's API and returns it without a
// trailing slash; empty is standard.
func BaseURL(base, standard string) (string, error) {
	if base == "" {
		base = standard
	}
	u, err := url.Parse(base)
	if err != nil { // the error would show the text
		return "", fmt.Errorf("the base URL is no URL")
	}
	switch {
	case u.User != nil:
		return "", fmt.Errorf("the base URL holds credentials, give them apart")
	case u.Scheme != "http" && u.Scheme != "https", u.Host == "", u.RawQuery != "", u.Fragment != "":
		return "", fmt.Errorf("the base URL %q is not of the form https://host/path", base)
	}
	for len(base) > 0 && base[len(base)-1] == '/' {
		base = base[:len(base)-1]
	}
	return base, nil
}

// loopback says that a call to the host stays on this machine.
func loopback(host string) bool {
	if host == "localhost" {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}

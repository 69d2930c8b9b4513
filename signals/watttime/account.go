// Package watttime reads WattTime's API v3: the marginal and the average
// intensity of a region, its forecast and history, and the percentile of the
// index. It owns WattTime's fields, its login and what its errors mean. It must
// not know sites, thresholds or training.
//
// Intensities arrive in pounds per MWh and leave in gCO2/kWh. The index is a
// percentile and is never taken for an intensity.
package watttime

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"girassol.dev/api/federation/v1alpha1"
	"girassol.dev/signals"
	"girassol.dev/signals/fetch"
)

const (
	provider    = "watttime"
	standardURL = "https://api.watttime.org"
	// tokenLife is 30 minutes; it is renewed before that.
	tokenUse = 25 * time.Minute
)

// WattTime allows 3000 calls and 100 logins in five minutes.
var (
	dataLimit  = fetch.Limit{Every: time.Second / 8, Burst: 16}
	loginLimit = fetch.Limit{Every: 30 * time.Second, Burst: 2}
)

// AccountConfig of an Account.
type AccountConfig struct {
	Client         *fetch.Client
	User, Password *fetch.Secret
	// BaseURL without /v3. Default https://api.watttime.org.
	BaseURL string
}

// Account logs in for all sources of one user. Its token is shared by them and
// by other Accounts of the same client and user.
type Account struct {
	client *fetch.Client
	base   string
	host   string
	basic  fetch.Authorizer
}

// NewAccount checks the configuration; it makes no call.
func NewAccount(c AccountConfig) (*Account, error) {
	if c.Client == nil || c.User == nil || c.Password == nil {
		return nil, errors.New("watttime: an account needs a client, a user and a password")
	}
	base, err := fetch.BaseURL(c.BaseURL, standardURL)
	if err != nil {
		return nil, fmt.Errorf("watttime: %w", err)
	}
	u, err := url.Parse(base)
	if err != nil {
		return nil, fmt.Errorf("watttime: base URL: %w", err)
	}
	return &Account{client: c.Client, base: base, host: u.Host, basic: fetch.BasicAuth(c.User, c.Password)}, nil
}

// Identity implements fetch.Authorizer.
func (a *Account) Identity() (string, error) { return a.basic.Identity() }

// Authorize implements fetch.Authorizer with a token.
func (a *Account) Authorize(ctx context.Context, h http.Header) ([]string, error) {
	token, err := fetch.Get(ctx, a.client, a.login(), decodeToken)
	if err != nil {
		return nil, err
	}
	h.Set("Authorization", "Bearer "+token)
	return []string{token}, nil
}

// Renew implements fetch.Renewer: the token is dropped, unless another call has
// renewed it meanwhile, and the next Authorize logs in. Many calls that are
// refused at once make one login.
func (a *Account) Renew(_ context.Context, secrets []string) error {
	a.client.Forget(a.login(), func(v any) bool {
		token, ok := v.(string)
		return ok && len(secrets) > 0 && token == secrets[0]
	})
	return nil
}

func (a *Account) login() fetch.Request {
	return fetch.Request{
		Provider: provider, Endpoint: "login", URL: a.base + "/login", Auth: a.basic, Login: true,
		Bucket: a.host + "#login", Limit: loginLimit,
		Classify: func(an fetch.Answer) *signals.ProviderError {
			if an.Status != http.StatusUnauthorized && an.Status != http.StatusForbidden {
				return nil
			}
			// Plain text or a page: never by its content.
			return &signals.ProviderError{Reason: v1alpha1.ReasonSignalUnauthorized, Permanent: true,
				Detail: "the login was refused, check user and password: " + fetch.Remark(an)}
		},
	}
}

func decodeToken(a fetch.Answer) (fetch.Result[string], error) {
	var body struct {
		Token string `json:"token"`
	}
	if err := fetch.JSON(a.Body, &body); err != nil {
		return fetch.Result[string]{}, err
	}
	if body.Token == "" {
		return fetch.Result[string]{}, errors.New("the login gave no token")
	}
	for _, r := range body.Token {
		if r <= ' ' || r > '~' {
			return fetch.Result[string]{}, errors.New("the login gave a token that no header can carry")
		}
	}
	return fetch.Result[string]{Value: body.Token, Until: a.Received.Add(tokenUse)}, nil
}

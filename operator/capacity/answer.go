package capacity

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"

	"girassol.dev/api/provisioning"
)

// maxURL in characters, as of spec.capacity.webhook.url.
const maxURL = 2048

// parseAnswer reads an answer that came from a URL. Fields that the contract does
// not know are passed over; what it knows must be right. Poll is made absolute.
func parseAnswer(raw []byte, from *url.URL) (provisioning.Answer, error) {
	var a provisioning.Answer
	d := json.NewDecoder(bytes.NewReader(raw))
	if err := d.Decode(&a); err != nil {
		return provisioning.Answer{}, errors.New("it is not the JSON of docs/provisioning.md")
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return provisioning.Answer{}, errors.New("there is more after its JSON")
	}
	switch a.State {
	case provisioning.Pending, provisioning.Done, provisioning.Failed:
	default:
		return provisioning.Answer{}, fmt.Errorf("its state is %q, want Pending, Done or Failed", clip(string(a.State)))
	}
	a.Message = clip(a.Message)
	if a.Poll != "" {
		poll := sameHost(from.String(), a.Poll)
		if poll == "" {
			return provisioning.Answer{}, fmt.Errorf("its poll must be a path or a URL on %s, of at most %d characters", from.Host, maxURL)
		}
		a.Poll = poll
	}
	return a, nil
}

// sameHost resolves a reference against a base and gives an absolute URL of the
// same scheme, host and port, or nothing.
func sameHost(base, reference string) string {
	if reference == "" || len(reference) > maxURL {
		return ""
	}
	b, err := provisionerURL(base)
	if err != nil {
		return ""
	}
	r, err := url.Parse(reference)
	if err != nil {
		return ""
	}
	to := b.ResolveReference(r)
	if to.Scheme != b.Scheme || to.Host != b.Host || to.User != nil || to.Opaque != "" {
		return ""
	}
	to.Fragment, to.RawFragment = "", ""
	if s := to.String(); len(s) <= maxURL {
		return s
	}
	return ""
}

// provisionerURL checks an address: https, or http on loopback.
func provisionerURL(s string) (*url.URL, error) {
	u, err := url.Parse(s)
	if err != nil || u.Host == "" || u.Opaque != "" {
		return nil, errors.New("capacity.webhook.url is no URL: write https://host/path")
	}
	loopback := u.Hostname() == "localhost" || u.Hostname() == "127.0.0.1" || u.Hostname() == "::1"
	if u.Scheme != "https" && (u.Scheme != "http" || !loopback) {
		return nil, errors.New("capacity.webhook.url must be https; plain http is for loopback only")
	}
	if u.User != nil {
		return nil, errors.New("capacity.webhook.url holds a user: requests are signed instead; take it out")
	}
	return u, nil
}

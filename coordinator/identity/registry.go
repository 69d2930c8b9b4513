// Package identity knows who may speak: one-time tokens, the certificates that were
// issued for them and renewed, and what was revoked.
//
// Registry is the pure core: a value that changes by calls that are given the time.
// Store keeps one on disk, where each change is synced before anyone hears of it.
// It must not know gRPC, HTTP or sessions.
package identity

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/internal/enrol"
)

// Limits of what is kept.
const (
	maxTokens       = 4096 // not used and not expired
	maxCertificates = 1024 // of one site, in force
	maxRevoked      = 65536
)

// remember is how long tokens and certificates are kept after their end, so that
// who comes with one still hears what is wrong.
const remember = 7 * 24 * time.Hour

// Bounds of a token's life.
const (
	DefaultTokenLife = time.Hour
	MaxTokenLife     = 30 * 24 * time.Hour
)

// Error is a refusal with its reason.
type Error struct {
	Reason  v1alpha1.Reason
	Message string
}

func (e *Error) Error() string { return string(e.Reason) + ": " + e.Message }

// ErrFull says that no more can be kept.
var ErrFull = errors.New("too many tokens or certificates are in force: revoke some, or wait until they end")

// Token as it is kept: without its secret.
type Token struct {
	ID      string    `json:"id"`
	Site    string    `json:"site"`
	Hash    string    `json:"hash"`
	Created time.Time `json:"created"`
	Expires time.Time `json:"expires"`
	// UsedBy is the hash of the key that it was used with, Used when; empty: not yet.
	UsedBy string    `json:"usedBy,omitempty"`
	Used   time.Time `json:"used,omitzero"`
	// Revoked; zero: in force.
	Revoked time.Time `json:"revoked,omitzero"`
	Message string    `json:"message,omitempty"`
}

// Certificate that was issued here, or was revoked though it was not.
type Certificate struct {
	Serial    string    `json:"serial"`
	Site      string    `json:"site,omitempty"`
	NotBefore time.Time `json:"notBefore,omitzero"`
	NotAfter  time.Time `json:"notAfter,omitzero"` // zero: not issued here
	// Token that it goes back to, by any number of renewals.
	Token string `json:"token,omitempty"`
	// WireGuard is the public key that came with the request; empty without.
	WireGuard []byte    `json:"wireguard,omitempty"`
	Revoked   time.Time `json:"revoked,omitzero"`
	Message   string    `json:"message,omitempty"`
}

// Revocation of a site: whatever was issued for it before, here or elsewhere.
type Revocation struct {
	Time    time.Time `json:"time"`
	Message string    `json:"message,omitempty"`
}

// Registry is all that is known. The zero value is empty. Its methods either change
// it and return nil, or leave it as it was.
type Registry struct {
	Tokens       map[string]Token       `json:"tokens,omitempty"`
	Certificates map[string]Certificate `json:"certificates,omitempty"`
	Sites        map[string]Revocation  `json:"revokedSites,omitempty"`
}

func (r *Registry) clone() *Registry {
	return &Registry{maps.Clone(r.Tokens), maps.Clone(r.Certificates), maps.Clone(r.Sites)}
}

// AddToken keeps a token for a site.
func (r *Registry) AddToken(t enrol.Token, site string, life time.Duration, now time.Time) (Token, error) {
	if life <= 0 || life > MaxTokenLife {
		return Token{}, fmt.Errorf("a token's life of %s is not between 0 and %s", life, MaxTokenLife)
	}
	r.forget(now)
	open := 0
	for _, kept := range r.Tokens {
		if kept.open(now) {
			open++
		}
	}
	if open >= maxTokens {
		return Token{}, ErrFull
	}
	kept := Token{ID: t.ID, Site: site, Hash: t.Hash(), Created: now.UTC(), Expires: now.Add(life).UTC()}
	if r.Tokens == nil {
		r.Tokens = map[string]Token{}
	}
	r.Tokens[t.ID] = kept
	return kept, nil
}

func (t Token) open(now time.Time) bool {
	return t.UsedBy == "" && t.Revoked.IsZero() && now.Before(t.Expires)
}

// Redeem uses a token for a key and says for which site. A token is used once; the
// same key may come again until the token expires, because the answer to its first
// use may have been lost: whoever has that key could use the certificate anyway.
func (r *Registry) Redeem(t enrol.Token, keyHash string, now time.Time) (site string, err error) {
	kept, ok := r.Tokens[t.ID]
	at := func(x time.Time) string { return x.UTC().Format(time.RFC3339) }
	switch {
	case !ok || !t.Proves(kept.Hash):
		return "", &Error{v1alpha1.ReasonTokenUnknown, "there is no such token here: it was mistyped, is of another coordinator, or ended long ago; make a new one with girassol token create"}
	case !kept.Revoked.IsZero():
		return "", &Error{v1alpha1.ReasonIdentityRevoked, fmt.Sprintf("token %s was revoked at %s; make a new one with girassol token create --site %s", kept.ID, at(kept.Revoked), kept.Site)}
	case kept.UsedBy != "" && kept.UsedBy != keyHash:
		return "", &Error{v1alpha1.ReasonTokenUsed, fmt.Sprintf("token %s was used at %s, by another key: if that was not you, revoke what it got with girassol revoke --token %s; make a new one with girassol token create --site %s",
			kept.ID, at(kept.Used), kept.ID, kept.Site)}
	case !now.Before(kept.Expires):
		return "", &Error{v1alpha1.ReasonTokenExpired, fmt.Sprintf("token %s expired at %s, it is %s at the coordinator; make a new one with girassol token create --site %s", kept.ID, at(kept.Expires), at(now), kept.Site)}
	}
	if kept.UsedBy == "" {
		kept.UsedBy, kept.Used = keyHash, now.UTC()
		r.Tokens[t.ID] = kept
	}
	return kept.Site, nil
}

// AddCertificate keeps one that was issued.
func (r *Registry) AddCertificate(c Certificate, now time.Time) error {
	r.forget(now)
	n := 0
	for _, kept := range r.Certificates {
		if kept.Site == c.Site && kept.Revoked.IsZero() && now.Before(kept.NotAfter) {
			n++
		}
	}
	if n >= maxCertificates {
		return ErrFull
	}
	if r.Certificates == nil {
		r.Certificates = map[string]Certificate{}
	}
	r.Certificates[c.Serial] = c
	return nil
}

// Check refuses a certificate that was revoked, alone or with its site. site is
// empty for who is none.
func (r *Registry) Check(serial, site string, notBefore time.Time) error {
	revoked := func(at time.Time, message string) error {
		if message != "" {
			message = " (" + message + ")"
		}
		return &Error{v1alpha1.ReasonCertificateRevoked, fmt.Sprintf("certificate revoked: number %s at %s%s; a site enrols again with a new token", serial, at.UTC().Format(time.RFC3339), message)}
	}
	kept, known := r.Certificates[serial]
	if known && !kept.Revoked.IsZero() {
		return revoked(kept.Revoked, kept.Message)
	}
	// One that was issued elsewhere counts when it begins after the revocation.
	if known && !kept.NotAfter.IsZero() || site == "" {
		return nil
	}
	if s, ok := r.Sites[site]; ok && notBefore.Before(s.Time) {
		return revoked(s.Time, s.Message)
	}
	return nil
}

// CheckSite refuses a revoked site that has proven itself without a certificate,
// through a tunnel, until it has enrolled again.
func (r *Registry) CheckSite(site string, now time.Time) error {
	s, ok := r.Sites[site]
	if !ok {
		return nil
	}
	for _, c := range r.Certificates {
		if c.Site == site && c.Revoked.IsZero() && now.Before(c.NotAfter) {
			return nil
		}
	}
	return &Error{v1alpha1.ReasonIdentityRevoked, fmt.Sprintf("site %s was revoked at %s; it enrols again with a new token", site, s.Time.UTC().Format(time.RFC3339))}
}

// Revoked is what a revocation took out of force.
type Revoked struct{ Certificates, Tokens int }

// RevokeSite takes everything of a site out of force: open tokens, certificates
// that were issued here, and those from elsewhere that begin before now.
func (r *Registry) RevokeSite(site, message string, now time.Time) Revoked {
	var out Revoked
	for id, t := range r.Tokens {
		if t.Site == site && t.Revoked.IsZero() && now.Before(t.Expires) {
			t.Revoked, t.Message = now.UTC(), message
			r.Tokens[id] = t
			out.Tokens++
		}
	}
	for _, c := range r.Certificates {
		if c.Site == site && r.revoke(c, message, now) {
			out.Certificates++
		}
	}
	if r.Sites == nil {
		r.Sites = map[string]Revocation{}
	}
	r.Sites[site] = Revocation{now.UTC(), message}
	return out
}

// RevokeSerial takes one certificate out of force, also one that was not issued
// here. A site's key that was stolen may have been renewed with: revoke its token
// or the site then.
func (r *Registry) RevokeSerial(serial, message string, now time.Time) (Revoked, error) {
	c, ok := r.Certificates[serial]
	if !ok {
		if len(r.Certificates) >= maxRevoked {
			return Revoked{}, ErrFull
		}
		c = Certificate{Serial: serial}
		if r.Certificates == nil {
			r.Certificates = map[string]Certificate{}
		}
	}
	if !r.revoke(c, message, now) {
		return Revoked{}, nil
	}
	return Revoked{Certificates: 1}, nil
}

// RevokeToken takes a token out of force and every certificate that goes back to it.
func (r *Registry) RevokeToken(id, message string, now time.Time) (Revoked, error) {
	t, ok := r.Tokens[id]
	var out Revoked
	if ok && t.Revoked.IsZero() {
		t.Revoked, t.Message = now.UTC(), message
		r.Tokens[id] = t
		out.Tokens++
	}
	for _, c := range r.Certificates {
		if c.Token != id {
			continue
		}
		ok = true
		if r.revoke(c, message, now) {
			out.Certificates++
		}
	}
	if !ok {
		return Revoked{}, &Error{v1alpha1.ReasonTokenUnknown, fmt.Sprintf("there is no token %q: girassol identities lists them by id", id)}
	}
	return out, nil
}

// revoke says whether the certificate was in force.
func (r *Registry) revoke(c Certificate, message string, now time.Time) bool {
	if !c.Revoked.IsZero() {
		return false
	}
	c.Revoked, c.Message = now.UTC(), message
	r.Certificates[c.Serial] = c
	return true
}

// RevokedKeys are the WireGuard keys that came with certificates which are revoked
// now, and with none in force.
func (r *Registry) RevokedKeys(now time.Time) [][]byte {
	inForce := map[string]bool{}
	for _, c := range r.Certificates {
		if c.Revoked.IsZero() && now.Before(c.NotAfter) {
			inForce[string(c.WireGuard)] = true
		}
	}
	var out [][]byte
	for _, c := range r.All() {
		if len(c.WireGuard) > 0 && !c.Revoked.IsZero() && !inForce[string(c.WireGuard)] {
			out = append(out, c.WireGuard)
		}
	}
	return out
}

// forget drops what ended long ago.
func (r *Registry) forget(now time.Time) {
	maps.DeleteFunc(r.Tokens, func(_ string, t Token) bool { return now.After(t.Expires.Add(remember)) })
	maps.DeleteFunc(r.Certificates, func(_ string, c Certificate) bool {
		return !c.NotAfter.IsZero() && now.After(c.NotAfter.Add(remember))
	})
}

// OpenTokens are those that can still be used, by expiry.
func (r *Registry) OpenTokens(now time.Time) []Token {
	var out []Token
	for _, t := range r.Tokens {
		if t.open(now) {
			out = append(out, t)
		}
	}
	slices.SortFunc(out, func(a, b Token) int {
		return cmp.Or(a.Expires.Compare(b.Expires), cmp.Compare(a.ID, b.ID))
	})
	return out
}

// All are the certificates by site and end.
func (r *Registry) All() []Certificate {
	return slices.SortedFunc(maps.Values(r.Certificates), func(a, b Certificate) int {
		return cmp.Or(cmp.Compare(a.Site, b.Site), a.NotAfter.Compare(b.NotAfter), cmp.Compare(a.Serial, b.Serial))
	})
}

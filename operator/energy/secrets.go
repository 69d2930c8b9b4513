package energy

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/internal/webhooksig"
	"girassol.dev/operator/membership"
	"girassol.dev/signals/assemble"
	"girassol.dev/signals/fetch"
	"girassol.dev/signals/webhook"
)

// secrets are the Secrets that a federation and its sites name, read from the API
// server itself and kept for a while. They are used by one goroutine at a time.
type secrets struct {
	reader    client.Reader
	namespace string
	read      map[string]readSecret
}

type readSecret struct {
	data map[string][]byte // nil: there is none
	at   time.Time
}

// missingAge is how long a Secret is taken for missing before it is looked for
// again.
const missingAge = 20 * time.Second

// ensure reads those that are named and older than maxAge, and forgets others.
func (s *secrets) ensure(ctx context.Context, names []string, maxAge time.Duration) error {
	next := map[string]readSecret{}
	for _, name := range names {
		if len(validation.IsDNS1123Subdomain(name)) > 0 { // none can have it; to ask would fail for all
			next[name] = readSecret{at: time.Now()}
			continue
		}
		have, ok := s.read[name]
		if ok && time.Since(have.at) < maxAge && (have.data != nil || time.Since(have.at) < missingAge) {
			next[name] = have
			continue
		}
		var o corev1.Secret
		err := s.reader.Get(ctx, types.NamespacedName{Namespace: s.namespace, Name: name}, &o)
		switch {
		case apierrors.IsNotFound(err):
			next[name] = readSecret{at: time.Now()}
		case err != nil:
			return fmt.Errorf("energy: Secret %s/%s: %w", s.namespace, name, err)
		default:
			next[name] = readSecret{data: nonNil(o.Data), at: time.Now()}
		}
	}
	s.read = next
	return nil
}

func nonNil(m map[string][]byte) map[string][]byte {
	if m == nil {
		return map[string][]byte{}
	}
	return m
}

// identity changes when one of the secrets does, and tells nothing of them.
func (s *secrets) identity() string {
	var all []string
	for _, name := range slices.Sorted(maps.Keys(s.read)) {
		data := s.read[name].data
		all = append(all, name, fmt.Sprint(data == nil))
		for _, key := range slices.Sorted(maps.Keys(data)) {
			all = append(all, key, string(data[key]))
		}
	}
	return fetch.Identity(all...)
}

// Find implements assemble.Credentials.
func (s *secrets) Find(spec v1alpha1.CredentialsSpec, which assemble.Credential) (*fetch.Secret, error) {
	if spec.Secret == nil {
		return nil, faultf(v1alpha1.ReasonInvalidSpec, "name a Secret with the key %s in credentials.secret", which)
	}
	data := s.read[spec.Secret.Name].data
	if data == nil {
		return nil, faultf(v1alpha1.ReasonSecretNotFound, "there is no Secret %s in namespace %s; create it with the key %s", spec.Secret.Name, s.namespace, which)
	}
	value := strings.TrimSpace(string(data[string(which)]))
	if value == "" {
		return nil, faultf(v1alpha1.ReasonSecretInvalid, "Secret %s has no key %s", spec.Secret.Name, which)
	}
	return fetch.Value(value), nil
}

// keys gives a sender the keys of its Secret.
func (s *secrets) keys(source v1alpha1.WebhookSource, to *webhook.Sender) error {
	name := source.Secret.Name
	data := s.read[name].data
	if data == nil {
		return faultf(v1alpha1.ReasonSecretNotFound, "there is no Secret %s in namespace %s with the keys of sender %s", name, s.namespace, source.Name)
	}
	for _, key := range slices.Sorted(maps.Keys(data)) {
		switch {
		case strings.HasPrefix(key, "secret"):
			if _, err := webhooksig.ParseSecrets(data[key]); err != nil {
				return faultf(v1alpha1.ReasonSecretInvalid, "Secret %s, key %s, of sender %s: %v", name, key, source.Name, err)
			}
			to.Secrets = append(append(to.Secrets, data[key]...), '\n')
		case strings.HasPrefix(key, "bearer"):
			to.Bearers = append(append(to.Bearers, data[key]...), '\n')
		}
	}
	if len(to.Secrets)+len(to.Bearers) == 0 {
		return faultf(v1alpha1.ReasonSecretInvalid, "Secret %s of sender %s has no key that begins with secret or bearer", name, source.Name)
	}
	// The webhook's own checks, while only this sender is concerned.
	if _, err := webhook.New(context.Background(), webhook.Config{Senders: []webhook.Sender{*to}}); err != nil {
		return faultf(v1alpha1.ReasonSecretInvalid, "Secret %s: %v", name, err)
	}
	return nil
}

// names of the Secrets that are to be read.
func secretNames(f v1alpha1.FederationSpec, sites []v1alpha1.Site) []string {
	var out []string
	if w := f.Energy.Webhook; w != nil {
		for _, s := range w.Sources {
			if s.Secret != nil {
				out = append(out, s.Secret.Name)
			}
		}
	}
	for _, s := range sites {
		for _, g := range []*v1alpha1.GridSource{&s.Spec.Grid.GridSource, s.Spec.Grid.Check} {
			if g != nil && g.Credentials != nil && g.Credentials.Secret != nil {
				out = append(out, g.Credentials.Secret.Name)
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

func faultf(reason v1alpha1.Reason, format string, args ...any) *Fault {
	return &Fault{membership.Fault{Reason: reason, Message: fmt.Sprintf(format, args...)}}
}

package controller

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/internal/certs"
	"girassol.dev/internal/wire"
	"girassol.dev/operator/apply"
	"girassol.dev/operator/membership"
	"girassol.dev/operator/resources"
)

const (
	// trust in Secrets that were found good: after that they are read again, because
	// nothing tells of one that was changed or deleted (the operator may not list
	// Secrets).
	trust = 10 * time.Minute
	// missingSecret is how often one that is not there, or not good, is looked for.
	missingSecret = time.Minute
)

// issued is what a look at a federation's Secrets found.
type issued struct {
	// of is for what it was found; another one needs another look.
	of       string
	operator *wire.PEM
	fault    *membership.Fault
	until    time.Time
}

// certify sees to the Secrets: those that a person gives are there and good, and
// all certificates are issued and in date. It gives the operator's certificate,
// nil without mutual TLS.
func (r *FederationReconciler) certify(ctx context.Context, v *federation) (*wire.PEM, *membership.Fault, error) {
	of := v.needsSecrets()
	if known, ok := r.issued.Load(v.key); ok {
		if known := known.(issued); known.of == of && v.now.Before(known.until) {
			v.wakeBy(known.until)
			return known.operator, known.fault, nil
		}
	}
	found := issued{of: of, until: v.now.Add(trust)}
	if err := r.look(ctx, v, &found); err != nil {
		return nil, nil, err
	}
	r.issued.Store(v.key, found)
	v.wakeBy(found.until)
	return found.operator, found.fault, nil
}

// needsSecrets names all that Secrets depend on.
func (v *federation) needsSecrets() string {
	var b strings.Builder
	fmt.Fprintln(&b, v.UID, v.Spec.Link.Mode, v.Spec.Link.CASecret, v.siteNames(), resources.CoordinatorHosts(v.Federation))
	if redis := v.Spec.Events.Redis; redis != nil && redis.URLSecret != nil {
		fmt.Fprintln(&b, *redis.URLSecret)
	}
	return b.String()
}

// siteNames of those that need a certificate: all that are named, and those that
// still leave.
func (v *federation) siteNames() []string {
	var names []string
	for _, s := range v.Spec.Sites {
		names = append(names, s.Name)
	}
	for site := range v.mine {
		names = append(names, site)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

func (r *FederationReconciler) look(ctx context.Context, v *federation, found *issued) error {
	fault, err := r.checkRedis(ctx, v)
	if err != nil {
		return err
	}
	if fault == nil && v.Spec.Link.Mode != v1alpha1.LinkMesh {
		fault, err = r.issue(ctx, v, found)
		if err != nil {
			return err
		}
	}
	if fault != nil {
		found.fault, found.until = fault, v.now.Add(missingSecret)
	}
	return nil
}

// checkRedis looks at the Secret with the URL of an existing Redis.
func (r *FederationReconciler) checkRedis(ctx context.Context, v *federation) (*membership.Fault, error) {
	redis := v.Spec.Events.Redis
	if redis == nil || redis.URLSecret == nil {
		return nil, nil
	}
	const field = "spec.events.redis.urlSecret"
	data, fault, err := r.given(ctx, v, field, redis.URLSecret.Name)
	if fault != nil || err != nil {
		return fault, err
	}
	value, ok := data[redis.URLSecret.Key]
	if !ok {
		return &membership.Fault{Reason: v1alpha1.ReasonSecretInvalid, Message: fmt.Sprintf("%s: Secret %s has no key %s", field, redis.URLSecret.Name, redis.URLSecret.Key)}, nil
	}
	// The error of Parse would show the password.
	u, err := url.Parse(strings.TrimSpace(string(value)))
	if good := err == nil && u.Host != "" && (u.Scheme == "redis" || u.Scheme == "rediss"); !good {
		return &membership.Fault{Reason: v1alpha1.ReasonSecretInvalid, Message: fmt.Sprintf("%s: key %s of Secret %s holds no URL like redis://user:password@host:6379/0", field, redis.URLSecret.Key, redis.URLSecret.Name)}, nil
	}
	return nil, nil
}

// given is the data of a Secret that a person has to make.
func (r *FederationReconciler) given(ctx context.Context, v *federation, field, name string) (map[string][]byte, *membership.Fault, error) {
	var s corev1.Secret
	err := r.Reader.Get(ctx, types.NamespacedName{Namespace: v.Namespace, Name: name}, &s)
	if apierrors.IsNotFound(err) {
		return nil, &membership.Fault{Reason: v1alpha1.ReasonSecretNotFound, Message: fmt.Sprintf("%s: there is no Secret %s in this namespace; it is looked for every minute", field, name)}, nil
	}
	return s.Data, nil, err
}

// issue makes the authority, if it is the operator's, and every leaf that is
// missing or not good any more.
func (r *FederationReconciler) issue(ctx context.Context, v *federation, found *issued) (*membership.Fault, error) {
	authority, fault, err := r.authority(ctx, v)
	if fault != nil || err != nil {
		return fault, err
	}
	var first, renewed []string
	leaf := func(id certs.Identity, name string, secret func(certs.Leaf) runtime.ApplyConfiguration) (certs.Leaf, error) {
		var s corev1.Secret
		err := r.Reader.Get(ctx, types.NamespacedName{Namespace: v.Namespace, Name: name}, &s)
		missing := apierrors.IsNotFound(err)
		if err != nil && !missing {
			return certs.Leaf{}, err
		}
		kept := resources.Leaf(s.Data)
		due, bad := authority.Check(kept, id, v.now)
		if bad == nil {
			found.until = earliest(found.until, due)
			return kept, nil
		}
		fresh, err := authority.Issue(id, v.now, r.Random)
		if err != nil {
			return certs.Leaf{}, err
		}
		if _, err := r.Applier.Apply(ctx, secret(fresh)); err != nil {
			return certs.Leaf{}, err
		}
		if missing {
			first = append(first, id.String())
		} else {
			renewed = append(renewed, id.String())
			r.Log.Info("certificate renewed", "namespace", v.Namespace, "federation", v.Name, "identity", id.String(), "why", bad)
		}
		return fresh, nil
	}
	defer func() {
		r.tellIssued(v, v1alpha1.ReasonCertificateIssued, "certificates issued for", first)
		r.tellIssued(v, v1alpha1.ReasonCertificateRenewed, "certificates renewed for", renewed)
	}()

	f := v.Federation
	if _, err = leaf(certs.Coordinator(f.Name, resources.CoordinatorHosts(f)...), resources.CoordinatorSecretName(f.Name),
		func(l certs.Leaf) runtime.ApplyConfiguration { return resources.CoordinatorSecret(f, l) }); err != nil {
		return refusal(err)
	}
	own, err := leaf(certs.Operator(f.Name), resources.OperatorSecretName(f.Name),
		func(l certs.Leaf) runtime.ApplyConfiguration { return resources.OperatorSecret(f, l) })
	if err != nil {
		return refusal(err)
	}
	for _, site := range v.siteNames() {
		if _, err = leaf(certs.Site(f.Name, site), resources.SiteSecretName(f.Name, site),
			func(l certs.Leaf) runtime.ApplyConfiguration { return resources.SiteSecret(f, site, l) }); err != nil {
			return refusal(err)
		}
	}
	found.operator = &wire.PEM{Certificate: own.Certificate, Key: own.Key, CA: own.CA}
	return nil, nil
}

// authority is the one that a person gives, or the operator's own.
func (r *FederationReconciler) authority(ctx context.Context, v *federation) (*certs.Authority, *membership.Fault, error) {
	name, field := resources.AuthoritySecretName(v.Name), "the federation's own authority"
	var data map[string][]byte
	if ref := v.Spec.Link.CASecret; ref != nil {
		name, field = ref.Name, "spec.link.caSecret"
		var fault *membership.Fault
		var err error
		if data, fault, err = r.given(ctx, v, field, name); fault != nil || err != nil {
			return nil, fault, err
		}
	} else {
		var err error
		if data, err = r.ownAuthority(ctx, v, name); err != nil {
			fault, err := refusal(err)
			return nil, fault, err
		}
	}
	a, err := certs.ParseAuthority(data[resources.CertificateKey], data[resources.PrivateKeyKey], v.now)
	if err != nil {
		way := ""
		if v.Spec.Link.CASecret == nil {
			way = "; delete the Secret to have all certificates made anew"
		}
		return nil, &membership.Fault{Reason: v1alpha1.ReasonSecretInvalid, Message: fmt.Sprintf("%s: Secret %s: %s%s", field, name, err, way)}, nil
	}
	return a, nil, nil
}

// ownAuthority is made once: another one would lock every site out.
func (r *FederationReconciler) ownAuthority(ctx context.Context, v *federation, name string) (map[string][]byte, error) {
	var s corev1.Secret
	key := types.NamespacedName{Namespace: v.Namespace, Name: name}
	err := r.Reader.Get(ctx, key, &s)
	if !apierrors.IsNotFound(err) {
		return s.Data, err
	}
	a, err := certs.NewAuthority(v.Name, v.now, r.Random)
	if err != nil {
		return nil, err
	}
	if _, err := r.Applier.Create(ctx, resources.AuthoritySecret(v.Federation, a)); err != nil {
		return nil, err
	}
	// Whoever was first, that one counts.
	err = r.Reader.Get(ctx, key, &s)
	return s.Data, err
}

func (r *FederationReconciler) tellIssued(v *federation, reason v1alpha1.Reason, what string, identities []string) {
	if len(identities) > 0 {
		r.Events.Eventf(v.Federation, nil, corev1.EventTypeNormal, string(reason), "Certify", "%s %s", what, list(identities))
	}
}

// refusal turns a child whose name another object has, or that the API server
// will never take (a claim that shrinks, requests above limits), into a fault:
// trying again would change nothing.
func refusal(err error) (*membership.Fault, error) {
	var taken *apply.OwnedElsewhereError
	if errors.As(err, &taken) || apierrors.IsInvalid(err) {
		return &membership.Fault{Reason: v1alpha1.ReasonInvalidSpec, Message: err.Error()}, nil
	}
	return nil, err
}

package controller

import (
	"context"
	"fmt"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/internal/certs"
)

func TestCertificatesAreRenewedInTimeAndMadeAnewWhenLost(t *testing.T) {
	b := newBench(t)
	b.site("lisboa")
	b.federation("gpt", nil, "lisboa")
	b.reconcile("gpt")
	first, ca := b.secret("gpt-site-lisboa-tls"), b.secret("gpt-ca")

	b.now = b.now.Add(certs.LeafValidity / 2)
	b.reconcile("gpt")
	if half := b.secret("gpt-site-lisboa-tls"); half.ResourceVersion != first.ResourceVersion {
		t.Error("renewed at half its time")
	}
	b.now = b.now.Add(certs.LeafValidity / 4)
	b.reconcile("gpt")
	renewed := b.secret("gpt-site-lisboa-tls")
	if string(renewed.Data["tls.crt"]) == string(first.Data["tls.crt"]) || string(renewed.Data["ca.crt"]) != string(ca.Data["tls.crt"]) {
		t.Error("not renewed at three quarters, or by another authority")
	}
	if b.events.count(v1alpha1.ReasonCertificateRenewed) != 1 {
		t.Errorf("events %q", b.events.all)
	}
	if err := b.env.Client.Delete(context.Background(), renewed); err != nil {
		t.Fatal(err)
	}
	_, result := b.reconcile("gpt")
	if !b.gone("gpt-site-lisboa-tls", &corev1.Secret{}) {
		t.Error("Secrets that were found good are read at each look")
	}
	b.now = b.now.Add(result.RequeueAfter)
	b.reconcile("gpt")
	b.secret("gpt-site-lisboa-tls")
	if string(b.secret("gpt-ca").Data["tls.key"]) != string(ca.Data["tls.key"]) {
		t.Error("the authority changed: everyone is locked out")
	}
	b.restart()
	b.reconcile("gpt")
	if b.events.count(v1alpha1.ReasonCertificateIssued) != 2 {
		t.Errorf("events %q", b.events.all)
	}
}

func TestAGivenAuthorityIsUsedOrSaidToBeMissingOrBad(t *testing.T) {
	b := newBench(t)
	b.site("lisboa")
	b.federation("gpt", func(s *v1alpha1.FederationSpec) { s.Link.CASecret = &v1alpha1.SecretReference{Name: "corporate"} }, "lisboa")
	f, result := b.reconcile("gpt")
	b.is(f, v1alpha1.ConditionAccepted, metav1.ConditionFalse, v1alpha1.ReasonSecretNotFound)
	b.lacks(f, v1alpha1.ConditionStalled) // it may be on its way
	if result.RequeueAfter != missingSecret || f.Status.ObservedGeneration == f.Generation || !b.gone("gpt-coordinator", &appsv1.StatefulSet{}) {
		t.Errorf("looks again after %s; observed %d", result.RequeueAfter, f.Status.ObservedGeneration)
	}
	given := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "corporate"}, Data: map[string][]byte{"tls.crt": []byte("x"), "tls.key": []byte("y")}}
	b.create(given)
	b.now = b.now.Add(missingSecret)
	f, _ = b.reconcile("gpt")
	b.is(f, v1alpha1.ConditionAccepted, metav1.ConditionFalse, v1alpha1.ReasonSecretInvalid)
	b.is(f, v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonSecretInvalid)
	b.is(f, v1alpha1.ConditionStalled, metav1.ConditionTrue, v1alpha1.ReasonSecretInvalid)
	if f.Status.ObservedGeneration != f.Generation {
		t.Error("a spec that only a person can mend was looked at in full")
	}

	a, err := certs.NewAuthority("corporate", b.now, b.r.Random)
	if err != nil {
		t.Fatal(err)
	}
	given.Data = map[string][]byte{"tls.crt": a.CertificatePEM, "tls.key": a.KeyPEM}
	if err := b.env.Client.Update(context.Background(), given); err != nil {
		t.Fatal(err)
	}
	b.now = b.now.Add(missingSecret)
	f, _ = b.reconcile("gpt")
	b.is(f, v1alpha1.ConditionAccepted, metav1.ConditionTrue, v1alpha1.ReasonAccepted)
	b.lacks(f, v1alpha1.ConditionStalled)
	if !b.gone("gpt-ca", &corev1.Secret{}) || string(b.secret("gpt-coordinator-tls").Data["ca.crt"]) != string(a.CertificatePEM) {
		t.Error("the certificates are not of the authority that was given")
	}
}

func TestASecretOfRedisIsLookedAtAndItsPasswordNeverShown(t *testing.T) {
	for name, c := range map[string]struct {
		data map[string][]byte
		want v1alpha1.Reason
	}{
		"no secret": {nil, v1alpha1.ReasonSecretNotFound},
		"no key":    {map[string][]byte{"other": []byte("redis://x:1")}, v1alpha1.ReasonSecretInvalid},
		"no URL":    {map[string][]byte{"url": []byte("hunter2 : no url")}, v1alpha1.ReasonSecretInvalid},
		"no scheme": {map[string][]byte{"url": []byte("http://hunter2@x:1")}, v1alpha1.ReasonSecretInvalid},
		"good":      {map[string][]byte{"url": []byte("rediss://u:hunter2@x:6379/0\n")}, v1alpha1.ReasonAccepted},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.site("lisboa")
			if c.data != nil {
				b.create(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "redis"}, Data: c.data})
			}
			b.federation("gpt", func(s *v1alpha1.FederationSpec) {
				s.Events.Redis = &v1alpha1.RedisSpec{URLSecret: &v1alpha1.SecretKeyReference{Name: "redis", Key: "url"}}
			}, "lisboa")
			f, _ := b.reconcile("gpt")
			accepted := condition(f, v1alpha1.ConditionAccepted)
			if accepted.Reason != string(c.want) || strings.Contains(fmt.Sprint(f.Status, b.events.all), "hunter2") {
				t.Errorf("%s: %s", accepted.Reason, accepted.Message)
			}
		})
	}
}

func TestInMeshModeThereAreNoCertificates(t *testing.T) {
	b := newBench(t)
	b.site("lisboa")
	b.federation("gpt", func(s *v1alpha1.FederationSpec) { s.Link.Mode = v1alpha1.LinkMesh }, "lisboa")
	f, _ := b.reconcile("gpt")
	b.is(f, v1alpha1.ConditionAccepted, metav1.ConditionTrue, v1alpha1.ReasonAccepted)
	if !b.gone("gpt-ca", &corev1.Secret{}) || b.coordinator.target.Certificate != nil {
		t.Error("certificates were made")
	}
}

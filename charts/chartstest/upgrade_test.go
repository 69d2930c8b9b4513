package chartstest

import (
	"context"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"helm.sh/helm/v3/pkg/action"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/operator/testenv"
)

// bareCluster has none of our kinds: Helm brings them.
func bareCluster(t *testing.T) (*rest.Config, client.Client) {
	t.Helper()
	testenv.Shared(t) // skips without binaries
	env := &envtest.Environment{BinaryAssetsDirectory: testenv.Assets(), ControlPlaneStartTimeout: 2 * time.Minute, ControlPlaneStopTimeout: time.Minute}
	config, err := env.Start()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = env.Stop() })
	c, err := client.New(config, client.Options{Scheme: testenv.Scheme()})
	if err != nil {
		t.Fatal(err)
	}
	return config, c
}

// helm is Helm's client with its releases kept in Secrets, as by default.
func helm(t *testing.T, config *rest.Config) *action.Configuration {
	t.Helper()
	path, namespace := testenv.WriteKubeconfig(t, config), systemNamespace
	flags := genericclioptions.NewConfigFlags(false)
	flags.KubeConfig, flags.Namespace = &path, &namespace
	h := &action.Configuration{}
	if err := h.Init(flags, systemNamespace, "secret", func(string, ...any) {}); err != nil {
		t.Fatal(err)
	}
	return h
}

func TestObjectsSurviveUpgradeAndUninstallation(t *testing.T) {
	config, c := bareCluster(t)
	h, ctx := helm(t, config), context.Background()
	ensureNamespace(t, c, systemNamespace, "restricted")
	ensureNamespace(t, c, trainingNamespace, "")
	install := action.NewInstall(h)
	install.ReleaseName, install.Namespace = "girassol", systemNamespace
	if _, err := install.Run(load(t, filepath.Join("testdata", "girassol-0.0.1")), nil); err != nil {
		t.Fatal("install of the version before:", err)
	}

	f := &v1alpha1.Federation{ObjectMeta: metav1.ObjectMeta{Namespace: trainingNamespace, Name: "gpt"}}
	f.Spec.Sites = []v1alpha1.SiteReference{{Name: "quebec"}}
	f.Spec.Rounds.Total = 200
	s := &v1alpha1.Site{ObjectMeta: metav1.ObjectMeta{Namespace: trainingNamespace, Name: "quebec"}, Spec: v1alpha1.SiteSpec{Priority: 10}}
	served(t, func() error { return createOnly(ctx, c, f) })
	served(t, func() error { return createOnly(ctx, c, s) })

	upgrade := action.NewUpgrade(h)
	upgrade.Namespace = systemNamespace
	if _, err := upgrade.Run("girassol", load(t, chartDir("girassol")), values(t, "namespaces: [training]")); err != nil {
		t.Fatal("upgrade:", err)
	}
	kept := func(when string) {
		t.Helper()
		var f2 v1alpha1.Federation
		var s2 v1alpha1.Site
		for o, old := range map[client.Object]client.Object{&f2: f, &s2: s} {
			served(t, func() error { return c.Get(ctx, client.ObjectKeyFromObject(old), o) })
			if o.GetUID() != old.GetUID() {
				t.Errorf("%s %s is another object", when, old.GetName())
			}
		}
		if f2.Spec.Rounds.Total != 200 || s2.Spec.Priority != 10 {
			t.Errorf("%s the specs have changed: %+v %+v", when, f2.Spec, s2.Spec)
		}
	}
	kept("after the upgrade")

	t.Run("the new version's fields are served", func(t *testing.T) {
		served(t, func() error {
			if err := c.Get(ctx, client.ObjectKeyFromObject(f), f); err != nil {
				return err
			}
			two := int32(1)
			f.Spec.MaxSites = &two
			return client.WithFieldValidation(c, metav1.FieldValidationStrict).Update(ctx, f)
		})
		if f.Spec.MaxSites == nil || *f.Spec.MaxSites != 1 {
			t.Error("spec.maxSites was pruned: the kind is still that of the version before")
		}
	})
	t.Run("the operator is the new one", func(t *testing.T) {
		d := &appsv1.Deployment{}
		if err := c.Get(ctx, client.ObjectKey{Namespace: systemNamespace, Name: "girassol-operator"}, d); err != nil {
			t.Fatal(err)
		}
		if image := d.Spec.Template.Spec.Containers[0].Image; image != "girassol-operator:0.1.0" {
			t.Errorf("its image is %s", image)
		}
	})
	t.Run("the release fits into its Secret", func(t *testing.T) {
		var secrets corev1.SecretList
		if err := c.List(ctx, &secrets, client.InNamespace(systemNamespace), client.MatchingLabels{"owner": "helm"}); err != nil {
			t.Fatal(err)
		}
		largest := 0
		for _, s := range secrets.Items {
			largest = max(largest, len(s.Data["release"]))
		}
		t.Logf("the largest release takes %d of %d bytes", largest, corev1.MaxSecretSize)
		if largest == 0 || largest > corev1.MaxSecretSize*3/4 {
			t.Errorf("a release takes %d of the %d bytes of a Secret", largest, corev1.MaxSecretSize)
		}
	})
	t.Run("upgrading again changes nothing", func(t *testing.T) {
		before := &appsv1.Deployment{}
		key := client.ObjectKey{Namespace: systemNamespace, Name: "girassol-operator"}
		if err := c.Get(ctx, key, before); err != nil {
			t.Fatal(err)
		}
		if _, err := upgrade.Run("girassol", load(t, chartDir("girassol")), values(t, "namespaces: [training]")); err != nil {
			t.Fatal(err)
		}
		after := &appsv1.Deployment{}
		if err := c.Get(ctx, key, after); err != nil {
			t.Fatal(err)
		}
		if before.Generation != after.Generation {
			t.Errorf("the Deployment's generation went from %d to %d", before.Generation, after.Generation)
		}
	})

	if _, err := action.NewUninstall(h).Run("girassol"); err != nil {
		t.Fatal("uninstall:", err)
	}
	kept("after the uninstallation")
	if err := c.Get(ctx, client.ObjectKey{Namespace: systemNamespace, Name: "girassol-operator"}, &appsv1.Deployment{}); !apierrors.IsNotFound(err) {
		t.Errorf("the operator is still there: %v", err)
	}

	t.Run("and the chart takes its kinds back", func(t *testing.T) {
		install := action.NewInstall(h)
		install.ReleaseName, install.Namespace = "girassol", systemNamespace
		if _, err := install.Run(load(t, chartDir("girassol")), nil); err != nil {
			t.Fatal(err)
		}
		kept("after installing again")
	})
}

// createOnly sends only what the spec sets, as a person's YAML would: the typed
// status is unknown to the version before.
func createOnly(ctx context.Context, c client.Client, o client.Object) error {
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
	if err != nil {
		return err
	}
	delete(fields, "status")
	u := unstructuredOf(fields)
	gvk, err := c.GroupVersionKindFor(o)
	if err != nil {
		return err
	}
	u.SetGroupVersionKind(gvk)
	if err := c.Create(ctx, u); err != nil {
		return err
	}
	return c.Get(ctx, client.ObjectKeyFromObject(u), o)
}

// served tries until the apiserver serves a kind, which it does moments after it
// took its definition, and shows its new fields after it has replaced it.
func served(t *testing.T, do func() error) {
	t.Helper()
	var err error
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		if err = do(); err == nil || !(apierrors.IsNotFound(err) || apierrors.IsConflict(err) || strings.Contains(err.Error(), "unknown field") || strings.Contains(err.Error(), "no matches for kind")) {
			break
		}
	}
	if err != nil {
		t.Fatal(err)
	}
}

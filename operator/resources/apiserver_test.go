package resources

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/operator/apply"
	"girassol.dev/operator/testenv"
)

// inNamespace moves a fixture to a namespace of the test.
func inNamespace(ns string, f *v1alpha1.Federation, sites []v1alpha1.Site) {
	f.Namespace = ns
	for i := range sites {
		sites[i].Namespace = ns
	}
}

func TestTheAPIServerTakesAllChildrenAndAskedAgainNothingIsSent(t *testing.T) {
	e := testenv.Shared(t)
	for name, federation := range map[string]func() (*v1alpha1.Federation, []v1alpha1.Site){"minimal": minimal, "full": full} {
		t.Run(name, func(t *testing.T) {
			a := &apply.Applier{Client: e.Client, Reader: e.Client}
			f, sites := federation()
			inNamespace(e.Namespace(t), f, sites)
			for round := range 3 {
				for _, o := range everything(t, f, sites) {
					if strings.HasPrefix(describe(o), "Secret-") {
						continue // of no real certificate
					}
					changed, err := a.Apply(t.Context(), o)
					if err != nil {
						t.Fatal(err)
					}
					if changed != (round == 0) {
						t.Errorf("round %d: %s changed %v", round, describe(o), changed)
					}
				}
			}
		})
	}
}

func TestTheClaimsOwnerFollowsTheReclaimPolicy(t *testing.T) {
	e := testenv.Shared(t)
	a := &apply.Applier{Client: e.Client, Reader: e.Client}
	f, sites := minimal()
	inNamespace(e.Namespace(t), f, sites)
	claim := func() *corev1.PersistentVolumeClaim {
		t.Helper()
		if _, err := a.Apply(t.Context(), commits(f)); err != nil {
			t.Fatal(err)
		}
		c := &corev1.PersistentVolumeClaim{}
		if err := e.Client.Get(t.Context(), client.ObjectKey{Namespace: f.Namespace, Name: CommitsName(f.Name)}, c); err != nil {
			t.Fatal(err)
		}
		return c
	}
	if c := claim(); len(c.OwnerReferences) != 0 {
		t.Fatalf("kept by default, it belongs to %v", c.OwnerReferences)
	}
	f.Spec.Coordinator.Storage.ReclaimPolicy = v1alpha1.ReclaimDelete
	if c := claim(); len(c.OwnerReferences) != 1 || c.OwnerReferences[0].UID != f.UID {
		t.Fatalf("to be deleted, it belongs to %v", c.OwnerReferences)
	}
	f.Spec.Coordinator.Storage.ReclaimPolicy = v1alpha1.ReclaimRetain
	if c := claim(); len(c.OwnerReferences) != 0 {
		t.Fatalf("to be kept, it belongs to %v", c.OwnerReferences)
	}
}

func TestAClaimThatCannotChangeIsSaidToBeInvalid(t *testing.T) {
	e := testenv.Shared(t)
	a := &apply.Applier{Client: e.Client, Reader: e.Client}
	f, sites := minimal()
	inNamespace(e.Namespace(t), f, sites)
	if _, err := a.Apply(t.Context(), commits(f)); err != nil {
		t.Fatal(err)
	}
	f.Spec.Coordinator.Storage.Size = quantity("1Gi")
	_, err := a.Apply(t.Context(), commits(f))
	var failed *apply.Error
	if !apierrors.IsInvalid(err) || !errors.As(err, &failed) || failed.Key.Name != "lm-commits" {
		t.Errorf("%v", err)
	}
}

// TestAnAddressThatNoCertificateCanCarryIsRefused: issuing one would fail again and
// again.
func TestAnAddressThatNoCertificateCanCarryIsRefused(t *testing.T) {
	e := testenv.Shared(t)
	namespace := e.Namespace(t)
	for address, good := range map[string]bool{
		"": true, "coordinator.example.com:7465": true, "192.0.2.1:443": true, "[2001:db8::1]:7465": true,
		"tränen.example:7465": false, "bad host:7465": false, "https://coordinator.example.com": false, "coordinator.example.com": false,
	} {
		f, sites := minimal()
		inNamespace(namespace, f, sites)
		f.UID, f.Spec.Link.Address = "", address
		err := e.Client.Create(t.Context(), f, client.DryRunAll)
		if good && err != nil || !good && (!apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "host:port")) {
			t.Errorf("%q: %v", address, err)
		}
	}
}

// TestANameThatNoSecretCanHaveIsRefused: to look for it would fail, and fail again.
func TestANameThatNoSecretCanHaveIsRefused(t *testing.T) {
	e := testenv.Shared(t)
	namespace := e.Namespace(t)
	for name, good := range map[string]bool{"ca": true, "team.ca-2": true, "vault/ca": false, "..": false, "CA": false} {
		f, sites := minimal()
		inNamespace(namespace, f, sites)
		f.UID, f.Spec.Link.CASecret = "", &v1alpha1.SecretReference{Name: name}
		f.Spec.Events.Redis = &v1alpha1.RedisSpec{URLSecret: &v1alpha1.SecretKeyReference{Name: name, Key: "url"}}
		err := e.Client.Create(t.Context(), f, client.DryRunAll)
		if good && err != nil || !good && (!apierrors.IsInvalid(err) || strings.Count(err.Error(), "no Secret can have this name") != 2) {
			t.Errorf("%q: %v", name, err)
		}
	}
}

// TestWhatNoPodCanHaveIsRefusedAtOnce: a DaemonSet with it would be refused again
// and again.
func TestWhatNoPodCanHaveIsRefusedAtOnce(t *testing.T) {
	e := testenv.Shared(t)
	namespace := e.Namespace(t)
	trainer := func(v v1alpha1.TrainerVolume) v1alpha1.TrainerSpec {
		return v1alpha1.TrainerSpec{Volumes: []v1alpha1.TrainerVolume{v}}
	}
	for name, tc := range map[string]struct {
		trainer    v1alpha1.TrainerSpec
		toleration v1alpha1.Toleration
		says       string
	}{
		"good": {
			trainer: v1alpha1.TrainerSpec{
				Env:     []v1alpha1.EnvVar{{Name: "NCCL_DEBUG", Value: "INFO"}, {Name: "my.var-1"}},
				Volumes: []v1alpha1.TrainerVolume{{Name: "d-1", MountPath: "/data/x", HostPath: "/mnt/data"}},
			},
			toleration: v1alpha1.Toleration{Key: "nvidia.com/gpu", Operator: "Exists"},
		},
		"variable":   {trainer: v1alpha1.TrainerSpec{Env: []v1alpha1.EnvVar{{Name: "A=B"}}}, says: "without '='"},
		"volume":     {trainer: trainer(v1alpha1.TrainerVolume{Name: "Data", MountPath: "/d", ClaimName: "c"}), says: "a volume's name"},
		"mount path": {trainer: trainer(v1alpha1.TrainerVolume{Name: "d", MountPath: "/d:ro", ClaimName: "c"}), says: "mountPath is"},
		"host path":  {trainer: trainer(v1alpha1.TrainerVolume{Name: "d", MountPath: "/d", HostPath: "/mnt/../etc"}), says: "hostPath is"},
		"toleration": {toleration: v1alpha1.Toleration{Key: "a", Operator: "Exists", Value: "b"}, says: "leave value out"},
	} {
		f, sites := minimal()
		inNamespace(namespace, f, sites)
		f.UID, f.Spec.Agent.Trainer = "", tc.trainer
		if tc.toleration.Key != "" {
			f.Spec.Agent.Vendors = []v1alpha1.VendorSpec{{Vendor: v1alpha1.VendorNVIDIA, Tolerations: []v1alpha1.Toleration{tc.toleration}}}
		}
		err := e.Client.Create(t.Context(), f, client.DryRunAll)
		if tc.says == "" && err != nil || tc.says != "" && (!apierrors.IsInvalid(err) || !strings.Contains(err.Error(), tc.says)) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// restricted is a namespace that enforces the Pod Security Standard "restricted".
func restricted(t *testing.T, e *testenv.Environment) string {
	t.Helper()
	ns := &corev1.Namespace{}
	if err := e.Client.Get(t.Context(), client.ObjectKey{Name: e.Namespace(t)}, ns); err != nil {
		t.Fatal(err)
	}
	ns.Labels["pod-security.kubernetes.io/enforce"] = "restricted"
	ns.Labels["pod-security.kubernetes.io/enforce-version"] = "latest"
	if err := e.Client.Update(t.Context(), ns); err != nil {
		t.Fatal(err)
	}
	return ns.Name
}

// templates of the pods among children.
func templates(t *testing.T, children []runtime.ApplyConfiguration) map[string]corev1.PodTemplateSpec {
	t.Helper()
	out := map[string]corev1.PodTemplateSpec{}
	for _, o := range children {
		if kind := *o.(described).GetKind(); kind != "StatefulSet" && kind != "DaemonSet" && kind != "Deployment" {
			continue
		}
		out[describe(o)] = as[struct {
			Spec struct{ Template corev1.PodTemplateSpec }
		}](t, o).Spec.Template
	}
	return out
}

func TestPodsAreWithinTheRestrictedStandard(t *testing.T) {
	e := testenv.Shared(t)
	ctx := context.Background()
	for _, o := range []client.Object{
		&schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: "training"}, Value: 100},
		&nodev1.RuntimeClass{ObjectMeta: metav1.ObjectMeta{Name: "nvidia"}, Handler: "nvidia"},
	} {
		if err := client.IgnoreAlreadyExists(e.Client.Create(ctx, o)); err != nil {
			t.Fatal(err)
		}
	}
	for name, tc := range map[string]struct {
		federation func() (*v1alpha1.Federation, []v1alpha1.Site)
		// hostPath: a folder of the node was asked for, which the standard forbids.
		hostPath bool
	}{
		"minimal": {minimal, false},
		"full":    {full, true},
		"full, without folders of the node": {func() (*v1alpha1.Federation, []v1alpha1.Site) {
			f, sites := full()
			f.Spec.Agent.DataPath, f.Spec.Agent.MeasureProcessors, f.Spec.Agent.Trainer.Volumes = "", false, f.Spec.Agent.Trainer.Volumes[:2]
			return f, sites
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			f, sites := tc.federation()
			inNamespace(restricted(t, e), f, sites)
			pods := templates(t, everything(t, f, sites))
			if len(pods) < 4 {
				t.Fatalf("%d templates", len(pods))
			}
			for what, template := range pods {
				pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: f.Namespace, Name: "p", Labels: template.Labels}, Spec: template.Spec}
				err := e.Client.Create(ctx, pod, client.DryRunAll)
				if !tc.hostPath || !strings.HasPrefix(what, "DaemonSet") {
					if err != nil {
						t.Errorf("%s: %v", what, err)
					}
					continue
				}
				if err == nil || !strings.Contains(err.Error(), "hostPath") {
					t.Errorf("%s: %v, want a refusal of its folder of the node", what, err)
					continue
				}
				for _, other := range []string{"runAsNonRoot", "allowPrivilegeEscalation", "capabilities", "seccompProfile", "host namespaces", "privileged"} {
					if strings.Contains(err.Error(), other) {
						t.Errorf("%s is refused for more than that: %v", what, err)
					}
				}
			}
		})
	}
}

func TestNoPodHasBusinessWithTheAPIServer(t *testing.T) {
	f, sites := full()
	for what, template := range templates(t, everything(t, f, sites)) {
		s := template.Spec
		if s.AutomountServiceAccountToken == nil || *s.AutomountServiceAccountToken || s.HostNetwork || s.HostPID || s.HostIPC || s.ServiceAccountName == "" {
			t.Errorf("%s: %+v", what, s)
		}
		for _, c := range s.Containers {
			if c.SecurityContext.ReadOnlyRootFilesystem == nil || *c.SecurityContext.ReadOnlyRootFilesystem == (c.Name == "trainer" && c.Command != nil) {
				t.Errorf("%s: the root of %s can be written to, or a user's trainer's cannot", what, c.Name)
			}
		}
		for _, tol := range s.Tolerations {
			if tol.Key == "" {
				t.Errorf("%s tolerates everything", what)
			}
		}
	}
}

func TestTheCoordinatorStaysOffEnrolledNodes(t *testing.T) {
	f, sites := full()
	s := find[appsv1.StatefulSet](t, build(t, f, sites), "StatefulSet-lm-coordinator").Spec.Template.Spec
	b, _ := json.Marshal(s.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution)
	if string(b) != `{"nodeSelectorTerms":[{"matchExpressions":[{"key":"girassol.dev/agent","operator":"DoesNotExist"}]}]}` {
		t.Errorf("its affinity is %s", b)
	}
}

package churn

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/internal/wire"
	"girassol.dev/operator/resources"
	"girassol.dev/operator/testenv"
)

// site as it is now.
func (r *rig) site(name string) *v1alpha1.Site {
	r.t.Helper()
	s := &v1alpha1.Site{}
	if err := r.e.Client.Get(context.Background(), types.NamespacedName{Namespace: r.ns, Name: name}, s); client.IgnoreNotFound(err) != nil {
		r.t.Fatal(err)
	}
	return s
}

func (r *rig) untilPhase(site string, phases ...v1alpha1.SitePhase) *v1alpha1.Site {
	r.t.Helper()
	var s *v1alpha1.Site
	r.until(fmt.Sprintf("brought %s to %v", site, phases), func() bool { s = r.site(site); return slices.Contains(phases, s.Status.Phase) })
	return s
}

// override moves a site where energy is ignored.
func (r *rig) override(site string, o *v1alpha1.OverrideSpec) {
	r.t.Helper()
	s := r.site(site)
	old := s.DeepCopy()
	s.Spec.Override = o
	if err := r.e.Client.Patch(context.Background(), s, client.MergeFrom(old)); err != nil {
		r.t.Fatal(err)
	}
}

func drainNow() *v1alpha1.OverrideSpec {
	return &v1alpha1.OverrideSpec{Action: v1alpha1.OverrideDrain, Until: metav1.NewTime(time.Now().Add(time.Hour)), Reason: "a test"}
}

// status asks the coordinator, as the operator does; nil while it does not answer.
func (r *rig) status() *coordinatorv1.FederationStatus {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	secret := &corev1.Secret{}
	if err := r.e.Client.Get(ctx, types.NamespacedName{Namespace: r.ns, Name: resources.OperatorSecretName(federationName)}, secret); err != nil {
		return nil
	}
	pem := wire.PEM{Certificate: secret.Data[resources.CertificateKey], Key: secret.Data[resources.PrivateKeyKey], CA: secret.Data[resources.AuthorityKey]}
	conn, err := wire.Dial(net(testenv.PodAddress(r.ns, resources.CoordinatorName(federationName)+"-0"), resources.GRPCPort),
		wire.Options{PEM: func() (wire.PEM, error) { return pem, nil }, ServerName: resources.CoordinatorName(federationName)})
	if err != nil {
		return nil
	}
	defer conn.Close()
	st, err := coordinatorv1.NewAdminClient(conn).Status(ctx, &coordinatorv1.StatusRequest{})
	if err != nil {
		return nil
	}
	return st
}

// contributed is how many rounds have an update of the site.
func contributed(s *coordinatorv1.FederationStatus, site string) uint64 {
	for _, x := range s.GetSites() {
		if x.GetName() == site {
			return x.GetRoundsContributed()
		}
	}
	return 0
}

// untilTrained waits for more rounds with updates of the sites.
func (r *rig) untilTrained(sites ...string) *coordinatorv1.FederationStatus {
	r.t.Helper()
	var st *coordinatorv1.FederationStatus
	r.until("had a coordinator that answers", func() bool { st = r.status(); return st != nil })
	before := map[string]uint64{}
	for _, s := range sites {
		before[s] = contributed(st, s)
	}
	r.until(fmt.Sprintf("trained at %v", sites), func() bool {
		st = r.status()
		return st != nil && !slices.ContainsFunc(sites, func(s string) bool { return contributed(st, s) < before[s]+2 })
	})
	return st
}

// replicas of the MachineDeployment's spec.
func (r *rig) replicas() int64 {
	md := &unstructured.Unstructured{}
	md.SetGroupVersionKind(testenv.MachineDeploymentKind)
	if err := r.e.Client.Get(context.Background(), types.NamespacedName{Namespace: r.ns, Name: machinesName}, md); err != nil {
		r.t.Fatal(err)
	}
	n, _, err := unstructured.NestedInt64(md.Object, "spec", "replicas")
	if err != nil {
		r.t.Fatal(err)
	}
	return n
}

// enrolled nodes of this test.
func (r *rig) enrolled() []string {
	nodes := &corev1.NodeList{}
	if err := r.e.Client.List(context.Background(), nodes, client.MatchingLabels{labelBench: r.ns}, client.HasLabels{v1alpha1.LabelAgent}); err != nil {
		r.t.Fatal(err)
	}
	var out []string
	for _, n := range nodes.Items {
		out = append(out, n.Name)
	}
	return out
}

// pods of a component.
func (r *rig) pods(component string) []corev1.Pod {
	pods := &corev1.PodList{}
	if err := r.e.Client.List(context.Background(), pods, client.InNamespace(r.ns), client.MatchingLabels{"app.kubernetes.io/component": component}); err != nil {
		r.t.Fatal(err)
	}
	return pods.Items
}

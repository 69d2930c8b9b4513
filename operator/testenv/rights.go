package testenv

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"
)

// OperatorAccount is the name of the operator's ServiceAccount and roles.
const OperatorAccount = "girassol-operator"

// ScaleTarget is a kind that the chart's value capacity.scaleTargets would name.
type ScaleTarget struct{ Group, Resource string }

// Operator is a config with exactly the rights that the chart gives the operator
// for all namespaces, and the operator's own namespace, which is new. What it may
// not do is refused by the apiserver.
func (e *Environment) Operator(t testing.TB, targets ...ScaleTarget) (config *rest.Config, namespace string) {
	t.Helper()
	namespace = e.Namespace(t)
	cluster, own := OperatorRoles(t)
	for _, target := range targets {
		cluster.Rules = append(cluster.Rules,
			rbacv1.PolicyRule{APIGroups: []string{target.Group}, Resources: []string{target.Resource}, Verbs: []string{"get"}},
			rbacv1.PolicyRule{APIGroups: []string{target.Group}, Resources: []string{target.Resource + "/scale"}, Verbs: []string{"get", "update"}})
	}
	cluster.Name = OperatorAccount + "-" + namespace // roles of other tests stay apart
	own.Namespace = namespace
	subjects := []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: OperatorAccount}}
	for _, object := range []client.Object{
		cluster, own,
		&rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: cluster.Name}, Subjects: subjects,
			RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: cluster.Name},
		},
		&rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: own.Name}, Subjects: subjects,
			RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: own.Name},
		},
	} {
		if err := e.Client.Create(context.Background(), object); err != nil {
			t.Fatal(err)
		}
	}
	return e.As(namespace, OperatorAccount), namespace
}

// As is the shared config in the place of a ServiceAccount, with its rights only.
func (e *Environment) As(namespace, account string) *rest.Config {
	config := rest.CopyConfig(e.Config)
	config.Impersonate = rest.ImpersonationConfig{
		UserName: "system:serviceaccount:" + namespace + ":" + account,
		Groups:   []string{"system:serviceaccounts", "system:serviceaccounts:" + namespace, "system:authenticated"},
	}
	return config
}

// WriteKubeconfig writes a config, with whom it stands for, for other processes.
func WriteKubeconfig(t testing.TB, config *rest.Config) string {
	t.Helper()
	const name = "testenv"
	out := clientcmdapi.NewConfig()
	out.Clusters[name] = &clientcmdapi.Cluster{Server: config.Host, CertificateAuthorityData: config.CAData}
	out.AuthInfos[name] = &clientcmdapi.AuthInfo{
		ClientCertificateData: config.CertData, ClientKeyData: config.KeyData, Token: config.BearerToken,
		Impersonate: config.Impersonate.UserName, ImpersonateGroups: config.Impersonate.Groups,
	}
	out.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name}
	out.CurrentContext = name
	path := filepath.Join(t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*out, path); err != nil {
		t.Fatal(err)
	}
	return path
}

// OperatorRoles reads the operator's rights as the chart has them: for all
// namespaces, and in its own.
func OperatorRoles(t testing.TB) (*rbacv1.ClusterRole, *rbacv1.Role) {
	t.Helper()
	path := filepath.Join(Root(), "charts", "girassol", "files", "rbac", "role.yaml")
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	cluster, own := &rbacv1.ClusterRole{}, &rbacv1.Role{}
	for _, document := range bytes.Split(data, []byte("\n---\n")) {
		into := any(cluster)
		if bytes.Contains(document, []byte("kind: Role\n")) {
			into = own
		}
		if err := yaml.UnmarshalStrict(document, into); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
	}
	return cluster, own
}

package remote

import (
	"fmt"
	"net/url"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// maxKubeconfig in bytes.
const maxKubeconfig = 256 << 10

// parseKubeconfig takes a kubeconfig that holds all it needs: its current context
// with an https server that is verified and credentials that are inline. Whatever
// would make the operator read its own files or run a program is refused. Errors
// name the field and hold no credentials.
func parseKubeconfig(raw []byte) (*rest.Config, error) {
	if len(raw) > maxKubeconfig {
		return nil, fmt.Errorf("it has %d bytes, the most is %d", len(raw), maxKubeconfig)
	}
	k, err := clientcmd.Load(raw)
	if err != nil {
		// The parser's error may quote what it could not read.
		return nil, fmt.Errorf("it is no kubeconfig (apiVersion v1, kind Config)")
	}
	if k.CurrentContext == "" {
		return nil, fmt.Errorf("current-context is not set: it says which cluster and user to take")
	}
	context := k.Contexts[k.CurrentContext]
	if context == nil {
		return nil, fmt.Errorf("current-context is %q, of which contexts has none", k.CurrentContext)
	}
	cluster, user := k.Clusters[context.Cluster], k.AuthInfos[context.AuthInfo]
	if cluster == nil {
		return nil, fmt.Errorf("the current context's cluster is %q, of which clusters has none", context.Cluster)
	}
	if user == nil {
		return nil, fmt.Errorf("the current context's user is %q, of which users has none", context.AuthInfo)
	}
	config := &rest.Config{UserAgent: "girassol-operator", QPS: 20, Burst: 40, WarningHandler: rest.NoWarnings{}}
	if err := setCluster(config, cluster, fmt.Sprintf("clusters[%s].cluster.", context.Cluster)); err != nil {
		return nil, err
	}
	if err := setUser(config, user, fmt.Sprintf("users[%s].user.", context.AuthInfo)); err != nil {
		return nil, err
	}
	return config, nil
}

func setCluster(config *rest.Config, c *clientcmdapi.Cluster, field string) error {
	u, err := url.Parse(c.Server)
	switch {
	case err != nil || u.Host == "" || u.Scheme != "https":
		return fmt.Errorf("%sserver must be an https URL", field)
	case u.User != nil || u.RawQuery != "" || u.Fragment != "":
		return fmt.Errorf("%sserver must be a plain https URL, without user, query or fragment", field)
	case c.InsecureSkipTLSVerify:
		return fmt.Errorf("%sinsecure-skip-tls-verify is refused: put the CA into certificate-authority-data", field)
	case c.CertificateAuthority != "":
		return fmt.Errorf("%scertificate-authority names a file: put its contents into certificate-authority-data", field)
	case c.ProxyURL != "":
		return fmt.Errorf("%sproxy-url is refused: let the server be reachable by itself", field)
	}
	config.Host = c.Server
	config.CAData = c.CertificateAuthorityData
	config.ServerName = c.TLSServerName
	return nil
}

func setUser(config *rest.Config, a *clientcmdapi.AuthInfo, field string) error {
	for _, refused := range []struct {
		there bool
		name  string
		way   string
	}{
		{a.Exec != nil, "exec", "would run a program in the operator: use a token of a service account or a client certificate"},
		{a.AuthProvider != nil, "auth-provider", "is refused: use a token of a service account or a client certificate"},
		{a.TokenFile != "", "tokenFile", "names a file: put its contents into token"},
		{a.ClientCertificate != "", "client-certificate", "names a file: put its contents into client-certificate-data"},
		{a.ClientKey != "", "client-key", "names a file: put its contents into client-key-data"},
		{a.Username != "" || a.Password != "", "username", "is refused: use a token or a client certificate"},
		{a.Impersonate != "" || a.ImpersonateUID != "" || len(a.ImpersonateGroups) > 0 || len(a.ImpersonateUserExtra) > 0, "as", "is refused: give the user itself the rights"},
	} {
		if refused.there {
			return fmt.Errorf("%s%s %s", field, refused.name, refused.way)
		}
	}
	certificate := len(a.ClientCertificateData) > 0
	if certificate != (len(a.ClientKeyData) > 0) {
		return fmt.Errorf("%sclient-certificate-data and client-key-data belong together", field)
	}
	if !certificate && a.Token == "" {
		return fmt.Errorf("%stoken or client-certificate-data is missing: there are no credentials", field)
	}
	config.BearerToken = a.Token
	config.CertData, config.KeyData = a.ClientCertificateData, a.ClientKeyData
	if _, err := rest.TLSConfigFor(config); err != nil {
		return fmt.Errorf("the certificates are not PEM that fits together: check certificate-authority-data, client-certificate-data and client-key-data")
	}
	return nil
}

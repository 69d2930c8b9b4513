package remote

import (
	"strings"
	"testing"

	"k8s.io/client-go/rest"
)

const good = `apiVersion: v1
kind: Config
current-context: site
contexts:
- {name: site, context: {cluster: quebec, user: girassol}}
clusters:
- name: quebec
  cluster: {server: "https://quebec.example:6443"}
users:
- name: girassol
  user: {token: hunter2}
`

func TestOnlyAKubeconfigThatHoldsAllItNeedsIsTaken(t *testing.T) {
	config, err := parseKubeconfig([]byte(good))
	if err != nil || config.Host != "https://quebec.example:6443" || config.BearerToken != "hunter2" {
		t.Fatalf("%+v %v", config, err)
	}
	replace := func(old, by string) string { return strings.Replace(good, old, by, 1) }
	user := func(by string) string { return replace("{token: hunter2}", "{"+by+"}") }
	cluster := func(more string) string { return replace(`:6443"`, `:6443", `+more) }
	for name, tc := range map[string]struct{ kubeconfig, says string }{
		"nothing":           {"", "current-context is not set"},
		"garbage":           {"hunter2: [", "no kubeconfig"},
		"another kind":      {"apiVersion: v1\nkind: Secret\n", "no kubeconfig"},
		"huge":              {good + "# " + strings.Repeat("x", maxKubeconfig), "the most is"},
		"no context":        {replace("current-context: site", ""), "current-context is not set"},
		"other context":     {replace("current-context: site", "current-context: other"), `current-context is "other"`},
		"no cluster":        {replace("cluster: quebec", "cluster: atlanta"), `cluster is "atlanta"`},
		"no user":           {replace("user: girassol", "user: other"), `user is "other"`},
		"plain http":        {replace("https:", "http:"), "clusters[quebec].cluster.server must be an https URL"},
		"no server":         {replace("https://quebec.example:6443", ""), "clusters[quebec].cluster.server"},
		"user in server":    {replace("https://", "https://a:hunter2@"), "without user"},
		"no verification":   {cluster("insecure-skip-tls-verify: true"), "clusters[quebec].cluster.insecure-skip-tls-verify"},
		"CA file":           {cluster("certificate-authority: /etc/ca.crt"), "clusters[quebec].cluster.certificate-authority names a file"},
		"CA garbage":        {cluster("certificate-authority-data: aHVudGVyMg=="), "certificate-authority-data"},
		"proxy":             {cluster("proxy-url: http://proxy"), "clusters[quebec].cluster.proxy-url"},
		"exec":              {user("exec: {apiVersion: client.authentication.k8s.io/v1, command: aws, interactiveMode: Never}"), "users[girassol].user.exec"},
		"auth provider":     {user("auth-provider: {name: gcp}"), "users[girassol].user.auth-provider"},
		"token file":        {user("tokenFile: /var/run/secrets/token"), "users[girassol].user.tokenFile names a file"},
		"token and a file":  {user("token: hunter2, tokenFile: /var/run/secrets/token"), "users[girassol].user.tokenFile"},
		"certificate file":  {user("client-certificate: /a"), "users[girassol].user.client-certificate names a file"},
		"key file":          {user("client-key: /a"), "users[girassol].user.client-key names a file"},
		"password":          {user("username: a, password: hunter2"), "users[girassol].user.username"},
		"impersonation":     {user("token: hunter2, as: admin"), "users[girassol].user.as"},
		"no credentials":    {user(""), "there are no credentials"},
		"half a pair":       {user("client-certificate-data: aHVudGVyMg=="), "belong together"},
		"certificate noise": {user("client-certificate-data: aHVudGVyMg==, client-key-data: aHVudGVyMg=="), "client-certificate-data"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := parseKubeconfig([]byte(tc.kubeconfig))
			if err == nil || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("%v, want %q", err, tc.says)
			}
			if err != nil && (strings.Contains(err.Error(), "hunter2") || strings.Contains(err.Error(), "aHVudGVyMg")) {
				t.Errorf("%q tells a secret", err)
			}
		})
	}
}

func FuzzATakenKubeconfigReadsNoFileAndRunsNoProgram(f *testing.F) {
	f.Add([]byte(good))
	f.Add([]byte(strings.Replace(good, "token: hunter2", "exec: {apiVersion: client.authentication.k8s.io/v1, command: aws}", 1)))
	f.Add([]byte(strings.Replace(good, "token: hunter2", "tokenFile: /etc/passwd", 1)))
	f.Add([]byte("{}"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		config, err := parseKubeconfig(raw)
		if err != nil {
			return
		}
		if !strings.HasPrefix(strings.ToLower(config.Host), "https://") || config.ExecProvider != nil || config.AuthProvider != nil || config.BearerTokenFile != "" ||
			config.Insecure || config.CAFile != "" || config.CertFile != "" || config.KeyFile != "" || config.Proxy != nil || config.Impersonate.UserName != "" {
			t.Errorf("took %+v", config)
		}
		if _, err := rest.TLSConfigFor(config); err != nil {
			t.Error(err)
		}
	})
}

package remote

import (
	"encoding/pem"
	"net/http"
	"net/http/httputil"
	"net/url"

	"k8s.io/client-go/rest"

	"girassol.dev/operator/testenv"
)

// transportOf speaks to a control plane with all rights.
func transportOf(e *testenv.Environment) (*http.Transport, error) {
	tls, err := rest.TLSConfigFor(e.Config)
	if err != nil {
		return nil, err
	}
	return &http.Transport{TLSClientConfig: tls}, nil
}

// relay forwards a request without its credentials.
func relay(w http.ResponseWriter, req *http.Request, host string, transport http.RoundTripper) {
	to, err := url.Parse(host)
	if err != nil || to.Host == "" {
		to = &url.URL{Scheme: "https", Host: host}
	}
	(&httputil.ReverseProxy{Transport: transport, FlushInterval: -1, Rewrite: func(p *httputil.ProxyRequest) {
		p.SetURL(&url.URL{Scheme: "https", Host: to.Host})
		p.Out.Header.Del("Authorization")
	}}).ServeHTTP(w, req)
}

func pemOf(certificate []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate})
}

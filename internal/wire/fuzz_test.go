package wire

import (
	"crypto/x509"
	"net/url"
	"strings"
	"testing"
)

// The name in a certificate says who somebody is: nothing is read as a site or a
// role that is not spelled as one.
func FuzzIdentity(f *testing.F) {
	for _, s := range []string{"spiffe://fed/site/porto", "spiffe://fed/admin", "spiffe://fed/operator", "spiffe://fed/site/", "spiffe://fed/site/a/b", "spiffe://fed/site/%2e%2e", "spiffe://fed/site/a%2Fb",
		"spiffe:///site/a", "spiffe://u@fed/site/a", "spiffe://fed/site/a?x", "spiffe://fed/site/a#x", "https://fed/site/a", "SPIFFE://fed/site/a", "spiffe://fed//site/a", "spiffe://fed/ADMIN"} {
		f.Add(s, "spiffe://fed/site/b")
	}
	f.Fuzz(func(t *testing.T, one, other string) {
		u, err := url.Parse(one)
		if err != nil {
			return
		}
		id, err := identify(&x509.Certificate{URIs: []*url.URL{u}})
		if err == nil && id.Role != "" {
			if id.Federation == "" || (id.Role == RoleSite) != (id.Site != "") || strings.Contains(id.Site, "/") {
				t.Fatalf("%q is %+v", one, id)
			}
			if want := id.String(); u.Scheme+"://"+u.Host+u.Path != want {
				t.Fatalf("%q is read as %s", one, want)
			}
		}
		v, err := url.Parse(other)
		if err != nil || u.Scheme != "spiffe" || v.Scheme != "spiffe" {
			return
		}
		if id, err := identify(&x509.Certificate{URIs: []*url.URL{u, v}}); err == nil {
			t.Fatalf("two names make %+v", id)
		}
	})
}

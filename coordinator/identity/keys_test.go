package identity

import (
	"errors"
	"maps"
	"slices"
	"testing"
	"time"

	"girassol.dev/internal/certs"
	"girassol.dev/internal/enrol"
)

// A tunnel's key goes with the certificates that it came with, whichever way they are
// revoked, and stays as long as one of them is in force.
func TestAWireGuardKeyEndsWithItsCertificates(t *testing.T) {
	for name, c := range map[string]struct {
		revoke func(r *Registry, token, serial string) error
		want   []string
	}{
		"nothing is revoked":  {func(*Registry, string, string) error { return nil }, []string{"again", "first", "porto's", "renewed"}},
		"by serial":           {func(r *Registry, _, serial string) error { _, err := r.RevokeSerial(serial, "", now); return err }, []string{"again", "porto's", "renewed"}},
		"by token":            {func(r *Registry, token, _ string) error { _, err := r.RevokeToken(token, "", now); return err }, []string{"again", "porto's"}},
		"by site":             {func(r *Registry, _, _ string) error { r.RevokeSite("quebec", "", now); return nil }, []string{"porto's"}},
		"a number of another": {func(r *Registry, _, _ string) error { _, err := r.RevokeSerial("77", "", now); return err }, []string{"again", "first", "porto's", "renewed"}},
	} {
		t.Run(name, func(t *testing.T) {
			i, known := issuer(t, t.TempDir()), peers{}
			i.Peers = known
			enrol := func(site, key string) (token, serial string) {
				k, _, err := i.CreateToken(site, 0)
				if err != nil {
					t.Fatal(err)
				}
				a, err := i.Enrol(k, csr(t), []byte(key))
				if err != nil {
					t.Fatal(err)
				}
				present, err := certs.ParseCertificate(a.Certificate)
				if err != nil {
					t.Fatal(err)
				}
				if key == "first" {
					if _, err := i.Renew(site, present, csr(t), []byte("renewed")); err != nil {
						t.Fatal(err)
					}
				}
				return k.ID, certs.Serial(present.SerialNumber)
			}
			enrol("porto", "porto's")
			token, serial := enrol("quebec", "first")
			// A node that enrolled twice with one key keeps it.
			_, old := enrol("quebec", "again")
			enrol("quebec", "again")
			if err := i.Store.Do(func(r *Registry) error {
				_, err := r.RevokeSerial(old, "", now)
				return errors.Join(err, c.revoke(r, token, serial))
			}); err != nil {
				t.Fatal(err)
			}
			if err := i.EndRevokedKeys(); err != nil {
				t.Fatal(err)
			}
			if got := slices.Sorted(maps.Keys(known)); !slices.Equal(got, c.want) {
				t.Errorf("keys %v, want %v", got, c.want)
			}
		})
	}
}

// revokes has its site revoked while a key is on its way in.
type revokes struct {
	peers
	i *Issuer
}

func (p revokes) Admit(key []byte, site string) (*enrol.WireGuard, error) {
	if err := p.i.Store.Do(func(r *Registry) error { r.RevokeSite(site, "", now.Add(time.Second)); return nil }); err != nil {
		return nil, err
	}
	return p.peers.Admit(key, site)
}

func TestAKeyThatComesInBesideARevocationDoesNotStay(t *testing.T) {
	i := issuer(t, t.TempDir())
	known := revokes{peers{}, i}
	i.Peers = known
	k, _, err := i.CreateToken("quebec", 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := i.Enrol(k, csr(t), []byte("late")); err != nil {
		t.Fatal(err)
	}
	if len(known.peers) != 0 {
		t.Errorf("%v stay", known.peers)
	}
}

package wireguard

import (
	"cmp"
	"fmt"
	"net/netip"
	"os"
	"regexp"
	"slices"

	"sigs.k8s.io/yaml"
)

// Peer is a key that may come in and the site for which it speaks. A site may have
// several: one for each of its nodes, and two for a node whose key changes.
type Peer struct {
	Site      string    `json:"site"`
	PublicKey PublicKey `json:"publicKey"`
}

// Limits of a table of peers.
const (
	maxPeersBytes = 1 << 20
	maxPeers      = 4096
)

var siteName = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)

// ParsePeers reads YAML or JSON: {peers: [{site, publicKey}, ...]}.
func ParsePeers(b []byte) ([]Peer, error) {
	if len(b) > maxPeersBytes {
		return nil, fmt.Errorf("%d bytes, at most %d", len(b), maxPeersBytes)
	}
	var file struct {
		Peers []Peer `json:"peers"`
	}
	if err := yaml.UnmarshalStrict(b, &file); err != nil {
		return nil, err
	}
	return file.Peers, checkPeers(file.Peers, Address)
}

// ReadPeers reads a file of ParsePeers' form.
func ReadPeers(path string) ([]Peer, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("wireguard: peers: %w", err)
	}
	peers, err := ParsePeers(b)
	if err != nil {
		return nil, fmt.Errorf("wireguard: peers in %s: %w", path, err)
	}
	return peers, nil
}

// FormatPeers writes what ParsePeers reads.
func FormatPeers(peers []Peer) ([]byte, error) {
	return yaml.Marshal(map[string][]Peer{"peers": peers})
}

func checkPeers(peers []Peer, address func(PublicKey) netip.Addr) error {
	if len(peers) > maxPeers {
		return fmt.Errorf("%d peers, at most %d", len(peers), maxPeers)
	}
	sites := map[PublicKey]string{}
	owners := map[netip.Addr]PublicKey{}
	for i, p := range peers {
		if !siteName.MatchString(p.Site) {
			return fmt.Errorf("peers[%d].site: %.80q must be 1 to 63 lower-case letters, digits or '-'", i, p.Site)
		}
		if _, err := NewPublicKey(p.PublicKey[:]); err != nil {
			return fmt.Errorf("peers[%d].publicKey: %w", i, err)
		}
		if site, ok := sites[p.PublicKey]; ok {
			return fmt.Errorf("peers[%d].publicKey: site %s has the same key: each node needs its own", i, site)
		}
		sites[p.PublicKey] = p.Site
		a := address(p.PublicKey)
		if other, ok := owners[a]; ok {
			return fmt.Errorf("peers[%d].publicKey: address %s is also that of key %s: make another key", i, a, other)
		}
		owners[a] = p.PublicKey
	}
	return nil
}

// merge is all sources' peers in key order. The same key twice is one peer if both
// say the same site.
func merge(sources map[string][]Peer) ([]Peer, error) {
	var all []Peer
	sites := map[PublicKey]string{}
	for _, peers := range sources {
		for _, p := range peers {
			site, seen := sites[p.PublicKey]
			if seen && site != p.Site {
				return nil, fmt.Errorf("key %s is given to both site %s and site %s", p.PublicKey, min(site, p.Site), max(site, p.Site))
			}
			if !seen {
				sites[p.PublicKey] = p.Site
				all = append(all, p)
			}
		}
	}
	slices.SortFunc(all, func(a, b Peer) int { return cmp.Compare(a.PublicKey.String(), b.PublicKey.String()) })
	return all, checkPeers(all, Address)
}

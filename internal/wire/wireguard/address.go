package wireguard

import (
	"crypto/sha256"
	"net/netip"
)

// Prefix of all addresses inside tunnels.
var Prefix = netip.MustParsePrefix("fd67:6972:6173::/48")

const addressDomain = "girassol wireguard address 1\x00"

// Address of a key's owner inside the tunnel.
func Address(k PublicKey) netip.Addr {
	sum := sha256.Sum256(append([]byte(addressDomain), k[:]...))
	a := Prefix.Addr().As16()
	copy(a[6:], sum[:10])
	return netip.AddrFrom16(a)
}

// Package wireguard owns the encrypted tunnel between a coordinator and its sites:
// a hub that sites dial by UDP, WireGuard by wireguard-go, and what the tunnel ends
// in, which is a network stack inside the process (userspace, needs no rights) or a
// TUN device of the kernel (needs NET_ADMIN).
//
// # Addresses
//
// An end's address follows from its public key: the prefix fd67:6972:6173::/48 and
// the first 80 bits of SHA-256 over "girassol wireguard address 1", a zero byte and
// the 32 bytes of the key. Nobody hands addresses out. Two keys of one hub with the
// same address are refused. The hub lets each key send from its own address only
// (AllowedIPs, cryptokey routing), so that a source address inside the tunnel names
// a key, and by the table of peers a site: who is not in the table cannot send a
// packet, and no site can send in another's name.
//
// # Keys
//
// A key file holds a private key, base64 as wg's tools write it. It is made on the
// machine that uses it, with mode 0600, and never sent anywhere; the public key is
// what the other end is told. To change a site's key, `FILE.next` is made beside it
// and its public key is added at the hub: the site goes over once the new key has
// shaken hands, and until then goes on with the old.
//
// # MTU
//
// MTU is that of packets inside the tunnel; outside, a packet is 60 bytes longer
// over IPv4 and 80 over IPv6. Full packets that the path swallows without a word
// would leave small messages alive and stop every transfer. A site with the
// userspace device therefore sends an echo of full size before its first connection
// and each minute, and lowers its MTU, down to 1280, to what comes back. Its TCP
// tells the hub, so both directions fit.
//
// The package must not know what is said through the tunnel, nor who may be a peer:
// it is told.
package wireguard

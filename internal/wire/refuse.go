package wire

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"time"
	"unicode"
)

// A client that is not let in is told why in HTTP/2's own way: empty SETTINGS and a
// GOAWAY with the reason as debug data. TLS itself has but a few alerts, and with
// TLS 1.3 they come after the client's handshake anyway.
const (
	frameHeader        = 9
	typeSettings       = 4
	typeGoAway         = 7
	inadequateSecurity = 12 // RFC 9113, section 7
	// maxRefusal is the most bytes of a reason.
	maxRefusal = 1024
)

// Time and bytes for a client to take its refusal: closing with unread bytes would
// reset the connection and lose it.
const (
	refusalTime  = 2 * time.Second
	refusalBytes = 64 << 10
)

func refusalFrames(reason string) []byte {
	reason = reason[:min(len(reason), maxRefusal)]
	b := []byte{0, 0, 0, typeSettings, 0, 0, 0, 0, 0}
	n := 8 + len(reason)
	b = append(b, byte(n>>16), byte(n>>8), byte(n), typeGoAway, 0, 0, 0, 0, 0)
	b = binary.BigEndian.AppendUint32(b, 0)
	b = binary.BigEndian.AppendUint32(b, inadequateSecurity)
	return append(b, reason...)
}

// parseRefusal reads what a server has sent first; ok is false for anything else.
func parseRefusal(b []byte) (reason string, ok bool) {
	const begin = 2*frameHeader + 8
	if len(b) < begin || !bytes.Equal(b[:frameHeader], []byte{0, 0, 0, typeSettings, 0, 0, 0, 0, 0}) {
		return "", false
	}
	h := b[frameHeader:]
	n := int(h[0])<<16 | int(h[1])<<8 | int(h[2])
	if h[3] != typeGoAway || n < 8 || n > 8+maxRefusal || binary.BigEndian.Uint32(h[frameHeader:]) != 0 ||
		binary.BigEndian.Uint32(h[frameHeader+4:]) != inadequateSecurity {
		return "", false
	}
	text := b[begin:min(len(b), begin+n-8)]
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return ' '
	}, strings.ToValidUTF8(string(text), "?")), true
}

// refuse tells a client why it is not let in, and closes.
func refuse(conn net.Conn, reason string) {
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(refusalTime))
	if _, err := conn.Write(refusalFrames(reason)); err != nil {
		return
	}
	if half, ok := conn.(interface{ CloseWrite() error }); ok {
		_ = half.CloseWrite()
	}
	drain(conn)
}

// drain takes what a client still sends until it has read what was written to it.
func drain(conn net.Conn) {
	_ = conn.SetDeadline(time.Now().Add(refusalTime))
	_, _ = io.Copy(io.Discard, io.LimitReader(conn, refusalBytes))
}

// firstWords looks at what a peer says first, for peers that speak something else.
type firstWords struct {
	net.Conn
	heard   atomic.Bool
	objects func(first []byte) error
}

func (c *firstWords) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n > 0 && !c.heard.Swap(true) {
		if objection := c.objects(b[:n]); objection != nil {
			return 0, objection
		}
	}
	return n, err
}

// tlsRecord says whether bytes begin a TLS record: a handshake or an alert.
func tlsRecord(b []byte) bool {
	return len(b) >= 2 && (b[0] == 0x16 || b[0] == 0x15) && b[1] == 0x03
}

// plainServer is a server's end without TLS.
func (c linkCredentials) plainServer(conn net.Conn) net.Conn {
	return &firstWords{Conn: conn, objects: func(first []byte) error {
		if !tlsRecord(first) {
			return nil
		}
		err := fmt.Errorf("wire: client %s speaks TLS and this end does not: start it with certificate, key and CA files, or the client without", conn.RemoteAddr())
		c.refused(conn.RemoteAddr(), err)
		return err
	}}
}

// plainClient is a client's end without TLS.
func (c linkCredentials) plainClient(conn net.Conn) net.Conn {
	return &firstWords{Conn: conn, objects: func(first []byte) error {
		if reason, ok := parseRefusal(first); ok {
			return fmt.Errorf("wire: server %s refuses this end: %s", conn.RemoteAddr(), reason)
		}
		if tlsRecord(first) {
			return fmt.Errorf("wire: server %s speaks TLS and this end does not: give it certificate, key and CA files", conn.RemoteAddr())
		}
		return nil
	}}
}

func (c linkCredentials) refused(peer net.Addr, err error) {
	if c.options.Refused != nil {
		c.options.Refused(peer, err)
	}
}

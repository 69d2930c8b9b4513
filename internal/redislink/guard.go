package redislink

import (
	"errors"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"syscall"
)

// What may come without a request of ours between: the largest reply to one, and for
// a subscription, which only listens, after how much it has to connect anew.
const (
	maxBytes = 32 << 20
	maxItems = 1 << 18
	maxBulk  = 1 << 20
	maxLine  = 64 << 10
)

var errReply = errors.New("redis: a reply is larger than any that is asked for, or is none: is this Redis still ours?")

// guarded bounds what is read. A client makes room for the parts of a reply by the
// lengths that it announces, and goes as deep as it nests: a Redis in other hands
// could end the process with a few bytes. It follows RESP2, which the clients of
// Connect speak, just as far as to see the lengths; with Sentinels the library speaks
// RESP3 whatever it is told.
type guarded struct {
	net.Conn
	failed error
	parser parser
	// since the last request; a subscription may write while it reads.
	bytes, items atomic.Int64
}

// guard keeps what the client needs to see whether an idle connection is still open.
func guard(c net.Conn, resp3 bool) net.Conn {
	g := &guarded{Conn: c, parser: parser{resp3: resp3}}
	if s, ok := c.(syscall.Conn); ok {
		return struct {
			*guarded
			syscall.Conn
		}{g, s}
	}
	return g
}

func (g *guarded) Write(b []byte) (int, error) {
	g.bytes.Store(0)
	g.items.Store(0)
	return g.Conn.Write(b)
}

func (g *guarded) Read(b []byte) (int, error) {
	if g.failed != nil {
		return 0, g.failed
	}
	n, err := g.Conn.Read(b)
	items, bad := g.parser.feed(b[:n])
	if bad == nil && (g.bytes.Add(int64(n)) > maxBytes || g.items.Add(int64(items)) > maxItems) {
		bad = errReply
	}
	if bad != nil {
		g.failed = bad
		_ = g.Close()
		return 0, bad
	}
	return n, err
}

// parser is the place in a stream of replies.
type parser struct {
	resp3  bool
	kind   byte // of the line at hand; 0 at its beginning
	line   int  // bytes of it
	number int  // the length that it tells
	digits int
	minus  bool
	ended  bool // a carriage return has come
	skip   int  // bytes of a bulk and its end
}

// feed goes on with b and returns how many items arrays in it announce.
func (p *parser) feed(b []byte) (items int, err error) {
	for len(b) > 0 {
		if p.skip > 0 {
			n := min(p.skip, len(b))
			p.skip -= n
			b = b[n:]
			continue
		}
		c := b[0]
		b = b[1:]
		switch p.line++; {
		case p.line > maxLine:
			return items, errReply
		case p.kind == 0:
			switch p.kind = c; {
			case strings.IndexByte("+-:$*", c) >= 0:
			case p.resp3 && strings.IndexByte("%~>=!_#,(", c) >= 0:
			default:
				return items, fmt.Errorf("%w: it begins with %q", errReply, c)
			}
		case c == '\n':
			n, err := p.length()
			if err != nil {
				return items, err
			}
			if p.array() {
				if p.kind == '%' {
					n *= 2
				}
				if items += n; items > maxItems {
					return items, errReply
				}
			}
			skip := 0
			if p.bulk() && !p.minus {
				skip = n + len("\r\n")
			}
			*p = parser{resp3: p.resp3, skip: skip}
		case !p.bulk() && !p.array():
		case p.ended:
			return items, errReply
		case c == '\r':
			p.ended = true
		case c == '-' && p.line == 2:
			p.minus = true
		case c >= '0' && c <= '9' && p.digits < len("1048576"):
			p.number, p.digits = p.number*10+int(c-'0'), p.digits+1
		default:
			return items, errReply
		}
	}
	return items, nil
}

func (p *parser) bulk() bool { return p.kind == '$' || p.kind == '=' || p.kind == '!' }
func (p *parser) array() bool {
	return p.kind == '*' || p.kind == '~' || p.kind == '>' || p.kind == '%'
}

// length that the line tells: of a bulk, or of an array; 0 for others and for nil.
func (p *parser) length() (int, error) {
	switch {
	case !p.bulk() && !p.array():
		return 0, nil
	case !p.ended || p.digits == 0 || p.minus && p.number != 1 || p.bulk() && p.number > maxBulk || p.number > 1<<20:
		return 0, errReply
	case p.minus:
		return 0, nil
	}
	return p.number, nil
}

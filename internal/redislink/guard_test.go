package redislink

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"testing/iotest"
	"time"
)

// canned is a connection that says what is given.
type canned struct {
	net.Conn
	r io.Reader
}

func (c canned) Read(b []byte) (int, error)  { return c.r.Read(b) }
func (c canned) Write(b []byte) (int, error) { return len(b), nil }
func (c canned) Close() error                { return nil }

func TestRepliesPassWholeAndByteByByte(t *testing.T) {
	replies := "+OK\r\n-ERR no: *9999999999\r\n:12\r\n$-1\r\n*-1\r\n$0\r\n\r\n*2\r\n$3\r\n*9\n\r\n*1\r\n$5\r\n$9999\r\n"
	for name, r := range map[string]io.Reader{
		"whole": strings.NewReader(replies), "in bytes": iotest.OneByteReader(strings.NewReader(replies)),
	} {
		b, err := io.ReadAll(guard(canned{r: r}, false))
		if err != nil || string(b) != replies {
			t.Errorf("%s: %q, %v", name, b, err)
		}
	}
}

func TestSentinelsSpeakRESP3WithinTheSameBounds(t *testing.T) {
	replies := "%1\r\n+a\r\n=5\r\ntxt:%\r\n>2\r\n_\r\n#t\r\n~1\r\n,1.5\r\n"
	if b, err := io.ReadAll(guard(canned{r: strings.NewReader(replies)}, true)); err != nil || string(b) != replies {
		t.Errorf("%q, %v", b, err)
	}
	for _, s := range []string{"%131073\r\n", "=1048577\r\n", "~9223372036854775807\r\n", ">$\r\n", "|1\r\n"} {
		if _, err := io.Copy(io.Discard, guard(canned{r: strings.NewReader(s)}, true)); !errors.Is(err, errReply) {
			t.Errorf("%q: %v", s, err)
		}
	}
}

func TestWhatWouldEatAClientsMemoryIsCutOff(t *testing.T) {
	bulk := "$1048576\r\n" + strings.Repeat("x", 1<<20) + "\r\n"
	for name, s := range map[string]string{
		"a huge string":          "$1048577\r\n",
		"a string of all memory": "$9223372036854775807\r\n",
		"a negative string":      "$-2\r\n",
		"a huge array":           "*1048577\r\n",
		"an array of all":        "*9223372036854775807\r\n",
		"arrays in arrays":       strings.Repeat("*1000\r\n", 300),
		"depth":                  strings.Repeat("*1\r\n", 1<<18+1),
		"a plus":                 "$+5\r\n",
		"no length":              "$\r\n",
		"a bare newline":         "$5\n",
		"a map":                  "%1\r\n",
		"a push":                 ">1\r\n",
		"an endless line":        "+" + strings.Repeat("x", maxLine),
		"many strings":           strings.Repeat(bulk, 33),
		"no reply":               "HTTP/1.1 200 OK\r\n",
	} {
		if _, err := io.Copy(io.Discard, guard(canned{r: strings.NewReader(s)}, false)); !errors.Is(err, errReply) {
			t.Errorf("%s: %v", name, err)
		}
	}
	// What is asked for may come as often as it is asked for.
	g := guard(canned{r: strings.NewReader(strings.Repeat(bulk, 64))}, false)
	for range 64 {
		if _, err := g.Write([]byte("GET")); err != nil {
			t.Fatal(err)
		}
		if _, err := io.CopyN(io.Discard, g, int64(len(bulk))); err != nil {
			t.Fatal(err)
		}
	}
}

// A server that answers with anything neither ends the process nor hangs it.
func TestAServerThatIsNoRedisIsAnError(t *testing.T) {
	for _, answer := range []string{"$9223372036854775807\r\n", "*9223372036854775807\r\n", "%1\r\n*1\r\n:1\r\n:1\r\n", strings.Repeat("*1\r\n", 1<<20)} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				_ = c.SetDeadline(time.Now().Add(10 * time.Second))
				_, _ = io.WriteString(c, answer)
				_, _ = io.Copy(io.Discard, c)
				_ = c.Close()
			}
		}()
		c, err := Connect(Options{URL: "redis://" + l.Addr().String()}, discard)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		if err := c.Ping(ctx).Err(); err == nil || ctx.Err() != nil {
			t.Errorf("%.20q: %v", answer, err)
		}
		cancel()
		_ = c.Close()
		_ = l.Close()
		<-done
	}
}

// FuzzGuard holds that the way in which bytes come in pieces makes no difference, and
// that no length beyond the bounds passes.
func FuzzGuard(f *testing.F) {
	f.Add([]byte("*2\r\n$3\r\nabc\r\n:1\r\n"), 3)
	f.Add([]byte("$1048577\r\n"), 1)
	f.Add([]byte("+x\r\n-e\r\n$-1\r\n"), 2)
	f.Fuzz(func(t *testing.T, b []byte, at int) {
		var whole, parts parser
		n, err := whole.feed(b)
		at = max(0, min(at, len(b)))
		n1, err1 := parts.feed(b[:at])
		n2 := 0
		if err1 == nil {
			if n2, err1 = parts.feed(b[at:]); n1+n2 > maxItems {
				err1 = errReply // by the connection's count
			}
		}
		if (err == nil) != (err1 == nil) || err == nil && (n != n1+n2 || whole != parts) {
			t.Fatalf("whole %d %v %+v, in two %d %v %+v", n, err, whole, n1+n2, err1, parts)
		}
		if err == nil && whole.skip > maxBulk+2 {
			t.Fatalf("a bulk beyond the bound: %+v", whole)
		}
	})
}

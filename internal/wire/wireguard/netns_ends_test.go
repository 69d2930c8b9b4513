package wireguard

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"testing"
	"time"

	"go.uber.org/goleak"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/internal/algorithm"
	"girassol.dev/internal/codec"
	"girassol.dev/internal/tensor"
	"girassol.dev/internal/wire/wiretest"
)

func verifyTestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// roundBytes are those of an update and a commit of a decoder of 20 layers, 1280
// wide, with 65536 tokens: 561 M parameters.
func roundBytes(t *testing.T) (up, down int64) {
	t.Helper()
	const width, layers, tokens = 1280, 20, 65536
	specs := []tensor.Spec{{Name: "wte", DType: tensor.F32, Shape: []int64{tokens, width}, Role: tensor.Parameter}, {Name: "head", DType: tensor.F32, Shape: []int64{tokens, width}, Role: tensor.Parameter}}
	for i := range layers {
		for name, shape := range map[string][]int64{"q": {width, width}, "k": {width, width}, "v": {width, width}, "o": {width, width}, "up": {4 * width, width}, "down": {width, 4 * width}} {
			specs = append(specs, tensor.Spec{Name: fmt.Sprintf("h.%d.%s", i, name), DType: tensor.F32, Shape: shape, Role: tensor.Parameter})
		}
	}
	l, err := tensor.NewLayout(specs)
	if err != nil {
		t.Fatal(err)
	}
	plan, err := algorithm.FromSpec(v1alpha1.AlgorithmSpec{Strategy: v1alpha1.DecoupledMomentum})
	if err != nil {
		t.Fatal(err)
	}
	p := plan.Parameters
	return codec.MaxSize(codec.NewDomain(l, p.Uplink.Transform), p.Uplink), codec.MaxSize(codec.NewDomain(l, p.Downlink.Transform), p.Downlink)
}

// relayHelper is the path between two ends, until its input ends.
func relayHelper(c helperConfig, wait func()) error {
	var p wiretest.Path
	if err := json.Unmarshal([]byte(c.KeyFile), &p); err != nil {
		return err
	}
	stop, err := wiretest.StartRelay(fmt.Sprintf("0.0.0.0:%d", c.Port), c.Endpoint, p)
	if err != nil {
		return err
	}
	defer stop()
	wait()
	return nil
}

// serveHelper greets with the site, then takes orders: 'e' sends back what comes,
// 'u' and 8 bytes of a length take so many bytes and answer with one, 'd' sends so
// many.
func serveHelper(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			_, _ = io.WriteString(c, c.(*Conn).Site()+"\n")
			for orderHelper(c) == nil {
			}
		}()
	}
}

func orderHelper(c net.Conn) error {
	var kind byte
	var n int64
	if _, err := fmt.Fscanf(c, "%c%d\n", &kind, &n); err != nil {
		return err
	}
	switch kind {
	case 'e':
		_, err := io.CopyN(c, c, n)
		return err
	case 'u':
		if _, err := io.CopyN(io.Discard, c, n); err != nil {
			return err
		}
		_, err := c.Write([]byte{1})
		return err
	case 'd':
		_, err := io.CopyN(c, zeros{}, n)
		return err
	}
	return errors.New("no order")
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { return len(b), nil }

// helperSite does what a test asks of a site.
type helperSite struct {
	spoke *Spoke
	conn  net.Conn
}

const helperPatience = time.Minute

func (s *helperSite) do(line string) (answer, error) {
	var a answer
	var what string
	var n int64
	_, _ = fmt.Sscanf(line, "%s %d", &what, &n)
	if what == "dial" {
		if s.conn != nil {
			_ = s.conn.Close()
		}
		ctx, cancel := context.WithTimeout(context.Background(), 45*time.Second)
		defer cancel()
		c, err := s.spoke.Dial(ctx, FleetPort)
		if err != nil {
			return a, err
		}
		s.conn = c
		_ = c.SetDeadline(time.Now().Add(45 * time.Second))
		_, err = fmt.Fscanf(c, "%s\n", &a.Site)
		return a, err
	}
	_ = s.conn.SetDeadline(time.Now().Add(helperPatience))
	order := map[string]byte{"echo": 'e', "push": 'u', "pull": 'd'}[what]
	if _, err := fmt.Fprintf(s.conn, "%c%d\n", order, n); err != nil {
		return a, err
	}
	failed := make(chan error, 1)
	go func() {
		var err error
		if what != "pull" {
			_, err = io.CopyN(s.conn, zeros{}, n)
		}
		failed <- err
	}()
	back := map[string]int64{"echo": n, "push": 1, "pull": n}[what]
	_, err := io.CopyN(io.Discard, s.conn, back)
	return a, errors.Join(<-failed, err)
}

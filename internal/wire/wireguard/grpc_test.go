package wireguard

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	"girassol.dev/internal/wire"
)

// fleet takes uploads, throws them away and says who the client is.
type fleet struct {
	coordinatorv1.UnimplementedFleetServer
	seen chan string
}

func (f *fleet) Push(s grpc.BidiStreamingServer[coordinatorv1.PushRequest, coordinatorv1.PushResponse]) error {
	m, err := s.Recv()
	if err != nil {
		return err
	}
	if f.seen != nil {
		federation, site, _ := wire.PeerIdentity(s.Context())
		f.seen <- federation + "/" + site + " " + wire.LinkMode(s.Context())
	}
	r := wire.NewReceiver(io.Discard, int64(m.GetHeader().GetPayloadBytes()), 0)
	for {
		m, err := s.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err == nil {
			err = r.Take(m)
		}
		if err != nil {
			return err
		}
	}
	if err := r.Finish(); err != nil {
		return err
	}
	return s.Send(&coordinatorv1.PushResponse{})
}

func push(ctx context.Context, conn grpc.ClientConnInterface, r io.ReaderAt, size int64) error {
	s, err := coordinatorv1.NewFleetClient(conn).Push(ctx)
	if err != nil {
		return err
	}
	if err := s.Send(&coordinatorv1.PushRequest{Header: &coordinatorv1.PushHeader{PayloadBytes: uint64(size)}}); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	err = wire.SendPayload(func(offset uint64, crc uint32, payload []byte) error {
		return s.Send(&coordinatorv1.PushRequest{Offset: offset, Crc32C: crc, Payload: payload})
	}, r, size, 0)
	if err == nil {
		err = s.CloseSend()
	}
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	_, err = s.Recv()
	return err
}

// serveFleet serves one gRPC server by all listeners.
func serveFleet(t testing.TB, f *fleet, o wire.Options, ls ...net.Listener) {
	t.Helper()
	s := grpc.NewServer(wire.ServerOptions(o)...)
	coordinatorv1.RegisterFleetServer(s, f)
	done := make(chan error, len(ls))
	for _, l := range ls {
		go func() { done <- s.Serve(l) }()
	}
	t.Cleanup(func() {
		s.Stop()
		for range ls {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
	})
}

func tunnelListener(t testing.TB, h *Hub, o wire.Options) net.Listener {
	t.Helper()
	l, err := h.Listen(FleetPort)
	if err != nil {
		t.Fatal(err)
	}
	return wire.ListenTunnel(l, "lm", o)
}

func dialTunnel(t testing.TB, s *Spoke, o wire.Options) *grpc.ClientConn {
	t.Helper()
	o.Tunnel = func(ctx context.Context, _ string) (net.Conn, error) { return s.Dial(ctx, FleetPort) }
	conn, err := wire.Dial("hub", o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func TestAServerKnowsTheSiteOfACallThatCameThroughTheTunnel(t *testing.T) {
	t.Parallel()
	file, key := keyFile(t)
	h := startHub(t, HubConfig{}, Peer{"porto", key})
	plain, err := wire.Listen("127.0.0.1:0", wire.Options{})
	if err != nil {
		t.Fatal(err)
	}
	f, counter := &fleet{seen: make(chan string, 1)}, &wire.Counter{}
	o := wire.Options{Counter: counter}
	serveFleet(t, f, o, plain, tunnelListener(t, h, o))
	s := startSpoke(t, SpokeConfig{KeyFile: file, Hub: h.PublicKey(), Endpoint: local(h.Port())})
	direct, err := wire.Dial(plain.Addr().String(), wire.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer direct.Close()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for _, c := range []struct {
		name string
		conn *grpc.ClientConn
		want string
	}{
		{"tunnel", dialTunnel(t, s, wire.Options{}), "lm/porto WireGuard"},
		{"plaintext", direct, "/ Plaintext"},
	} {
		if err := push(ctx, c.conn, bytes.NewReader(make([]byte, 3<<20)), 3<<20); err != nil {
			t.Fatal(c.name, err)
		}
		if got := <-f.seen; got != c.want {
			t.Errorf("by %s: the server sees %q, want %q", c.name, got, c.want)
		}
		if in, _ := counter.Total(); in < 3<<20 {
			t.Errorf("%d bytes counted", in)
		}
	}
}

const benchBytes = 256 << 20

func cpuSeconds(b *testing.B) float64 {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()).Seconds()
}

// BenchmarkPush uploads 256 MiB through a tunnel over loopback, both ends in this
// process, and beside it by gRPC without one. x-plain is the ratio of throughputs.
func BenchmarkPush(b *testing.B) {
	file, key := keyFile(b)
	h := startHub(b, HubConfig{}, Peer{"porto", key})
	plain, err := wire.Listen("127.0.0.1:0", wire.Options{})
	if err != nil {
		b.Fatal(err)
	}
	serveFleet(b, &fleet{}, wire.Options{}, plain, tunnelListener(b, h, wire.Options{}))
	s := startSpoke(b, SpokeConfig{KeyFile: file, Hub: h.PublicKey(), Endpoint: local(h.Port())})
	tunnelled := dialTunnel(b, s, wire.Options{})
	direct, err := wire.Dial(plain.Addr().String(), wire.Options{})
	if err != nil {
		b.Fatal(err)
	}
	defer direct.Close()
	random := rand.NewChaCha8([32]byte{1})
	payload := make([]byte, benchBytes)
	_, _ = random.Read(payload)
	data := bytes.NewReader(payload)
	measure := func(conn *grpc.ClientConn) (took time.Duration, cpu float64) {
		cpu, began := cpuSeconds(b), time.Now()
		if err := push(b.Context(), conn, data, benchBytes); err != nil {
			b.Fatal(err)
		}
		return time.Since(began), cpuSeconds(b) - cpu
	}
	measure(tunnelled)
	measure(direct)
	var through, without time.Duration
	var throughCPU, withoutCPU float64
	b.SetBytes(benchBytes)
	for b.Loop() {
		took, cpu := measure(tunnelled)
		through, throughCPU = through+took, throughCPU+cpu
		b.StopTimer()
		took, cpu = measure(direct)
		without, withoutCPU = without+took, withoutCPU+cpu
		b.StartTimer()
	}
	gb := float64(b.N) * benchBytes / 1e9
	b.ReportMetric(float64(without)/float64(through), "x-plain")
	b.ReportMetric(throughCPU/gb, "CPU-s/GB")
	b.ReportMetric(withoutCPU/gb, "plain-CPU-s/GB")
}

package wire

import (
	"bytes"
	"context"
	"io"
	"net"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
)

const benchBytes = 256 << 20

func cpuSeconds(b *testing.B) float64 {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()).Seconds()
}

// BenchmarkPush uploads 256 MiB over loopback, both ends in this process. Raw TCP
// of the same run, without framing or checksums, is measured beside each upload;
// the ratio and the CPU seconds per GB are the figures to compare, GB/s depends
// on who else uses the machine.
func BenchmarkPush(b *testing.B) {
	generated := encoding.GetCodecV2("proto")
	secure := newAuthority(b).issue(b, "both", forHosts("x", net.IPv4(127, 0, 0, 1)))
	for _, c := range []struct {
		name   string
		o      Options
		server []grpc.ServerOption
		dial   []grpc.DialOption
	}{
		{"wire", Options{Counter: new(Counter)}, nil, nil},
		{"generated", Options{}, []grpc.ServerOption{grpc.ForceServerCodecV2(generated)}, []grpc.DialOption{grpc.WithDefaultCallOptions(grpc.ForceCodecV2(generated))}},
		{"wire+TLS", secure, nil, nil},
	} {
		b.Run(c.name, func(b *testing.B) {
			data := bytes.NewReader(random(1, benchBytes))
			l := listen(b, c.o)
			serve(b, &fleet{sink: func(context.Context) io.Writer { return io.Discard }}, l, append(ServerOptions(c.o), c.server...)...)
			conn, err := grpc.NewClient(l.Addr().String(), append(DialOptions(c.o), c.dial...)...)
			if err != nil {
				b.Fatal(err)
			}
			defer func() { _ = conn.Close() }()
			tcp := newRawTCP(b)
			defer tcp.close()
			upload := func() {
				if err := push(b.Context(), conn, data, benchBytes); err != nil {
					b.Fatal(err)
				}
			}
			raw := func() { tcp.send(b, data, benchBytes) }
			upload()
			raw()
			var uploadTime, rawTime time.Duration
			var uploadCPU, rawCPU float64
			b.SetBytes(benchBytes)
			for b.Loop() {
				cpu, start := cpuSeconds(b), time.Now()
				upload()
				uploadTime += time.Since(start)
				uploadCPU += cpuSeconds(b) - cpu
				b.StopTimer()
				cpu, start = cpuSeconds(b), time.Now()
				raw()
				rawTime += time.Since(start)
				rawCPU += cpuSeconds(b) - cpu
				b.StartTimer()
			}
			gb := float64(b.N) * benchBytes / 1e9
			b.ReportMetric(float64(rawTime)/float64(uploadTime), "x-raw-TCP")
			b.ReportMetric(uploadCPU/gb, "CPU-s/GB")
			b.ReportMetric(rawCPU/gb, "raw-CPU-s/GB")
		})
	}
}

// rawTCP is the limit of the path: 1 MiB writes into a peer that throws all away.
type rawTCP struct {
	listener net.Listener
	conn     net.Conn
	done     chan error
	received chan int64
}

func newRawTCP(b *testing.B) *rawTCP {
	b.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	r := &rawTCP{listener: l, received: make(chan int64), done: make(chan error, 1)}
	go func() {
		conn, err := l.Accept()
		if err != nil {
			r.done <- err
			return
		}
		buf, n := make([]byte, ChunkSize), int64(0)
		for {
			k, err := conn.Read(buf)
			if err != nil {
				r.done <- conn.Close()
				return
			}
			if n += int64(k); n == benchBytes {
				r.received <- n
				n = 0
			}
		}
	}()
	if r.conn, err = net.Dial("tcp", l.Addr().String()); err != nil {
		b.Fatal(err)
	}
	return r
}

func (r *rawTCP) send(b *testing.B, data io.ReaderAt, size int64) {
	buf := make([]byte, ChunkSize)
	for off := int64(0); off < size; off += ChunkSize {
		n, err := data.ReadAt(buf, off)
		if err != nil && err != io.EOF {
			b.Fatal(err)
		}
		if _, err := r.conn.Write(buf[:n]); err != nil {
			b.Fatal(err)
		}
	}
	<-r.received
}

func (r *rawTCP) close() {
	_ = r.conn.Close()
	<-r.done
	_ = r.listener.Close()
}

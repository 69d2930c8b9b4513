package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"girassol.dev/internal/wire"
)

// roleSink is the process at the other end of the raw connections.
const roleSink = "sink"

// rawBlock is a write of the raw connections, in bytes: gRPC's buffer.
const rawBlock = 256 << 10

// runSink serves raw connections until its standard input ends. Of each it reads
// 'u' or 'd' and a size, then takes or gives so many bytes. With three files as
// arguments (certificate, key, CA) the connections are mutual TLS, corked as the
// product's are.
func runSink(args []string, stdout, stderr io.Writer) int {
	var link wire.Options
	if len(args) == 3 {
		link = wire.Options{CertFile: args[0], KeyFile: args[1], CAFile: args[2]}
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		fmt.Fprintln(stderr, "sink:", err)
		return 1
	}
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	fmt.Fprintln(stdout, l.Addr())
	for {
		c, err := l.Accept()
		if err != nil {
			return 1
		}
		go func() {
			defer func() { _ = c.Close() }()
			if err := sinkOne(c, link); !errors.Is(err, io.EOF) { // it serves until then
				fmt.Fprintln(stderr, "sink:", err)
			}
		}()
	}
}

func sinkOne(c net.Conn, link wire.Options) (err error) {
	if link.Secure() {
		if c, err = wire.Secured(context.Background(), c, link, true); err != nil {
			return err
		}
	}
	block := make([]byte, rawBlock)
	for {
		var head [9]byte
		if _, err := io.ReadFull(c, head[:]); err != nil {
			return err
		}
		n := int64(binary.LittleEndian.Uint64(head[1:]))
		if head[0] == 'u' {
			if err := take(c, n, block); err != nil {
				return err
			}
			_, err = c.Write([]byte{1})
		} else {
			err = give(c, n, block)
		}
		if err != nil {
			return err
		}
	}
}

func take(c net.Conn, n int64, block []byte) error {
	for n > 0 {
		k, err := c.Read(block[:min(n, int64(len(block)))])
		if err != nil {
			return err
		}
		n -= int64(k)
	}
	return nil
}

func give(c net.Conn, n int64, block []byte) error {
	for n > 0 {
		k, err := c.Write(block[:min(n, int64(len(block)))])
		if err != nil {
			return err
		}
		n -= int64(k)
	}
	return nil
}

// sink is a running sink process and the connections to it.
type sink struct {
	cmd   *exec.Cmd
	stdin io.Closer
	conns []net.Conn
}

// startSink opens so many connections, of the link's kind.
func startSink(ctx context.Context, conns int, server wire.Options, client func(i int) wire.Options) (_ *sink, err error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	args := []string{roleSink}
	if server.Secure() {
		args = append(args, server.CertFile, server.KeyFile, server.CAFile)
	}
	s := &sink{cmd: exec.Command(self, args...)}
	s.cmd.Stderr = os.Stderr
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if s.stdin, err = s.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := s.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := s.cmd.Start(); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	addr, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		return nil, fmt.Errorf("sink: %w", err)
	}
	for i := range conns {
		c, err := net.Dial("tcp", strings.TrimSpace(addr))
		if err != nil {
			return nil, err
		}
		if o := client(i); o.Secure() {
			if c, err = wire.Secured(ctx, c, o, false); err != nil {
				return nil, err
			}
		}
		s.conns = append(s.conns, c)
	}
	return s, nil
}

func (s *sink) close() {
	for _, c := range s.conns {
		_ = c.Close()
	}
	_ = s.stdin.Close()
	_ = s.cmd.Wait()
}

// carry moves so many bytes over each connection at once and tells what it took of
// both processes.
func (s *sink) carry(up bool, each int64) (transfer, error) {
	pid := s.cmd.Process.Pid
	from, err := usageOf(pid)
	if err != nil {
		return transfer{}, err
	}
	errs := make([]error, len(s.conns))
	var group sync.WaitGroup
	for i, c := range s.conns {
		group.Go(func() {
			head := binary.LittleEndian.AppendUint64([]byte{'d'}, uint64(each))
			if up {
				head[0] = 'u'
			}
			block := make([]byte, rawBlock)
			if _, errs[i] = c.Write(head); errs[i] != nil {
				return
			}
			if !up {
				errs[i] = take(c, each, block)
				return
			}
			if errs[i] = give(c, each, block); errs[i] == nil {
				_, errs[i] = io.ReadFull(c, block[:1])
			}
		})
	}
	group.Wait()
	to, err := usageOf(pid)
	if err := errors.Join(append(errs, err)...); err != nil {
		return transfer{}, fmt.Errorf("raw connection: %w", err)
	}
	return transferOf(each*int64(len(s.conns)), from, to, to.own-from.own), nil
}

// ownCPU is this process's CPU time.
func ownCPU() time.Duration {
	var r syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &r) != nil {
		return 0
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

// memmove copies 256 MiB a few times and gives the best, in bytes copied per
// second of CPU.
func memmove() float64 {
	const n = 256 << 20
	a, b := make([]byte, n), make([]byte, n)
	for i := range b {
		b[i] = byte(i) // or all of it would be one page of zeros
	}
	best := 0.0
	for range 6 {
		from := ownCPU()
		copy(a, b)
		if took := ownCPU() - from; took > 0 {
			best = max(best, n/took.Seconds())
		}
	}
	return best
}

// diskRate writes 256 MiB to a file in dir, syncs it, and tells the bytes per second.
func diskRate(dir string) (rate float64, err error) {
	const n = 256 << 20
	f, err := os.CreateTemp(dir, "girassol-disk-")
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, f.Close(), os.Remove(f.Name())) }()
	block := make([]byte, 1<<20)
	for i := range block {
		block[i] = byte(i)
	}
	from := time.Now()
	for range n / len(block) {
		if _, err := f.Write(block); err != nil {
			return 0, err
		}
	}
	if err := f.Sync(); err != nil {
		return 0, err
	}
	return n / time.Since(from).Seconds(), nil
}

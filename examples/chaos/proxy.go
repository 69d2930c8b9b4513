//go:build linux

package main

import (
	"io"
	"net"
	"sync/atomic"
	"time"
)

// proxy passes connections on until it is told to hang: then nothing moves, and
// nobody is told.
type proxy struct {
	l    net.Listener
	to   string
	hung atomic.Bool
}

func newProxy(to string) (*proxy, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &proxy{l: l, to: to}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go p.serve(c)
		}
	}()
	return p, nil
}

func (p *proxy) address() string { return p.l.Addr().String() }

func (p *proxy) serve(c net.Conn) {
	defer c.Close()
	up, err := net.Dial("tcp", p.to)
	if err != nil {
		return
	}
	defer up.Close()
	go func() { p.copy(up, c); _ = up.Close() }()
	p.copy(c, up)
}

func (p *proxy) copy(to io.Writer, from io.Reader) {
	b := make([]byte, 64<<10)
	for {
		n, err := from.Read(b)
		for p.hung.Load() {
			time.Sleep(20 * time.Millisecond)
		}
		if n > 0 {
			if _, err := to.Write(b[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

package server_test

import (
	"bytes"
	"fmt"
	"io"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	coordinatorv1 "girassol.dev/api/coordinator/v1"
	"girassol.dev/internal/wire"
)

func TestSlowAndSilentConnectionsEndAndCostOthersNothing(t *testing.T) {
	s := besiege(t, wire.Limits{})
	all := map[string][]*raw{}
	for name, attack := range map[string]func() *raw{
		"says nothing": s.dial,
		"a preface that stops": func() *raw {
			r := s.dial()
			_, _ = io.WriteString(r, http2.ClientPreface[:20])
			return r
		},
		"a preface byte by byte": func() *raw {
			r := s.dial()
			go func() {
				for i := range http2.ClientPreface {
					if _, err := io.WriteString(r, http2.ClientPreface[i:i+1]); err != nil {
						return
					}
					time.Sleep(100 * time.Millisecond) // the attacker's pace
				}
			}()
			return r
		},
		"another protocol": func() *raw {
			r := s.dial()
			_, _ = io.WriteString(r, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
			return r
		},
		"noise": func() *raw {
			r := s.dial()
			_, _ = r.Write(bytes.Repeat([]byte{0xff, 0, 7}, 1<<10))
			return r
		},
		"nothing after the settings": s.h2,
		"headers without an end": func() *raw {
			r := s.h2()
			_ = r.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: r.fields(sessionMethod)})
			return r
		},
		"a frame that is cut off": func() *raw {
			r := s.h2()
			_, _ = r.Write([]byte{0, 0x40, 0, 0, 0, 0, 0, 0, 1, 'x'}) // 16 KiB of DATA, one byte of it
			return r
		},
	} {
		for range 20 { // all at once: each lasts as long as the longest deadline
			all[name] = append(all[name], attack())
		}
	}
	s.works("during")
	for name, conns := range all {
		for _, r := range conns {
			r.gone(name)
			_ = r.Close()
		}
	}
	s.over()
}

func TestStreamsWhoseDataNeverComesEnd(t *testing.T) {
	s := besiege(t, wire.Limits{})
	for _, method := range []string{sessionMethod, pushMethod, pullMethod} {
		r := s.h2()
		for id := uint32(1); id < 60; id += 2 {
			if err := r.call(id, method); err != nil {
				t.Fatal(err)
			}
		}
		s.works("during")
		code, _ := r.answer(1)
		if code != "4" && code != "3" && code != "13" && method != pullMethod { // DeadlineExceeded
			t.Errorf("%s ended with %q", method, code)
		}
		_ = r.Close()
	}
	s.over()
}

// A reader that never reads: what is sent for it stops at its window, and its
// connection at the first ping that it does not answer.
func TestReadersThatNeverReadEnd(t *testing.T) {
	s := besiege(t, wire.Limits{})
	r := s.h2()
	for id := uint32(1); id < 120; id += 2 {
		if err := r.call(id, sessionMethod); err != nil {
			t.Fatal(err)
		}
	}
	s.works("during")
	for i := uint32(0); ; i++ { // writing fails when the other end is gone
		if err := r.WritePing(false, [8]byte{byte(i)}); err != nil {
			break
		}
		if i > 1<<22 {
			t.Fatal("the connection takes whatever comes")
		}
	}
	s.over()
}

func TestFloodsOfFramesAreCutOffAndTheMemoryStays(t *testing.T) {
	s := besiege(t, wire.Limits{})
	for name, attack := range map[string]func(r *raw, i uint32) error{
		"rapid reset": func(r *raw, i uint32) error {
			if err := r.call(2*i+1, sessionMethod); err != nil {
				return err
			}
			return r.WriteRSTStream(2*i+1, http2.ErrCodeCancel)
		},
		"settings": func(r *raw, _ uint32) error {
			return r.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 65535})
		},
		"ping": func(r *raw, i uint32) error { return r.WritePing(false, [8]byte{byte(i)}) },
		"continuation": func(r *raw, i uint32) error {
			if i == 0 {
				return r.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: r.fields(sessionMethod)})
			}
			return r.WriteContinuation(1, false, r.fields(sessionMethod, fmt.Sprint("x-", i), strings.Repeat("y", 512)))
		},
		"empty continuation": func(r *raw, i uint32) error {
			if i == 0 {
				return r.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: r.fields(sessionMethod)})
			}
			return r.WriteContinuation(1, false, nil)
		},
		"empty data": func(r *raw, i uint32) error {
			if i == 0 {
				return r.call(1, sessionMethod)
			}
			return r.WriteData(1, false, nil)
		},
		"priority":       func(r *raw, i uint32) error { return r.WritePriority(2*i+1, http2.PriorityParam{Weight: 1}) },
		"window update":  func(r *raw, _ uint32) error { return r.WriteWindowUpdate(0, 1<<30) },
		"unknown frames": func(r *raw, _ uint32) error { return r.WriteRawFrame(0xbe, 0, 0, make([]byte, 1024)) },
	} {
		t.Run(name, func(t *testing.T) {
			before := liveHeap()
			r := s.h2()
			r.listen()
			sent := uint32(0)
			stop := time.Now().Add(2 * time.Second)
			for time.Now().Before(stop) && sent < 200_000 && attack(r, sent) == nil {
				sent++
			}
			s.works("during")
			grown := liveHeap() - before
			cut, patience := false, time.Millisecond
			if mustCut[name] {
				patience = testWait
			}
			select {
			case <-r.ended:
				cut = true
			case <-time.After(patience):
			}
			_ = r.Close()
			<-r.ended
			s.over()
			left := liveHeap() - before
			for end := time.Now().Add(testWait); left > 4<<20 && time.Now().Before(end); left = liveHeap() - before {
				time.Sleep(20 * time.Millisecond) // what was under way is let go little by little
			}
			t.Logf("%d frames sent, cut off: %v; the heap has grown by %d KiB, afterwards %d KiB", sent, cut, grown>>10, left>>10)
			if grown > 32<<20 || left > 4<<20 {
				t.Errorf("the heap has grown by %d bytes, afterwards %d", grown, left)
			}
			if mustCut[name] && !cut {
				t.Error("the connection takes whatever comes")
			}
		})
	}
}

// mustCut are the floods that end their connection. The others cost their sender as
// much as the coordinator, and no memory.
var mustCut = map[string]bool{"ping": true, "continuation": true}

func liveHeap() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

func TestHeaderListsThatAreTooLargeAreRefused(t *testing.T) {
	s := besiege(t, wire.Limits{})
	r := s.h2()
	var more []string
	for i := range 60 { // as large as a frame may be; the list counts for more than its bytes
		more = append(more, fmt.Sprint("x-", i), strings.Repeat("y", 400))
	}
	block := r.fields(sessionMethod, more...)
	if err := r.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block[:8<<10]}); err != nil {
		t.Fatal(err)
	}
	if err := r.WriteContinuation(1, true, block[8<<10:]); err != nil {
		t.Fatal(err)
	}
	if code, text := r.answer(1); code == "0" || code == "" && text == "" {
		t.Errorf("answered %q %q", code, text)
	}
	_ = r.Close()
	s.over()
}

func TestMalformedMessagesAreRefused(t *testing.T) {
	s := besiege(t, wire.Limits{})
	before := liveHeap()
	garbage := bytes.Repeat([]byte{0xff}, 64)
	for name, c := range map[string]struct {
		method string
		body   []byte
		end    bool
		more   []string
		want   string
	}{
		"a session of garbage":            {sessionMethod, message(0, 64, garbage), true, nil, "13"},
		"a push of garbage":               {pushMethod, message(0, 64, garbage), true, nil, "13"},
		"a pull of garbage":               {pullMethod, message(0, 64, garbage), true, nil, "13"},
		"an empty message":                {sessionMethod, message(0, 0, nil), false, nil, "3"},
		"a message that is cut off":       {pushMethod, message(0, 1<<20, garbage), true, nil, "13"},
		"a prefix that is cut off":        {pushMethod, []byte{0, 0}, true, nil, "13"},
		"four gigabytes claimed":          {pushMethod, message(0, 1<<32-1, garbage), false, nil, "8"},
		"one byte above the limit":        {pushMethod, message(0, wire.MaxMessage+1, garbage), false, nil, "8"},
		"a compressed message":            {sessionMethod, message(1, 20, garbage[:20]), false, []string{"grpc-encoding", "gzip"}, "12"},
		"an unknown compression":          {sessionMethod, message(1, 20, garbage[:20]), false, []string{"grpc-encoding", "bomb"}, "12"},
		"compressed without saying how":   {sessionMethod, message(1, 20, garbage[:20]), false, nil, "13"},
		"a flag that is none":             {sessionMethod, message(9, 20, garbage[:20]), false, nil, "13"},
		"a method that is none":           {"/girassol.coordinator.v1.Fleet/None", nil, true, nil, "12"},
		"reflection":                      {"/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", nil, true, nil, "12"},
		"reflection, as it was before":    {"/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", nil, true, nil, "12"},
		"channelz":                        {"/grpc.channelz.v1.Channelz/GetServers", nil, true, nil, "12"},
		"a header list inside a message":  {pushMethod, message(0, 5, []byte{0x0a, 0xff, 0xff, 0xff, 0x7f}), true, nil, "13"},
		"a length that overflows a field": {pushMethod, message(0, 12, []byte{0x7a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f, 1, 1}), true, nil, "13"},
	} {
		t.Run(name, func(t *testing.T) {
			r := s.h2()
			if err := r.call(1, c.method, c.more...); err != nil {
				t.Fatal(err)
			}
			if err := r.WriteData(1, c.end, c.body); err != nil {
				t.Fatal(err)
			}
			if code, text := r.answer(1); code != c.want {
				t.Errorf("answered %q %q, want %s", code, text, c.want)
			}
			_ = r.Close()
		})
	}
	if grown := liveHeap() - before; grown > 8<<20 {
		t.Errorf("claims have made the heap grow by %d bytes", grown)
	}
	s.over()
}

func TestConnectionsAreBoundedAndTheWorkingSiteIsServed(t *testing.T) {
	s := besiege(t, wire.Limits{PerAddress: 50, Handshakes: 20})
	m := s.join("a") // its connection was there before
	var all []*raw
	for i := range 300 {
		r := s.dial()
		if i%2 == 0 {
			_, _ = io.WriteString(r, http2.ClientPreface)
			_ = r.WriteSettings()
		}
		all = append(all, r)
	}
	m.heartbeat(coordinatorv1.MemberState_MEMBER_STATE_READY, 0)
	m.recv(func(r *coordinatorv1.SessionResponse) bool { return r.GetHeartbeatReply() != nil })
	_, fds := settledCount(t)
	if most := s.descriptors + 300 + 50 + 4; fds > most { // 300 of them are this end's
		t.Errorf("%d descriptors, at most %d", fds, most)
	}
	for _, r := range all {
		_ = r.Close()
	}
	m.end()
	_ = m.conn.Close()
	s.over()
}

// Handshakes that never finish end, and take no place from those that do.
func TestTLSHandshakesThatNeverFinishEnd(t *testing.T) {
	authority := newAuthority(t)
	link := authority.link("coordinator", "")
	link.Limits = wire.Limits{Handshakes: 10}
	lis, err := wire.Listen("127.0.0.1:0", link)
	if err != nil {
		t.Fatal(err)
	}
	srv := grpc.NewServer(append(wire.ServerOptions(link), grpc.ConnectionTimeout(time.Second))...)
	coordinatorv1.RegisterFleetServer(srv, coordinatorv1.UnimplementedFleetServer{})
	go func() { _ = srv.Serve(lis) }()
	t.Cleanup(srv.Stop)
	s := &siege{coordinator: &coordinator{t: t, addr: lis.Addr().String()}}
	var all []*raw
	for i := range 60 {
		r := s.dial()
		switch i % 3 {
		case 1:
			_, _ = r.Write([]byte{22, 3, 1, 2, 0, 1, 0, 1, 252}) // the head of a ClientHello
		case 2:
			_, _ = r.Write(bytes.Repeat([]byte{0xff}, 100))
		}
		all = append(all, r)
	}
	conn, err := wire.Dial(s.addr, authority.link("agent", "spiffe://fed/site/a"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	stream, err := coordinatorv1.NewFleetClient(conn).Pull(t.Context(), &coordinatorv1.PullRequest{})
	if err == nil {
		_, err = stream.Recv()
	}
	if status.Code(err) != codes.Unimplemented {
		t.Fatalf("beside unfinished handshakes a call ends with %v", err)
	}
	for _, r := range all {
		r.gone("a TLS handshake that never finishes")
	}
}

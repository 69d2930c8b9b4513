package profiling

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"
)

func TestOnlyLoopbackIsListenedOn(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	for _, addr := range []string{":6065", "0.0.0.0:0", "[::]:0", "192.0.2.1:6065", "example.org:80", "127.0.0.1.example.org:0", "6065", ""} {
		if s, err := Listen(addr, log); err == nil {
			_ = s.Close()
			t.Errorf("%q is listened on", addr)
		}
	}
	for _, addr := range []string{"127.0.0.1:0", "localhost:0", "127.3.2.1:0"} {
		s, err := Listen(addr, log)
		if err != nil {
			t.Errorf("%q: %v", addr, err)
			continue
		}
		_ = s.Close()
	}
}

func TestProfilesAreServedToThisMachineByItsOwnName(t *testing.T) {
	s, err := Listen("127.0.0.1:0", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	ctx, end := context.WithCancel(t.Context())
	go func() { ended <- s.Run(ctx) }()
	get := func(path, host string) (int, string) {
		req, err := http.NewRequest(http.MethodGet, "http://"+s.Addr().String()+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Host, req.Close = host, true
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		b, _ := io.ReadAll(resp.Body)
		return resp.StatusCode, string(b)
	}
	if code, body := get("/debug/pprof/goroutine?debug=1", s.Addr().String()); code != http.StatusOK || !strings.Contains(body, "goroutine profile") {
		t.Errorf("%d: %s", code, body)
	}
	if code, _ := get("/debug/pprof/goroutine?debug=1", "rebound.example.org"); code != http.StatusForbidden {
		t.Errorf("under another name: %d", code)
	}
	if code, _ := get("/debug/pprof/cmdline", "localhost"); code != http.StatusNotFound {
		t.Errorf("arguments: %d", code)
	}
	end()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

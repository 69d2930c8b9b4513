package app

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/encoding"
)

// What a coordinator shows to whom: its two services and nothing that describes
// them, profiles to this machine only, metrics to whoever reaches that port.
func TestACoordinatorServesItsServicesAndNothingElse(t *testing.T) {
	r := runChanged(t, t.TempDir(), func(o *Options, text string) string {
		o.DebugListen = "127.0.0.1:0"
		o.Link.Limits.PerAddress = 3
		return text
	})
	var names []string
	for name := range r.p.grpc.GetServiceInfo() {
		names = append(names, name)
	}
	slices.Sort(names)
	if want := []string{"girassol.coordinator.v1.Admin", "girassol.coordinator.v1.Fleet"}; !slices.Equal(names, want) {
		t.Errorf("services %v, want %v", names, want)
	}
	if encoding.GetCompressor("gzip") != nil {
		t.Error("gzip is registered: a compressed message can be a thousandfold of itself")
	}
	for _, path := range []string{"/debug/pprof/", "/debug/vars", "/"} {
		if code, _ := r.get(t, path); code != http.StatusNotFound {
			t.Errorf("the metrics' port answers %s with %d", path, code)
		}
	}
	resp, err := http.Get("http://" + r.p.debug.Addr().String() + "/debug/pprof/")
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Errorf("profiles: %d", resp.StatusCode)
	}
	http.DefaultClient.CloseIdleConnections()
	// Connections beyond the limit are counted.
	var held []net.Conn
	for range 6 {
		c, err := net.Dial("tcp", r.p.listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		held = append(held, c)
	}
	_, _ = io.ReadAll(held[5]) // closed unheard
	if _, body := r.get(t, "/metrics"); !strings.Contains(body, `girassol_connections_refused_total{federation="lm"} `) || strings.Contains(body, `girassol_connections_refused_total{federation="lm"} 0`) {
		t.Error("refused connections are not counted")
	}
}

func TestProfilesAreNotServedOffLoopback(t *testing.T) {
	config := filepath.Join(t.TempDir(), "federation.yaml")
	if err := os.WriteFile(config, []byte(admitting("")), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, addr := range []string{"0.0.0.0:0", ":0", "192.0.2.1:0"} {
		cmd := Command()
		cmd.SetArgs([]string{"--config", config, "--data", t.TempDir(), "--listen", "127.0.0.1:0", "--signals", "external", "--debug-listen", addr})
		cmd.SetOut(io.Discard)
		cmd.SetErr(io.Discard)
		if err := cmd.ExecuteContext(t.Context()); err == nil || !strings.Contains(fmt.Sprint(err), "loopback") {
			t.Errorf("%s: %v", addr, err)
		}
	}
}

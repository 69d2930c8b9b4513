// Package keda tests the operator's scaler with KEDA's own client: the package
// that KEDA's operator is compiled with.
//
// The scaler is a process of its own, the test binary of its package in another
// role: KEDA's generated code and ours have the same protobuf names, and one
// process cannot hold both.
package keda

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/kedacore/keda/v2/pkg/scalers/externalscaler"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
)

// serviceConfig is what KEDA dials with.
const serviceConfig = `{"loadBalancingConfig": [{"round_robin":{}}]}`

var binary string

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "keda-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(dir) }()
	binary = filepath.Join(dir, "server")
	if out, err := exec.Command("go", "test", "-C", filepath.Join("..", "..", "..", "operator", "scaler"), "-c", "-o", binary, ".").CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "build the scaler: %v\n%s", err, out)
		return 1
	}
	return m.Run()
}

// operator is a running server and what it is told.
type operator struct {
	address string
	in      io.Writer
	out     *bufio.Scanner
	process *os.Process
}

func start(t *testing.T) *operator {
	t.Helper()
	cmd := exec.Command(binary)
	cmd.Env = append(os.Environ(), "TEST_SCALER_ROLE=server")
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = in.Close()
		if err := cmd.Wait(); err != nil {
			t.Errorf("the server ended with %v", err)
		}
	})
	lines := bufio.NewScanner(out)
	if !lines.Scan() {
		t.Fatal("the server did not say where it listens")
	}
	return &operator{lines.Text(), in, lines, cmd.Process}
}

func (o *operator) tell(t *testing.T, what object) {
	t.Helper()
	line, err := json.Marshal(what)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := o.in.Write(append(line, '\n')); err != nil {
		t.Fatal(err)
	}
	if !o.out.Scan() {
		t.Fatal("the server is gone")
	}
}

type object = map[string]any

// window of a site: True, False, or Unknown.
func (o *operator) window(t *testing.T, site, window string) {
	t.Helper()
	o.tell(t, object{"site": object{
		"metadata": object{"namespace": "training", "name": site},
		"status":   object{"conditions": []object{{"type": "EnergyFavourable", "status": window}}},
	}})
}

func federation() object {
	return object{"federation": object{
		"metadata": object{"namespace": "training", "name": "gpt"},
		"spec":     object{"sites": []object{{"name": "quebec"}, {"name": "atlanta"}}, "rounds": object{"total": 200}},
		"status":   object{"roundsCommitted": 150},
	}}
}

func (o *operator) client(t *testing.T) externalscaler.ExternalScalerClient {
	t.Helper()
	conn, err := grpc.NewClient(o.address, grpc.WithDefaultServiceConfig(serviceConfig), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return externalscaler.NewExternalScalerClient(conn)
}

func reference(metadata map[string]string) *externalscaler.ScaledObjectRef {
	metadata["scalerAddress"] = "girassol-scaler.girassol-system:9466" // KEDA passes all on
	return &externalscaler.ScaledObjectRef{Name: "workers", Namespace: "training", ScalerMetadata: metadata}
}

func deadline(t *testing.T) context.Context {
	ctx, stop := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(stop)
	return ctx
}

// poll is one round of KEDA's: metrics, then activity. The value is read as KEDA
// reads it: the fraction where it is positive, else the whole number.
func poll(t *testing.T, ctx context.Context, c externalscaler.ExternalScalerClient, ref *externalscaler.ScaledObjectRef) (value float64, active bool) {
	t.Helper()
	spec, err := c.GetMetricSpec(ctx, ref)
	if err != nil {
		t.Fatal(err)
	}
	if len(spec.MetricSpecs) != 1 || spec.MetricSpecs[0].TargetSizeFloat <= 0 || spec.MetricSpecs[0].TargetSize <= 0 {
		t.Fatalf("a metric that no autoscaler can divide by: %v", spec)
	}
	metrics, err := c.GetMetrics(ctx, &externalscaler.GetMetricsRequest{ScaledObjectRef: ref, MetricName: spec.MetricSpecs[0].MetricName})
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range metrics.MetricValues {
		value = float64(m.MetricValue)
		if m.MetricValueFloat > 0 {
			value = m.MetricValueFloat
		}
	}
	is, err := c.IsActive(ctx, ref)
	if err != nil {
		t.Fatal(err)
	}
	return value, is.Result
}

func TestKEDAsClientReadsDemandAndActivity(t *testing.T) {
	o, ctx := start(t), deadline(t)
	c := o.client(t)
	o.tell(t, federation())
	o.window(t, "quebec", "True")
	o.window(t, "atlanta", "False")
	for _, tc := range []struct {
		metadata map[string]string
		value    float64
	}{
		{map[string]string{"federation": "training/gpt"}, 1},
		{map[string]string{"federation": "gpt", "gate": "none"}, 2},
		{map[string]string{"federation": "gpt", "site": "atlanta"}, 0},
		{map[string]string{"federation": "gpt", "demand": "rounds", "target": "25"}, 50},
	} {
		value, active := poll(t, ctx, c, reference(tc.metadata))
		if value != tc.value || active != (tc.value > 0) {
			t.Errorf("%v: KEDA reads %v, active %v; want %v", tc.metadata, value, active, tc.value)
		}
	}
}

func TestKEDAsPushScalerHearsEveryChangeOnce(t *testing.T) {
	o, ctx := start(t), deadline(t)
	c := o.client(t)
	o.tell(t, federation())
	stream, err := c.StreamIsActive(ctx, reference(map[string]string{"federation": "gpt"}))
	if err != nil {
		t.Fatal(err)
	}
	for i, window := range []string{"", "True", "False", "True"} {
		if i > 0 {
			o.window(t, "quebec", window)
		}
		got, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if want := window == "True"; got.Result != want {
			t.Fatalf("after window %q KEDA hears %v", window, got.Result)
		}
	}
}

func TestKEDAsSpecStreamBeginsWithTheSpecAndStaysOpen(t *testing.T) {
	o, ctx := start(t), deadline(t)
	c := o.client(t)
	ref := reference(map[string]string{"federation": "gpt"})
	stream, err := c.StreamMetricSpec(ctx, ref)
	if err != nil {
		t.Fatal(err)
	}
	pushed, err := stream.Recv()
	if err != nil {
		t.Fatalf("KEDA falls back to polling on %v", err)
	}
	pulled, err := c.GetMetricSpec(ctx, ref)
	if err != nil {
		t.Fatal(err)
	}
	if pushed.String() != pulled.String() {
		t.Errorf("pushed %v, pulled %v", pushed, pulled)
	}
	// The replica goes: the stream ends with a code on which KEDA tries again.
	if err := o.process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); status.Code(err) != codes.Unavailable {
		t.Errorf("the stream ends with %v", err)
	}
}

func TestErrorsReachTheScaledObject(t *testing.T) {
	o, ctx := start(t), deadline(t)
	c := o.client(t)
	for code, metadata := range map[codes.Code]map[string]string{
		codes.InvalidArgument: {},
		codes.NotFound:        {"federation": "bert"},
	} {
		if _, err := c.IsActive(ctx, reference(metadata)); status.Code(err) != code {
			t.Errorf("got %v, want %s", err, code)
		}
	}
}
